"""A model repository's small files into ModelFacts; pure: texts in, values out."""

from collections.abc import Mapping, Sequence

from epyc_vllm_agent.errors import ConfigError, Refused
from epyc_vllm_agent.facts.catalog import ModelNotes, Registry, model_notes, shipped_registry
from epyc_vllm_agent.facts.chat_template import read_chat_template
from epyc_vllm_agent.facts.hfconfig import HfConfig, parse_object
from epyc_vllm_agent.facts.kind import (
    cpu_refusal,
    model_kind,
    needs_custom_code,
    prefix_caching_refusal,
)
from epyc_vllm_agent.facts.kv_layout import HEADS, HIDDEN, read_kv_layout
from epyc_vllm_agent.facts.loaded import (
    Stored,
    dtype,
    is_tied,
    loaded_weights,
    total_bytes,
)
from epyc_vllm_agent.facts.model import KvLayout, ModelFacts, ModelKind, RepoFile
from epyc_vllm_agent.facts.quantization import quantization
from epyc_vllm_agent.facts.weights import (
    INDEXES,
    Tensor,
    choose_weight_files,
    indexed_tensors,
    needed_files,
    require_whole,
)

CONFIG = "config.json"
# Read whole to describe a model; none of them grows with it but the index, which stays small.
TEXT_FILES = (
    CONFIG,
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    *INDEXES,
)
_SERVED = (ModelKind.TEXT, ModelKind.MULTIMODAL)
# transformers_utils/model_arch_config_convertor.py in vLLM 0.32.0: the least of them counts
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Rotary scalings whose max_position_embeddings is already the scaled one.
_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_MOST_SCALED = 10_000
_LONGEST_CONFIG = 8 << 20  # characters; the longest real ones have some hundred thousand


def read_checkpoint(
    model: str,
    revision: str | None,
    files: Sequence[RepoFile],
    texts: Mapping[str, str],
    pipeline_tag: str | None = None,
    *,
    tensors: Sequence[Tensor] = (),
    registry: Registry | None = None,
    notes: ModelNotes | None = None,
) -> ModelFacts:
    """The facts of `model`: `files` are all of its repository, `texts` those of TEXT_FILES there.

    `tensors` are those of every weight file, where their headers could be read. A config that
    makes no sense raises ConfigError, one that vLLM could not choose a class by is Refused.
    """
    registry = registry or shipped_registry()
    notes = notes or model_notes()
    outer = _outer_config(model, texts)
    architectures = _architectures(outer)
    language = outer.language_model(notes.defaults)
    paths = [file.path for file in files]
    causal = language.flag("is_causal", absent=True)
    kind = model_kind(architectures, registry, pipeline_tag, paths, causal=causal)
    weights = _weight_files(files, texts, model)
    tied = is_tied(outer, language, registry.tied_by_default)
    stored = _stored(model, weights, texts, tensors)
    loaded = loaded_weights(outer, language, notes, tied, stored)
    layout = _layout(language, notes, kind)
    needed = needed_files(files, weights)
    # A directory is served as it is, of a repository only what is needed is there.
    served = paths if revision is None else [file.path for file in needed]
    return ModelFacts(
        id=model,
        revision=revision,
        architectures=architectures,
        kind=kind,
        dtype=dtype(outer, language),
        quantization=quantization(outer, language),
        max_context_tokens=_context(language, texts, model),
        custom_code=needs_custom_code(outer, registry),
        chat_template=read_chat_template(model, served, texts),
        weight_files=weights,
        weight_bytes=loaded.weight_bytes,
        expert_bytes=loaded.expert_bytes,
        vocab_size=language.integer("vocab_size"),
        hidden_size=language.integer(*HIDDEN),
        attention_heads=language.integer(*HEADS, "decoder_attention_heads"),
        kv=layout,
        kv_heads=_kv_heads(layout),
        parameters=loaded.parameters,
        registry_vllm=registry.vllm,
        listed=any(registry.lists(name) for name in architectures),
        cpu_refusal=cpu_refusal(outer, language, registry, notes),
        prefix_caching_refusal=prefix_caching_refusal(language, layout, notes),
        files=needed,
        pipeline_tag=pipeline_tag,
    )


