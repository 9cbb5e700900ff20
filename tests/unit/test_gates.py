"""Gates: which stand before an endpoint, and that only their names open them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent.config import settings
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.plan.gates import (
    GateTexts,
    gates,
    key_warning,
    precision_refusal,
    served_name,
    stack_name,
    stack_refusals,
)
from epyc_vllm_agent.plan.platform import predict
from epyc_vllm_agent.plan.values import Refusal, Stack
from tests.hosts import DATA, GENERATIONS, HOSTS, facts_of
from tests.plans import GATE_TEXTS, RECIPE, STACKS, STOCK, ZEN, endpoint

RULES = STACKS.platforms


def cpu_of(host: str) -> Cpu:
    return facts_of(HOSTS[host]).cpu


def names(
    host: str, custom_code: bool = False, stack: Stack | None = None, **keys: Any
) -> list[str]:
    cpu = cpu_of(host)
    routing = GENERATIONS.routing(cpu.generation)
    stack = stack or (ZEN if stack_name(cpu) == "zentorch" else STOCK)
    found = gates(endpoint(**keys), cpu, routing, stack, STACKS, custom_code, GATE_TEXTS)
    return [gate.name for gate in found]


def refusals(stack: Stack, host: str) -> list[Refusal]:
    cpu = cpu_of(host)
    return list(stack_refusals(stack, cpu, predict(cpu, stack, RULES), RULES))


@pytest.mark.parametrize(
    ("host", "expected", "stack"),
    [
        ("genoa-1s", [], "zentorch"),
        ("turin-1s", [], "zentorch"),
        ("turin-dense-2s", [], "zentorch"),
        ("genoa-guest", [], "zentorch"),
        ("venice-1s", ["unvalidated-stack"], "zentorch"),
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
    cpu = replace(cpu_of("genoa-1s"), generation=None)
    routing = GENERATIONS.routing(None)
    found = gates(endpoint(), cpu, routing, ZEN, STACKS, False, GATE_TEXTS)
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


@pytest.mark.parametrize(
    ("address", "key", "told"),
    [
        ("0.0.0.0", "/etc/key", True),
        ("::", "/etc/key", True),
        ("10.0.0.1", "/etc/key", True),
        ("10.0.0.1", None, False),  # the gate says it
        ("127.0.0.1", "/etc/key", False),
        ("::1", "/etc/key", False),
    ],
)
def test_what_a_key_leaves_open_is_told(address: str, key: str | None, told: bool) -> None:
    config = endpoint(address=address, **({"api_key_file": key} if key else {}))
    said = key_warning(config, STACKS.api_key) or ""
    assert bool(said) is told
    assert not told or f"reaches {address} has completions without it from /invocations" in said


def test_custom_code() -> None:
    assert names("genoa-1s", custom_code=True) == ["custom-code"]


def test_every_gate_that_applies_is_listed() -> None:
    assert names("milan-1s", True, address="::") == ["stock-cpu", "open-address", "custom-code"]


@pytest.mark.parametrize("accepted", [[], ["open-address"], list(settings.GATES)])
def test_a_gate_is_accepted_by_its_own_name_only(accepted: list[str]) -> None:
    config = endpoint(accept=accepted, address="::")
    cpu = cpu_of("milan-1s")
    found = gates(config, cpu, Routing.STOCK, STOCK, STACKS, True, GATE_TEXTS)
    assert {gate.name for gate in found if gate.accepted} == {
        gate.name for gate in found if gate.name in accepted
    }
    assert all(gate.text for gate in found)


PINNED = replace(ZEN, vllm="0.25.1", zentorch="2.11.0.3", plugins=("zentorch",))


@pytest.mark.parametrize(
    ("host", "stack", "expected"),
    [
        ("genoa-1s", ZEN, []),
        ("genoa-1s", PINNED, []),
        ("genoa-1s", replace(ZEN, vllm="0.32.0"), []),
        ("genoa-1s", replace(ZEN, vllm="0.31.0+cpu"), ["unvalidated-stack"]),
        ("genoa-1s", replace(ZEN, zentorch="2.13.0.2"), ["unvalidated-stack"]),
        ("genoa-1s", replace(PINNED, zentorch="2.13.0.1"), ["unvalidated-stack"]),
        ("venice-1s", PINNED, []),
        ("venice-1s", replace(PINNED, zentorch="2.11.0.4"), []),
        ("bergamo-2s", PINNED, ["unvalidated-cpu"]),
        ("bergamo-2s", replace(ZEN, vllm="0.31.0"), ["unvalidated-cpu", "unvalidated-stack"]),
        ("genoa-1s", replace(ZEN, vllm=None), []),
        ("milan-1s", replace(STOCK, vllm="0.99.0+cpu"), ["stock-cpu"]),
    ],
)
def test_gates_of_stacks(host: str, stack: Stack, expected: list[str]) -> None:
    assert names(host, stack=stack) == expected


OUT_OF_TREE = replace(ZEN, platform="zentorch.vllm.platform.ZenCPUPlatform", plugins=("zentorch",))


@pytest.mark.parametrize(
    ("stack", "host", "codes"),
    [
        (ZEN, "genoa-1s", []),
        (OUT_OF_TREE, "genoa-1s", []),
        (STOCK, "milan-1s", []),
        (replace(ZEN, platform=STOCK.platform), "genoa-1s",
         ["platform-mismatch", "zentorch-not-active"]),
        (replace(ZEN, platform=None), "genoa-1s", ["platform-mismatch", "zentorch-not-active"]),
        (replace(STOCK, name="zentorch"), "genoa-1s", ["zentorch-not-active"]),
        (replace(ZEN, name="stock"), "milan-1s", ["platform-mismatch", "stock-not-active"]),
        (replace(STOCK, vllm="0.32.0", platform="vllm.platforms.cuda.CudaPlatform"), "milan-1s",
         ["platform-mismatch", "stock-not-active"]),
        (replace(STOCK, vllm=None, platform=None), "milan-1s", ["no-vllm"]),
        (replace(ZEN, vllm=None), "genoa-1s", ["no-vllm"]),
    ],
)  # fmt: skip
def test_a_stack_that_is_not_what_it_is_called_is_refused(
    stack: Stack, host: str, codes: list[str]
) -> None:
    assert [refusal.code for refusal in refusals(stack, host)] == codes


def test_no_gate_opens_an_inactive_zentorch() -> None:
    broken = replace(
        STOCK,
        name="zentorch",
        zentorch="2.11.0.3",
        zentorch_error="OSError: undefined symbol: _ZN3c10",
    )
    (refusal,) = refusals(broken, "genoa-1s")
    assert "zentorch is not active: vLLM 0.32.0+cpu chose vllm.platforms.cpu" in refusal.message
    assert "undefined symbol" in refusal.hint
    assert "--accept" not in refusal.hint


@pytest.mark.parametrize(
    ("host", "stack", "name"),
    [
        ("genoa-1s", STOCK, "zentorch"),  # which is then refused
        ("milan-1s", ZEN, "stock"),
        ("ryzen-1s", ZEN, "zentorch"),
        ("ryzen-1s", STOCK, "stock"),
        ("xeon-2s", STOCK, "stock"),
    ],
)
def test_what_a_stack_is_called(host: str, stack: Stack, name: str) -> None:
    assert served_name(cpu_of(host), stack, RULES) == name


@pytest.mark.parametrize(
    ("stack", "dtype", "fine"),
    [
        (ZEN, "bfloat16", True),
        (ZEN, "float32", True),
        (ZEN, "float16", False),
        (STOCK, "float16", True),
        (STOCK, "bfloat16", True),
    ],
)
def test_precisions(stack: Stack, dtype: str, fine: bool) -> None:
    found = precision_refusal(dtype, stack, RECIPE.precisions, RECIPE.zentorch_precisions)
    assert (found is None) == fine
    if found:
        assert found.message == "zentorch cannot serve float16: it has bfloat16, float32"


def test_texts_are_those_of_the_data_file() -> None:
    table = json.loads((DATA / "gates.json").read_text())
    assert GateTexts.from_json(json.dumps(table)).texts == {
        name: text for name, text in table.items() if name != "about"
    }
