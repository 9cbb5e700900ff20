"""What a model is for, by vLLM's registry, the hub's tag and its files; reads none of them itself.

The registry's tables overlap and an embedding model made of a decoder (Qwen3-Embedding) has the
config of a generating one, so what the publisher says of its use comes first.
"""

from collections.abc import Collection

from epyc_vllm_agent.facts.catalog import ModelNotes, Registry
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.model import KvLayout, ModelKind
from epyc_vllm_agent.facts.parameters import ACTIVATION, EXPERTS
from epyc_vllm_agent.facts.quantization import quantization_refusal
from epyc_vllm_agent.facts.states import is_mamba2

# https://huggingface.co/tasks: the tags that say that a model is not for generation
_TAGS = {
    "feature-extraction": ModelKind.EMBEDDING,
    "sentence-similarity": ModelKind.EMBEDDING,
    "image-feature-extraction": ModelKind.EMBEDDING,
    "visual-document-retrieval": ModelKind.EMBEDDING,
    "text-ranking": ModelKind.RERANKER,
    "automatic-speech-recognition": ModelKind.SPEECH,
    "text-to-speech": ModelKind.SPEECH,
}
# Files that sentence-transformers writes (its Transformer and Pooling modules).
_SENTENCE_TRANSFORMERS = ("modules.json", "config_sentence_transformers.json")
_CROSS_ENCODER = "CrossEncoder"
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForRanking")


def model_kind(
    architectures: Collection[str],
    registry: Registry,
    pipeline_tag: str | None,
    paths: Collection[str],
    *,
    causal: bool = True,
) -> ModelKind:
    if registry.transcription.intersection(architectures):
        return ModelKind.SPEECH
    if any(name.endswith(_CLASSIFIERS) for name in architectures):
        return ModelKind.RERANKER
    generating = registry.text_generation.union(registry.multimodal)
    if pipeline_tag in _TAGS and not (
        # Multimodal models that also hear are tagged by what they hear.
        _TAGS[pipeline_tag] is ModelKind.SPEECH and registry.multimodal.intersection(architectures)
    ):
        return _TAGS[pipeline_tag]
    if any(path in _SENTENCE_TRANSFORMERS for path in paths) or not causal:
        return ModelKind.EMBEDDING
    # Text generation first: LlamaForCausalLM is in a pooling table too.
    if registry.text_generation.intersection(architectures):
        return ModelKind.TEXT
    if registry.multimodal.intersection(architectures):
        return ModelKind.MULTIMODAL
    if registry.classification.intersection(architectures) - generating:
        return ModelKind.RERANKER
    if registry.embedding.intersection(architectures) - generating:
        return ModelKind.EMBEDDING
    return ModelKind.UNKNOWN


def needs_custom_code(outer: HfConfig, registry: Registry) -> bool:
    """Whether the config can be read with the model's own code alone (trust_remote_code).

    Many repositories carry such code (auto_map) for models that transformers or vLLM have long
    had themselves; the code is then not executed.
    """
    return outer.section("auto_map") is not None and outer.model_type not in registry.model_types


def prefix_caching_refusal(
    language: HfConfig, layout: KvLayout | None, notes: ModelNotes
) -> str | None:
    """Why vLLM's CPU backend runs a model without prefix caching alone; only hybrids have it on."""
    if layout is None or not layout.layers or not layout.state_layers:
        return None
    return notes.prefix_caching_refused if is_mamba2(language) else None


def cpu_refusal(
    outer: HfConfig, language: HfConfig, registry: Registry, notes: ModelNotes
) -> str | None:
    """Why vLLM's CPU backend will not run a model that its registry lists."""
    for name in outer.strings("architectures") or ():
        if reason := notes.cpu_refused.get(name):
            return reason
    for key, reason in notes.cpu_refused_keys.items():
        if language.raw(key) is not None:
            return reason
    experts = bool(language.integer(*EXPERTS))
    if experts and language.text(*ACTIVATION) in notes.ungated_activations:
        return notes.ungated_experts_refused
    return quantization_refusal(outer, language, registry, notes, experts=experts)
