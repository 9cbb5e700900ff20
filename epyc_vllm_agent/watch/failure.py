"""The report of a failed run: what is in it, how it is stored and found again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.files import write_atomically
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.watch.diagnosis import UNKNOWN, Cause, Signatures, diagnose
from epyc_vllm_agent.watch.marks import Mark
from epyc_vllm_agent.watch.readiness import SERVING

SCHEMA = 1
KEPT = 20  # per instance
LOG_LINES = 50


@dataclass(frozen=True, slots=True)
class Exit:
    """What systemd says of the end: $SERVICE_RESULT, $EXIT_CODE and $EXIT_STATUS."""

    result: str
    code: str | None
    status: str | None

    @property
    def text(self) -> str:
        if self.code == "exited":
            return f"exit status {self.status}"
        return f"{self.code} by signal {self.status}" if self.code else f"result {self.result}"


@dataclass(frozen=True, slots=True)
class FailureReport:
    schema: int
    endpoint: str
    instance: str
    invocation_id: str
    time: float  # seconds since the epoch
    phase: str
    exit: Exit
    cause_code: str
    cause: str  # one sentence
    hint: str | None
    log: tuple[str, ...]
    plan: EndpointPlan | None

    @property
    def log_text(self) -> str:
        head = f"--- last {len(self.log)} log lines of {self.instance} ({self.exit.text})"
        return "\n".join([head, *self.log, "---"])


def compose(
    endpoint: str,
    instance: str,
    invocation_id: str,
    now: float,
    mark: Mark | None,
    end: Exit,
    log: Sequence[str],
    plan: EndpointPlan | None,
    signatures: Signatures,
) -> FailureReport:
    """The report; the log's own signature explains more than the fault that readiness saw."""
    phase = mark.phase if mark else "start"
    found = diagnose(log, signatures) if phase != "preflight" else None
    cause = found or _unexplained(phase, mark, end)
    return FailureReport(
        schema=SCHEMA,
        endpoint=endpoint,
        instance=instance,
        invocation_id=invocation_id,
        time=now,
        phase=phase,
        exit=end,
        cause_code=cause.code,
        cause=cause.text,
        hint=cause.hint,
        log=tuple(log),
        plan=plan,
    )


def _unexplained(phase: str, mark: Mark | None, end: Exit) -> Cause:
    hint = "no known cause fits: read the log of the unit"
    if end.result == "oom-kill":
        return Cause(
            "out-of-memory", "the kernel killed it for lack of memory", "lower kv_gib or cores"
        )
    if mark and mark.fault:
        text = mark.fault
        if "exited" in text and end.code:
            text += f" ({end.text})"
        return Cause(phase, text, mark.hint or hint)
    if phase == SERVING:
        return Cause(UNKNOWN, f"the server ended unasked ({end.text})", hint)
    return Cause(UNKNOWN, f"the start failed ({end.text})", hint)


def store(paths: Paths, report: FailureReport) -> None:
    """Writes the report and drops this instance's oldest beyond KEPT."""
    name = f"{report.instance}-{int(report.time * 1000):015d}-{report.invocation_id[:12]}.json"
    write_atomically(paths.reports / name, json.dumps(to_plain(report), indent=1))
    for old in _files(paths, report.instance)[:-KEPT]:
        old.unlink(missing_ok=True)


def find(paths: Paths, instance: str, invocation_id: str) -> FailureReport | None:
    """The report of that invocation, None where it made none."""
    for path in reversed(_files(paths, instance)):
        if path.stem.endswith(invocation_id[:12]):
            try:
                return from_plain(FailureReport, json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                return None
    return None


def _files(paths: Paths, instance: str) -> list[Path]:
    return sorted(paths.reports.glob(f"{instance}-{'[0-9]' * 15}-*.json"))
