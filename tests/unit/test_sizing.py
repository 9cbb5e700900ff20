"""Memory: what a rank takes against the node that it is bound to."""

from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.kv import kv_cache_bytes, kv_pool
from epyc_vllm_agent.facts.model import KvLayer, KvLayout, ModelFacts
from epyc_vllm_agent.plan.placement import place
from epyc_vllm_agent.plan.sizing import Sized, size
from epyc_vllm_agent.plan.values import Hold
from tests.hosts import GIB, HOSTS, HostDescription, facts_of
from tests.plans import FIGURES, endpoint, kv_layout, model_facts

GENOA = HOSTS["genoa-1s"]


def sized(
    host: HostDescription = GENOA,
    model: ModelFacts | None = None,
    held: dict[int, int] | None = None,
    stack: str = "zentorch",
    **keys: Any,
) -> Sized:
    """The sizing of the first instance; `held` are bytes of other endpoints by node."""
    config, facts, model = endpoint(**keys), facts_of(host), model or model_facts()
    holds = [Hold("other", "other-s9", 9, (), 1, tuple((held or {}).items()))]
    found = place(config, facts, holds, model.attention_heads, model.kv)
    return size(config, facts, model, found.placements[0], holds, FIGURES, stack)


def room(facts: HostFacts, node: int = 0) -> int:
    total = facts.node(node).memory_bytes or 0
    return total - FIGURES.os_reserve.base_bytes - int(total * FIGURES.os_reserve.share)


def test_the_balance_of_one_rank() -> None:
    found = sized()
    fit = found.fit
    weights, tables = 16_381_470_720, 151936 * 4096 * 4
    assert found.refusal is None
    assert found.kv_gib_per_rank == int(384 * 0.4)  # the recipe's share
    assert fit.weight_bytes == weights
    assert fit.runtime_bytes == (1 << 30) + (768 << 20) + tables + int(weights * 0.2)
    assert fit.required_bytes == weights + fit.runtime_bytes + found.kv_gib_per_rank * GIB
    assert fit.available_bytes == room(facts_of(GENOA))
    assert (fit.kv_bytes_per_token, fit.kv_request_bytes) == (36 * 4096, 36 * 4096 * 4096)
    assert (fit.fits, fit.suggested_max_model_len) == (True, None)


@pytest.mark.parametrize(
    ("memory_gib", "cores", "kv_gib"),
    [
        (384, None, 153),  # 40 %
        (64, None, 25),  # 40 % is less than all but 16 GiB
        (32, None, 7),  # small: half is wished, what weights and runtime leave is given
        (128, 4, 16),  # a quarter of the node's cores: half of a quarter of it
    ],
)
def test_the_kv_cache_by_the_recipe(memory_gib: int, cores: int | None, kv_gib: int) -> None:
    keys: dict[str, Any] = {} if cores is None else {"cores": cores}
    found = sized(replace(GENOA, memory_gib=(memory_gib,)), **keys)
    assert (found.kv_gib_per_rank, found.fit.fits) == (kv_gib, True)


def test_ranks_share_weights_and_have_a_cache_each() -> None:
    one, four = sized(HOSTS["genoa-2s-nps1"]), sized(HOSTS["genoa-2s-nps4"])
    assert four.kv_gib_per_rank == 38  # 40 % of 96 GiB
    assert four.fit.weight_bytes == one.fit.weight_bytes
    assert four.fit.required_bytes % 4 == 0
    assert four.fit.required_bytes == pytest.approx(
        16_381_470_720 + four.fit.runtime_bytes + 4 * 38 * GIB, abs=8
    )
    assert four.fit.kv_request_bytes == one.fit.kv_request_bytes  # 8 heads, 2 on each
    assert four.fit.available_bytes == 4 * room(facts_of(HOSTS["genoa-2s-nps4"]))


def test_the_server_is_there_once_and_each_rank_has_a_worker() -> None:
    figures = FIGURES.runtime
    model = model_facts(weight_bytes=0)
    one = sized(HOSTS["genoa-2s-nps1"], model).fit.runtime_bytes
    four = sized(HOSTS["genoa-2s-nps4"], model).fit.runtime_bytes
    assert four - one == pytest.approx(3 * figures.worker_bytes, abs=8)


