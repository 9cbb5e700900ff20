"""The report of a failed run: what is in it, how it is stored and found again."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.files import write_atomically
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.watch.decide import Verdict
from epyc_vllm_agent.watch.diagnosis import UNKNOWN, Cause, Signatures, diagnose
from epyc_vllm_agent.watch.evidence import Evidence
from epyc_vllm_agent.watch.marks import Mark
from epyc_vllm_agent.watch.readiness import SERVING

SCHEMA = 1
KEPT = 20  # per instance
LOG_LINES = 50
# The cause may stand before the last lines: a server that fails writes the traceback of its engine
# first, and then a longer one of its own that only says so.
DIAGNOSED_LINES = 400


@dataclass(frozen=True, slots=True)
class Exit:
    """What systemd says of the end: $SERVICE_RESULT, $EXIT_CODE and $EXIT_STATUS."""

    result: str
    code: str | None
    status: str | None

    @property
    def is_by_signal(self) -> bool:
        """podman, conmon and docker pass SIGKILL on as 137."""
        return self.code in ("killed", "dumped") or self.status == "137"

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
    verdict: Verdict = Verdict.DEAD
    evidence: Evidence | None = None

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
    evidence: Evidence | None = None,
) -> FailureReport:
    """The report; `log` is what the cause is looked for in, its last lines are kept."""
    phase = mark.phase if mark else "start"
    cause = _cause(phase, mark, end, log, signatures, evidence)
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
        log=tuple(log)[-LOG_LINES:],
        plan=plan,
        verdict=_verdict(phase, cause, evidence),
        evidence=evidence,
    )


def _cause(
    phase: str,
    mark: Mark | None,
    end: Exit,
    log: Sequence[str],
    signatures: Signatures,
    evidence: Evidence | None,
) -> Cause:
    """What is certain first: the kernel's word, then the server's own, then what was seen of it."""
    if end.result == "oom-kill" or (evidence and evidence.oom_kills):
        return Cause(OUT_OF_MEMORY, "the kernel killed it for lack of memory", _LESS_MEMORY)
    seen = evidence.seen if evidence and evidence.seen and evidence.seen.verdict.failed else None
    if seen and seen.verdict is Verdict.HUNG:  # nothing in the log of a hung server tells why
        return Cause("hung", seen.reason, _HUNG)
    found = diagnose(log, signatures) if phase != "preflight" else None
    if found or not seen:
        return found or _unexplained(phase, mark, end)
    return Cause(seen.verdict.value, seen.reason, _SICK)


def _verdict(phase: str, cause: Cause, evidence: Evidence | None) -> Verdict:
    if cause.code == OUT_OF_MEMORY:
        return Verdict.OUT_OF_MEMORY
    if evidence and evidence.seen and evidence.seen.verdict.failed:
        return evidence.seen.verdict
    return Verdict.DEAD if phase == SERVING else Verdict.START_FAILED


OUT_OF_MEMORY = "out-of-memory"
_LESS_MEMORY = "lower kv_gib or cores"
_HUNG = "start it again; the report says which process stood still, and whether it used CPU time"
_SIGNAL = "see `journalctl -k` and `coredumpctl`; else somebody sent it: start it again"
_SICK = "start it again; the report holds the last probes and the log"


def _unexplained(phase: str, mark: Mark | None, end: Exit) -> Cause:
    hint = "no known cause fits: read the log of the unit"
    if mark and mark.fault:
        text = mark.fault
        if "exited" in text and end.code:
            text += f" ({end.text})"
        return Cause(phase, text, mark.hint or hint)
    if phase == SERVING and end.is_by_signal:
        return Cause("signal", f"a signal ended the server ({end.text})", _SIGNAL)
    if phase == SERVING:
        return Cause(UNKNOWN, f"the server ended unasked ({end.text})", hint)
    return Cause(UNKNOWN, f"the start failed ({end.text})", hint)


def store(paths: Paths, report: FailureReport) -> Path:
    """Writes the report and drops this instance's oldest beyond KEPT; where it is."""
    name = f"{report.instance}-{int(report.time * 1000):015d}-{report.invocation_id[:12]}.json"
    path = paths.reports / name
    write_atomically(path, json.dumps(to_plain(report), indent=1))
    others = [file for file in _files(paths, report.instance) if file != path]
    for old in others[: 1 - KEPT]:  # not by its time alone: the clock may have been set back
        old.unlink(missing_ok=True)
    return path


def stored(paths: Paths, name: str | None = None) -> tuple[FailureReport, ...]:
    """Every report that can be read, the newest first: all, or those of an endpoint or instance.

    Raises PermissionError where the folder may not be read.
    """
    try:
        files = [paths.reports / file for file in os.listdir(paths.reports)]  # noqa: PTH208 - glob hides EACCES
    except FileNotFoundError:
        return ()
    found = [report for path in files if path.suffix == ".json" and (report := _read(path))]
    wanted = [one for one in found if name is None or name in (one.endpoint, one.instance)]
    return tuple(sorted(wanted, key=lambda one: one.time, reverse=True))


def _read(path: Path) -> FailureReport | None:
    try:
        return from_plain(FailureReport, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def find(paths: Paths, instance: str, invocation_id: str) -> FailureReport | None:
    """The report of that invocation, None where it made none."""
    for path in reversed(_files(paths, instance)):
        if path.stem.endswith(invocation_id[:12]):
            return _read(path)
    return None


def _files(paths: Paths, instance: str) -> list[Path]:
    return sorted(paths.reports.glob(f"{instance}-{'[0-9]' * 15}-*.json"))
