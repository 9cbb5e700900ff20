"""Before a start: what has changed since the plan is found, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent.facts.host import HostFacts, NumaNode
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.watch.preflight import preflight
from tests.hosts import GIB, HOSTS, facts_of
from tests.plans import LAUNCH, endpoint, plan

FACTS = facts_of(HOSTS["genoa-2s-nps2"])


@pytest.fixture
def made(tmp_path: Path) -> EndpointPlan:
    for name in ("model/config.json", "env/bin/vllm", "template.jinja"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return plan(
        FACTS,
        endpoint("a", chat_template=str(tmp_path / "template.jinja")),
        launch=replace(LAUNCH, environment=str(tmp_path / "env")),
        model_path=str(tmp_path / "model"),
    )


def code(made: EndpointPlan, facts: HostFacts, index: int = 0) -> str | None:
    found = preflight(made, made.instances[index], facts)
    if found:
        assert found.message
        assert found.hint
    return found.code if found else None


def nodes(change: Callable[[NumaNode], NumaNode]) -> HostFacts:
    return replace(FACTS, nodes=tuple(change(node) for node in FACTS.nodes))


def test_all_as_planned(made: EndpointPlan) -> None:
    assert [code(made, FACTS, index) for index in (0, 1)] == [None, None]


def test_a_port_that_is_taken(made: EndpointPlan) -> None:
    facts = replace(FACTS, listening_ports=frozenset({made.instances[1].port}))
    assert code(made, facts, 0) is None
    assert code(made, facts, 1) == "port-busy"


def test_cpus_that_are_gone(made: EndpointPlan) -> None:
    facts = replace(FACTS, allowed_cpus=tuple(cpu for cpu in FACTS.allowed_cpus if cpu != 40))
    found = preflight(made, made.instances[0], facts)
    assert found is not None
    assert (found.code, "CPUs 40 of the plan" in found.message) == ("cpus-gone", True)
    assert code(made, facts, 1) is None


def test_cpus_on_another_node(made: EndpointPlan) -> None:
    swap = {0: 1, 1: 0, 2: 2, 3: 3}
    facts = nodes(lambda node: replace(node, id=swap[node.id]))
    assert code(made, facts, 0) == "topology-changed"
    assert code(made, facts, 1) is None


def test_a_node_that_is_gone(made: EndpointPlan) -> None:
    everything = NumaNode(0, FACTS.allowed_cpus, 768 * GIB, 700 * GIB)
    facts = replace(FACTS, nodes=(everything,), allowed_nodes=(0,))
    assert code(made, facts, 0) == code(made, facts, 1) == "topology-changed"


def test_memory_that_is_taken(made: EndpointPlan) -> None:
    each = made.instances[0].fit.required_bytes // 2
    enough = nodes(lambda node: replace(node, free_bytes=each))
    assert code(made, enough) is None
    short = nodes(lambda node: replace(node, free_bytes=each - (node.id == 1)))
    found = preflight(made, made.instances[0], short)
    assert found is not None
    assert (found.code, found.message.startswith("node 1 has ")) == ("memory-gone", True)
    assert code(made, short, 1) is None


def test_memory_that_is_not_known_is_not_judged(made: EndpointPlan) -> None:
    assert code(made, nodes(lambda node: replace(node, free_bytes=None))) is None


@pytest.mark.parametrize("name", ["model/config.json", "env/bin/vllm", "template.jinja"])
def test_a_file_that_is_gone(made: EndpointPlan, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    found = preflight(made, made.instances[0], FACTS)
    assert found is not None
    assert found.message == f"{tmp_path / name} is missing"
    assert "epyc-vllm enable a" in found.hint
