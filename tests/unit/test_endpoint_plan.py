"""Plans of endpoints: what holds for every host, model and wish, and what a plan says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import (
    EndpointKind,
    KvLayer,
    KvLayout,
    ModelFacts,
)
from epyc_vllm_agent.plan.values import EndpointPlan, Hold, holds_of
from tests.hosts import GIB, HOSTS, HostDescription, Numbering, facts_of
from tests.plans import LAUNCH, NO_CHAT, STOCK, endpoint, kv_layout, model_facts, plan

GENOA = HOSTS["genoa-2s-nps1"]
SMALL = replace(GENOA, cores_per_socket=8, memory_gib=(64,))

HOST_VARIANTS: tuple[HostDescription, ...] = (
    HOSTS["genoa-1s"],
    GENOA,
    SMALL,
    replace(SMALL, nps=2, memory_gib=(32,)),
    replace(SMALL, nps=4, memory_gib=(20, 20, 20, 20, 20, 20, 20, 12)),
    replace(SMALL, nps=0),
    replace(SMALL, node_directory=False),
    replace(SMALL, threads=1),
    replace(SMALL, numbering=Numbering.ADJACENT, package_ids=(1, 3)),
    replace(SMALL, nps=2, memory_gib=(32, 0, 32, 32)),
    replace(SMALL, nps=2, memory_gib=(32,), offline="1,2,9,20"),
    replace(SMALL, nps=2, memory_gib=(32,), cpuset_cpus="0-2,5,16-17,25", cpuset_mems="0-2"),
    replace(SMALL, cpuset_cpus="0-7", cpuset_mems="0"),
    replace(SMALL, nps=2, memory_gib=(32,), cpuless_memory_gib=(512,), node_ids=(0, 1, 4, 5, 6)),
    replace(HOSTS["rome-1s-l3numa"], cores_per_socket=8, memory_gib=(8,)),
    replace(SMALL, memory_gib=(None,)),
)


def models() -> st.SearchStrategy[ModelFacts]:
    layers = st.builds(
        lambda count, size, heads, window: KvLayer(count, size * (heads or 1), heads, window),
        st.integers(1, 40),
        st.sampled_from([256, 1152]),
        st.none() | st.sampled_from([1, 2, 3, 4, 8]),
        st.none() | st.sampled_from([128, 1024, 4096]),
    )
    layouts = st.none() | st.lists(layers, max_size=2).map(lambda found: KvLayout(tuple(found)))
    return st.builds(
        model_facts,
        weight_bytes=st.none() | st.integers(0, 40 * GIB),
        expert_bytes=st.sampled_from([0, GIB, 10 * GIB]),
        attention_heads=st.none() | st.sampled_from([8, 12, 14, 32]),
        kv=layouts,
        custom_code=st.booleans(),
        max_context_tokens=st.none() | st.sampled_from([2048, 40960, 1 << 20]),
    )


def wishes() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "sockets": st.sampled_from(["all", "auto", [0], [1], [0, 1], [3]]),
            "cores": st.integers(1, 9),
            "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
            "placement": st.sampled_from(["auto", "socket", "node"]),
            "kv_gib": st.integers(1, 40),
            "port": st.sampled_from([8000, 8001, 65535]),
            "max_model_len": st.integers(1, 200_000),
            "num_prompts": st.integers(1, 8),
        },
    )


HOSTS_OF = st.sampled_from(HOST_VARIANTS).map(facts_of)


def usable(made: EndpointPlan) -> bool:
    return not made.refusals


def bytes_of(plans: Sequence[EndpointPlan]) -> Counter[int]:
    held: Counter[int] = Counter()
    for made in plans:
        for hold in holds_of(made):
            held.update(dict(hold.bytes_by_node))
    return held


@given(HOSTS_OF, st.lists(st.tuples(wishes(), models()), min_size=1, max_size=3))
def test_endpoints_beside_each_other(
    facts: HostFacts, wanted: list[tuple[dict[str, Any], ModelFacts]]
) -> None:
    """Startable plans together never exceed a node, share a CPU or a port, or leave the cpuset."""
    plans: list[EndpointPlan] = []
    for index, (keys, model) in enumerate(wanted):
        holds: list[Hold] = [hold for made in plans for hold in holds_of(made)]
        made = plan(facts, endpoint(f"e{index}", **keys), model, holds=holds)
        if usable(made):
            plans.append(made)
    for node, held in bytes_of(plans).items():
        assert held < (facts.node(node).memory_bytes or 0)
    instances = [instance for made in plans for instance in made.instances]
    cpus = [cpu for instance in instances for cpu in instance.cpus]
    assert len(cpus) == len(set(cpus))
    assert set(cpus) <= set(facts.allowed_cpus)
    assert {node for instance in instances for node in instance.nodes} <= set(facts.allowed_nodes)
    ports = [instance.port for instance in instances]
    assert len(ports) == len(set(ports))
    assert all(1 <= port <= 65535 for port in ports)


@given(HOSTS_OF, wishes(), models())
def test_an_instance_is_of_one_piece(
    facts: HostFacts, keys: dict[str, Any], model: ModelFacts
) -> None:
    node_of = {cpu: node.id for node in facts.nodes for cpu in node.cpus}
    socket_of = {cpu: c.socket for s in facts.sockets for c in s.cores for cpu in c.cpus}
    made = plan(facts, endpoint(**keys), model)
    assert made.instances or made.refusals
    for instance in made.instances:
        pinned = [cpu for rank in instance.ranks for cpu in rank.cpus]
        assert pinned
        assert len(pinned) == len(set(pinned))
        assert {*pinned, *instance.kept_cpus} <= set(instance.cpus)
        assert not set(pinned) & set(instance.kept_cpus)
        assert [rank.node for rank in instance.ranks] == list(instance.nodes)
        for rank in instance.ranks:
            assert {node_of[cpu] for cpu in rank.cpus} == {rank.node}
        assert {socket_of[cpu] for cpu in instance.cpus} == {instance.socket}
        if instance.whole_nodes:
            whole = {cpu for node in instance.nodes for cpu in facts.node(node).cpus}
            assert set(instance.cpus) == whole
        fit = instance.fit
        assert fit.fits == (instance.name not in unfit(made))
        assert not fit.fits or fit.required_bytes <= fit.available_bytes
        assert fit.required_bytes % len(instance.ranks) == 0


def unfit(made: EndpointPlan) -> set[str]:
    """Instances that a refusal is about: one "does-not-fit" for each that does not."""
    failed = [instance.name for instance in made.instances if not instance.fit.fits]
    assert [r.code for r in made.refusals].count("does-not-fit") == len(failed)
    return set(failed)


@given(
    HOSTS_OF,
    wishes(),
    models(),
    st.sampled_from(["max_model_len", "num_prompts"]),
    st.integers(1, 5000),
)
def test_more_context_or_more_at_once_never_needs_less(
    facts: HostFacts, keys: dict[str, Any], model: ModelFacts, key: str, more: int
) -> None:
    few = endpoint(**keys)
    step = more * 50 if key == "max_model_len" else more % 60 + 1
    many = endpoint(**(keys | {key: getattr(few, key) + step}))
    first, second = plan(facts, few, model), plan(facts, many, model)
    # Nodes are left out where they have no room, of which more context leaves no more.
    assert bool(second.instances) is bool(first.instances)
    for other in second.instances:
        one = first.instance(other.name)
        if one is None:
            assert not other.fit.fits
            continue
        assert other.fit.required_bytes >= one.fit.required_bytes
        assert (other.fit.kv_request_bytes or 0) >= (one.fit.kv_request_bytes or 0)
        assert one.fit.fits or not other.fit.fits


@given(HOSTS_OF, wishes(), models(), st.integers(10_000, 4_000_000))
def test_the_suggested_context_fits_and_the_next_does_not(
    facts: HostFacts, keys: dict[str, Any], model: ModelFacts, context: int
) -> None:
    keys = keys | {"max_model_len": context, "sockets": "auto"}
    limit = min(context, model.max_context_tokens or context)
    for instance in plan(facts, endpoint(**keys), model).instances:
        suggested = instance.fit.suggested_max_model_len
        assert not (instance.fit.fits and suggested)
        if suggested is None:
            continue
        assert suggested % 256 == 0
        assert suggested <= limit
        same = plan(facts, endpoint(**(keys | {"max_model_len": suggested})), model)
        assert fits(same, instance.name)
        assert "context-too-long" not in [refusal.code for refusal in same.refusals]
        if suggested + 256 <= limit:
            longer = plan(facts, endpoint(**(keys | {"max_model_len": suggested + 256})), model)
            assert not fits(longer, instance.name)


def fits(made: EndpointPlan, name: str) -> bool:
    """Whether it has the instance and room for it; nodes without room may be left out."""
    instance = made.instance(name)
    return instance is not None and instance.fit.fits


@given(HOSTS_OF, wishes(), models())
def test_planning_again_changes_nothing(
    facts: HostFacts, keys: dict[str, Any], model: ModelFacts
) -> None:
    first = plan(facts, endpoint(**keys), model)
    if not usable(first):
        return
    running = frozenset(instance.port for instance in first.instances)
    again = plan(replace(facts, listening_ports=running), endpoint(**keys), model, previous=first)
    assert again == first


def test_a_key_on_an_open_address_comes_with_a_warning() -> None:
    keys = {"address": "0.0.0.0", "api_key_file": "/etc/epyc-vllm/key"}
    (warning,) = plan(facts_of(GENOA), endpoint(**keys)).warnings
    assert "completions without it from /invocations" in warning
    assert plan(facts_of(GENOA), endpoint(**keys | {"address": "127.0.0.1"})).warnings == ()


def test_an_instance_on_each_node_that_has_room_for_one() -> None:
    facts = facts_of(replace(SMALL, nps=4, memory_gib=(20, 20, 20, 8, 20, 20, 20, 20)))
    model = model_facts(attention_heads=13, weight_bytes=8 * GIB, vocab_size=None)
    made = plan(facts, endpoint(), model)
    assert [instance.name for instance in made.instances] == [
        f"qwen3-8b-s{node // 4}n{node}" for node in (0, 1, 2, 4, 5, 6, 7)
    ]
    assert (made.refusals, [len(instance.ranks) for instance in made.instances]) == ((), [1] * 7)
    (warning,) = made.warnings
    assert warning.startswith("no instance qwen3-8b-s0n3: Qwen/Qwen3-8B needs ")
    asked = plan(facts, endpoint(placement="node"), model)
    assert [refusal.code for refusal in asked.refusals] == ["does-not-fit"]
    assert len(asked.instances) == 8


def test_a_model_too_big_for_any_node_is_refused_on_each() -> None:
    facts = facts_of(replace(SMALL, nps=4, memory_gib=(8,)))
    made = plan(facts, endpoint(), model_facts(attention_heads=13, weight_bytes=8 * GIB))
    assert [refusal.code for refusal in made.refusals] == ["does-not-fit"] * 8


def test_two_sockets_on_one_node_share_its_memory() -> None:
    facts = facts_of(replace(GENOA, nps=0, memory_gib=(64,)))
    room = plan(facts, endpoint(sockets=[0])).instances[0].fit.available_bytes
    made = plan(facts, endpoint(kv_gib=12))
    assert sum(instance.fit.required_bytes for instance in made.instances) > room
    assert [instance.fit.fits for instance in made.instances] == [True, False]
    assert [refusal.code for refusal in made.refusals] == ["does-not-fit"]


def test_a_core_of_each_node_is_kept_for_the_server() -> None:
    made = plan(facts_of(HOSTS["genoa-2s-nps2"]))
    first, second = made.instances
    assert first.threads_bind == "0-6|8-14"
    assert (first.kept_cpus, second.kept_cpus) == ((7, 15), (23, 31))
    assert cpulist.format(first.cpus) == "0-15,32-47"


def test_a_single_core_works_itself() -> None:
    (instance,) = plan(facts_of(HOSTS["genoa-1s"]), endpoint(cores=1)).instances
    assert (instance.threads_bind, instance.kept_cpus, instance.cpus) == ("0", (), (0, 16))


def test_a_change_of_free_memory_replans_nothing_that_still_fits() -> None:
    facts = facts_of(GENOA)
    first = plan(facts)
    smaller = replace(
        facts,
        nodes=tuple(replace(n, memory_bytes=(n.memory_bytes or 0) - GIB) for n in facts.nodes),
    )
    assert plan(smaller, previous=first) == first
    other = endpoint(max_model_len=8192)
    assert plan(smaller, other, previous=first).instances != first.instances


def test_an_instance_that_fits_no_longer_is_planned_anew() -> None:
    facts = facts_of(GENOA)
    first = plan(facts)
    less = replace(facts, nodes=tuple(replace(n, memory_bytes=100 * GIB) for n in facts.nodes))
    again = plan(less, previous=first)
    assert [instance.kv_gib_per_rank for instance in again.instances] == [40, 40]
    assert not again.refusals


def test_sockets_that_are_added_keep_the_ports_there_are() -> None:
    facts = facts_of(GENOA)
    first = plan(facts, endpoint(sockets=[1]))
    both = plan(facts, endpoint(sockets="all"), previous=first)
    assert {i.name: i.port for i in both.instances} == {"qwen3-8b-s0": 8001, "qwen3-8b-s1": 8000}


@pytest.mark.parametrize(
    ("numactl", "taskset", "warning"),
    [
        (None, "/usr/bin/taskset", "numactl is missing: CPUs are pinned by taskset"),
        (None, None, "neither numactl nor taskset is there: the server runs unpinned"),
    ],
)
def test_missing_tools_are_warned_of(numactl: None, taskset: str | None, warning: str) -> None:
    launch = replace(LAUNCH, numactl=numactl, taskset=taskset)
    (said,) = plan(facts_of(GENOA), launch=launch).warnings
    assert warning in said


def test_what_is_not_known_of_the_model_is_warned_of() -> None:
    made = plan(facts_of(GENOA), model=model_facts(weight_bytes=None, kv=None))
    assert len(made.warnings) == 2
    assert plan(facts_of(GENOA)).warnings == ()


@pytest.mark.parametrize(
    ("config", "seconds"),
    [(endpoint(), 900 + 16_381_470_720 // 50_000_000), (endpoint(start_timeout=60), 60)],
)
def test_the_time_to_start(config: EndpointConfig, seconds: int) -> None:
    assert plan(facts_of(GENOA), config).start_timeout_seconds == seconds


def test_a_stack_that_is_not_there_refuses() -> None:
    made = plan(facts_of(GENOA), stack=replace(STOCK, name="zentorch"))
    assert [refusal.code for refusal in made.refusals] == ["zentorch-not-active"]
    assert made.instances


def test_a_model_without_template_answers_completions() -> None:
    made = plan(facts_of(GENOA), model=model_facts(chat_template=NO_CHAT, kv=kv_layout(1)))
    assert made.model.primary_endpoint is EndpointKind.COMPLETIONS


def test_the_hardware_in_one_line() -> None:
    assert plan(facts_of(GENOA)).hardware == (
        "EPYC Genoa (Zen4), 32 cores on 2 socket(s), AVX-512 BF16 yes: "
        "AMD EPYC 9124 16-Core Processor"
    )
    line = plan(facts_of(HOSTS["arm-1s"]), endpoint(accept=["not-epyc"])).hardware
    assert line.startswith("no EPYC, 16 cores on 1 socket(s), AVX-512 BF16 no")
    assert "None" not in line
