"""Other makes of tiny models than Qwen3: what their config says and which tensors they have.

Names and shapes are those that transformers writes. Each keeps its KV cache in another way, which
is what they are for; but for the large mixture they are as small as vLLM's CPU kernels take them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Tensors = Iterator[tuple[str, tuple[int, ...]]]
HIDDEN, WIDE, HEADS, KV_HEADS, DIM = 256, 512, 4, 2, 64
LATENT, ROTATED = 512, 64  # the CPU kernel for MLA takes 576 in all and nothing else
EXPERTS = 4


@dataclass(frozen=True, slots=True)
class Make:
    """`config` is laid over what all tiny models have, `layer` lists the tensors of a layer."""

    layers: int
    config: Mapping[str, object]
    layer: Callable[[int], Tensors]
    norm: str = "model.norm.weight"

    def tensors(self, rows: int) -> Tensors:
        yield "model.embed_tokens.weight", (rows, HIDDEN)
        for number in range(self.layers):
            for name, dimensions in self.layer(number):
                yield f"model.layers.{number}.{name}.weight", dimensions
        yield self.norm, (HIDDEN,)
        if not self.config["tie_word_embeddings"]:
            yield "lm_head.weight", (rows, HIDDEN)

    def whole_config(self) -> dict[str, object]:
        return {
            "hidden_size": HIDDEN,
            "intermediate_size": WIDE,
            "num_hidden_layers": self.layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": DIM,
            **self.config,
        }


def _norms(*names: str) -> Tensors:
    return ((name, (HIDDEN,)) for name in names)


def _mlp(prefix: str, names: tuple[str, str, str], wide: int = WIDE) -> Tensors:
    gate, up, down = names
    yield f"{prefix}.{gate}", (wide, HIDDEN)
    yield f"{prefix}.{up}", (wide, HIDDEN)
    yield f"{prefix}.{down}", (HIDDEN, wide)


def _attention(output: str = "o_proj") -> Tensors:
    yield "self_attn.q_proj", (HEADS * DIM, HIDDEN)
    yield "self_attn.k_proj", (KV_HEADS * DIM, HIDDEN)
    yield "self_attn.v_proj", (KV_HEADS * DIM, HIDDEN)
    yield f"self_attn.{output}", (HIDDEN, HEADS * DIM)


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _latent(_number: int) -> Tensors:
    """DeepSeek-V2 without compressed queries, all layers dense."""
    plain = values = 128
    yield from _norms("input_layernorm", "post_attention_layernorm")
    yield "self_attn.q_proj", (HEADS * (plain + ROTATED), HIDDEN)
    yield "self_attn.kv_a_proj_with_mqa", (LATENT + ROTATED, HIDDEN)
    yield "self_attn.kv_a_layernorm", (LATENT,)
    yield "self_attn.kv_b_proj", (HEADS * (plain + values), LATENT)
    yield "self_attn.o_proj", (HIDDEN, HEADS * values)
    yield from _mlp("mlp", PROJECTIONS)


def _windowed(_number: int) -> Tensors:
    """Gemma 3."""
    yield from _norms("input_layernorm", "post_attention_layernorm")
    yield from _norms("pre_feedforward_layernorm", "post_feedforward_layernorm")
    yield "self_attn.q_norm", (DIM,)
    yield "self_attn.k_norm", (DIM,)
    yield from _attention()
    yield from _mlp("mlp", PROJECTIONS)


CONVOLUTIONS = ("conv", "conv", "full_attention", "conv")


def _hybrid(number: int) -> Tensors:
    """LFM2: short convolutions, whose state is constant, and one layer of attention."""
    yield from _norms("operator_norm", "ffn_norm")
    if CONVOLUTIONS[number] == "conv":
        yield "conv.conv", (HIDDEN, 1, 3)
        yield "conv.in_proj", (3 * HIDDEN, HIDDEN)
        yield "conv.out_proj", (HIDDEN, HIDDEN)
    else:
        yield "self_attn.q_layernorm", (DIM,)
        yield "self_attn.k_layernorm", (DIM,)
        yield from _attention("out_proj")
    yield from _mlp("feed_forward", ("w1", "w3", "w2"))


def _mixture(layers: int, experts: int, wide: int) -> Make:
    """Mixtral."""

    def layer(_number: int) -> Tensors:
        yield from _norms("input_layernorm", "post_attention_layernorm")
        yield from _attention()
        yield "block_sparse_moe.gate", (experts, HIDDEN)
        for expert in range(experts):
            yield from _mlp(f"block_sparse_moe.experts.{expert}", ("w1", "w3", "w2"), wide)

    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": wide,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    return Make(layers, config, layer)


MAKES = {
    "mla": Make(
        2,
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_key_value_heads": HEADS,
            "kv_lora_rank": LATENT,
            "qk_rope_head_dim": ROTATED,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "q_lora_rank": None,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": 2,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "tie_word_embeddings": False,
        },
        _latent,
    ),
    "window": Make(
        6,
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": DIM,
            "rope_local_base_freq": 10000.0,
            "sliding_window": 512,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "tie_word_embeddings": True,
        },
        _windowed,
    ),
    "hybrid": Make(
        4,
        {
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "layer_types": list(CONVOLUTIONS),
            "conv_L_cache": 3,
            "conv_bias": False,
            "conv_dim": HIDDEN,
            "block_auto_adjust_ff_dim": False,
            "block_dim": HIDDEN,
            "block_ff_dim": WIDE,
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        _hybrid,
        "model.embedding_norm.weight",
    ),
    "moe": _mixture(2, EXPERTS, WIDE),
}
# 0.6 GiB of experts: large enough for what is kept of each to be seen beside the rest.
LARGE_MIXTURE = _mixture(8, 16, 3328)
