"""Which layers of a model cache what, read from its config; knows nothing of blocks and pools.

The rules are those of transformers' configuration classes and of vLLM 0.32.0's model classes; they
look at the keys that are there and not at lists of model names, so that a new model of a known
make needs nothing here.
"""

from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto

from epyc_vllm_agent.facts.catalog import ModelNotes
from epyc_vllm_agent.facts.hfconfig import MOST_LAYERS, HfConfig
from epyc_vllm_agent.facts.model import KvLayer, KvLayout
from epyc_vllm_agent.facts.states import hybrid_copies, state_bytes_per_layer

CACHE_BYTES = 2  # bfloat16; vLLM's kv_cache_dtype "auto" follows the served dtype
MLA_BLOCK_TOKENS = 16  # vllm/platforms/cpu.py: the CPU's MLA kernel without AMX knows no other

LAYER_COUNT = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_attention_groups",
)
HEAD_DIM = ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels")
NO_ROPE = ("no_rope_layers", "no_rope_layer_interval")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")


class LayerKind(Enum):
    FULL = auto()
    SLIDING = auto()
    CHUNKED = auto()
    STATE = auto()
    BOTH = auto()  # attention and a state (Falcon-H1, Zamba2)
    NONE = auto()


def read_kv_layout(config: HfConfig, notes: ModelNotes) -> KvLayout | None:
    """The layout of the language model that `config` describes; None: not known how to tell."""
    if config.raw("compress_ratios") is not None:
        return None  # DeepSeek V4 compresses its cache by rules of its own
    if config.model_type in notes.encoders or not config.flag("is_causal", absent=True):
        return KvLayout(())
    if config.integer("decoder_layers") and config.flag("is_encoder_decoder"):
        return _encoder_decoder(config)
    if blocks := config.sections("block_configs"):
        return KvLayout(_merge(_blockwise_layers(config, blocks)))
    kinds = layer_kinds(config)
    states = sum(kind in (LayerKind.STATE, LayerKind.BOTH) for kind in kinds)
    state = state_bytes_per_layer(config) if states else 0
    if state is None:
        return None
    latent = config.model_type in notes.latent and bool(config.integer("kv_lora_rank"))
    layers = _merge(_attention_layers(config, kinds, latent))
    return KvLayout(
        layers,
        state_bytes=state * states,
        state_layers=states,
        state_copies=hybrid_copies(config) if layers and states else 1,
        block_tokens=MLA_BLOCK_TOKENS if latent else None,
    )


def layer_kinds(config: HfConfig) -> tuple[LayerKind, ...]:
    """What each layer keeps, without those at the end that use another layer's cache."""
    count = config.need(*LAYER_COUNT, most=MOST_LAYERS)
    declared = _declared(config, count)
    if declared and len(declared) < count:
        raise config.wrong(f"names the kind of {len(declared)} layers and has {count}")
    kinds = declared or tuple(_by_rule(config, index) for index in range(count))
    shared = config.integer("num_kv_shared_layers") or 0
    if shared >= len(kinds):
        raise config.wrong(f"has {len(kinds)} layers of which {shared} use another one's cache")
    return kinds[: len(kinds) - shared]


def kv_heads(config: HfConfig) -> int:
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1
    return config.integer(*KV_HEADS) or config.need(*HEADS)


def head_dim(config: HfConfig) -> int:
    if dim := config.integer(*HEAD_DIM) or config.need(*HIDDEN) // config.need(*HEADS):
        return dim
    raise config.wrong("has more attention heads than its hidden size allows")


def _declared(config: HfConfig, count: int) -> tuple[LayerKind, ...]:
    """Kinds that the config spells out, one for each layer."""
    if pattern := config.text("hybrid_override_pattern"):
        marks = {"M": LayerKind.STATE, "*": LayerKind.FULL}
        return tuple(marks.get(mark, LayerKind.NONE) for mark in pattern)
    if windowed := config.integers("hybrid_layer_pattern"):
        return tuple(LayerKind.SLIDING if layer else LayerKind.FULL for layer in windowed)
    names = config.strings("layer_types") or config.strings("layers_block_type") or ()
    return tuple(_named_kind(name, config) for name in names[:count])


def _named_kind(name: str, config: HfConfig) -> LayerKind:
    if name == "hybrid":  # Zamba2
        return LayerKind.BOTH
    if any(word in name for word in ("linear", "mamba", "recurrent", "conv")):
        return LayerKind.STATE
    if "sliding" in name and window(config):
        return LayerKind.SLIDING
    if "chunked" in name and config.integer("attention_chunk_size"):
        return LayerKind.CHUNKED
    return LayerKind.NONE if name in ("mlp", "moe") else LayerKind.FULL


def window(config: HfConfig) -> int | None:
    if not config.flag("use_sliding_window", absent=True):
        return None
    return config.integer("sliding_window") or None


