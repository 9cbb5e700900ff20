"""An end that nobody asked for: the one report of it, stored, told to journald and to the hook."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from epyc_vllm_agent.config.config import Watch, load
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import command, journal
from epyc_vllm_agent.errors import ActionFailed, AgentError
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import evidence, failure, readiness
from epyc_vllm_agent.watch.diagnosis import Signatures, masked
from epyc_vllm_agent.watch.evidence import Seen
from epyc_vllm_agent.watch.failure import Exit, FailureReport
from epyc_vllm_agent.watch.marks import Mark

MESSAGE_ID = "7f1c3a52d9d84b0c8f5be0a6c4e2971d"  # of the journal's entry for a report


def report(
    paths: Paths,
    name: str,
    variables: Mapping[str, str],
    mark: Mark | None,
    seen: Seen | None,
    plan: EndpointPlan | None,
) -> FailureReport:
    """Composes the report of the run that `variables` (systemd.exec(5)) tell of, and spreads it."""
    invocation_id = variables["INVOCATION_ID"]
    found = failure.compose(
        plan.name if plan else name.rpartition("-s")[0],
        name,
        invocation_id,
        time.time(),
        mark,
        Exit(variables["SERVICE_RESULT"], variables.get("EXIT_CODE"), variables.get("EXIT_STATUS")),
        masked(_log(invocation_id, seen), _secrets(paths, plan)),
        plan,
        Signatures.from_json(read_data("failures.json")),
        evidence.gather(paths, seen),
    )
    path = None
    with contextlib.suppress(OSError):  # a full disk: what is told is in the journal still
        path = failure.store(paths, found)
    journal.send(entry(found, path))
    if path:
        _run_hook(paths, found, path)
    return found


def _log(invocation_id: str, seen: Seen | None) -> tuple[str, ...]:
    """Of a run that was given up only what it said before: vLLM's words at a stop, an
    EngineDeadError among them, tell of the stop."""
    until = seen.time if seen and seen.verdict.failed else None
    return journal.tail(invocation_id, failure.DIAGNOSED_LINES, until)


def entry(found: FailureReport, path: Path | None) -> dict[str, str]:
    """The fields of the journal's entry; what is not known is left out."""
    fields = {
        "MESSAGE_ID": MESSAGE_ID,
        "MESSAGE": f"{found.instance} failed in phase {found.phase} ({found.verdict}): "
        f"{found.cause}",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "epyc-vllm",
        "EPYC_VLLM_ENDPOINT": found.endpoint,
        "EPYC_VLLM_INSTANCE": found.instance,
        "EPYC_VLLM_VERDICT": found.verdict.value,
        "EPYC_VLLM_CAUSE": found.cause_code,
        "EPYC_VLLM_UNIT": service_name(found.instance),
    }
    return fields | ({"EPYC_VLLM_REPORT": str(path)} if path else {})


def _run_hook(paths: Paths, found: FailureReport, path: Path) -> None:
    """Starts the administrator's program; systemd logs what becomes of it."""
    try:
        watch = load(paths).watch
    except AgentError:
        watch = Watch()
    if not watch.on_failure:
        return
    try:
        done = command.run(hook_command(watch, found, path), timeout_seconds=20)
        fault = done.stderr.strip() if done.status else None
    except ActionFailed as error:
        fault = error.message
    if fault:
        text = f"on_failure of {found.instance} could not be started: {fault}"
        journal.send({"MESSAGE": text, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "epyc-vllm"})


def hook_command(watch: Watch, found: FailureReport, path: Path) -> list[str]:
    """A transient unit: it outlives the failed one, and is ended when its time is up."""
    return [
        "systemd-run",
        "--quiet",
        "--no-block",
        "--collect",
        f"--unit=epyc-vllm-on-failure-{found.instance}-{found.invocation_id[:8]}",
        f"--description=on_failure of {found.instance}",
        f"--property=RuntimeMaxSec={watch.on_failure_timeout}",
        "--property=TimeoutStopSec=10",
        "--",
        *watch.on_failure,
        str(path),
    ]


def _secrets(paths: Paths, plan: EndpointPlan | None) -> list[str]:
    """The endpoint's API key and the hub's token, so that no line with them gets into a report."""
    found = []
    with contextlib.suppress(AgentError):
        found.append(readiness.api_key(plan) if plan else None)
    with contextlib.suppress(AgentError, OSError, UnicodeDecodeError):
        file = load(paths).hub_token_file
        found.append(Path(file).read_text(encoding="utf-8").strip() if file else None)
    return [secret for secret in found if secret]
