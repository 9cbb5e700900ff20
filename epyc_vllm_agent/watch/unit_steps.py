"""The steps that an instance's unit calls: preflight, serve, ready, stopping, stopped.

Whether an end was asked for: ExecStop= runs for a stop that was asked for and for a process that
ended by itself, but only in the first case is there still a main process (systemd.service(5)). A
stop while the server loads runs no ExecStop=, but signals the step that waits for it. The job that
is queued would not tell: a start that follows a stop at once has replaced it.
"""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from epyc_vllm_agent.changes import running
from epyc_vllm_agent.changes.installed import stored_plan
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors.command import become
from epyc_vllm_agent.doors.systemd import DBusSystemd
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import contained, ending, evidence, lent, marks, readiness
from epyc_vllm_agent.watch.failure import FailureReport
from epyc_vllm_agent.watch.marks import Mark
from epyc_vllm_agent.watch.preflight import container_preflight
from epyc_vllm_agent.watch.preflight import preflight as check


def preflight(paths: Paths, name: str, invocation_id: str) -> None:
    """ExecStartPre: raises Refused where something the plan counted on has changed."""
    marks.write(paths, name, Mark(invocation_id, "preflight"))
    running.note(paths, name, invocation_id)
    plan, instance = _planned(paths, name)
    facts = gather(paths, Generations.from_json(read_data("generations.json")))
    fault = check(plan, instance, facts) or container_preflight(plan, instance)
    if fault:
        marks.write(paths, name, Mark(invocation_id, "preflight", fault.message, fault.hint))
        raise Refused(fault.code, fault.message, fault.hint)
    contained.prepare(paths, plan, instance)


def serve(credentials: Path, command: Sequence[str]) -> NoReturn:
    """ExecStart of a server with an API key: becomes `command`, with the key in its environment."""
    key = readiness.key_in(credentials / "api-key")
    os.umask(0o077)  # the unit's own, which the command line widens for files that others read
    become(command, {"VLLM_API_KEY": key})


def ready(paths: Paths, name: str, invocation_id: str, main_pid: int) -> None:
    """ExecStartPost: returns when the instance has answered; raises ActionFailed otherwise."""
    plan, instance = _planned(paths, name)

    def end_loading(*_: object) -> None:
        if not _is_stopping(name):
            marks.write(paths, name, Mark(invocation_id, "start", "a signal interrupted the start"))
            raise SystemExit(1)
        # vLLM loses SIGTERM while it warms up: the stop would wait for the whole grace.
        marks.ask_stop(paths, name, invocation_id)
        contained.end(plan, instance, main_pid)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end_loading)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked by the unit until now

    def begin(phase: str) -> None:
        marks.write(paths, name, Mark(invocation_id, phase))

    result = readiness.wait(plan, instance, main_pid, begin)
    if result.probe.ok:
        lent.lend(paths, name, readiness.api_key(plan))
        group = contained.server_group(paths, plan, instance)
        marks.write(paths, name, Mark(invocation_id, readiness.SERVING, control_group=group))
        _drop_stale_caches(paths, plan, name)
        return
    marks.write(paths, name, Mark(invocation_id, result.phase, result.probe.reason))
    raise ActionFailed(
        "not-ready", f"{name} failed in phase {result.phase}: {result.probe.reason}", None
    )


def _drop_stale_caches(paths: Paths, plan: EndpointPlan, name: str) -> None:
    """What another stack compiled is of no use any more once this one serves."""
    for path in (paths.cache / name).glob("*"):
        if path.name == plan.cache_key:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def stopping(paths: Paths, name: str, invocation_id: str, main_pid: str | None) -> None:
    """ExecStop: notes that the stop was asked for, if there is a process left to stop."""
    if main_pid:
        marks.ask_stop(paths, name, invocation_id)


def stopped(paths: Paths, name: str, variables: Mapping[str, str]) -> FailureReport | None:
    """ExecStopPost: the stored report of an unasked end, None where it was asked for.

    `variables` are what systemd.exec(5) sets for it: INVOCATION_ID, SERVICE_RESULT, EXIT_CODE,
    EXIT_STATUS.
    """
    invocation_id, result = variables["INVOCATION_ID"], variables["SERVICE_RESULT"]
    contained.clear(paths, name)
    lent.take_back(paths, name)
    mark, seen = marks.read(paths, name, invocation_id), evidence.left(paths, name, invocation_id)
    given_up = seen is not None and seen.verdict.failed  # it was the watchdog that asked
    if not given_up and _was_asked_for(mark, result, variables.get("EXIT_STATUS")):
        return None
    try:
        plan: EndpointPlan | None = _planned(paths, name)[0]
    except ActionFailed:
        plan = None
    return ending.report(paths, name, variables, mark, seen, plan)


def _planned(paths: Paths, name: str) -> tuple[EndpointPlan, Instance]:
    # By name: another endpoint's plan that cannot be read must not stop this one.
    plan = stored_plan(paths, name.rpartition("-s")[0])
    instance = plan.instance(name) if plan else None
    if plan and instance:
        return plan, instance
    raise ActionFailed(
        "no-plan",
        f"there is no stored plan for instance {name}",
        "run `epyc-vllm enable` for its endpoint",
    )


def _is_stopping(name: str) -> bool:
    """Whether systemd stops the unit, and not for a fault; true where it cannot be asked."""
    try:
        state = DBusSystemd().state(service_name(name))
    except ActionFailed:
        return True
    return state.active_state == "deactivating" and state.result == "success"


def _was_asked_for(mark: Mark | None, result: str, main_exit: str | None) -> bool:
    """`main_exit` is the server's exit status or signal, None where it never ran."""
    if mark is None or mark.phase == "preflight":
        # A stop that comes before any step could note it: it signals what runs just then. Or it
        # was noted by the step that waits, before its first phase, and that step ended the server.
        noted = mark is not None and mark.stop_asked
        clean = result == "success" and (mark is None or mark.fault is None)
        return clean and (noted or main_exit in (None, "TERM"))
    starting = mark.phase != readiness.SERVING
    if starting and result != "success":  # its time was up, or a step said no
        return False
    return mark.stop_asked
