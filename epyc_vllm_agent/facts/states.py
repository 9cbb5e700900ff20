"""Bytes of the constant state that mamba, linear attention and convolution layers keep.

Shapes as in vllm/model_executor/layers/mamba/mamba_utils.py (0.32.0). The recurrent part is
counted in float32, which vLLM takes on CPUs with AVX-512 BF16 and which bounds the others.
"""

from epyc_vllm_agent.facts.hfconfig import HfConfig

CONV_BYTES = 2  # bfloat16
RECURRENT_BYTES = 4  # float32


def state_bytes_per_layer(config: HfConfig) -> int | None:
    """Bytes of one layer's state for one sequence; None for a make that is not known."""
    for make in (_delta_net, _delta_attention, _mamba2, _mamba1, _short_convolution):
        if (size := make(config)) is not None:
            return size
    return None


def hybrid_copies(config: HfConfig) -> int:
    """States that vLLM holds per sequence beside attention, where prefix caching is on.

    Two in its "align" mode, and one more for Mamba 2, whose prefill keeps a checkpoint.
    """
    return 3 if is_mamba2(config) else 2


def is_mamba2(config: HfConfig) -> bool:
    return _mamba2(config) is not None and _delta_net(config) is None


def _delta_net(config: HfConfig) -> int | None:
    """Gated delta net (Qwen3-Next, Qwen3.5)."""
    value_heads = config.integer("linear_num_value_heads")
    if not value_heads:
        return None
    keys, values = config.need("linear_key_head_dim"), config.need("linear_value_head_dim")
    channels = 2 * config.need("linear_num_key_heads") * keys + value_heads * values
    convolved = channels * (config.need("linear_conv_kernel_dim") - 1)
    return convolved * CONV_BYTES + value_heads * values * keys * RECURRENT_BYTES


def _delta_attention(config: HfConfig) -> int | None:
    """Kimi delta attention."""
    linear = config.section("linear_attn_config")
    if linear is None:
        return None
    heads, dim = linear.need("num_heads"), linear.need("head_dim")
    convolved = 3 * heads * dim * (linear.need("short_conv_kernel_size") - 1)
    return convolved * CONV_BYTES + heads * dim * dim * RECURRENT_BYTES


def _mamba2(config: HfConfig) -> int | None:
    heads = config.integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    state = config.integer("ssm_state_size", "mamba_d_state", "state_size")
    if not heads or not state:
        return None
    dim = config.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    inner = heads * dim if dim else _inner(config)
    groups = config.integer("mamba_n_groups", "n_groups", "mamba_ngroups") or 1
    kernel = config.need("mamba_d_conv", "conv_kernel")
    convolved = (inner + 2 * groups * state) * (kernel - 1)
    return convolved * CONV_BYTES + inner * state * RECURRENT_BYTES


def _mamba1(config: HfConfig) -> int | None:
    state = config.integer("mamba_d_state", "state_size")
    if not state:
        return None
    convolved = config.need("mamba_d_conv", "conv_kernel") - 1
    return _inner(config) * (convolved * CONV_BYTES + state * RECURRENT_BYTES)


def _short_convolution(config: HfConfig) -> int | None:
    """LFM2: layers that keep the last inputs of a short convolution."""
    length = config.integer("conv_L_cache")
    if not length:
        return None
    return config.need("conv_dim", "hidden_size") * (length - 1) * CONV_BYTES


def _inner(config: HfConfig) -> int:
    return config.need("mamba_expand", "expand") * config.need("hidden_size", "d_model")
