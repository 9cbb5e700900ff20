"""How an installed endpoint differs from its plan and file, as status and doctor tell it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from epyc_vllm_agent.changes.installed import Installed
from epyc_vllm_agent.config.config import Config, Fault
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import UnitFile
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch.drift import drift
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan

FACTS = facts_of(HOSTS["genoa-2s-nps1"])
PLAN = plan(FACTS, endpoint("a", port=9000))
UNITS = render(PLAN)
CONFIG = Config((PLAN.config,), ())


def found(
    config: Config = CONFIG,
    units: tuple[UnitFile, ...] = UNITS,
    facts: HostFacts = FACTS,
    runs: Callable[[str], bool] | None = lambda _service: True,
    of: EndpointPlan = PLAN,
) -> list[str]:
    return [item.code for item in drift(of, Installed("a", None, None, units), config, facts, runs)]


def test_none_where_all_is_as_planned() -> None:
    assert found() == []
    assert found(runs=None) == []


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (Config((), ()), "file-gone"),
        (Config((), (Fault("a", "a.toml:1: port must be ..."),)), "file-broken"),
        (Config((replace(PLAN.config, max_model_len=1),), ()), "file-changed"),
        (Config((PLAN.config,), (Fault("b", "b.toml: ..."),)), None),
    ],
)
def test_of_the_file(config: Config, code: str | None) -> None:
    assert found(config) == ([code] if code else [])


def test_of_units() -> None:
    edited = replace(UNITS[1], text=UNITS[1].text + "# by hand\n")
    assert found(units=(UNITS[0], edited, *UNITS[2:])) == ["unit-changed"]
    assert found(units=UNITS[:-1]) == ["unit-missing"]


def test_of_the_topology() -> None:
    fewer = replace(FACTS, allowed_cpus=FACTS.allowed_cpus[1:])
    assert found(facts=fewer) == ["cpus-gone"]
    swapped = replace(
        FACTS,
        nodes=tuple(
            replace(node, cpus=other.cpus)
            for node, other in zip(FACTS.nodes, reversed(FACTS.nodes), strict=True)
        ),
    )
    assert found(facts=swapped) == ["topology-changed", "topology-changed"]


def test_of_a_port_that_another_program_took() -> None:
    listening = replace(FACTS, listening_ports=frozenset((9000, 9001)))
    assert found(facts=listening) == []  # its own
    assert found(facts=listening, runs=lambda service: "s0" in service) == ["port-taken"]
    assert found(facts=listening, runs=None) == []  # nobody could be asked
