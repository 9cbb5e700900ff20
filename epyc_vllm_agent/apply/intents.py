"""What `apply` has to do for each endpoint of the host: configuration against what is installed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply import begun
from epyc_vllm_agent.apply.prepare import require_ready
from epyc_vllm_agent.changes.changes import (
    ChangeSet,
    FileChange,
    Services,
    Work,
    to_disable,
    to_enable,
    work,
)
from epyc_vllm_agent.changes.installed import Installed, all_made
from epyc_vllm_agent.config import settings
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.doors.systemd import Listed, Systemd
from epyc_vllm_agent.errors import ActionFailed, AgentError, ConfigError
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved, Survey
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import UnitFile, service_name
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch.drift import behind

Fetch = Callable[[Survey, Resolved, EndpointPlan], EndpointPlan]


@dataclass(frozen=True, slots=True)
class Options:
    """`restart`: running instances whose unit changed; `start`: what is new."""

    restart: bool = False
    start: bool = True


@dataclass(frozen=True, slots=True)
class Intent:
    """One endpoint: either `error`, or `removal`, or the `work` that its `plan` makes."""

    endpoint: str
    is_new: bool = False
    error: AgentError | None = None
    removal: ChangeSet | None = None
    work: Work | None = None
    plan: EndpointPlan | None = None
    warnings: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[FileChange, ...]:
        changes = self.work.changes if self.work else self.removal
        return changes.files if changes else ()

    @property
    def is_nothing(self) -> bool:
        return self.removal is None and (self.work is None or self.work.is_nothing)


@dataclass(frozen=True, slots=True)
class Now:
    """What is on the host: what was made of endpoints' files, and how their services are."""

    made: Mapping[str, Installed]
    units: Mapping[str, Listed]
    begun: Mapping[str, tuple[str, ...]]

    def runs(self, service: str) -> bool:
        unit = self.units.get(service)
        return unit is not None and unit.runs

    def failed(self, service: str) -> bool:
        unit = self.units.get(service)
        return unit is not None and unit.active_state == "failed"


def look(paths: Paths, systemd: Systemd) -> Now:
    """One question to systemd for all units."""
    units = {unit.name: unit for unit in systemd.list_units("epyc-vllm-*")}
    return Now(all_made(paths), units, begun.read(paths))


def survey_beside(survey: Survey, now: Now) -> Survey:
    """The survey, with the ports of running instances told apart from those of other programs."""
    plans = survey.stored.plans.values()
    own = {i.port for plan in plans for i in plan.instances if now.runs(service_name(i.name))}
    return replace(survey, foreign_ports=frozenset(survey.facts.listening_ports) - own)


def removals(survey: Survey, now: Now) -> tuple[Intent, ...]:
    """The endpoints whose files are gone or masked."""
    gone = _gone(survey, now.made)
    return tuple(Intent(name, removal=to_disable(now.made[name], with_file=False)) for name in gone)


def intents(
    survey: Survey, now: Now, systemd: Systemd, options: Options, fetch: Fetch | None = None
) -> tuple[Intent, ...]:
    """For every endpoint that has files, also broken ones.

    Those that are there are planned first: what is new takes what they leave. `fetch` brings what
    an endpoint with something to do needs, before the next one is planned: what cannot be had
    takes nobody's room.
    """
    leaving = _leaving(survey, now, options)
    for removal in removals(survey, now):
        survey = replace(survey, stored=survey.stored.having(removal.endpoint, None))
    failed: dict[str, Intent] = {}
    while True:
        found = _beside(replace(survey, leaving=leaving), now, systemd, options, fetch)
        failed = {intent.endpoint: intent for intent in found if intent.error} | failed
        if not failed.keys() & leaving.keys():
            return tuple(failed[one.endpoint] if one.error else one for one in found)
        # These stay where they are, and their ports are no one else's.
        leaving = {name: ports for name, ports in leaving.items() if name not in failed}


