"""Real vLLM on one socket of two nodes: the plan's ranks, each bound to its own node's memory."""

import os
import re
from typing import Any

import pytest

from epyc_vllm_agent import cpulist
from tests.dual_socket import machine
from tests.dual_socket.disk import Case
from tests.dual_socket.topology import Topology
from tests.guest.environment import STOCK
from tests.guest.outside import install_prerequisites

pytestmark = pytest.mark.timeout(2 * machine.LIMIT_SECONDS)

TOPOLOGY = Topology("two-node", nodes=2, cores=2, sockets=1)
CASE = Case(
    TOPOLOGY,
    enable=(
        *("example/tiny-chat", "--model-dir", "/srv/models/example__tiny-chat", "--kv-gib", "1"),
        *("--runtime", "host", "--environment", str(STOCK), "--accept", "stock-cpu"),
        # torch compiles at a start, and under emulation for an hour
        *("--vllm-arg=--enforce-eager", "--start-timeout", "3600"),
    ),
    processor="milan",
    boots=1,
    with_vllm=True,
)


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.fail("the emulated host is built by root")
    install_prerequisites()
    machine.require()
    (found,) = machine.observations(CASE)
    assert found["enable_failed"] is None
    return found


def test_it_is_one_instance_with_a_rank_on_each_node(told: dict[str, Any]) -> None:
    (instance,) = told["plan"]["instances"]
    assert [rank["node"] for rank in instance["ranks"]] == [0, 1]
    assert [one["ok"] for one in told["verified"]["instances"]] == [True]


def test_each_workers_heap_is_bound_to_its_own_node(told: dict[str, Any]) -> None:
    (instance,) = told["instances"]
    workers = [one for one in instance["processes"] if one["name"].startswith("VLLM::Worker")]
    assert len(workers) == 2
    (plan,) = told["plan"]["instances"]
    node_of = {cpu: node for node in (0, 1) for cpu in TOPOLOGY.node_cpus(node)}
    bound = set()
    for worker in workers:
        (node,) = {node_of[cpu] for cpu in cpulist.parse(worker["cpus"])}
        assert worker["heap"]
        assert {line.split()[1] for line in worker["heap"]} == {f"bind:{node}"}
        bound.add(node)
    assert bound == {rank["node"] for rank in plan["ranks"]}


def test_the_kv_tokens_are_those_of_all_ranks(told: dict[str, Any]) -> None:
    (plan,), (instance,) = told["plan"]["instances"], told["instances"]
    found = re.findall(r"KV cache size: ([\d,]+) tokens", instance["log"])
    tokens = int(found[-1].replace(",", ""))
    planned = 2 * plan["kv_gib_per_rank"] * 2**30 // plan["fit"]["kv_bytes_per_token"]
    assert 0 <= planned - tokens <= 128  # whole blocks
