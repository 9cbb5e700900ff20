"""The facts of built hosts beside topology: memory, cpusets, ports, and what may be missing."""

import fnmatch
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.gather import FILES, gather
from epyc_vllm_agent.facts.listening import parse_listening_ports
from epyc_vllm_agent.paths import Paths
from tests.hosts import GENERATIONS, GIB, HOSTS, CpusetFile, HostDescription, build, facts_of

SMALL = replace(HOSTS["genoa-2s-nps2"], cores_per_socket=4, threads=1, cores_per_l3=2)


@pytest.mark.parametrize(
    ("name", "generation", "zen_arch", "avx512_bf16"),
    [
        ("naples-1s", "Naples", "Zen1", False),
        ("snowy-owl-1s", "Snowy Owl", "Zen1", False),
        ("rome-2s-nps1", "Rome", "Zen2", False),
        ("milan-1s", "Milan", "Zen3", False),
        ("trento-1s", "Trento", "Zen3", False),
        ("genoa-1s", "Genoa", "Zen4", True),
        ("genoa-guest", "Genoa", "Zen4", True),
        ("genoa-guest-masked", "Genoa", "Zen4", False),
        ("bergamo-2s", "Bergamo", "Zen4c", True),
        ("siena-1s", "Siena", "Zen4c", True),
        ("epyc4004-1s", "EPYC 4004", "Zen4", True),
        ("turin-1s", "Turin", "Zen5", True),
        ("turin-dense-2s", "Turin", "Zen5c", True),
        ("epyc4005-1s", "EPYC 4005", "Zen5", True),
        ("venice-1s", "Venice", "Zen6", True),
        ("ryzen-1s", None, None, True),
        ("xeon-2s", None, None, False),
        ("arm-1s", None, None, False),
    ],
)
def test_every_kind_of_host(
    name: str, generation: str | None, zen_arch: str | None, avx512_bf16: bool
) -> None:
    facts = facts_of(replace(HOSTS[name], cores_per_socket=2))
    cpu = facts.cpu
    assert (cpu.generation, cpu.zen_arch, cpu.avx512_bf16) == (generation, zen_arch, avx512_bf16)
    assert cpu.is_amd_epyc == (generation is not None)
    assert facts.numa_known


def test_memory_of_unequal_nodes() -> None:
    facts = facts_of(replace(SMALL, memory_gib=(64, 128, 192, 32), used_gib=8))
    assert [node.memory_bytes for node in facts.nodes] == [n * GIB for n in (64, 128, 192, 32)]
    assert [node.free_bytes for node in facts.nodes] == [n * GIB for n in (56, 120, 184, 24)]
    assert (facts.memory_bytes, facts.available_bytes) == (416 * GIB, 384 * GIB)


def test_free_memory_counts_what_the_kernel_drops(tmp_path: Path) -> None:
    build(SMALL, tmp_path)
    (tmp_path / "sys/devices/system/node/node1/meminfo").write_text(
        "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         100 kB\n"
        "Node 1 Active:          500 kB\nNode 1 Active(file):     20 kB\n"
        "Node 1 Inactive(file):    3 kB\nNode 1 FilePages:       400 kB\n"
        "Node 1 Shmem:           377 kB\nNode 1 SReclaimable:      1 kB\n"
        "Node 1 HugePages_Free:    9\n"
    )
    node = gather(Paths(tmp_path), GENERATIONS).node(1)
    assert (node.memory_bytes, node.free_bytes) == (1000 * 1024, 124 * 1024)


def test_memoryless_nodes() -> None:
    """CPUs on them may be used, but nothing can be bound to their memory."""
    facts = facts_of(replace(SMALL, memory_gib=(64, 0, 0, 64)))
    assert [node.memory_bytes for node in facts.nodes] == [64 * GIB, 0, 0, 64 * GIB]
    assert facts.node(1).cpus == (2, 3)
    assert facts.allowed_nodes == (0, 3)
    assert facts.nps == 2