def _leaving(survey: Survey, now: Now, options: Options) -> dict[str, frozenset[int]]:
    """The ports that each endpoint gives up in this run: what is removed leaves all of its ports,
    and others those that their files have others for, unless something runs on with its unit."""
    given: dict[str, frozenset[int]] = {}
    configs = {config.name: config for config in survey.config.endpoints}
    gone = _gone(survey, now.made)
    for name, plan in survey.stored.plans.items():
        ports = frozenset(instance.port for instance in plan.instances)
        if name in gone:
            given[name] = ports
        elif (config := configs.get(name)) and config.port is not None:
            runs = any(now.runs(service_name(instance.name)) for instance in plan.instances)
            if not runs or _restarts(config, options):
                given[name] = ports - set(range(config.port, config.port + len(ports)))
    return given


def _restarts(config: EndpointConfig, options: Options) -> bool:
    return options.restart or config.on_change == settings.RESTART


def _beside(
    survey: Survey, now: Now, systemd: Systemd, options: Options, fetch: Fetch | None
) -> tuple[Intent, ...]:
    """Every endpoint planned beside those that were planned before it."""
    found = [
        Intent(fault.endpoint, error=ConfigError("config-invalid", fault.message))
        for fault in survey.config.faults
    ]
    endpoints = survey.config.endpoints
    for config in sorted(endpoints, key=lambda one: (one.name not in now.made, one.name)):
        intent = _guarded(survey, config, now, systemd, options, fetch)
        found.append(intent)
        if intent.plan:
            survey = replace(survey, stored=survey.stored.having(config.name, intent.plan))
    return tuple(found)


def _planned(
    survey: Survey, plan: EndpointPlan, now: Now, systemd: Systemd, options: Options
) -> Intent:
    """What is to be done to have `plan`."""
    name = plan.name
    made = now.made.get(name) or Installed(name, None, None, ())
    units = render(plan)
    changes = to_enable(plan, None, units, made)
    services = tuple(service_name(instance.name) for instance in plan.instances)
    restart = _restarts(plan.config, options)
    state = _state(survey.paths, units, changes, now, systemd)
    is_new = not made.units
    to_do = work(changes, services, state, is_new, options.start, restart)
    return Intent(name, is_new=is_new, work=to_do, plan=plan)


def _guarded(
    survey: Survey,
    config: EndpointConfig,
    now: Now,
    systemd: Systemd,
    options: Options,
    fetch: Fetch | None,
) -> Intent:
    """What fails for one endpoint stops no other."""
    try:
        resolved = pipeline.resolve(survey, config)
        plan = pipeline.make_plan(survey, resolved)
        require_startable(plan)
        warnings = resolved.warnings
        intent = _planned(survey, plan, now, systemd, options)
        if intent.is_nothing:
            return replace(intent, warnings=warnings)
        require_ready(survey, plan, systemd)
        fetched = fetch(survey, resolved, plan) if fetch else plan
        if fetched != plan:
            require_ready(survey, fetched, systemd)
        return replace(_planned(survey, fetched, now, systemd, options), warnings=warnings)
    except AgentError as error:
        return Intent(config.name, error=error)
    except OSError as error:
        message = f"{error.filename} cannot be used ({error.strerror})"
        return Intent(config.name, error=ActionFailed("system", message, "look at its rights"))


def _state(
    paths: Paths,
    units: Sequence[UnitFile],
    changes: ChangeSet,
    now: Now,
    systemd: Systemd,
) -> Services:
    services = [unit for unit in units if not unit.name.endswith(".target")]
    runs = [unit for unit in services if now.runs(unit.service)]
    failed = [unit.service for unit in services if now.failed(unit.service)]
    outdated = [
        unit.service
        for unit in runs
        for is_behind in [behind(paths, unit, systemd)]
        if is_behind or (is_behind is None and unit.service in changes.restart)
    ]
    return Services(
        running=frozenset(unit.service for unit in runs),
        failed=frozenset(failed),
        outdated=frozenset(outdated),
        begun=now.begun.get(changes.endpoint),
    )


def _gone(survey: Survey, made: Collection[str]) -> list[str]:
    """Endpoints whose files are gone, or masked. Raises ConfigError where all files are: a folder
    that is not mounted must not take every endpoint down."""
    config = survey.config
    kept = {*(one.name for one in config.endpoints), *(fault.endpoint for fault in config.faults)}
    gone = [name for name in made if name not in kept]
    if gone and not survey.paths.endpoints.is_dir():
        raise ConfigError(
            "no-endpoints-folder",
            f"{survey.paths.endpoints} is missing, and endpoints are installed",
            "make it again (an empty one takes all endpoints down), or mount what belongs there",
        )
    return gone