@pytest.mark.parametrize(
    ("weight_gib", "vocabulary", "hidden", "pss_gib"),
    [
        (0.004, 448, 256, 2.392),  # GQA
        (0.007, 448, 256, 2.543),  # MLA
        (0.011, 448, 256, 2.502),  # sliding window
        (0.005, 448, 256, 2.490),  # hybrid
        (0.013, 448, 256, 2.527),  # MoE
        (1.110, 151936, 1024, 4.502),  # Qwen3-0.6B
        (1.023, 262144, 1024, 4.499),  # two layers and two large tables
        (1.129, 448, 2048, 3.774),  # twelve wide layers
    ],
)
def test_the_total_is_not_under_what_was_measured_nor_far_over(
    weight_gib: float, vocabulary: int, hidden: int, pss_gib: float
) -> None:
    """PSS of all processes with a KV space of 1 GiB, see data/sizing.json."""
    model = model_facts(
        weight_bytes=int(weight_gib * GIB), vocab_size=vocabulary, hidden_size=hidden
    )
    required = sized(model=model, kv_gib=1).fit.required_bytes / GIB
    assert pss_gib <= required <= 1.25 * pss_gib + 1


def test_float32_takes_twice_as_much_but_for_quantised_weights() -> None:
    half, full = sized().fit, sized(dtype="float32").fit
    assert (half.weight_bytes, half.kv_bytes_per_token) == (16_381_470_720, 36 * 4096)
    assert (full.weight_bytes, full.kv_bytes_per_token) == (2 * 16_381_470_720, 2 * 36 * 4096)
    quantised = sized(model=model_facts(quantization="awq"), dtype="float32").fit
    assert quantised.weight_bytes == 16_381_470_720 + 4 * 151936 * 4096


def test_a_large_mixture_of_experts_is_not_under_what_was_measured_nor_far_over() -> None:
    model = model_facts(
        weight_bytes=int(2.53 * GIB), expert_bytes=int(2.25 * GIB), vocab_size=448, hidden_size=1024
    )
    required = sized(model=model, kv_gib=1).fit.required_bytes / GIB
    assert 9.69 <= required <= 1.25 * 9.69 + 1


def test_the_same_in_float32_with_one_thread() -> None:
    model = model_facts(
        weight_bytes=int(2.31 / 2 * GIB),
        expert_bytes=int(2.25 / 2 * GIB),
        vocab_size=448,
        hidden_size=1024,
    )
    one_thread = replace(HOSTS["genoa-1s"], cores_per_socket=2)
    required = sized(one_thread, model, kv_gib=1, dtype="float32").fit.required_bytes / GIB
    assert 6.41 <= required <= 1.25 * 6.41 + 1


def test_experts_are_kept_several_times_on_zentorch_alone() -> None:
    model = model_facts(expert_bytes=10 * GIB)
    copies = FIGURES.runtime.zentorch_expert_copies
    one = sized(model=model).fit.runtime_bytes - sized().fit.runtime_bytes
    assert one == 10 * GIB * copies > 0
    assert sized(model=model, stack="stock").fit == sized(stack="stock").fit == sized().fit
    full = sized(model=model, dtype="float32").fit.runtime_bytes
    assert full - sized(dtype="float32").fit.runtime_bytes == 2 * one
    four = sized(HOSTS["genoa-2s-nps4"], model).fit.runtime_bytes
    assert four - sized(HOSTS["genoa-2s-nps4"]).fit.runtime_bytes == pytest.approx(one, abs=8)


def test_without_prefix_caching_a_sequence_has_one_state() -> None:
    states = KvLayout(
        (KvLayer(4, 4096, 8, None),), state_bytes=4 << 20, state_layers=4, state_copies=3
    )
    model, off = model_facts(kv=states), ["--no-enable-prefix-caching"]
    many, one = sized(model=model).fit, sized(model=model, vllm_args=off).fit
    single = sized(model=model_facts(kv=replace(states, state_copies=1))).fit
    assert one == single != many


def test_replicated_heads_cost_more() -> None:
    layout = kv_layout(heads=2)
    one = sized(HOSTS["genoa-2s-nps1"], model_facts(kv=layout)).fit.kv_request_bytes
    four = sized(HOSTS["genoa-2s-nps4"], model_facts(kv=layout)).fit.kv_request_bytes
    assert one is not None
    assert four == 2 * one


def test_the_fullest_node_decides() -> None:
    host = replace(HOSTS["genoa-2s-nps2"], memory_gib=(192, 16, 192, 192))
    found = sized(host, kv_gib=8)
    assert not found.fit.fits
    assert found.fit.required_bytes > found.fit.available_bytes
    assert found.fit.available_bytes == 2 * room(facts_of(host), 1)


def test_what_others_hold_is_not_there() -> None:
    free = sized().fit.available_bytes
    assert sized(held={0: 100 * GIB}).fit.available_bytes == free - 100 * GIB
    assert sized(held={1: 100 * GIB}).fit.available_bytes == free
    assert sized(held={0: 400 * GIB}).fit.available_bytes == 0


def test_the_cache_shrinks_before_the_fit_fails() -> None:
    found = sized(held={0: 340 * GIB})
    assert found.fit.fits
    assert found.kv_gib_per_rank < 20


