"""Sockets, cores, nodes and L3 groups of built hosts, against what their descriptions say."""

import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.host import HostFacts
from tests.hosts import GENERATIONS, HOSTS, HostDescription, Numbering, build, facts_of, threads


def smaller(name: str, **changes: Any) -> HostDescription:
    """A host of few cores: the files of each CPU take time to write."""
    return replace(HOSTS[name], **({"cores_per_socket": 8} | changes))


def socket_ids(facts: HostFacts) -> list[int]:
    return [socket.id for socket in facts.sockets]


def nodes_by_socket(facts: HostFacts) -> dict[int, tuple[int, ...]]:
    return {socket.id: socket.nodes for socket in facts.sockets}


def core_cpus(facts: HostFacts) -> list[tuple[int, ...]]:
    return [core.cpus for socket in facts.sockets for core in socket.cores]


@pytest.mark.parametrize(
    ("name", "sockets", "cores", "logical", "threads_per_core", "nodes"),
    [
        ("genoa-1s", 1, 8, 16, 2, 1),
        ("genoa-2s-nps1", 2, 16, 32, 2, 2),
        ("genoa-2s-nps2", 2, 16, 32, 2, 4),
        ("genoa-2s-nps4", 2, 16, 32, 2, 8),
        ("rome-1s-l3numa", 1, 8, 16, 2, 4),
        ("naples-2s", 2, 16, 32, 2, 8),
        ("snowy-owl-1s", 1, 8, 8, 1, 1),
        ("arm-1s", 1, 8, 8, 1, 1),
    ],
)
def test_counts(
    name: str, sockets: int, cores: int, logical: int, threads_per_core: int, nodes: int
) -> None:
    facts = facts_of(smaller(name))
    assert len(facts.sockets) == sockets
    assert (facts.physical_cores, facts.logical_cpus) == (cores, logical)
    assert facts.threads_per_core == threads_per_core
    assert len(facts.nodes) == nodes


@pytest.mark.parametrize(
    ("numbering", "first_core", "second_socket"),
    [(Numbering.SPREAD, (0, 8), "4-7,12-15"), (Numbering.ADJACENT, (0, 1), "8-15")],
)
def test_smt_numbering(
    numbering: Numbering, first_core: tuple[int, ...], second_socket: str
) -> None:
    host = replace(HOSTS["turin-2s-nps1"], cores_per_socket=4, numbering=numbering)
    facts = facts_of(host)
    assert facts.sockets[0].cores[0].cpus == first_core
    assert facts.node(1).cpus == cpulist.parse(second_socket)


@pytest.mark.parametrize("threads_per_core", [1, 2])
def test_smt_on_and_off(threads_per_core: int) -> None:
    facts = facts_of(smaller("genoa-2s-nps1", threads=threads_per_core))
    assert facts.threads_per_core == threads_per_core
    assert {len(cpus) for cpus in core_cpus(facts)} == {threads_per_core}
    assert facts.physical_cores == 16


def test_smt_switched_off_by_the_kernel() -> None:
    """`nosmt`: the second threads are there, offline and without topology."""
    facts = facts_of(smaller("genoa-1s", offline="8-15"))
    assert (facts.threads_per_core, facts.physical_cores) == (1, 8)
    assert facts.offline_cpus == tuple(range(8, 16))
    assert facts.allowed_cpus == tuple(range(8))


def test_offline_cpus() -> None:
    """A core that lost one thread keeps the other, one that lost both is gone."""
    host = replace(HOSTS["milan-1s"], cores_per_socket=4, offline="0,1,5")
    facts = facts_of(host)
    assert core_cpus(facts) == [(2, 6), (3, 7), (4,)]
    assert facts.threads_per_core == 2
    assert facts.offline_cpus == (0, 1, 5)
    assert facts.node(0).cpus == (2, 3, 4, 6, 7)
    assert [group.cpus for group in facts.l3_groups] == [(2, 3, 4, 6, 7)]


def test_possible_cpus_that_are_not_present_are_not_offline(tmp_path: Path) -> None:
    host = replace(HOSTS["milan-1s"], cores_per_socket=2)
    paths = build(host, tmp_path)
    assert paths.at("/sys/devices/system/cpu/offline").read_text() == "4-7\n"
    assert gather(paths, GENERATIONS).offline_cpus == ()