def test_cpuless_nodes() -> None:
    """Memory on CXL: a node of its own, of no socket, that does not count for NPS."""
    facts = facts_of(replace(SMALL, cpuless_memory_gib=(512,)))
    assert (facts.node(4).cpus, facts.node(4).memory_bytes) == ((), 512 * GIB)
    assert all(4 not in socket.nodes for socket in facts.sockets)
    assert facts.nps == 2
    assert facts.memory_bytes == (4 * 192 + 512) * GIB


def test_unknown_memory() -> None:
    facts = facts_of(replace(SMALL, memory_gib=(None,)))
    assert {node.memory_bytes for node in facts.nodes} == {None}
    assert {node.free_bytes for node in facts.nodes} == {None}
    assert (facts.memory_bytes, facts.available_bytes) == (None, None)
    assert facts.allowed_nodes == (0, 1, 2, 3)


def test_available_memory_before_linux_3_14(tmp_path: Path) -> None:
    build(SMALL, tmp_path)
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 64 kB\nMemFree: 8 kB\nActive(file): 4 kB\nInactive(file): 2 kB\n"
    )
    assert gather(Paths(tmp_path), GENERATIONS).available_bytes == 14 * 1024


def test_without_a_cpuset_everything_online_is_allowed() -> None:
    facts = facts_of(replace(SMALL, offline="7"))
    assert (facts.allowed_cpus, facts.allowed_nodes) == ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3))


@pytest.mark.parametrize("where", CpusetFile)
def test_restricted_cpuset(where: CpusetFile) -> None:
    host = replace(SMALL, cpuset_cpus="2-5,40", cpuset_mems="1-2,9", cpuset_file=where, offline="3")
    facts = facts_of(host)
    assert facts.allowed_cpus == (2, 4, 5)
    assert facts.allowed_nodes == (1, 2)
    # What is there does not change by what may be used.
    assert facts.logical_cpus == 7


def test_cpuset_without_nodes_allows_all_nodes() -> None:
    facts = facts_of(replace(SMALL, cpuset_cpus="0-1"))
    assert (facts.allowed_cpus, facts.allowed_nodes) == ((0, 1), (0, 1, 2, 3))


def test_cpuset_of_services_comes_before_that_of_the_root(tmp_path: Path) -> None:
    build(replace(SMALL, cpuset_cpus="0-7", cpuset_mems="0-3"), tmp_path)
    build(
        replace(SMALL, cpuset_cpus="4-7", cpuset_mems="2-3", cpuset_file=CpusetFile.SLICE), tmp_path
    )
    facts = gather(Paths(tmp_path), GENERATIONS)
    assert (facts.allowed_cpus, facts.allowed_nodes) == ((4, 5, 6, 7), (2, 3))


def test_affinity_of_pid_1_is_no_limit_where_a_cgroup_tells(tmp_path: Path) -> None:
    """isolcpus= and CPUAffinity= keep PID 1 off CPUs that a service may still be pinned to."""
    build(replace(SMALL, cpuset_cpus="0-7", isolated="4-7"), tmp_path)
    build(replace(SMALL, cpuset_cpus="0-3", cpuset_file=CpusetFile.INIT, isolated="4-7"), tmp_path)
    facts = gather(Paths(tmp_path), GENERATIONS)
    assert facts.allowed_cpus == tuple(range(8))
    assert facts.isolated_cpus == (4, 5, 6, 7)


def test_affinity_of_the_asking_process_is_no_limit(tmp_path: Path) -> None:
    build(SMALL, tmp_path)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text("Cpus_allowed_list:\t0\nMems_allowed_list:\t0\n")
    assert gather(Paths(tmp_path), GENERATIONS).allowed_cpus == tuple(range(8))


def test_empty_cpuset_file_says_nothing() -> None:
    assert facts_of(replace(SMALL, cpuset_cpus="")).allowed_cpus == tuple(range(8))


def test_listening_ports() -> None:
    host = replace(SMALL, listening=(22, 8000), listening_ipv6=(22, 65534))
    assert facts_of(host).listening_ports == frozenset({22, 8000, 65534})