def test_too_big_a_model() -> None:
    found = sized(replace(GENOA, memory_gib=(24,)), model_facts(weight_bytes=30 * GIB))
    assert found.refusal is not None
    assert found.refusal.code == "does-not-fit"
    assert "on node 0 of socket 0, which has" in found.refusal.message
    assert found.fit.suggested_max_model_len is None
    assert found.refusal.hint.startswith("no context fits there")


@pytest.mark.parametrize("layout", [None, KvLayout(())])
def test_no_context_is_suggested_where_the_weights_alone_are_too_big(
    layout: KvLayout | None,
) -> None:
    model = model_facts(kv=layout, weight_bytes=30 * GIB)
    found = sized(replace(GENOA, memory_gib=(24,)), model)
    assert not found.fit.fits
    assert found.fit.suggested_max_model_len is None


def test_no_longer_context_is_suggested_than_the_model_is_made_for() -> None:
    model = model_facts(max_context_tokens=5000)
    found = sized(replace(GENOA, memory_gib=(32,)), model, max_model_len=1_000_000)
    assert found.fit.suggested_max_model_len == 4864


def test_the_suggested_context_is_the_longest() -> None:
    host, model = replace(GENOA, memory_gib=(32,)), model_facts(max_context_tokens=None)
    refused = sized(host, model, max_model_len=1_000_000)
    context = refused.fit.suggested_max_model_len
    assert context is not None
    assert context % 256 == 0
    assert refused.refusal is not None
    assert f"the longest context that fits is {context}" in refused.refusal.hint
    assert sized(host, model, max_model_len=context).fit.fits
    assert not sized(host, model, max_model_len=context + 256).fit.fits


def test_a_given_cache_that_is_too_small() -> None:
    found = sized(kv_gib=1, max_model_len=32768, num_prompts=2)
    assert found.refusal is not None
    assert found.refusal.message == (
        "kv_gib = 1 holds less than 2 x 32768 tokens, which need 9.0 GiB per rank"
    )
    context = found.fit.suggested_max_model_len
    assert context is not None
    assert sized(kv_gib=1, max_model_len=context, num_prompts=2).fit.fits


def test_a_context_that_fills_the_cache_to_the_last_byte_fits() -> None:
    model = model_facts(kv=KvLayout((KvLayer(1024, 8192, 8),)))  # a block is one GiB
    found = sized(model=model, kv_gib=3, max_model_len=512)
    assert found.fit.suggested_max_model_len == 256
    assert sized(model=model, kv_gib=3, max_model_len=256).fit.fits


def test_a_given_cache_that_the_node_has_not() -> None:
    found = sized(kv_gib=400)
    assert found.refusal is not None
    assert found.kv_gib_per_rank == 400
    assert found.fit.suggested_max_model_len is None


def test_the_block_that_vllm_keeps_back_counts() -> None:
    """A power of two of context fills whole GiB exactly; with one block kept it needs one more."""
    layout = KvLayout((KvLayer(32, 4096, 8),))  # 128 KiB a token, 1 GiB for 8192
    found = sized(
        replace(GENOA, memory_gib=(24,)),
        model_facts(kv=layout, weight_bytes=19 * GIB // 2, vocab_size=None),
        max_model_len=8192,
    )
    assert found.kv_gib_per_rank * GIB >= kv_cache_bytes(kv_pool(layout, 8192), 1)
    assert found.fit.kv_request_bytes == GIB
    assert not sized(model=model_facts(kv=layout), kv_gib=1, max_model_len=8192).fit.fits


def test_what_is_not_known_is_not_counted() -> None:
    fit = sized(model=model_facts(weight_bytes=None, kv=None, vocab_size=None)).fit
    assert fit.fits
    assert (fit.weight_bytes, fit.kv_bytes_per_token, fit.kv_request_bytes) == (None, None, None)
    assert fit.runtime_bytes == FIGURES.runtime.server_bytes + FIGURES.runtime.worker_bytes


def test_memory_that_is_not_known_is_none() -> None:
    found = sized(replace(GENOA, memory_gib=(None,)))
    assert (found.fit.available_bytes, found.fit.fits) == (0, False)


def test_memory_in_use_is_not_there_unless_the_instance_itself_uses_it() -> None:
    busy, facts = replace(GENOA, used_gib=100), facts_of(GENOA)
    found = sized(busy)
    assert found.fit.available_bytes == pytest.approx(room(facts) - 100 * GIB, abs=GIB)
    placed = place(endpoint(), facts_of(busy), [], 32, None)
    own = size(
        endpoint(),
        facts_of(busy),
        model_facts(),
        placed.placements[0],
        [],
        FIGURES,
        "stock",
        running=True,
    )
    assert own.fit.available_bytes == room(facts)