def _outer_config(model: str, texts: Mapping[str, str]) -> HfConfig:
    if CONFIG not in texts:
        raise ConfigError(
            "no-model-config",
            f"{model} has no config.json",
            "name a model in the layout of transformers; GGUF files are not served",
        )
    if len(texts[CONFIG]) > _LONGEST_CONFIG:
        raise HfConfig(model, {}).wrong("is longer than a config.json can be")
    return HfConfig(model, parse_object(texts[CONFIG], CONFIG, model))


def _architectures(outer: HfConfig) -> tuple[str, ...]:
    names = outer.strings("architectures")
    if not names or not all(names):
        raise Refused(
            "no-architectures",
            f"config.json of {outer.model} names no architectures, so that nothing says how to"
            " run it",
            "choose a revision whose config.json has them, or the model it was derived from",
        )
    return names


def _weight_files(
    files: Sequence[RepoFile], texts: Mapping[str, str], model: str
) -> tuple[RepoFile, ...]:
    if chosen := choose_weight_files(files, texts, model):
        require_whole(chosen, model)
        return chosen
    raise Refused(
        "no-weights",
        f"{model} has no weights that vLLM can load (safetensors or PyTorch's .bin)",
        "GGUF, ONNX and other formats are not served; choose the model they were made from",
    )


def _stored(
    model: str,
    weights: Sequence[RepoFile],
    texts: Mapping[str, str],
    tensors: Sequence[Tensor],
) -> Stored:
    names: tuple[str, ...] = ()
    for index in INDEXES:
        if index in texts and not names:
            names = tuple(indexed_tensors(texts[index], index, model))
    return Stored(tuple(tensors), names, total_bytes([file.size_bytes for file in weights]))


def _layout(language: HfConfig, notes: ModelNotes, kind: ModelKind) -> KvLayout | None:
    """The KV layout; what is not served anyway need not have a config that makes sense."""
    try:
        return read_kv_layout(language, notes)
    except ConfigError:
        if kind in _SERVED:
            raise
        return None


def _kv_heads(layout: KvLayout | None) -> int | None:
    heads = [layer.heads for layer in layout.layers if layer.heads] if layout else []
    return min(heads, default=None)


def _context(language: HfConfig, texts: Mapping[str, str], model: str) -> int | None:
    """The longest context that vLLM lets `--max-model-len` be; None: the config has no limit."""
    limits = [limit for name in _CONTEXT if (limit := language.integer(name))]
    own = language.integer("model_max_length")
    longest = own or min(limits, default=None)
    if longest is None:
        return None
    bound = _tokenizer_limit(texts, model) or longest
    return int(min(longest, bound) * _rope_factor(language))


def _tokenizer_limit(texts: Mapping[str, str], model: str) -> float | None:
    """model_max_length of the tokenizer, which bounds too; often a number without meaning."""
    path = "tokenizer_config.json"
    if path not in texts:
        return None
    try:
        limit = HfConfig(model, parse_object(texts[path], path, model)).number("model_max_length")
    except ConfigError:
        return None
    return limit if limit and limit >= 1 else None


def _rope_factor(language: HfConfig) -> float:
    if "gemma3" in language.model_type:
        return 1.0  # its limit is the scaled one (_get_and_verify_max_len in vLLM)
    rope = language.section("rope_parameters") or language.section("rope_scaling")
    if rope is None or (rope.text("rope_type", "type") or "default") in (*_SCALED, "default"):
        return 1.0
    factor = rope.number("factor") or 1.0
    if not 0 < factor <= _MOST_SCALED:
        raise language.wrong(f"has a rotary scaling factor of {factor}, which cannot be")
    return factor
