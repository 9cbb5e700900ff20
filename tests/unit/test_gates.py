"""Gates: which stand before an endpoint, and that only their names open them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent.config import settings
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.plan.gates import GateTexts, gates, stack_name, stack_refusal
from epyc_vllm_agent.plan.values import Stack
from tests.hosts import DATA, GENERATIONS, HOSTS, facts_of
from tests.plans import GATE_TEXTS, STOCK, ZEN, endpoint


def names(host: str, custom_code: bool = False, **keys: Any) -> list[str]:
    cpu = facts_of(HOSTS[host]).cpu
    routing = GENERATIONS.routing(cpu.generation)
    return [g.name for g in gates(endpoint(**keys), cpu, routing, custom_code, GATE_TEXTS)]


@pytest.mark.parametrize(
    ("host", "expected", "stack"),
    [
        ("genoa-1s", [], "zentorch"),
        ("turin-1s", [], "zentorch"),
        ("turin-dense-2s", [], "zentorch"),
        ("genoa-guest", [], "zentorch"),
        ("venice-1s", [], "zentorch"),
        ("genoa-guest-masked", ["stock-cpu"], "stock"),
        ("milan-1s", ["stock-cpu"], "stock"),
        ("rome-2s-nps1", ["stock-cpu"], "stock"),
        ("naples-1s", ["stock-cpu"], "stock"),
        ("snowy-owl-1s", ["stock-cpu"], "stock"),
        ("trento-1s", ["stock-cpu"], "stock"),
        ("bergamo-2s", ["unvalidated-cpu"], "zentorch"),
        ("siena-1s", ["unvalidated-cpu"], "zentorch"),
        ("epyc4004-1s", ["unvalidated-cpu"], "zentorch"),
        ("epyc4005-1s", ["unvalidated-cpu"], "zentorch"),
        ("ryzen-1s", ["not-epyc"], "stock"),
        ("xeon-2s", ["not-epyc"], "stock"),
        ("arm-1s", ["not-epyc"], "stock"),
    ],
)
def test_gates_and_stacks_of_cpus(host: str, expected: list[str], stack: str) -> None:
    assert names(host) == expected
    assert stack_name(facts_of(HOSTS[host]).cpu) == stack


def test_an_epyc_of_an_unknown_generation_is_not_validated() -> None:
    cpu = replace(facts_of(HOSTS["genoa-1s"]).cpu, generation=None)
    found = gates(endpoint(), cpu, GENERATIONS.routing(None), False, GATE_TEXTS)
    assert [gate.name for gate in found] == ["unvalidated-cpu"]


@pytest.mark.parametrize(
    ("address", "open_to_others"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("fe80::1", True),
        ("::ffff:10.0.0.1", True),
    ],
)
def test_an_open_address_without_a_key(address: str, open_to_others: bool) -> None:
    assert names("genoa-1s", address=address) == (["open-address"] if open_to_others else [])
    assert names("genoa-1s", address=address, api_key_file="/etc/key") == []


def test_custom_code() -> None:
    assert names("genoa-1s", custom_code=True) == ["custom-code"]


def test_every_gate_that_applies_is_listed() -> None:
    assert names("milan-1s", True, address="::") == ["stock-cpu", "open-address", "custom-code"]


@pytest.mark.parametrize("accepted", [[], ["open-address"], list(settings.GATES)])
def test_a_gate_is_accepted_by_its_own_name_only(accepted: list[str]) -> None:
    cpu = facts_of(HOSTS["milan-1s"]).cpu
    found = gates(endpoint(accept=accepted, address="::"), cpu, Routing.STOCK, True, GATE_TEXTS)
    assert {gate.name for gate in found if gate.accepted} == {
        gate.name for gate in found if gate.name in accepted
    }
    assert all(gate.text for gate in found)


@pytest.mark.parametrize(
    ("stack", "code"),
    [
        (ZEN, None),
        (STOCK, None),
        (replace(ZEN, platform="zentorch.vllm.platform.ZenCPUPlatform"), None),
        (replace(ZEN, platform=STOCK.platform), "zentorch-not-active"),
        (replace(ZEN, platform=None), "zentorch-not-active"),
        (replace(STOCK, vllm=None, platform=None), "no-vllm"),
        (replace(ZEN, vllm=None), "no-vllm"),
    ],
)
def test_a_stack_that_is_not_what_it_is_called_is_refused(stack: Stack, code: str | None) -> None:
    refusal = stack_refusal(stack)
    assert (refusal.code if refusal else None) == code


def test_no_gate_opens_an_inactive_zentorch() -> None:
    refusal = stack_refusal(replace(ZEN, zentorch=None, platform=STOCK.platform))
    assert refusal is not None
    assert "zentorch is not active: vLLM 0.32.0+cpu chose vllm.platforms.cpu" in refusal.message
    assert "--accept" not in refusal.hint


def test_texts_are_those_of_the_data_file() -> None:
    table = json.loads((DATA / "gates.json").read_text())
    assert GateTexts.from_json(json.dumps(table)).texts == {
        name: text for name, text in table.items() if name != "about"
    }
