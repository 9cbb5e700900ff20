"""How many parameters a language model has by its config alone; reads no tensor.

Used where the files do not tell what vLLM loads of them: is a tied head stored, how large is a
multi-token prediction layer. Norms and biases are left out where they are below a thousandth.
"""

from dataclasses import dataclass

from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.kv_layout import (
    HEADS,
    HIDDEN,
    LAYER_COUNT,
    LayerKind,
    head_dim,
    kv_heads,
    layer_kinds,
)

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
INNER = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "ffn_hidden_dim")
ACTIVATION = ("mlp_hidden_act", "activation_function", "hidden_act", "hidden_activation")
EXTRA_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Counts by what becomes of them: `linear` is what quantisation shrinks."""

    linear: int
    experts: int  # the part of `linear` that is in routed experts
    embedding: int
    head: int  # vocabulary x hidden, of a separate output head; also when it is tied
    tied: bool
    extra: int  # multi-token prediction layers, which vLLM does not load

    @property
    def loaded(self) -> int:
        return self.linear + self.embedding + (0 if self.tied else self.head)


def count_parameters(config: HfConfig, tied: bool) -> ParameterCount | None:
    """The count for a decoder of the usual make; None where the config lacks what it takes."""
    try:
        return _count(config, tied)
    except ConfigError:
        return None


def _count(config: HfConfig, tied: bool) -> ParameterCount | None:
    hidden, vocabulary = config.integer(*HIDDEN), config.integer("vocab_size")
    if not hidden or not vocabulary or not config.integer(*LAYER_COUNT):
        return None
    if config.sections("block_configs") or config.flag("is_encoder_decoder"):
        return None
    kinds = layer_kinds(config)
    linear = sum(_layer(config, index, kind, hidden) for index, kind in enumerate(kinds))
    experts = sum(
        _routed(config, index, hidden)
        for index, kind in enumerate(kinds)
        if _has_feed_forward(config, kind)
    )
    embedding = vocabulary * hidden
    return ParameterCount(linear, experts, embedding, embedding, tied, _extra(config, hidden))


def _layer(config: HfConfig, index: int, kind: LayerKind, hidden: int) -> int:
    mixer = 2 * hidden  # the norms
    if kind in (LayerKind.STATE, LayerKind.BOTH):
        mixer += _state(config, hidden)
    if kind in (LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED, LayerKind.BOTH):
        mixer += _attention(config, hidden)
    if not _has_feed_forward(config, kind):
        return mixer
    return mixer + _feed_forward(config, index, hidden)


def _has_feed_forward(config: HfConfig, kind: LayerKind) -> bool:
    """Nemotron-H's pattern makes a layer of every mixer and of every MLP; Mamba has no MLP."""
    alone = config.text("hybrid_override_pattern") or config.raw(*HEADS) is None
    return not alone or kind is LayerKind.NONE


def _attention(config: HfConfig, hidden: int) -> int:
    heads = config.need(*HEADS)
    if rank := config.integer("kv_lora_rank"):
        return _latent_attention(config, hidden, heads, rank)
    dim = head_dim(config)
    queries = heads * dim * (2 if config.flag("attn_output_gate", _gated(config)) else 1)
    return hidden * (queries + 2 * kv_heads(config) * dim + heads * dim)


def _gated(config: HfConfig) -> bool:
    """Qwen3-Next gates attention's output and its config does not say so."""
    return config.integer("linear_num_value_heads") is not None


def _latent_attention(config: HfConfig, hidden: int, heads: int, rank: int) -> int:
    plain, rotated = config.need("qk_nope_head_dim"), config.integer("qk_rope_head_dim") or 0
    values = config.need("v_head_dim")
    query_rank = config.integer("q_lora_rank")
    queries = (
        (hidden + heads * (plain + rotated)) * query_rank
        if query_rank
        else (hidden * heads * (plain + rotated))
    )
    latent = hidden * (rank + rotated) + rank * heads * (plain + values)
    return queries + latent + heads * values * hidden


def _state(config: HfConfig, hidden: int) -> int:
    if value_heads := config.integer("linear_num_value_heads"):
        keys = config.need("linear_num_key_heads") * config.need("linear_key_head_dim")
        values = value_heads * config.need("linear_value_head_dim")
        return hidden * (2 * keys + 3 * values + 2 * value_heads)
    heads = config.integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    dim = config.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    size = config.integer("ssm_state_size", "mamba_d_state", "state_size") or 0
    inner = heads * dim if heads and dim else hidden * config.need("mamba_expand", "expand")
    if heads:
        groups = config.integer("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
        return hidden * (3 * inner + 2 * groups * size + heads)
    rank = config.integer("mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
    return 3 * hidden * inner + inner * (2 * rank + 3 * size)


def _feed_forward(config: HfConfig, index: int, hidden: int) -> int:
    routed = _routed(config, index, hidden)
    if not routed:
        inner = config.integer("intermediate_size_mlp", *INNER) or 4 * hidden
        return _mlp(config, hidden, inner)
    router = (config.integer(*EXPERTS) or 0) * hidden
    return routed + router + _mlp(config, hidden, _shared_inner(config, _expert_inner(config)))


def _routed(config: HfConfig, index: int, hidden: int) -> int:
    """Of the experts that a router chooses from, in layer `index`."""
    experts = config.integer(*EXPERTS) or 0
    if not experts or not _has_experts(config, index):
        return 0
    return experts * _mlp(config, hidden, _expert_inner(config))


def _expert_inner(config: HfConfig) -> int:
    return config.integer("moe_intermediate_size", *INNER) or 4 * config.need(*HIDDEN)


def _mlp(config: HfConfig, hidden: int, inner: int) -> int:
    """Gate, up and down; two matrices where the activation is not gated."""
    ungated = config.text(*ACTIVATION) in ("relu2", "relu", "gelu_new", "gelu_fast")
    return (2 if ungated else 3) * hidden * inner


def _shared_inner(config: HfConfig, inner: int) -> int:
    named = config.integer("shared_expert_intermediate_size", "shared_intermediate_size")
    if named is not None:
        return named
    if config.integer("interleave_moe_layer_step"):
        return inner  # Llama 4 has one shared expert and does not say so
    return (config.integer("n_shared_experts") or 0) * inner


def _has_experts(config: HfConfig, index: int) -> bool:
    if (first := config.integer("first_k_dense_replace")) is not None:
        return index >= first and index % (config.integer("moe_layer_freq") or 1) == 0
    if period := config.integer("expert_layer_period"):
        return index % period == (config.integer("expert_layer_offset") or 0)
    if index in (config.integers("mlp_only_layers") or ()):
        return False
    step = config.integer("decoder_sparse_step", "interleave_moe_layer_step") or 1
    return (index + 1) % step == 0


def _extra(config: HfConfig, hidden: int) -> int:
    """Multi-token prediction layers: a last layer each, and what joins two embeddings."""
    layers = config.integer(*EXTRA_LAYERS) or 0
    if not layers and config.text("model_type") == "qwen3_next":
        layers = 1  # its checkpoint has one and its config does not say so
    if not layers:
        return 0
    last = config.need(*LAYER_COUNT)
    # DeepSeek and GLM store the embedding and the head once more with the layer.
    copies = 2 * config.need("vocab_size") * hidden if config.integer(EXTRA_LAYERS[0]) else 0
    return layers * (_layer(config, last, LayerKind.FULL, hidden) + 2 * hidden * hidden + copies)
