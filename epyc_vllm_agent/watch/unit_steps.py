"""The steps that an instance's unit calls: preflight, ready, stopping, stopped.

Whether an end was asked for: ExecStop= runs for a stop that was asked for and for a process that
ended by itself, but only in the first case is there still a main process (systemd.service(5)). A
stop while the server loads runs no ExecStop=, but signals the step that waits for it. The job that
is queued would not tell: a start that follows a stop at once has replaced it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from epyc_vllm_agent.changes.installed import stored_plan
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import journal
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.watch import failure, marks, readiness
from epyc_vllm_agent.watch.diagnosis import Signatures, masked
from epyc_vllm_agent.watch.failure import Exit, FailureReport
from epyc_vllm_agent.watch.marks import Mark
from epyc_vllm_agent.watch.preflight import preflight as check


def preflight(paths: Paths, name: str, invocation_id: str) -> None:
    """ExecStartPre: raises Refused where something the plan counted on has changed."""
    marks.write(paths, name, Mark(invocation_id, "preflight"))
    plan, instance = _planned(paths, name)
    facts = gather(paths, Generations.from_json(read_data("generations.json")))
    fault = check(plan, instance, facts)
    if fault:
        marks.write(paths, name, Mark(invocation_id, "preflight", fault.message, fault.hint))
        raise Refused(fault.code, fault.message, fault.hint)


def ready(paths: Paths, name: str, invocation_id: str, main_pid: int) -> None:
    """ExecStartPost: returns when the instance has answered; raises ActionFailed otherwise."""
    plan, instance = _planned(paths, name)

    def end_loading(*_: object) -> None:
        # vLLM loses SIGTERM while it warms up: the stop would wait for the whole grace.
        marks.ask_stop(paths, name, invocation_id)
        os.kill(main_pid, signal.SIGKILL)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end_loading)

    def begin(phase: str) -> None:
        marks.write(paths, name, Mark(invocation_id, phase))

    result = readiness.wait(plan, instance, main_pid, begin)
    if result.probe.ok:
        marks.write(paths, name, Mark(invocation_id, readiness.SERVING))
        return
    marks.write(paths, name, Mark(invocation_id, result.phase, result.probe.reason))
    raise ActionFailed(
        "not-ready", f"{name} failed in phase {result.phase}: {result.probe.reason}", None
    )


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
    mark = marks.read(paths, name, invocation_id)
    if mark and _was_asked_for(mark, result):
        return None
    try:
        plan: EndpointPlan | None = _planned(paths, name)[0]
    except ActionFailed:
        plan = None
    report = failure.compose(
        plan.name if plan else name.rpartition("-s")[0],
        name,
        invocation_id,
        time.time(),
        mark,
        Exit(result, variables.get("EXIT_CODE"), variables.get("EXIT_STATUS")),
        masked(journal.tail(invocation_id, failure.LOG_LINES), _secrets(plan)),
        plan,
        Signatures.from_json(read_data("failures.json")),
    )
    with contextlib.suppress(OSError):  # a full disk: what is told is in the journal still
        failure.store(paths, report)
    return report


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


def _was_asked_for(mark: Mark, result: str) -> bool:
    starting = mark.phase != readiness.SERVING
    if starting and result != "success":  # its time was up, or a step said no
        return False
    return mark.stop_asked or (mark.phase == "preflight" and mark.fault is None)


def _secrets(plan: EndpointPlan | None) -> list[str]:
    try:
        key = readiness.api_key(plan) if plan else None
    except ActionFailed:
        key = None
    return [key] if key else []
