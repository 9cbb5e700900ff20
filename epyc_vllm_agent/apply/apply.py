"""The host made as its files say: every endpoint planned, fetched, written, started or removed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply import begun, converge, intents
from epyc_vllm_agent.apply.converge import Converged, Log
from epyc_vllm_agent.apply.intents import Intent, Now, Options
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.apply.prepare import Fetching, fetch
from epyc_vllm_agent.apply.take_down import remove
from epyc_vllm_agent.changes.changes import ChangeSet, FileChange
from epyc_vllm_agent.doors import journal
from epyc_vllm_agent.doors.systemd import Systemd, Watcher
from epyc_vllm_agent.errors import AgentError, ExitCode
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved, Survey
from epyc_vllm_agent.plan.values import EndpointPlan

Telling = Callable[[str, str], Fetching]  # of a model and an image


class Action(StrEnum):
    NONE = "none"
    CREATE = "create"
    CHANGE = "change"
    START = "start"  # nothing to write
    REMOVE = "remove"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done for an endpoint, or would be: `pending` are services that run on with an
    older unit, `error` says why the endpoint is as it was, `warnings` are in no plan."""

    endpoint: str
    action: Action
    files: tuple[FileChange, ...] = ()
    started: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    error: AgentError | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        return self.action not in (Action.NONE, Action.ERROR)


def check(paths: Paths, systemd: Systemd, options: Options) -> tuple[Applied, ...]:
    """What `apply` would do; changes nothing and takes no lock."""
    survey, now = _look(paths, systemd)
    removals = intents.removals(survey, now)
    found = (*removals, *intents.intents(survey, now, systemd, options))
    return _in_order(_would(intent) for intent in found)


def apply(
    paths: Paths,
    systemd: Systemd,
    options: Options,
    telling: Telling,
    watch: Watcher | None = None,
    wait: Callable[[str], None] | None = None,
    log: Log = journal.of_unit,
) -> tuple[Applied, ...]:
    """Does it, and tells what became of each endpoint; one that fails stops no other.

    `wait` is told where another run has the lock; without it Locked is raised.
    """

    def fetched(survey: Survey, resolved: Resolved, plan: EndpointPlan) -> EndpointPlan:
        container = plan.launch.container
        return fetch(
            survey, resolved, plan, telling(plan.model.id, container.image if container else "")
        )

    with locked(paths, wait):
        converge.sweep_all(paths)
        survey, now = _look(paths, systemd)
        removed = [
            _removed(paths, i.removal, systemd) for i in intents.removals(survey, now) if i.removal
        ]
        found = intents.intents(survey, now, systemd, options, fetched)
        works = [intent.work for intent in found if intent.work and not intent.is_nothing]
        outcomes = converge.carry_out(paths, works, systemd, watch, log) if works else {}
        if works:
            converge.stand_by(systemd)
        done = [*removed, *(_became(intent, outcomes.get(intent.endpoint)) for intent in found)]
        failed = {one.endpoint for one in done if one.error}
        begun.end(paths, now.begun.keys() - failed)
    return _in_order(done)


def _in_order(applied: Iterable[Applied]) -> tuple[Applied, ...]:
    return tuple(sorted(applied, key=lambda one: one.endpoint))


def worst(applied: Sequence[Applied], is_check: bool) -> ExitCode:
    """A failed action is worse than a refusal, that worse than a wrong file, and any of them
    worse than changes that a check found."""
    codes = {one.error.exit_code for one in applied if one.error}
    for code in (ExitCode.FAILED, ExitCode.REFUSED, ExitCode.USAGE):
        if code in codes:
            return code
    changes = is_check and any(one.is_change for one in applied)
    return ExitCode.CHANGES if changes else ExitCode.DONE


def _look(paths: Paths, systemd: Systemd) -> tuple[Survey, Now]:
    now = intents.look(paths, systemd)
    return intents.survey_beside(pipeline.survey(paths), now), now


def _removed(paths: Paths, removal: ChangeSet, systemd: Systemd) -> Applied:
    try:
        remove(paths, removal, systemd)
    except AgentError as error:
        return Applied(removal.endpoint, Action.ERROR, error=error)
    return Applied(removal.endpoint, Action.REMOVE, removal.files)


def _would(intent: Intent) -> Applied:
    files = tuple(change.path for change in intent.files)
    return _became(intent, Converged(files, intent.work.up if intent.work else ()))


def _became(intent: Intent, outcome: Converged | AgentError | None) -> Applied:
    error = intent.error or (outcome if isinstance(outcome, AgentError) else None)
    if error:
        return Applied(intent.endpoint, Action.ERROR, error=error)
    pending = intent.work.pending if intent.work else ()
    if intent.is_nothing or (isinstance(outcome, Converged) and outcome.is_nothing):
        return Applied(intent.endpoint, Action.NONE, pending=pending, warnings=intent.warnings)
    return Applied(
        intent.endpoint,
        _action(intent),
        intent.files,
        started=outcome.started if isinstance(outcome, Converged) else (),
        pending=pending,
        warnings=intent.warnings,
    )


def _action(intent: Intent) -> Action:
    if intent.removal:
        return Action.REMOVE
    if intent.is_new:
        return Action.CREATE
    return Action.CHANGE if intent.files else Action.START