def _by_rule(config: HfConfig, index: int) -> LayerKind:
    """The kind of layer `index` where the config holds a rule instead of a list."""
    if period := config.integer("attn_layer_period"):
        offset = config.integer("attn_layer_offset") or 0
        return LayerKind.FULL if index % period == offset else LayerKind.STATE
    if interval := config.integer("full_attention_interval"):
        return LayerKind.STATE if (index + 1) % interval else LayerKind.FULL
    if config.raw(*HEADS) is None and config.integer("state_size"):
        return LayerKind.STATE
    if config.integer("mamba_n_heads"):
        return LayerKind.BOTH
    if config.integer("attention_chunk_size") and config.raw(*NO_ROPE) is not None:
        return LayerKind.CHUNKED if _has_rope(config, index) else LayerKind.FULL
    if window(config):
        return _window_rule(config, index)
    return LayerKind.FULL


def _has_rope(config: HfConfig, index: int) -> bool:
    """Llama 4: layers with RoPE attend inside their chunk, the others to everything."""
    if listed := config.integers("no_rope_layers"):
        return bool(listed[index]) if index < len(listed) else True
    return bool((index + 1) % (config.integer("no_rope_layer_interval") or 4))


def _window_rule(config: HfConfig, index: int) -> LayerKind:
    if pattern := config.integer("sliding_window_pattern"):
        return LayerKind.SLIDING if (index + 1) % pattern else LayerKind.FULL
    if letters := config.text("sliding_window_pattern"):  # "LLLG"
        local = letters[index % len(letters)] == "L"
        return LayerKind.SLIDING if local else LayerKind.FULL
    full_until = config.integer("max_window_layers") if config.flag("use_sliding_window") else 0
    return LayerKind.SLIDING if index >= (full_until or 0) else LayerKind.FULL


def _attention_layers(config: HfConfig, kinds: Iterable[LayerKind], latent: bool) -> list[KvLayer]:
    full = _latent_layer if latent else _full_layer
    makers = {
        LayerKind.FULL: full,
        LayerKind.BOTH: full,
        LayerKind.SLIDING: _sliding_layer,
        LayerKind.CHUNKED: _chunked_layer,
    }
    return [makers[kind](config) for kind in kinds if kind in makers]


def _latent_layer(config: HfConfig) -> KvLayer:
    """MLA keeps one latent vector with the rotated part of the keys, and no values."""
    latent = config.need("kv_lora_rank") + (config.integer("qk_rope_head_dim") or 0)
    return KvLayer(1, latent * CACHE_BYTES, None)


def _full_layer(config: HfConfig) -> KvLayer:
    if config.integer("kv_lora_rank"):
        # Expanded latent attention (MiniCPM3): values are padded to the size of the keys.
        keys = config.need("qk_nope_head_dim") + (config.integer("qk_rope_head_dim") or 0)
        return _layer(config.need(*HEADS), keys, keys)
    heads = kv_heads(config)
    if config.flag("attention_k_eq_v"):  # Gemma 4 counts heads of its own where K is V
        heads = config.integer("num_global_key_value_heads") or heads
    dim = config.integer("global_head_dim") or head_dim(config)
    return _layer(heads, dim, config.integer("v_head_dim") or dim)


def _sliding_layer(config: HfConfig) -> KvLayer:
    heads = config.integer("swa_num_key_value_heads") or kv_heads(config)
    dim = config.integer("swa_head_dim") or head_dim(config)
    values = config.integer("swa_v_head_dim", "v_head_dim") or dim
    return _layer(heads, dim, values, window(config))


def _chunked_layer(config: HfConfig) -> KvLayer:
    layer = _full_layer(config)
    chunk = config.integer("attention_chunk_size")
    return KvLayer(1, layer.bytes_per_token, layer.heads, chunk, chunked=True)


def _layer(heads: int, keys: int, values: int, window_tokens: int | None = None) -> KvLayer:
    return KvLayer(1, heads * (keys + values) * CACHE_BYTES, heads, window_tokens)


def _blockwise_layers(config: HfConfig, blocks: Iterable[HfConfig]) -> list[KvLayer]:
    """Nemotron-NAS: each block has its own attention, or none."""
    heads = config.need(*HEADS)
    layers = []
    for block in blocks:
        attention = block.section("attention")
        if attention is None or attention.flag("no_op") or attention.flag("replace_with_linear"):
            continue
        group = attention.integer("n_heads_in_group") or 1
        dim = head_dim(config)
        layers.append(_layer(max(1, heads // group), dim, dim, attention.integer("window_length")))
    return layers


def _encoder_decoder(config: HfConfig) -> KvLayout:
    layers = config.need("decoder_layers")
    heads = config.need("decoder_attention_heads")
    dim = max(1, config.need(*HIDDEN) // heads)
    own = _layer(heads, dim, dim)
    return KvLayout(
        (KvLayer(layers, own.bytes_per_token, heads),),
        cross_bytes_per_encoder_token=layers * own.bytes_per_token,
        cross_layers=layers,
    )


def _merge(layers: Iterable[KvLayer]) -> tuple[KvLayer, ...]:
    """Equal layers as one entry with their count, in order of appearance."""
    return tuple(
        KvLayer(count, layer.bytes_per_token, layer.heads, layer.window, layer.chunked)
        for layer, count in Counter(layers).items()
    )