def test_no_socket_tables(tmp_path: Path) -> None:
    paths = build(SMALL, tmp_path)
    shutil.rmtree(tmp_path / "proc/net")
    assert gather(paths, GENERATIONS).listening_ports == frozenset()


def test_listening_ports_of_a_real_table() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
        "   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0\n"
        "  10: 0100007F:C350 0100007F:1F40 06 00000000:00000000 03:00001770 00000000     0\n"
        "1000: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
    )
    assert parse_listening_ports(text) == frozenset({8000, 22})


def test_nothing_below_the_root(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cpuinfo cannot be read") as caught:
        gather(Paths(tmp_path), GENERATIONS)
    assert caught.value.code == "no-cpuinfo"
    assert caught.value.hint


def test_no_cpu_at_all(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("")
    with pytest.raises(AgentError) as caught:
        gather(Paths(tmp_path), GENERATIONS)
    assert caught.value.code == "no-cpus"


def test_cpuinfo_alone(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"
    )
    facts = gather(Paths(tmp_path), GENERATIONS)
    assert facts.cpu.generation == "Genoa"
    assert (facts.physical_cores, facts.logical_cpus, facts.threads_per_core) == (1, 1, 1)
    assert (facts.memory_bytes, facts.nodes[0].memory_bytes) == (None, None)
    assert not facts.numa_known


def test_cpuinfo_missing_keys_with_topology_in_sys(tmp_path: Path) -> None:
    """An empty cpuinfo says nothing of the processor, /sys still counts."""
    build(SMALL, tmp_path)
    (tmp_path / "proc/cpuinfo").write_text("")
    facts = gather(Paths(tmp_path), GENERATIONS)
    assert not facts.cpu.is_amd_epyc
    assert facts.cpu.model_name is None
    assert facts.logical_cpus == 8


@pytest.mark.parametrize(
    "host",
    [
        replace(SMALL, listening=(8000,), listening_ipv6=(8001,), offline="5", isolated="2"),
        replace(SMALL, before_linux_5_3=True, core_ids=(0, 1, 0, 1), cpuset_cpus="1-2"),
        replace(SMALL, cpuset_cpus="1-2", cpuset_mems="0"),
        replace(SMALL, cpuset_cpus="1-2", cpuset_mems="0", cpuset_file=CpusetFile.SLICE),
        replace(SMALL, cpuset_cpus="1-2", cpuset_mems="0", cpuset_file=CpusetFile.V1),
        replace(SMALL, cpuset_cpus="1-2", cpuset_mems="0", cpuset_file=CpusetFile.INIT),
        replace(HOSTS["rome-1s-l3numa"], cores_per_socket=4, threads=1),
        replace(HOSTS["genoa-guest"], cores_per_socket=4),
        replace(HOSTS["genoa-guest"], cores_per_socket=4, dmi=None, clocksources="kvm-clock"),
        replace(SMALL, cpu_lists=False, offline="5"),
        replace(SMALL, cpu_directory=False),
    ],
)
def test_files_names_all_that_is_read(tmp_path: Path, host: HostDescription) -> None:
    """A copy of only these files is the same host: what `--host` fetches is enough."""
    full, copy = tmp_path / "full", tmp_path / "copy"
    build(host, full)
    for path in full.rglob("*"):
        name = str(path.relative_to(full))
        if path.is_file() and any(fnmatch.fnmatchcase(name, pattern) for pattern in FILES):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / name)
    assert gather(Paths(copy), GENERATIONS) == facts_of(host)


def test_facts_are_plain_json_values() -> None:
    plain = to_plain(facts_of(SMALL))
    assert plain["cpu"]["generation"] == "Genoa"
    assert plain["sockets"][1]["cores"][0] == {"socket": 1, "node": 2, "cpus": [4]}


def test_this_host_can_be_gathered() -> None:
    """The real /proc and /sys of wherever the tests run."""
    facts = gather(Paths(), GENERATIONS)
    assert facts.logical_cpus >= 1
    assert {*facts.allowed_cpus} <= {
        c for s in facts.sockets for core in s.cores for c in core.cpus
    }
    assert facts.memory_bytes
