"""Two sockets, one endpoint: two instances in quadlets, each where it belongs, after a reboot too.

TOPO=small (by itself), nps1 or nps2, or several with commas, choose the emulated machine.
"""

import os
from typing import Any

import pytest

from epyc_vllm_agent import cpulist
from tests.dual_socket import machine
from tests.dual_socket.disk import Case
from tests.dual_socket.topology import TOPOLOGIES, Topology
from tests.guest import image
from tests.guest.outside import install_prerequisites

pytestmark = pytest.mark.timeout(2 * machine.LIMIT_SECONDS)

Host = tuple[Topology, list[dict[str, Any]]]
WANTED = os.environ.get("TOPO", "small").split(",")
BOOTS = (0, 1)
ENABLE = (
    *("example/tiny-chat", "--model-dir", "/srv/models/example__tiny-chat", "--kv-gib", "1"),
    *("--runtime", "podman", "--image", image.NAME, "--image-archive", "/srv/images/standin.tar"),
)


@pytest.fixture(scope="module", params=WANTED)
def host(request: pytest.FixtureRequest) -> Host:
    if os.geteuid() != 0:
        pytest.fail("the emulated host is built by root")
    install_prerequisites()
    machine.require()
    topology = TOPOLOGIES[request.param]
    return topology, machine.observations(Case(topology, ENABLE))


def servers(told: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The processes of each instance, in the order of the sockets."""
    assert told["enable_failed"] is None
    assert [one["state"] for one in told["instances"]] == ["active", "active"]
    return [one["processes"] for one in told["instances"]]


def workers(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in processes if one["name"].startswith("VLLM::Worker")]


def test_the_kernel_shows_what_was_emulated(host: Host) -> None:
    topology, told = host
    facts = told[0]["detect"]
    assert facts["sockets"] == topology.sockets
    assert facts["numa_nodes"] == topology.sockets * topology.nodes
    assert facts["nps"] == topology.nodes
    assert facts["physical_cores"] == topology.cpus
    assert facts["is_supported_epyc"] is True
    assert "cpuset" in told[0]["controllers"]  # cgroup v2, and crun as the distribution has it
    assert told[0]["runtime"] == "/usr/bin/crun"


@pytest.mark.parametrize("boot", BOOTS)
def test_every_process_has_exactly_its_sockets_cpus_and_nodes(host: Host, boot: int) -> None:
    topology, told = host
    for socket, processes in enumerate(servers(told[boot])):
        cpus = cpulist.format(topology.socket_cpus(socket))
        nodes = cpulist.format(topology.socket_nodes(socket))
        assert len(processes) >= 3 + topology.nodes  # init, server, engine and the ranks' workers
        unbound = [one for one in processes if not one["name"].startswith("VLLM::Worker")]
        assert {one["cpus"] for one in unbound} == {cpus}
        assert {one["nodes"] for one in processes} == {nodes}
        for one in processes:
            allowed = {cpu for thread in one["threads"] for cpu in cpulist.parse(thread)}
            assert allowed <= set(topology.socket_cpus(socket))


@pytest.mark.parametrize("boot", BOOTS)
def test_the_two_share_no_cpu_and_no_node(host: Host, boot: int) -> None:
    first, second = (
        {
            (kind, number)
            for one in processes
            for kind in ("cpus", "nodes")
            for number in cpulist.parse(one[kind])
        }
        for processes in servers(host[1][boot])
    )
    assert first
    assert not first & second


@pytest.mark.parametrize("boot", BOOTS)
def test_one_rank_for_each_node_with_its_own_list(host: Host, boot: int) -> None:
    topology, told = host
    for socket, processes in enumerate(servers(told[boot])):
        lists = []
        for node in topology.socket_nodes(socket):
            *threads, _kept = topology.node_cpus(node)
            lists.append(cpulist.format(threads))
        binds = {
            one["environ"]["VLLM_CPU_OMP_THREADS_BIND"]
            for one in processes
            if "VLLM_CPU_OMP_THREADS_BIND" in one["environ"]
        }
        assert binds == {"|".join(lists)}
        assert [one["cpus"] for one in workers(processes)] == lists


@pytest.mark.parametrize("boot", BOOTS)
def test_both_answer_at_ports_of_their_own(host: Host, boot: int) -> None:
    told = host[1][boot]
    assert [one["port"] for one in told["plan"]["instances"]] == [8000, 8001]
    given = [
        {
            one["argv"][one["argv"].index("--port") + 1]
            for one in processes
            if "--port" in one["argv"]
        }
        for processes in servers(told)
    ]
    assert given == [{"8000"}, {"8001"}]
    assert [one["ok"] for one in told["verified"]["instances"]] == [True, True]
    (endpoint,) = told["status"]["endpoints"]
    assert [one["placement"] for one in endpoint["instances"]] == [None, None]
    assert [one["health"] for one in endpoint["instances"]] == ["healthy", "healthy"]


def test_the_second_boot_is_one(host: Host) -> None:
    first, second = host[1]
    assert (first["boot"], second["boot"]) == (1, 2)
    assert first["plan"] == second["plan"]
    before = {one["invocation"] for one in first["instances"]}
    after = {one["invocation"] for one in second["instances"]}
    assert not before & after


def test_a_clock_that_is_set_is_no_failure(host: Host) -> None:
    """Tried here, because every other test host has the clock of this machine."""
    told = host[1][1]["jumped"]
    before, ahead, back = told["dates"]
    assert ahead - before > 80_000  # seconds: a day
    assert 0 < back - before < 80_000
    assert told["watchdog"] == ["active", "2 of 2 instances run"]
    assert told["states"] == ["active", "active"]
    assert told["reports"] == []


def test_memory_that_the_kernel_refuses_ends_one_of_them(host: Host) -> None:
    told = host[1][1]["starved"]
    assert told["states"] == ["failed", "active"]
    (report,) = told["reports"]
    assert (report["verdict"], report["cause_code"]) == ("out-of-memory", "out-of-memory")
    assert report["phase"] == "serving"
    assert report["exit"]["result"] == "oom-kill" or report["evidence"]["oom_kills"] > 0
    assert told["tasks"] in ("0", "[not set]")
    assert told["containers"] == ["epyc-vllm-tiny-s1"]
