"""Carries a change set out: stop, write, reload, start, wait; takes it back where that fails."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.apply.transaction import Transaction
from epyc_vllm_agent.changes.changes import ChangeSet
from epyc_vllm_agent.doors import journal
from epyc_vllm_agent.doors.systemd import Systemd, UnitState, Watcher
from epyc_vllm_agent.errors import ActionFailed, AgentError
from epyc_vllm_agent.files import sweep
from epyc_vllm_agent.interrupts import deferred
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.units.names import ALL_TARGET, WATCHDOG
from epyc_vllm_agent.watch import failure
from epyc_vllm_agent.watch.diagnosis import Signatures
from epyc_vllm_agent.watch.failure import Exit, FailureReport


@dataclass(frozen=True, slots=True)
class Converged:
    """What was done: files that changed and services that were started."""

    changed: tuple[str, ...]
    started: tuple[str, ...]
    enabled: bool = False  # its target was not started at boot before

    @property
    def is_nothing(self) -> bool:
        return not self.changed and not self.started and not self.enabled


Log = Callable[[str], tuple[str, ...]]


class StartFailed(ActionFailed):
    """An endpoint did not come up; the message holds a cause for each instance that failed."""

    def __init__(self, reports: Sequence[FailureReport], outcome: str) -> None:
        super().__init__(
            "start-failed",
            "; ".join(f"{r.instance} failed in phase {r.phase}: {r.cause}" for r in reports),
            "; ".join(dict.fromkeys(r.hint for r in reports if r.hint)) or None,
        )
        self.details = "\n".join(report.log_text for report in reports) or None
        self.outcome = f"nothing is retried; {outcome}"


def enable(
    paths: Paths,
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    watch: Watcher | None = None,
    log: Log = journal.of_unit,
    prove: Callable[[], None] = lambda: None,
) -> Converged:
    """Brings the endpoint of `changes` up: `services` run its instances, `log` has their lines.

    `prove` is called when all is up, and what it raises is a failure like any other.
    Raises StartFailed, ActionFailed or KeyboardInterrupt after the earlier files are back (and
    started again where they ran). Nothing is tried twice.
    """
    sweep_all(paths)
    ran = [service for service in services if _runs(systemd.state(service))]
    at_boot = systemd.state(changes.target).enabled == "enabled"
    transaction = Transaction(paths, changes.files)
    transaction.prepare()  # a full disk is found before anything is stopped
    try:
        for unit in (*changes.stop, *(service for service in changes.restart if service in ran)):
            systemd.stop(unit)
        transaction.commit()
        systemd.enable(changes.target)  # before the reload: its links count for it too
        _reload(systemd, changes.reload or not at_boot, [changes.target, *services])
        started = _start(paths, changes, services, systemd, watch)
        prove()
    except BaseException as error:
        outcome = _take_back(changes, services, systemd, transaction, started_before=bool(ran))
        if isinstance(error, _NotUp):
            reports = [_report(paths, changes.endpoint, state, log) for state in error.states]
            raise StartFailed(reports, outcome) from None
        if isinstance(error, AgentError):
            error.outcome = outcome
        error.add_note(outcome)
        raise
    files = tuple(change.path for change in changes.files)
    return Converged(files, started, enabled=not at_boot)


def stand_by(systemd: Systemd) -> None:
    """Enables what is no single endpoint's: the target of all, for the boot, and the watchdog.

    The package leaves both off until there is something to start and to watch. One that is masked
    stays so: that is the administrator's word.
    """
    if systemd.state(ALL_TARGET).enabled == "disabled":
        systemd.enable(ALL_TARGET)
    if systemd.state(WATCHDOG).enabled == "disabled":
        systemd.enable(WATCHDOG)
        systemd.start(WATCHDOG)


def disable(paths: Paths, changes: ChangeSet, services: Sequence[str], systemd: Systemd) -> None:
    """Stops the endpoint and removes its files; what is already gone is no error.

    `services` are all that may run for it, whether their unit files are still there or not.
    """
    sweep_all(paths)
    transaction = Transaction(paths, changes.files)
    transaction.prepare()
    units = list(dict.fromkeys([*changes.stop, *services]))
    for unit in units:
        if _runs(systemd.state(unit)):
            systemd.stop(unit)
    with contextlib.suppress(ActionFailed):  # a link may be left where its target file is gone
        systemd.disable(changes.target)
    transaction.commit()
    systemd.reload()
    for unit in units:
        systemd.reset_failed(unit)


def sweep_all(paths: Paths) -> None:
    """Removes what a killed run staged."""
    folders = (paths.endpoints, paths.plans, paths.units, paths.quadlets, paths.run, paths.reports)
    sweep(folders)


class _NotUp(Exception):
    def __init__(self, states: Sequence[UnitState]) -> None:
        super().__init__()
        self.states = states


def _reload(systemd: Systemd, changed: bool, units: Sequence[str]) -> None:
    """Reloads where files changed, or where a killed run changed them and did not come to it.

    Raises ActionFailed where a unit is not there then: a generator may have left its file out.
    """
    stale = any(s.needs_reload or s.load_state != "loaded" for s in map(systemd.state, units))
    if changed or stale:
        systemd.reload()
    for state in map(systemd.state, units):
        if state.load_state != "loaded":
            raise ActionFailed(
                "unit-missing",
                f"systemd has no usable unit {state.name} after the reload ({state.load_state})",
                "see `journalctl -b -t quadlet-generator -t systemd` for what was wrong with it",
            )


def _runs(state: UnitState) -> bool:
    """Up, or on its way there or down: anything but settled."""
    return state.active_state not in ("inactive", "failed") or state.job is not None


def _start(
    paths: Paths,
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    watch: Watcher | None,
) -> tuple[str, ...]:
    """Starts what is not up, all instances at once, and waits for them."""
    down = [service for service in services if not systemd.state(service).is_up]
    target_up = systemd.state(changes.target).is_up
    if down or not target_up:
        systemd.start(changes.target, watch)
    failed = [state for state in map(systemd.state, services) if not state.is_up]
    if failed:
        raise _NotUp(failed)
    return tuple(down)


def _report(paths: Paths, endpoint: str, state: UnitState, log: Log) -> FailureReport:
    """The unit's own report, or what systemd says where none of its steps could run."""
    instance = state.name.removeprefix("epyc-vllm-").removesuffix(".service")
    invocation = state.invocation_id or ""
    found = failure.find(paths, instance, invocation) if invocation else None
    return found or failure.compose(
        endpoint,
        instance,
        invocation,
        time.time(),
        None,
        Exit(state.result or state.active_state, None, None),
        log(state.name),
        None,
        Signatures(()),
    )


def _take_back(
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    transaction: Transaction,
    started_before: bool,
) -> str:
    """Earlier files back, and running again if they ran; tells in words how things are now."""
    if not changes.files:
        return "the endpoint's files are as they were"
    new = any(
        change.old is None and change.path.endswith(changes.target) for change in changes.files
    )
    with deferred():
        for unit in (changes.target, *services):
            with contextlib.suppress(ActionFailed):  # whatever its state: a start may be queued
                systemd.stop(unit)
        if new:
            with contextlib.suppress(ActionFailed):
                systemd.disable(changes.target)
        transaction.undo()
        with contextlib.suppress(ActionFailed):
            systemd.reload()
    if new:
        return "its files were removed again"
    if not started_before:
        return "the earlier files are back"
    return _start_again(changes.target, services, systemd)


def _start_again(target: str, services: Sequence[str], systemd: Systemd) -> str:
    with contextlib.suppress(ActionFailed):
        systemd.start(target)
        if all(systemd.state(service).is_up for service in services):
            return "the earlier files are back, and the endpoint runs as before"
    return (
        f"the earlier files are back, but it did not start with them: `systemctl status {target}`"
    )
