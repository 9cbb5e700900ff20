"""Carries change sets out: stop, write, reload, start, wait; takes back those that fail."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.apply import begun
from epyc_vllm_agent.apply.transaction import Transaction, write_failed
from epyc_vllm_agent.changes.changes import ChangeSet, Work
from epyc_vllm_agent.doors import journal
from epyc_vllm_agent.doors.systemd import Listed, Systemd, UnitState, Watcher
from epyc_vllm_agent.errors import ActionFailed, AgentError
from epyc_vllm_agent.files import sweep
from epyc_vllm_agent.interrupts import deferred
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.units.names import ALL_TARGET, WATCHDOG, is_unit
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
    up = tuple(services)
    work = Work(changes, services=up, up=up, anew=changes.restart)
    (outcome,) = carry_out(paths, [work], systemd, watch, log, prove).values()
    if isinstance(outcome, AgentError):
        raise outcome
    return outcome


def carry_out(
    paths: Paths,
    works: Sequence[Work],
    systemd: Systemd,
    watch: Watcher | None = None,
    log: Log = journal.of_unit,
    prove: Callable[[], None] = lambda: None,
) -> dict[str, Converged | AgentError]:
    """Does all `works`, with one reload for them and the starts side by side, and tells of each
    endpoint what became of it.

    What fails is taken back and the others go on; an interrupt takes back all that is not done.
    """
    sweep_all(paths)
    try:
        begun.begin(paths, {work.changes.endpoint: work.up for work in works})
    except OSError as error:
        raise write_failed(error) from error
    doing = [_Doing(paths, work, systemd, watch, log, prove) for work in works]
    try:
        for one in doing:
            one.step(one.write)
        changed = any(one.work.changes.reload or one.new_at_boot for one in doing)
        _reload([one for one in doing if one.outcome is None], systemd, changed)
        for one in doing:
            one.step(one.queue)
        for one in doing:
            one.step(one.wait)
    except BaseException as error:
        undone = [one for one in doing if one.outcome is None]
        with deferred():
            for one in undone:
                one.put_back()
        for one in undone:
            error.add_note(f"{one.work.changes.endpoint}: {one.await_back()}")
        raise
    finally:
        begun.end(paths, [work.changes.endpoint for work in works])
    ended = ((one.work.changes.endpoint, one.outcome) for one in doing)
    return {endpoint: outcome for endpoint, outcome in ended if outcome is not None}


class _NotUp(Exception):
    def __init__(self, states: Sequence[UnitState]) -> None:
        super().__init__()
        self.states = states


class _Doing:
    """One endpoint's work while it is done; `outcome` is there once it has ended."""

    def __init__(
        self,
        paths: Paths,
        work: Work,
        systemd: Systemd,
        watch: Watcher | None,
        log: Log,
        prove: Callable[[], None],
    ) -> None:
        self.work = work
        self.outcome: Converged | AgentError | None = None
        self._paths = paths
        self._systemd = systemd
        self._watch = watch
        self._log = log
        self._prove = prove
        self._transaction = Transaction(paths, work.changes.files)
        self._ran: tuple[str, ...] = ()
        self._down: tuple[str, ...] = ()  # services of those to be up that were not
        self._queued: tuple[str, ...] = ()  # units whose start was asked for
        self._prepared = False
        self._is_back = False
        self.new_at_boot = False

    def step(self, do: Callable[[], None]) -> None:
        """Runs `do` unless the work has ended; what fails is taken back and is its outcome."""
        if self.outcome is not None:
            return
        try:
            do()
        except (AgentError, _NotUp) as error:
            self.fail(error)

    def fail(self, error: AgentError | _NotUp) -> None:
        self.put_back()
        outcome = self.await_back()
        if isinstance(error, _NotUp):
            endpoint = self.work.changes.endpoint
            reports = [_report(self._paths, endpoint, state, self._log) for state in error.states]
            self.outcome = StartFailed(reports, outcome)
            return
        error.outcome = outcome
        error.add_note(outcome)
        self.outcome = error

    def write(self) -> None:
        """Stops what has to be and puts the files into their places."""
        work, systemd = self.work, self._systemd
        self._ran = tuple(unit.name for unit in systemd.load_units(_touched(work)) if unit.runs)
        self._transaction.prepare()  # a full disk is found before anything is stopped
        self._prepared = True
        for unit in (*work.changes.stop, *(unit for unit in work.anew if unit in self._ran)):
            systemd.stop(unit)
        self._transaction.commit()
        if work.at_boot:  # before the reload: its links count for it too
            self.new_at_boot = systemd.enable(work.changes.target)

    def queue(self) -> None:
        """Asks for the start of what is to be up and is not."""
        if self.work.up:
            states = map(self._systemd.state, self.work.up)
            self._down = tuple(state.name for state in states if not state.is_up)
            self._queued = _to_start(self.work, self._down, self._systemd)
        for unit in self._queued:
            self._systemd.queue_start(unit)

    def wait(self) -> None:
        """Until all of it is up, and proven."""
        for unit in self._queued:
            self._systemd.wait(unit, self._watch)
        failed = [state for state in map(self._systemd.state, self.work.up) if not state.is_up]
        if failed:
            raise _NotUp(failed)
        self._prove()
        files = tuple(change.path for change in self.work.changes.files)
        self.outcome = Converged(files, self._down, enabled=self.new_at_boot)

    def put_back(self) -> None:
        """Earlier files back, and what ran is told to start again; once, and to its end."""
        if not self._prepared or not self.work.changes.files or self._is_back:
            return
        changes, systemd = self.work.changes, self._systemd
        with deferred():
            for unit in (changes.target, *self.work.up) if _is_whole(self.work) else self.work.up:
                with contextlib.suppress(ActionFailed):  # whatever its state: a start may be queued
                    systemd.stop(unit)
            if _is_new(changes):
                with contextlib.suppress(ActionFailed):
                    systemd.disable(changes.target)
            self._transaction.undo()
            with contextlib.suppress(ActionFailed):
                systemd.reload()
            for unit in self._again:
                with contextlib.suppress(ActionFailed):
                    systemd.queue_start(unit)
            self._is_back = True

    def await_back(self) -> str:
        """Until what ran is up again; tells in words how things are then."""
        if not self._is_back:
            return "the endpoint's files are as they were"
        if _is_new(self.work.changes):
            return "its files were removed again"
        if not self._ran:
            return "the earlier files are back"
        with contextlib.suppress(ActionFailed):
            for unit in self._again:
                self._systemd.wait(unit)
            if all(self._systemd.state(service).is_up for service in self._ran):
                return "the earlier files are back, and the endpoint runs as before"
        return (
            "the earlier files are back, but it did not start with them: "
            f"`systemctl status {self.work.changes.target}`"
        )

    @property
    def _again(self) -> tuple[str, ...]:
        """What is started again where the work is taken back: the target, if it was whole."""
        if not self._ran or _is_new(self.work.changes):
            return ()
        return (self.work.changes.target,) if _is_whole(self.work) else self._ran


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