def test_socket_offline_as_a_whole() -> None:
    facts = facts_of(smaller("genoa-2s-nps1", threads=1, offline="8-15"))
    assert nodes_by_socket(facts) == {0: (0,)}
    assert facts.node(1).cpus == ()
    assert facts.node(1).memory_bytes


def test_gaps_in_cpu_numbers() -> None:
    host = replace(HOSTS["milan-1s"], cores_per_socket=3, missing_cpus="1-2,5")
    facts = facts_of(host)
    assert core_cpus(facts) == [(0, 6), (3, 7), (4, 8)]
    assert facts.offline_cpus == ()


def test_gaps_in_core_ids() -> None:
    """Core ids are not counted on: they have gaps where firmware disables cores."""
    host = replace(HOSTS["genoa-1s"], cores_per_socket=4, core_ids=(0, 1, 8, 95))
    assert facts_of(host).physical_cores == 4


def test_repeated_core_ids() -> None:
    """Two dies of a package may both count from 0 (Opteron 6100)."""
    host = replace(HOSTS["genoa-1s"], cores_per_socket=4, core_ids=(0, 1, 0, 1))
    assert facts_of(host).physical_cores == 4


def test_gaps_in_package_numbers() -> None:
    facts = facts_of(smaller("genoa-2s-nps1", package_ids=(1, 36)))
    assert nodes_by_socket(facts) == {1: (0,), 36: (1,)}
    assert facts.nps == 1


def test_sockets_are_in_order_of_their_numbers() -> None:
    facts = facts_of(smaller("genoa-2s-nps1", package_ids=(36, 1)))
    assert nodes_by_socket(facts) == {1: (1,), 36: (0,)}
    assert socket_ids(facts) == [1, 36]


def test_unknown_package_number() -> None:
    facts = facts_of(smaller("arm-1s", package_ids=(-1,)))
    assert socket_ids(facts) == [0]


def test_gaps_in_node_numbers() -> None:
    host = smaller("genoa-2s-nps2", node_ids=(0, 2, 33, 72))
    facts = facts_of(host)
    assert nodes_by_socket(facts) == {0: (0, 2), 1: (33, 72)}
    assert facts.nps == 2
    assert facts.allowed_nodes == (0, 2, 33, 72)


def test_node_numbers_that_do_not_follow_sockets() -> None:
    host = smaller("genoa-2s-nps2", node_ids=(0, 2, 1, 3))
    assert nodes_by_socket(facts_of(host)) == {0: (0, 2), 1: (1, 3)}


@pytest.mark.parametrize(
    ("name", "nps", "l3_as_numa"),
    [
        ("genoa-2s-nps1", 1, False),
        ("genoa-2s-nps2", 2, False),
        # Each node is one L3 group here too: the distances tell that it is NPS4.
        ("genoa-2s-nps4", 4, False),
        ("naples-1s", 4, False),
        ("rome-1s-l3numa", 1, True),
        ("siena-1s", 1, False),
        # What a guest or another processor shows is no setting of EPYC firmware.
        ("genoa-guest", None, False),
        ("xeon-2s", None, False),
        ("ryzen-1s", None, False),
    ],
)
def test_nps(name: str, nps: int | None, l3_as_numa: bool) -> None:
    facts = facts_of(smaller(name))
    assert (facts.nps, facts.l3_as_numa) == (nps, l3_as_numa)


@pytest.mark.parametrize(
    ("cores_per_l3", "nps", "distances", "expected"),
    [
        (2, 1, True, (1, True)),
        (2, 4, True, (4, True)),
        (2, 1, False, (None, True)),  # more nodes than NPS4 has
        (4, 1, True, (1, True)),
        (4, 2, True, (2, True)),
        (4, 1, False, (4, False)),  # the same shape as NPS4
        (16, 1, True, (1, False)),  # one L3 group: nothing is cut
    ],
)
def test_l3_as_numa(
    cores_per_l3: int,
    nps: int,
    distances: bool,
    expected: tuple[int | None, bool],
) -> None:
    host = replace(
        HOSTS["rome-1s-l3numa"], threads=1, cores_per_l3=cores_per_l3, nps=nps, distances=distances
    )
    facts = facts_of(host)
    assert len(facts.nodes) == 16 // cores_per_l3
    assert (facts.nps, facts.l3_as_numa) == expected


