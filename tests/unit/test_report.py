"""Answers: the names in JSON that others rely on, and texts that hold what they must."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.doors.systemd import Listed, UnitState
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.report import drawing, host, plain, state, text
from epyc_vllm_agent.report.state import EndpointState, InstanceState
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch.drift import Drift
from tests.hosts import GENERATIONS, HOSTS, facts_of
from tests.httpserver import Server
from tests.plans import NO_CHAT, endpoint, model_facts, plan


def planned(name: str = "turin-2s-nps4", **keys: Any) -> EndpointPlan:
    return plan(facts_of(HOSTS[name]), endpoint(**keys))


def as_json(made: EndpointPlan) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(plain.dump(plain.plan(made, render(made))))
    return answer


def test_the_names_of_a_plan() -> None:
    answer = as_json(planned("milan-1s", accept=["stock-cpu"], address="::"))
    assert answer["schema"] == 1
    assert answer["gates"] == [
        {"name": "stock-cpu", "accepted": True},
        {"name": "open-address", "accepted": False},
    ]
    assert (answer["runtime"], answer["stack"]) == ("host", "stock")
    assert {
        "id": "Qwen/Qwen3-8B",
        "revision": "b968826d9c46dd6066d109eabc6255188de91218",
        "kind": "text",
        "primary_endpoint": "chat_completions",
        "supported_endpoints": ["chat_completions", "completions"],
    }.items() <= answer["model"].items()
    assert answer["model"]["chat_template"]["status"] == "present"
    assert {"endpoint", "hardware", "precision", "warnings", "refusals"} <= set(answer)


def test_the_names_of_an_instance() -> None:
    made = planned()
    answer = as_json(made)
    assert [unit["path"].rsplit("/", 1)[1] for unit in answer["units"]] == [
        "epyc-vllm-qwen3-8b.target",
        "epyc-vllm-qwen3-8b-s0.service",
        "epyc-vllm-qwen3-8b-s1.service",
    ]
    assert all(unit["text"].startswith("# Written by epyc-vllm") for unit in answer["units"])
    instance = answer["instances"][1]
    assert instance["name"] == "qwen3-8b-s1"
    assert (instance["socket"], instance["nodes"], instance["port"]) == (1, [4, 5, 6, 7], 8001)
    assert cpulist.parse(instance["cpus"]) == made.instances[1].cpus
    assert [rank["node"] for rank in instance["ranks"]] == [4, 5, 6, 7]
    assert instance["kv_gib_per_rank"] == made.instances[1].kv_gib_per_rank
    assert set(instance["fit"]) == {
        "weight_bytes",
        "kv_bytes_per_token",
        "kv_request_bytes",
        "runtime_bytes",
        "required_bytes",
        "available_bytes",
        "fits",
        "suggested_max_model_len",
        "kv_capacity_tokens",
    }
    assert instance["fit"]["fits"] is True


def test_what_is_not_known_is_null() -> None:
    made = plan(
        facts_of(HOSTS["genoa-1s"]), model=model_facts(kv=None, weight_bytes=None, revision=None)
    )
    answer = as_json(made)
    fit = answer["instances"][0]["fit"]
    assert (fit["weight_bytes"], fit["kv_bytes_per_token"]) == (None, None)
    assert answer["model"]["revision"] is None


def test_the_fields_of_detect() -> None:
    facts = facts_of(HOSTS["turin-2s-nps4"])
    answer = host.plain(facts, GENERATIONS.routing(facts.cpu.generation))
    assert {
        "is_amd_epyc": True,
        "epyc_generation": "Turin",
        "zen_arch": "Zen5",
        "is_supported_epyc": True,
        "avx512_bf16": True,
        "logical_cores": 64,
        "physical_cores": 32,
        "sockets": 2,
        "numa_nodes": 8,
        "nps": 4,
    }.items() <= answer.items()
    assert [len(entry["nodes"]) for entry in answer["topology"]] == [4, 4]
    assert json.loads(plain.dump(answer))["schema"] == 1


@pytest.mark.parametrize("name", ["genoa-1s", "milan-1s", "arm-1s", "xeon-2s", "rome-1s-l3numa"])
def test_detect_as_text(name: str) -> None:
    facts = facts_of(HOSTS[name])
    shown = drawing.text(facts)
    assert f"{facts.physical_cores} on {len(facts.sockets)} socket(s)" in shown
    assert "None" not in shown
    assert "SOCKET" in shown


def test_the_summary_of_a_plan() -> None:
    shown = text.summary(planned("genoa-2s-nps1", max_model_len=8192))
    for part in (
        "Qwen/Qwen3-8B -- text, /v1/chat/completions (chat template present)",
        "zentorch 2.13.0.1 on vLLM 0.32.0+cpu",
        "host: /opt/vllm under numactl",
        "bfloat16",
        "8192 tokens x 1 at once",
        "fits:",
        "socket 1, threads on 16-30, kept for the server 31, memory on node 1",
        "every socket serves",
        "EPYC Genoa",
        "qwen3-8b-s0 127.0.0.1:8000, qwen3-8b-s1 127.0.0.1:8001",
    ):
        assert part in shown
    assert "None" not in shown


def test_gates_warnings_and_refusals_are_in_the_summary() -> None:
    made = plan(
        facts_of(HOSTS["milan-1s"]),
        endpoint(address="::", accept=["open-address"], kv_gib=4000),
        model_facts(kv=None, chat_template=NO_CHAT),
    )
    shown = text.summary(made)
    assert "accept it with --accept stock-cpu" in shown
    assert "open-address: the endpoint listens beyond loopback and has no API key (acc" in shown
    assert "warning  the model's KV cache cannot be computed" in shown
    assert "refused  Qwen/Qwen3-8B needs" in shown
    assert "does not fit" in shown
    assert "no chat template" in shown


def test_columns() -> None:
    assert text.grid(("A", "LONG"), [("wide cell", "x"), ("", "y")]) == (
        "A          LONG\nwide cell  x\n           y"
    )
    assert text.table([("a", "1"), ("long", "2")]) == "a     1\nlong  2"
    assert text.when(None) == "-"


class OneUnit:
    """A systemd whose units are all in one state."""

    def __init__(self, active: str) -> None:
        self._active = active

    def state(self, unit: str) -> UnitState:
        return UnitState(
            unit, "loaded", self._active, "", "enabled", 1.7e9, False, None, "1", "success", None
        )

    def reload(self) -> None:
        raise AssertionError("status changes nothing")

    def start(self, unit: str, watch: object = None) -> UnitState:
        raise AssertionError(f"status starts no {unit}")

    restart = wait = start

    def stop(self, unit: str) -> UnitState:
        raise AssertionError(f"status stops no {unit}")

    def enable(self, unit: str) -> bool:
        raise AssertionError(f"status enables no {unit}")

    def disable(self, unit: str) -> None:
        raise AssertionError(f"status disables no {unit}")

    reset_failed = queue_start = disable

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        raise AssertionError(f"status lists no {pattern}")

    def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]:
        raise AssertionError(f"status loads no {names}")


def observed(active: str, port: int) -> InstanceState:
    made = planned("genoa-1s", port=port)
    found = state.observe(made, OneUnit(active))
    assert (found.name, found.model, found.at_boot) == ("qwen3-8b", "Qwen/Qwen3-8B", True)
    (instance,) = found.instances
    assert (instance.unit, instance.port) == ("epyc-vllm-qwen3-8b-s0.service", port)
    return instance


def test_a_healthy_endpoint(server: Server) -> None:
    server.serve_model("m")
    assert observed("active", server.port).health == "healthy"
    server.answer("/health", "", 503)
    assert observed("active", server.port).health.startswith("HTTP 503")


@pytest.mark.parametrize(
    ("active", "health"),
    [
        ("activating", "loading"),
        ("active", "nothing listens at"),
        ("failed", "-"),
        ("inactive", "-"),
        ("deactivating", "-"),
    ],
)
def test_an_endpoint_that_does_not_answer(free_port: int, active: str, health: str) -> None:
    assert observed(active, free_port).health.startswith(health)


def test_status_as_text() -> None:
    instance = InstanceState("a-s0", "u", "failed", "exit-code", "-", 8000, 0, None)
    endpoint_state = EndpointState("a", "m", "t", False, (instance, replace(instance, name="b")))
    header, first, second = state.text([endpoint_state]).splitlines()
    assert header.split() == [
        "ENDPOINT", "INSTANCE", "STATE", "HEALTH", "PORT", "SOCKET", "BOOT", "SINCE",
    ]  # fmt: skip
    assert first.split() == ["a", "a-s0", "failed", "-", "8000", "0", "no", "-"]
    assert second.split()[1] == "b"
    drift = Drift("a", "unit-changed", "its unit was edited", "epyc-vllm apply")
    told = state.text([replace(endpoint_state, drift=(drift,))]).splitlines()
    assert told[3:] == ["drift    a: its unit was edited (epyc-vllm apply)"]
    assert "no endpoints" in state.text([])
