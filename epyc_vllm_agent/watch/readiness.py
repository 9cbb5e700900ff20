"""Does an instance answer? The phases of the recipe's step 7, once or until the start job ends."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.doors import probe
from epyc_vllm_agent.doors.probe import Probe
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.plan.values import EndpointPlan, Instance

HEALTH, MODELS, COMPLETION, SERVING = "health", "models", "completion", "serving"
_POLL_SECONDS = 0.5
_HEALTH_SECONDS, _MODELS_SECONDS = 10.0, 30.0
_VERIFY_SECONDS = 180.0  # the recipe's limit for the smoke request
_LEAST_SECONDS = 5.0  # for a phase that begins when the start's time is nearly up
_KEY = r"[!#-&(-\[\]-~]+"  # printable ASCII without quotes and backslash


@dataclass(frozen=True, slots=True)
class PhaseResult:
    phase: str
    probe: Probe


@dataclass(frozen=True, slots=True)
class Verified:
    instance: str
    phases: tuple[PhaseResult, ...]

    @property
    def ok(self) -> bool:
        return all(result.probe.ok for result in self.phases)


def url_of(plan: EndpointPlan, instance: Instance) -> str:
    return probe.base_url(plan.config.address, instance.port)


def api_key(plan: EndpointPlan) -> str | None:
    """The key in the endpoint's api_key_file, a line VLLM_API_KEY=...; None without a file.

    Raises ActionFailed where there is none: vLLM takes an empty key for no key, and would be open.
    """
    return None if plan.config.api_key_file is None else key_in(Path(plan.config.api_key_file))


def key_in(path: Path) -> str:
    """The key in a file with a line VLLM_API_KEY=...; raises ActionFailed where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ActionFailed(
            "key-unreadable",
            f"the API key file {path} cannot be read ({error.strerror})",
            "run this as root",
        ) from error
    lines = [line.strip().partition("=") for line in text.splitlines()]
    values = [value for name, _, value in lines if name == "VLLM_API_KEY"]
    key = values[-1].strip().strip("\"'") if values else ""  # systemd's own rule: the last one
    if not re.fullmatch(_KEY, key):
        raise ActionFailed(
            "key-missing",
            f"{path} has no line VLLM_API_KEY=... with a key that HTTP headers and systemd carry",
            "write the key into it as one line VLLM_API_KEY=..., of ASCII characters without "
            "blanks, quotes and backslashes",
        )
    return key


def verify(plan: EndpointPlan, instance: Instance) -> Verified:
    """Health, the model listed, one completion; stops at the first that fails."""
    results = []
    for phase, ask in _phases(plan, instance, api_key(plan)):
        results.append(PhaseResult(phase, ask(_VERIFY_SECONDS)))
        if not results[-1].probe.ok:
            break
    return Verified(instance.name, tuple(results))


def verify_all(plan: EndpointPlan) -> tuple[Verified, ...]:
    return tuple(verify(plan, instance) for instance in plan.instances)


def wait(
    plan: EndpointPlan, instance: Instance, main_pid: int, begin: Callable[[str], None]
) -> PhaseResult:
    """Waits until the instance has answered a completion; returns the last phase's result.

    Ends early where the process `main_pid` is gone or /health says that the engine is dead.
    `begin` is told each phase. The time limit is the plan's; the unit's own is a minute longer.
    """
    ends = time.monotonic() + plan.start_timeout_seconds
    begin(HEALTH)
    result = _wait_for_health(plan, instance, main_pid)
    for phase, ask in _phases(plan, instance, api_key(plan)):
        if not result.probe.ok:
            break
        begin(phase)
        result = PhaseResult(phase, ask(max(ends - time.monotonic(), _LEAST_SECONDS)))
    return result


def _phases(
    plan: EndpointPlan, instance: Instance, key: str | None
) -> tuple[tuple[str, Callable[[float], Probe]], ...]:
    """Each phase with its question, which takes a time limit in seconds."""
    url, name = url_of(plan, instance), plan.config.client_name
    kind = plan.model.primary_endpoint
    return (
        (HEALTH, lambda limit: probe.health(url, min(limit, _HEALTH_SECONDS))),
        (MODELS, lambda limit: probe.listed(url, name, key, min(limit, _MODELS_SECONDS))),
        (COMPLETION, lambda limit: probe.completion(url, name, kind, key, limit)),
    )


def _wait_for_health(plan: EndpointPlan, instance: Instance, main_pid: int) -> PhaseResult:
    url = url_of(plan, instance)
    began = time.monotonic()
    while True:
        found = probe.health(url)
        waited = time.monotonic() - began
        fault = None
        if found.ok:
            return PhaseResult(HEALTH, found)
        if not _alive(main_pid):
            fault = "the server exited while loading"
        elif waited > _POLL_SECONDS and (found.reason or "").startswith("HTTP 503"):
            fault = "the engine is dead (/health answers 503)"
        elif waited > plan.start_timeout_seconds:
            fault = f"not healthy within {plan.start_timeout_seconds} s: {found.reason}"
        if fault:
            return PhaseResult(HEALTH, Probe(False, found.refused, waited, fault))
        time.sleep(_POLL_SECONDS)


def _alive(pid: int) -> bool:
    """True while the process runs; a zombie that systemd has not reaped yet counts as gone."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