def test_l3_as_numa_beside_memory_without_cpus() -> None:
    facts = facts_of(smaller("rome-1s-l3numa", cpuless_memory_gib=(256,)))
    assert (facts.nps, facts.l3_as_numa) == (1, True)


def test_one_node_over_two_sockets() -> None:
    facts = facts_of(smaller("genoa-2s-nps1", nps=0))
    assert nodes_by_socket(facts) == {0: (0,), 1: (0,)}
    assert (facts.nps, facts.l3_as_numa) == (0, False)
    assert facts.logical_cpus == len(facts.node(0).cpus) == 32


def test_sockets_of_unlike_shape_have_no_nps() -> None:
    """All CPUs of one of four nodes offline."""
    facts = facts_of(smaller("genoa-2s-nps2", threads=1, offline="0-3"))
    assert nodes_by_socket(facts) == {0: (1,), 1: (2, 3)}
    assert facts.nps is None


def test_no_node_directory() -> None:
    facts = facts_of(smaller("genoa-2s-nps1", node_directory=False))
    assert not facts.numa_known
    (node,) = facts.nodes
    assert (node.id, node.cpus) == (0, facts.allowed_cpus)
    assert node.memory_bytes == facts.memory_bytes
    assert node.free_bytes == facts.available_bytes
    assert nodes_by_socket(facts) == {0: (0,), 1: (0,)}
    assert facts.nps is None


def test_no_cpu_directory() -> None:
    """cpuinfo alone: packages and core ids tell sockets and cores."""
    host = replace(
        HOSTS["genoa-2s-nps1"], cpu_directory=False, node_directory=False, offline="1", isolated="2"
    )
    facts = facts_of(host)
    assert nodes_by_socket(facts) == {0: (0,), 1: (0,)}
    assert (facts.physical_cores, facts.logical_cpus, facts.threads_per_core) == (32, 63, 2)
    assert facts.sockets[0].cores[0].cpus == (0, 32)
    assert (facts.offline_cpus, facts.isolated_cpus, facts.l3_groups) == ((), (), ())


def test_cpuinfo_without_packages_and_cores() -> None:
    host = replace(HOSTS["arm-1s"], cpu_directory=False)
    facts = facts_of(host)
    assert core_cpus(facts) == [(cpu,) for cpu in range(16)]
    assert socket_ids(facts) == [0]


def test_sys_without_cpu_lists() -> None:
    """Some captures have the CPUs' directories but not the lists beside them."""
    host = smaller("milan-1s", cores_per_socket=4, offline="3,7", cpu_lists=False)
    assert facts_of(host) == facts_of(replace(host, cpu_lists=True))
    assert facts_of(host).offline_cpus == (3, 7)


def test_sys_without_the_list_of_online_cpus(tmp_path: Path) -> None:
    host = smaller("milan-1s", cores_per_socket=4, offline="3,7")
    paths = build(host, tmp_path)
    paths.at("/sys/devices/system/cpu/online").unlink()
    assert gather(paths, GENERATIONS) == facts_of(host)


def test_names_before_linux_5_3(tmp_path: Path) -> None:
    # cpuinfo, read where neither name is there, would tell other cores.
    host = smaller("genoa-2s-nps4", core_ids=(0, 1, 0, 1, 0, 1, 0, 1))
    old = build(replace(host, before_linux_5_3=True), tmp_path)
    assert not list(tmp_path.rglob("core_cpus_list"))
    assert gather(old, GENERATIONS) == facts_of(host)


def test_node_mask_of_more_than_32_cpus(tmp_path: Path) -> None:
    host = replace(HOSTS["turin-2s-nps1"], cores_per_socket=40, threads=1, before_linux_5_3=True)
    paths = build(host, tmp_path)
    mask = paths.at("/sys/devices/system/node/node1/cpumap").read_text()
    assert mask == "0000ffff,ffffff00,00000000\n"
    assert gather(paths, GENERATIONS).node(1).cpus == tuple(range(40, 80))