def disable(
    paths: Paths,
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    clean: Callable[[], None] = lambda: None,
) -> None:
    """Stops the endpoint and removes its files; what is already gone is no error.

    `services` are all that may run for it, whether their unit files are still there or not.
    `clean` removes what they left while the endpoint's own files still tell of it.
    """
    sweep_all(paths)
    of_units = Transaction(paths, [file for file in changes.files if is_unit(file.path)])
    others = Transaction(paths, [file for file in changes.files if not is_unit(file.path)])
    of_units.prepare()
    others.prepare()
    units = list(dict.fromkeys([*changes.stop, *services]))
    for loaded in systemd.load_units(units):
        if loaded.runs:
            systemd.stop(loaded.name)
    with contextlib.suppress(ActionFailed):  # a link may be left where its target file is gone
        systemd.disable(changes.target)
    clean()
    of_units.commit()
    systemd.reload()
    for unit in units:
        systemd.reset_failed(unit)
    others.commit()  # until here a run that is killed leaves what tells the next one of it


def sweep_all(paths: Paths) -> None:
    """Removes what a killed run staged."""
    ours = (paths.endpoints, paths.state, paths.plans, paths.run, paths.reports)
    sweep((*ours, paths.units, paths.quadlets))


def _reload(doing: Sequence[_Doing], systemd: Systemd, changed: bool) -> None:
    """Reloads where files changed, or where a killed run changed them and did not come to it.

    An endpoint fails whose unit is not there then: a generator may have left its file out.
    """
    units = {one: [one.work.changes.target, *one.work.services] for one in doing if _is_seen(one)}
    names = [unit for of_one in units.values() for unit in of_one]
    states = map(systemd.state, names)
    if changed or any(s.needs_reload or s.load_state != "loaded" for s in states):
        systemd.reload()
    missing = {u.name: u for u in systemd.load_units(names) if u.load_state != "loaded"}
    for one, of_one in units.items():
        gone = [missing[unit] for unit in of_one if unit in missing]
        if gone:
            one.fail(_unit_missing(gone[0]))


def _is_seen(one: _Doing) -> bool:
    return bool(one.work.up or one.work.changes.reload or one.work.at_boot)


def _unit_missing(state: Listed) -> ActionFailed:
    return ActionFailed(
        "unit-missing",
        f"systemd has no usable unit {state.name} after the reload ({state.load_state})",
        "see `journalctl -b -t quadlet-generator -t systemd` for what was wrong with it",
    )


def _to_start(work: Work, down: tuple[str, ...], systemd: Systemd) -> tuple[str, ...]:
    """The target, which starts all instances; not where it would start what somebody stopped."""
    if not _is_whole(work):
        return down
    target = work.changes.target
    return (target,) if down or not systemd.state(target).is_up else ()


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


def _is_new(changes: ChangeSet) -> bool:
    return any(file.old is None and file.path.endswith(changes.target) for file in changes.files)


def _is_whole(work: Work) -> bool:
    """Whether the endpoint is started as one: else some service of it stays as somebody left it."""
    return bool(work.up) and set(work.up) == set(work.services)


def _touched(work: Work) -> list[str]:
    """The services that are stopped or started."""
    going = [unit for unit in work.changes.stop if unit.endswith(".service")]
    return list(dict.fromkeys([*going, *work.up]))
