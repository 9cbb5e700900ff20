"""From a repository's small files to ModelFacts: kinds, limits, custom code and bad input."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.errors import AgentError, ConfigError, Refused
from epyc_vllm_agent.facts.catalog import model_notes, shipped_registry
from epyc_vllm_agent.facts.checkpoint import read_checkpoint
from epyc_vllm_agent.facts.kv import kv_request_bytes
from epyc_vllm_agent.facts.model import EndpointKind, ModelFacts, ModelKind, RepoFile

MODEL = "org/name"
QWEN: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def facts(
    config: object = QWEN,
    *,
    tag: str | None = "text-generation",
    more: Iterable[str] = (),
    texts: dict[str, str] | None = None,
    revision: str | None = "c0ffee",
) -> ModelFacts:
    read = {"config.json": config if isinstance(config, str) else json.dumps(config)}
    read |= texts or {}
    paths = {"model.safetensors", *read, *more}
    files = [RepoFile(path, 1000) for path in sorted(paths)]
    return read_checkpoint(MODEL, revision, files, read, tag)


def test_a_plain_model() -> None:
    template = {"tokenizer_config.json": '{"chat_template": "x"}'}
    found = facts(texts=template)
    assert found.kind is ModelKind.TEXT
    assert (found.dtype, found.quantization) == ("bfloat16", None)
    assert (found.attention_heads, found.kv_heads, found.hidden_size) == (4, 2, 64)
    assert found.max_context_tokens == 40960
    assert found.weight_files == (RepoFile("model.safetensors", 1000),)
    assert found.supported_endpoints == (EndpointKind.CHAT, EndpointKind.COMPLETIONS)
    assert found.download_bytes == 3000
    assert found.listed
    assert not found.custom_code
    assert found.cpu_refusal is None


def test_without_a_template_there_is_no_chat() -> None:
    found = facts()
    assert found.primary_endpoint is EndpointKind.COMPLETIONS
    assert found.supported_endpoints == (EndpointKind.COMPLETIONS,)


@pytest.mark.parametrize(
    ("architecture", "tag", "more", "kind"),
    [
        ("Qwen3ForCausalLM", "text-generation", (), ModelKind.TEXT),
        ("Qwen3ForCausalLM", None, (), ModelKind.TEXT),
        ("LlamaForCausalLM", "text-generation", (), ModelKind.TEXT),
        ("Qwen3ForCausalLM", "feature-extraction", (), ModelKind.EMBEDDING),
        ("Qwen3ForCausalLM", "text-ranking", (), ModelKind.RERANKER),
        ("Qwen3ForCausalLM", None, ("modules.json",), ModelKind.EMBEDDING),
        ("Qwen2ForCausalLM", "sentence-similarity", (), ModelKind.EMBEDDING),
        ("Qwen3VLForConditionalGeneration", "image-text-to-text", (), ModelKind.MULTIMODAL),
        ("VoxtralForConditionalGeneration", "automatic-speech-recognition", (), None),
        ("WhisperForConditionalGeneration", None, (), ModelKind.SPEECH),
        ("XLMRobertaModel", None, (), ModelKind.EMBEDDING),
        ("BertForSequenceClassification", "text-classification", (), ModelKind.RERANKER),
        ("Qwen2ForRewardModel", None, (), ModelKind.RERANKER),
        ("UnheardOfForCausalLM", "text-generation", (), ModelKind.UNKNOWN),
    ],
)
def test_kinds(
    architecture: str, tag: str | None, more: tuple[str, ...], kind: ModelKind | None
) -> None:
    found = facts({**QWEN, "architectures": [architecture]}, tag=tag, more=more)
    assert found.kind is (kind or ModelKind.MULTIMODAL)
    assert found.listed is (kind is not ModelKind.UNKNOWN)


def test_a_decoder_that_is_not_causal_is_an_embedding_model() -> None:
    assert facts({**QWEN, "is_causal": False}, tag=None).kind is ModelKind.EMBEDDING


def test_the_language_model_of_a_multimodal_config() -> None:
    text = {
        key: value for key, value in QWEN.items() if key not in ("architectures", "torch_dtype")
    }
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {**text, "dtype": "bfloat16"},
        "vision_config": {"hidden_size": 9999, "num_attention_heads": 1},
    }
    found = facts(config, tag="image-text-to-text")
    assert (found.hidden_size, found.attention_heads, found.dtype) == (64, 4, "bfloat16")


def test_a_sparse_config_is_filled_in() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
    }
    found = facts(config, tag=None)
    assert (found.attention_heads, found.kv_heads) == (8, 4)
    assert (found.vocab_size, found.max_context_tokens) == (262208, 131072)


@pytest.mark.parametrize(
    ("changes", "tokenizer", "limit"),
    [
        ({}, None, 40960),
        ({"max_position_embeddings": None}, None, None),
        ({"max_position_embeddings": None, "n_positions": 1024}, None, 1024),
        ({"model_max_length": 8192}, None, 8192),
        ({}, 2048, 2048),
        ({}, 1e30, 40960),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None, 81920),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, None, 40960),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": None}}, None, 40960),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None, 40960),
    ],
)
def test_the_longest_context(
    changes: dict[str, object], tokenizer: float | None, limit: int | None
) -> None:
    text = json.dumps({"model_max_length": tokenizer})
    texts = {"tokenizer_config.json": text} if tokenizer else None
    assert facts({**QWEN, **changes}, texts=texts).max_context_tokens == limit


def test_custom_code_is_a_matter_of_the_model_type() -> None:
    own = {"AutoConfig": "configuration_x.XConfig"}
    assert facts({**QWEN, "model_type": "nemotron-nas", "auto_map": own}).custom_code
    # The code of DeepSeek's repository is not needed: transformers knows the type.
    assert not facts({**QWEN, "model_type": "deepseek_v3", "auto_map": own}).custom_code
    assert not facts({**QWEN, "model_type": "never-heard-of"}).custom_code


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "sparse attention"),
        ({"index_topk": 2048}, "sparse attention"),
        ({"n_routed_experts": 128, "mlp_hidden_act": "relu2"}, "no gate"),
    ],
)
def test_what_the_cpu_will_not_run(changes: dict[str, object], reason: str) -> None:
    assert reason in (facts({**QWEN, **changes}).cpu_refusal or "")


MAMBA2: dict[str, object] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({**MAMBA2, "layer_types": ["mamba", "attention"], "num_hidden_layers": 2}, True),
        ({**MAMBA2, "layer_types": ["mamba", "mamba"], "num_hidden_layers": 2}, False),
        ({"conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}, False),
        ({}, False),
    ],
)
def test_what_the_cpu_will_not_run_with_prefix_caching(
    changes: dict[str, object], refused: bool
) -> None:
    reason = facts({**QWEN, **changes}).prefix_caching_refusal
    assert (reason is not None) is refused
    assert "Mamba 2" in (reason or "Mamba 2")


INT8: dict[str, object] = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8: dict[str, object] = {"num_bits": 8, "type": "float", "strategy": "channel"}


def compressed(weights: dict[str, object], form: str = "int-quantized") -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def gptq(**more: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, **more}


@pytest.mark.parametrize(
    ("section", "dense", "experts"),
    [
        (gptq(), None, None),
        (gptq(bits=8), "other than 4 bits", "other than 4 bits"),
        (gptq(desc_act=True), "desc_act", "desc_act"),
        (gptq(desc_act=True, group_size=-1), None, None),
        ({"quant_method": "awq", "bits": 4, "zero_point": True}, None, "zero points"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, None, "need AMX"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "need AMX", "need AMX"),
        ({"quant_method": "mxfp4"}, "need AMX", "need AMX"),
        (compressed(INT8), None, None),
        (compressed(FP8, "float-quantized"), None, "need AMX"),
        (compressed({**FP8, "strategy": "block"}), "need AMX", "need AMX"),
        (compressed({"num_bits": 4, "type": "float"}, "nvfp4-pack-quantized"), "NVFP4", "NVFP4"),
        ({"quant_method": "bitsandbytes"}, "knows no quantisation", "knows no quantisation"),
    ],
)
def test_quantised_weights_that_run_without_amx(
    section: dict[str, object], dense: str | None, experts: str | None
) -> None:
    config = {**QWEN, "quantization_config": section}
    for found, expected in (
        (facts(config), dense),
        (facts({**config, "num_experts": 8, "num_experts_per_tok": 2}), experts),
    ):
        assert found.quantization == section["quant_method"]
        assert (found.cpu_refusal is None) is (expected is None)
        assert (expected or "") in (found.cpu_refusal or "")


def test_a_bare_infinity_is_read() -> None:
    text = json.dumps(QWEN)[:-1] + ', "time_step_limit": [0.0, Infinity]}'
    assert facts(text).kind is ModelKind.TEXT


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ("<html>", "bad-model-config", "is not JSON"),
        ("", "bad-model-config", "is not JSON"),
        ("[" * 100_000, "bad-model-config", "is not JSON"),
        ("[1]", "bad-model-config", "does not hold a JSON object"),
        ({"model_type": "mistral"}, "no-architectures", "names no architectures"),
        ({"architectures": []}, "no-architectures", "names no architectures"),
        ({"architectures": "Qwen3ForCausalLM"}, "no-architectures", "names no architectures"),
        ({**QWEN, "num_hidden_layers": -1}, "bad-model-config", "num_hidden_layers = -1"),
        ({**QWEN, "hidden_size": 10**30}, "bad-model-config", "hidden_size = 1000"),
        ({**QWEN, "num_hidden_layers": None}, "bad-model-config", "names no num_hidden_layers"),
        ({**QWEN, "num_hidden_layers": 10**9}, "bad-model-config", "num_hidden_layers = 10"),
        ({**QWEN, "num_hidden_layers": "two"}, "bad-model-config", "names no num_hidden_layers"),
        ({**QWEN, "architectures": ["\ud800"]}, "bad-model-config", "a name in architectures"),
        ({**QWEN, "architectures": ["\x1b[2J\nA"]}, "bad-model-config", "a name in architectures"),
        ({**QWEN, "architectures": ["A" * 999]}, "bad-model-config", "a name in architectures"),
        ({**QWEN, "architectures": [""]}, "no-architectures", "names no architectures"),
        ({**QWEN, "model_type": "a\nb"}, "bad-model-config", "a text for model_type"),
        (
            {**QWEN, "quantization_config": {"quant_method": "x\nOK"}},
            "bad-model-config",
            "a text for quant_method",
        ),
        ({**QWEN, "hybrid_override_pattern": "M*-" * 10**6}, "bad-model-config", "a text for"),
        ({**QWEN, "hybrid_layer_pattern": [0] * 10**6}, "bad-model-config", "longer than any"),
        ({**QWEN, "block_configs": [{}] * 10**6}, "bad-model-config", "longer than any"),
        ({**QWEN, "padding": " " * 9_000_000}, "bad-model-config", "longer than a config"),
        ({**QWEN, "layer_types": ["full_attention"]}, "bad-model-config", "kind of 1 layers"),
        ({**QWEN, "num_kv_shared_layers": 2}, "bad-model-config", "2 layers of which 2"),
        (
            {**QWEN, "num_attention_heads": None, "num_key_value_heads": None},
            "bad-model-config",
            "names no num_attention_heads",
        ),
    ],
)
def test_bad_configs_are_refused_in_a_sentence(config: object, code: str, message: str) -> None:
    with pytest.raises(AgentError, match=message) as caught:
        facts(config)
    assert caught.value.code == code
    assert MODEL in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("factor", [-4, 1e300])
def test_a_scaling_factor_that_cannot_be(factor: float) -> None:
    config = {**QWEN, "rope_scaling": {"rope_type": "linear", "factor": factor}}
    with pytest.raises(AgentError, match="rotary scaling factor") as caught:
        facts(config)
    assert caught.value.code == "bad-model-config"


def test_an_infinite_scaling_factor_is_none() -> None:
    text = json.dumps({**QWEN, "rope_scaling": {"rope_type": "linear", "factor": float("inf")}})
    assert facts(text).max_context_tokens == facts(QWEN).max_context_tokens


def test_what_is_not_served_need_not_make_sense() -> None:
    found = facts({"architectures": ["XLMRobertaModel"], "model_type": "odd"}, tag=None)
    assert (found.kind, found.kv) == (ModelKind.EMBEDDING, None)


def test_no_config_and_no_weights_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_checkpoint(MODEL, None, [RepoFile("model.safetensors", 1)], {})
    texts = {"config.json": json.dumps(QWEN)}
    with pytest.raises(Refused, match="has no weights"):
        read_checkpoint(MODEL, None, [RepoFile("model.gguf", 1)], texts)


KEYS = (
    "architectures",
    "attn_layer_offset",
    "attn_layer_period",
    "attention_chunk_size",
    "block_configs",
    "conv_L_cache",
    "decoder_layers",
    "expert_layer_period",
    "first_k_dense_replace",
    "full_attention_interval",
    "head_dim",
    "hidden_size",
    "hybrid_override_pattern",
    "intermediate_size",
    "is_causal",
    "is_encoder_decoder",
    "kv_lora_rank",
    "layer_types",
    "linear_attn_config",
    "linear_num_value_heads",
    "mamba_d_conv",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_heads",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_only_layers",
    "model_type",
    "moe_layer_freq",
    "multi_query",
    "n_heads_in_group",
    "no_rope_layers",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_shared_layers",
    "num_nextn_predict_layers",
    "q_lora_rank",
    "quantization_config",
    "rope_scaling",
    "sliding_window",
    "sliding_window_pattern",
    "text_config",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
    "v_head_dim",
    "vocab_size",
    "attention",
)
SMALL = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from([0.5, 1e30, "M*-", "full"])
JSON = st.recursive(
    SMALL,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_no_config_crashes(changes: dict[str, object]) -> None:
    try:
        found = facts({**QWEN, **changes}, tag=None)
    except AgentError as error:
        reached: object = error.code
    else:
        reached = found.id
        assert found.weight_bytes is None or found.weight_bytes >= 0
        assert found.kv is None or kv_request_bytes(found.kv, 4096, ranks=2) >= 0
    assert reached in (MODEL, "bad-model-config", "no-architectures")


def test_the_shipped_tables_fit_each_other() -> None:
    registry, notes = shipped_registry(), model_notes()
    assert registry.vllm == "0.32.0"
    assert registry.transcription < registry.multimodal
    assert "LlamaForCausalLM" in registry.text_generation & registry.embedding
    assert set(notes.cpu_refused) <= registry.text_generation | registry.multimodal
    assert set(notes.defaults) <= registry.model_types
    assert not registry.draft & registry.text_generation