def test_l3_groups() -> None:
    facts = facts_of(replace(HOSTS["genoa-2s-nps1"], cores_per_socket=8))
    lists = [cpulist.format(group.cpus) for group in facts.l3_groups]
    assert lists == ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]


def test_no_caches() -> None:
    facts = facts_of(smaller("rome-2s-nps1", cores_per_l3=None))
    assert facts.l3_groups == ()
    assert (facts.nps, facts.l3_as_numa) == (1, False)


def test_index_3_of_another_level_is_no_l3(tmp_path: Path) -> None:
    paths = build(replace(HOSTS["milan-1s"], cores_per_socket=2), tmp_path)
    paths.at("/sys/devices/system/cpu/cpu0/cache/index3/level").write_text("4\n")
    assert gather(paths, GENERATIONS).l3_groups == ()


def test_cpu_that_vanishes_while_reading_is_a_core_of_its_own(tmp_path: Path) -> None:
    host = replace(HOSTS["milan-1s"], cores_per_socket=2, threads=1)
    paths = build(host, tmp_path)
    for path in paths.at("/sys/devices/system/cpu/cpu1").rglob("*_list"):
        path.unlink()
    assert core_cpus(gather(paths, GENERATIONS)) == [(0,), (1,)]


def test_lists_that_contradict_each_other_count_each_cpu_once(tmp_path: Path) -> None:
    """CPUs go on and off between two reads."""
    paths = build(smaller("milan-1s", cores_per_socket=4, threads=1), tmp_path)
    paths.at("/sys/devices/system/cpu/cpu2/topology/core_cpus_list").write_text("1-2\n")
    paths.at("/sys/devices/system/node/node0/cpulist").write_text("0-3,9\n")
    facts = gather(paths, GENERATIONS)
    assert core_cpus(facts) == [(0,), (1,), (2,), (3,)]
    assert facts.node(0).cpus == (0, 1, 2, 3)


def test_garbled_lists_are_as_if_absent(tmp_path: Path) -> None:
    host = replace(HOSTS["milan-1s"], cores_per_socket=2, isolated="1")
    paths = build(host, tmp_path)
    paths.at("/sys/devices/system/cpu/isolated").write_text("(null)\n")
    paths.at("/sys/devices/system/cpu/cpu0/topology/core_cpus_list").write_text("?\n")
    facts = gather(paths, GENERATIONS)
    assert facts.isolated_cpus == ()
    assert facts.logical_cpus == 4


descriptions = st.builds(
    HostDescription,
    processor=st.just(HOSTS["turin-1s"].processor),
    sockets=st.integers(1, 3),
    cores_per_socket=st.integers(1, 6),
    threads=st.integers(1, 2),
    numbering=st.sampled_from(Numbering),
    cores_per_l3=st.sampled_from([None, 1, 2, 4]),
    nps=st.integers(0, 4),
    offline=st.sets(st.integers(1, 20), max_size=6).map(cpulist.format),
    missing_cpus=st.sets(st.integers(0, 20), max_size=4).map(cpulist.format),
    before_linux_5_3=st.booleans(),
    node_directory=st.booleans(),
)


@settings(max_examples=40, database=None, deadline=None)
@given(descriptions)
def test_any_host_is_read_as_described(description: HostDescription) -> None:
    offline = set(cpulist.parse(description.offline))
    online = [thread for thread in threads(description) if thread.cpu not in offline]
    assume(online)
    with tempfile.TemporaryDirectory() as root:
        facts = gather(build(description, Path(root)), GENERATIONS)
    cores, nodes = defaultdict(set), defaultdict(set)
    for thread in online:
        cores[thread.socket, thread.core].add(thread.cpu)
        nodes[thread.node].add(thread.cpu)
    assert {(s.id, core.cpus) for s in facts.sockets for core in s.cores} == {
        (socket, tuple(sorted(cpus))) for (socket, _), cpus in cores.items()
    }
    assert facts.allowed_cpus == tuple(sorted(thread.cpu for thread in online))
    if description.node_directory:
        assert {n.id: {*n.cpus} for n in facts.nodes if n.cpus} == nodes
        assert all({*c.cpus} <= nodes[c.node] for s in facts.sockets for c in s.cores)
