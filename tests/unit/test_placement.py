"""Which cores an endpoint gets: whole sockets, shares, what others hold, nodes and ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import KvLayer, KvLayout
from epyc_vllm_agent.plan.placement import Placed, Placement, place
from epyc_vllm_agent.plan.values import Hold
from tests.hosts import HOSTS, HostDescription, facts_of
from tests.plans import endpoint, kv_layout

GENOA = HOSTS["genoa-2s-nps1"]


def placed(
    host: str | HostDescription,
    config: EndpointConfig | None = None,
    holds: Sequence[Hold] = (),
    heads: int | None = 32,
    kv: KvLayout | None = None,
) -> Placed:
    facts = facts_of(HOSTS[host] if isinstance(host, str) else host)
    return place(config or endpoint(), facts, holds, heads, kv or kv_layout())


def cores(placement: Placement) -> int:
    return sum(len(share.cores) for share in placement.by_node)


def cpus(placement: Placement) -> str:
    return cpulist.format(
        cpu for share in placement.by_node for core in share.cores for cpu in core.cpus
    )


def nodes(placement: Placement) -> list[int]:
    return [share.node for share in placement.by_node]


def hold(facts: HostFacts, socket: int, count: int, endpoint_name: str = "other") -> Hold:
    """What an endpoint of `count` cores on `socket` has."""
    taken = facts.sockets[socket].cores[:count]
    numbers = tuple(sorted(cpu for core in taken for cpu in core.cpus))
    return Hold(endpoint_name, f"{endpoint_name}-s{socket}", socket, numbers, 8000, ())


def test_every_socket_serves_by_itself() -> None:
    found = placed("genoa-2s-nps1")
    assert [(p.socket, cpus(p), nodes(p), p.whole_nodes) for p in found.placements] == [
        (0, "0-15,32-47", [0], True),
        (1, "16-31,48-63", [1], True),
    ]
    assert (found.reason, found.warnings, found.refusals) == ("every socket serves", (), ())


def test_chosen_sockets() -> None:
    found = placed("genoa-2s-nps1", endpoint(sockets=[1]))
    assert [p.socket for p in found.placements] == [1]
    assert found.reason == "chosen by the administrator"


def test_a_socket_that_is_not_there() -> None:
    found = placed("genoa-2s-nps1", endpoint(sockets=[1, 2, 7]))
    assert [p.socket for p in found.placements] == [1]
    assert [(r.code, r.hint) for r in found.refusals] == [
        ("no-such-socket", "this host has socket 0-1")
    ] * 2
    assert "socket 2" in found.refusals[0].message


@pytest.mark.parametrize("name", ["genoa-2s-nps2", "genoa-2s-nps4", "turin-2s-nps4"])
def test_a_rank_on_each_node_where_the_heads_allow_it(name: str) -> None:
    facts = facts_of(HOSTS[name])
    found = placed(name)
    assert [nodes(p) for p in found.placements] == [list(s.nodes) for s in facts.sockets]
    assert all(p.whole_nodes and cores(p) == 16 for p in found.placements)


@pytest.mark.parametrize(
    ("heads", "layout"),
    [
        (14, None),  # attention heads cannot be divided by 4
        (None, None),
        (32, KvLayout((KvLayer(2, 1536, 6),))),
    ],
)
def test_heads_that_cannot_be_divided_give_an_instance_on_each_node(
    heads: int | None, layout: KvLayout | None
) -> None:
    found = placed("genoa-2s-nps4", endpoint(sockets=[1]), heads=heads, kv=layout)
    assert [(p.name("a"), nodes(p), cores(p), p.whole_nodes) for p in found.placements] == [
        (f"a-s1n{node}", [node], 4, True) for node in (4, 5, 6, 7)
    ]
    assert found.warnings == ()


@pytest.mark.parametrize(("keys", "lost"), [({"placement": "socket"}, 12), ({"cores": 6}, 3)])
def test_one_instance_of_heads_that_cannot_be_divided_has_one_node(
    keys: dict[str, Any], lost: int
) -> None:
    found = placed("genoa-2s-nps4", endpoint(sockets=[1], **keys), heads=13)
    (placement,) = found.placements
    assert (placement.name("a"), nodes(placement)) == ("a-s1", [4])
    assert placement.whole_nodes is (lost == 12)
    assert f"only node 4 is used, {lost} cores and the memory" in found.warnings[0]


def test_an_instance_on_each_node_where_that_is_asked_for() -> None:
    found = placed("genoa-2s-nps4", endpoint(placement="node", sockets=[0]))
    assert [(p.name("a"), nodes(p)) for p in found.placements] == [
        (f"a-s0n{node}", [node]) for node in range(4)
    ]
    assert [
        p.name("a") for p in placed("genoa-2s-nps1", endpoint(placement="node")).placements
    ] == [
        "a-s0",
        "a-s1",
    ]


def test_a_share_of_each_node() -> None:
    facts = facts_of(HOSTS["genoa-2s-nps4"])
    config = endpoint(placement="node", sockets=[0], cores=3)
    assert [
        (p.name("a"), cores(p), p.whole_nodes) for p in placed("genoa-2s-nps4", config).placements
    ] == [(f"a-s0n{node}", 3, False) for node in range(4)]
    held = placed("genoa-2s-nps4", config, [hold(facts, 0, 10)])
    # Only one node has three free cores: its name stays what it is beside others.
    assert [(p.name("a"), nodes(p)) for p in held.placements] == [("a-s0n3", [3])]
    (refusal,) = placed("genoa-2s-nps4", config, [hold(facts, 0, 15)]).refusals
    assert "1 of 16 cores free" in refusal.message


def test_more_cores_than_a_node_has() -> None:
    config = endpoint(placement="node", sockets=[0], cores=5)
    (refusal,) = placed("genoa-2s-nps4", config).refusals
    assert (refusal.code, refusal.message) == (
        "cores-uneven",
        "no node of socket 0 has 5 free cores (4 on node 0, 4 on node 1, 4 on node 2, 4 on node 3)",
    )


@pytest.mark.parametrize("kv_heads", [None, 1, 2, 4, 8])
def test_heads_of_the_kv_cache_are_divided_or_replicated(kv_heads: int | None) -> None:
    found = placed("genoa-2s-nps4", kv=KvLayout((KvLayer(2, 4096, kv_heads),)))
    assert [len(p.by_node) for p in found.placements] == [4, 4]


def test_a_share_of_a_socket() -> None:
    found = placed("genoa-2s-nps1", endpoint(cores=3, sockets=[1]))
    (placement,) = found.placements
    assert (cpus(placement), nodes(placement)) == ("16-18,48-50", [1])
    assert not placement.whole_nodes


def test_shares_are_on_as_few_nodes_as_possible() -> None:
    (placement,) = placed("genoa-2s-nps4", endpoint(cores=4, sockets=[0])).placements
    assert (nodes(placement), placement.whole_nodes) == ([0], True)
    (placement,) = placed("genoa-2s-nps4", endpoint(cores=6, sockets=[0])).placements
    assert [len(share.cores) for share in placement.by_node] == [3, 3]
    assert not placement.whole_nodes


def test_a_held_socket_is_refused_and_its_holder_named() -> None:
    facts = facts_of(GENOA)
    found = placed(GENOA, endpoint(sockets=[0]), [hold(facts, 0, 2, "chat")])
    assert found.placements == ()
    (refusal,) = found.refusals
    assert refusal.code == "socket-held"
    assert "endpoint chat (instance chat-s0, CPUs 0-1,32-33)" in refusal.message
    assert "--cores N" in refusal.hint


def test_two_endpoints_share_a_socket() -> None:
    facts = facts_of(GENOA)
    holds = [hold(facts, 0, 1, "a")]
    found = placed(GENOA, endpoint(sockets=[0], cores=1), holds)
    assert [cpus(p) for p in found.placements] == ["1,33"]


def test_too_few_cores_are_left() -> None:
    facts = facts_of(GENOA)
    found = placed(GENOA, endpoint(sockets=[0], cores=4), [hold(facts, 0, 13, "a")])
    (refusal,) = found.refusals
    assert refusal.code == "cores-held"
    assert "socket 0 has 3 of 16 cores free" in refusal.message
    assert "endpoint a (instance a-s0" in refusal.message
    assert refusal.message.endswith("4 are asked for")


def test_more_cores_than_there_are() -> None:
    (refusal,) = placed("genoa-1s", endpoint(cores=17)).refusals
    assert refusal.message == "socket 0 has 16 of 16 cores free; 17 are asked for"


def test_cores_that_no_nodes_can_share_evenly() -> None:
    found = placed("genoa-2s-nps4", endpoint(sockets=[0], cores=13))
    (refusal,) = found.refusals
    assert "13 cannot be divided evenly" in refusal.message


def test_auto_takes_a_socket_that_nobody_holds() -> None:
    facts = facts_of(GENOA)
    assert [p.socket for p in placed(GENOA, endpoint(sockets="auto")).placements] == [0]
    found = placed(GENOA, endpoint(sockets="auto"), [hold(facts, 0, 1)])
    assert ([p.socket for p in found.placements], found.reason) == (
        [1],
        "no other endpoint holds it",
    )


def test_auto_with_a_share_takes_a_socket_that_has_room_for_it() -> None:
    facts = facts_of(GENOA)
    holds = [hold(facts, 0, 16, "a"), hold(facts, 1, 2, "b")]
    found = placed(GENOA, endpoint(sockets="auto", cores=4), holds)
    assert [(p.socket, cores(p)) for p in found.placements] == [(1, 4)]
    assert found.refusals == ()


def test_auto_with_every_socket_held_names_a_holder() -> None:
    facts = facts_of(GENOA)
    holds = [hold(facts, 0, 1, "a"), hold(facts, 1, 1, "b")]
    found = placed(GENOA, endpoint(sockets="auto"), holds)
    assert (found.placements, found.reason) == ((), "every socket is held by other endpoints")
    assert [refusal.code for refusal in found.refusals] == ["socket-held"]


def test_offline_cpus_are_not_used() -> None:
    (placement,) = placed(
        replace(HOSTS["genoa-1s"], offline=cpulist.format([3, 19, 20]))
    ).placements
    assert cpus(placement) == "0-2,4-18,21-31"


def test_only_cpus_of_the_cpuset_are_used() -> None:
    host = replace(GENOA, cpuset_cpus="0-7,32-39,48-63", cpuset_mems="0-1")
    found = placed(host)
    assert [cpus(p) for p in found.placements] == ["0-7,32-39", "48-63"]
    # numactl --cpunodebind would name CPUs beyond them.
    assert [p.whole_nodes for p in found.placements] == [False, False]


def test_a_cpuset_of_first_threads() -> None:
    (placement,) = placed(replace(HOSTS["genoa-1s"], cpuset_cpus="0-15")).placements
    assert (cpus(placement), cores(placement)) == ("0-15", 16)


def test_nodes_outside_the_cpuset_or_without_memory_are_not_used() -> None:
    host = replace(HOSTS["genoa-2s-nps2"], cpuset_cpus="0-63", cpuset_mems="0,2-3")
    assert [nodes(p) for p in placed(host).placements] == [[0], [2, 3]]
    host = replace(HOSTS["genoa-2s-nps2"], memory_gib=(192, 0, 192, 192))
    assert [nodes(p) for p in placed(host).placements] == [[0], [2, 3]]


def test_no_socket_is_usable() -> None:
    found = placed(replace(HOSTS["genoa-1s"], memory_gib=(0,), cpuless_memory_gib=(64,)))
    assert found.placements == ()
    assert [refusal.code for refusal in found.refusals] == ["no-socket"]


@pytest.mark.parametrize("change", [{"nps": 0}, {"node_directory": False}])
def test_sockets_that_share_a_node_are_not_bound_to_all_of_it(change: dict[str, Any]) -> None:
    found = placed(replace(GENOA, **change))
    assert [(cpus(p), nodes(p), p.whole_nodes) for p in found.placements] == [
        ("0-15,32-47", [0], False),
        ("16-31,48-63", [0], False),
    ]
