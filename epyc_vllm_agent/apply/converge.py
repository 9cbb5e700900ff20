"""Carries a change set out: stop, write, reload, start, wait; takes it back where that fails."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from epyc_vllm_agent.apply.transaction import Transaction
from epyc_vllm_agent.changes.changes import ChangeSet
from epyc_vllm_agent.doors.systemd import Systemd, UnitState, Watcher
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.files import sweep
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.watch import failure
from epyc_vllm_agent.watch.failure import FailureReport


@dataclass(frozen=True, slots=True)
class Converged:
    """What was done: files that changed and services that were started."""

    changed: tuple[str, ...]
    started: tuple[str, ...]

    @property
    def is_nothing(self) -> bool:
        return not self.changed and not self.started


class StartFailed(ActionFailed):
    """An endpoint did not come up; `reports` tell why, one for each instance that failed."""

    def __init__(self, endpoint: str, reports: Sequence[FailureReport], restored: bool) -> None:
        causes = "; ".join(
            f"{report.instance} failed in phase {report.phase}: {report.cause}"
            for report in reports
        )
        state = "the earlier files are back" if restored else "its files were removed again"
        super().__init__(
            "start-failed",
            causes or f"endpoint {endpoint} did not come up",
            "; ".join(dict.fromkeys(report.hint for report in reports if report.hint)) or None,
        )
        self.details = "\n".join(report.log_text for report in reports) or None
        self.outcome = f"nothing is retried; {state}"


def enable(
    paths: Paths,
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    watch: Watcher | None = None,
) -> Converged:
    """Brings the endpoint of `changes` up: `services` run its instances.

    Raises StartFailed, ActionFailed or KeyboardInterrupt after the earlier files are back (and
    started again where they ran). Nothing is tried twice.
    """
    sweep_all(paths)
    ran = [service for service in services if systemd.state(service).is_up]
    transaction = Transaction(paths, changes.files)
    transaction.prepare()  # a full disk is found before anything is stopped
    try:
        for unit in (*changes.stop, *(service for service in changes.restart if service in ran)):
            systemd.stop(unit)
        transaction.commit()
        systemd.enable(changes.target)  # before the reload: its links count for it too
        _reload(systemd, changes.reload, [changes.target, *services])
        started = _start(paths, changes, services, systemd, watch)
    except BaseException as error:
        restored = any(change.old for change in changes.files) or not changes.files
        _take_back(changes, services, systemd, transaction, started_before=bool(ran))
        if isinstance(error, _NotUp):
            raise StartFailed(changes.endpoint, error.reports, restored) from None
        raise
    return Converged(tuple(change.path for change in changes.files), started)


def disable(paths: Paths, changes: ChangeSet, systemd: Systemd) -> None:
    """Stops the endpoint and removes its files; what is already gone is no error."""
    sweep_all(paths)
    for unit in changes.stop:
        if systemd.state(unit).active_state not in ("inactive", "failed"):
            systemd.stop(unit)
    if any(change.path.endswith(changes.target) for change in changes.files):
        systemd.disable(changes.target)
    Transaction(paths, changes.files).commit()
    if changes.reload:
        systemd.reload()
    for unit in changes.stop:
        systemd.reset_failed(unit)


def sweep_all(paths: Paths) -> None:
    """Removes what a killed run staged."""
    sweep([paths.endpoints, paths.plans, paths.units, paths.run, paths.reports])


class _NotUp(Exception):
    def __init__(self, reports: Sequence[FailureReport]) -> None:
        super().__init__()
        self.reports = reports


def _reload(systemd: Systemd, changed: bool, units: Sequence[str]) -> None:
    """Reloads where files changed, or where a killed run changed them and did not come to it."""
    stale = any(s.needs_reload or s.load_state != "loaded" for s in map(systemd.state, units))
    if changed or stale:
        systemd.reload()


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
        raise _NotUp([report for state in failed if (report := _report(paths, state))])
    return tuple(down)


def _report(paths: Paths, state: UnitState) -> FailureReport | None:
    instance = state.name.removeprefix("epyc-vllm-").removesuffix(".service")
    return failure.find(paths, instance, state.invocation_id) if state.invocation_id else None


def _take_back(
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    transaction: Transaction,
    started_before: bool,
) -> None:
    """Earlier files back, and running again if they ran; new instances are left stopped."""
    if not changes.files:
        return
    new = any(
        change.old is None and change.path.endswith(changes.target) for change in changes.files
    )
    for unit in (changes.target, *services):
        with contextlib.suppress(ActionFailed):
            if systemd.state(unit).active_state not in ("inactive", "failed"):
                systemd.stop(unit)
    if new:
        with contextlib.suppress(ActionFailed):
            systemd.disable(changes.target)
    transaction.undo()
    with contextlib.suppress(ActionFailed):
        systemd.reload()
        if started_before:
            systemd.start(changes.target)
