"""The difference between an endpoint's wanted and installed files, and what follows; pure."""

from dataclasses import dataclass

from epyc_vllm_agent.changes.installed import Installed, encode_plan
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import UnitFile, is_unit, service_name, target_name, unit_of


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: `old` None means it is made, `new` None that it goes. Paths are the host's own."""

    path: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What has to be done for one endpoint, in this order: stop, write, reload, start."""

    endpoint: str
    files: tuple[FileChange, ...]
    stop: tuple[str, ...]  # units whose files go
    restart: tuple[str, ...]  # services whose unit changed
    target: str

    @property
    def reload(self) -> bool:
        return any(is_unit(change.path) for change in self.files)


@dataclass(frozen=True, slots=True)
class Work:
    """A change set and what becomes of the endpoint's services with it."""

    changes: ChangeSet
    services: tuple[str, ...]  # all of the endpoint
    up: tuple[str, ...]  # of them, those that have to run when it is done
    anew: tuple[str, ...] = ()  # those that are stopped first, so that they run with their new unit
    at_boot: bool = True  # its target has to be enabled
    pending: tuple[str, ...] = ()  # those that run on with an older unit

    @property
    def is_nothing(self) -> bool:
        return not (self.changes.files or self.up or self.at_boot)


@dataclass(frozen=True, slots=True)
class Services:
    """How an endpoint's services are: those that run, those that failed, and of those that run
    the ones that were started with another unit than is wanted. `begun`: those that a killed run
    was to bring up; None where none was at work."""

    running: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    outdated: frozenset[str] = frozenset()
    begun: tuple[str, ...] | None = None


def work(
    changes: ChangeSet,
    services: tuple[str, ...],
    now: Services,
    is_new: bool,
    start: bool,
    restart: bool,
) -> Work:
    """What `apply` has to do: an endpoint that somebody stopped stays so, one that failed is tried
    again only with a new unit, and one that runs is restarted only if `restart`."""
    changed = {unit_of(change.path) for change in changes.files if is_unit(change.path)}
    made = {unit_of(c.path) for c in changes.files if is_unit(c.path) and c.old is None}
    anew = [service for service in services if restart and service in now.outdated]
    wanted = {*(now.begun or ()), *anew, *(now.failed & changed)}
    if now.running or now.begun is not None:
        wanted |= made
    up = [service for service in services if is_new or service in wanted]
    return Work(
        changes=changes,
        services=services,
        up=tuple(up) if start else (),
        anew=tuple(anew),
        at_boot=is_new or now.begun is not None,
        pending=tuple(s for s in services if s in now.outdated and s not in anew),
    )


def to_enable(
    plan: EndpointPlan,
    endpoint_file: str | None,
    units: tuple[UnitFile, ...],
    installed: Installed,
) -> ChangeSet:
    """What makes `installed` into the wanted plan and units, and endpoint file if one is given."""
    wanted = {
        plan_path(plan.name): encode_plan(plan),
        **{unit.path: unit.text for unit in units},
    }
    if endpoint_file is not None:
        wanted = {endpoint_path(plan.name): endpoint_file, **wanted}
    present = _present(installed, with_file=endpoint_file is not None)
    files = [
        FileChange(path, present.get(path), text)
        for path, text in wanted.items()
        if present.get(path) != text
    ]
    gone = [path for path in present if path not in wanted]
    files += [FileChange(path, present[path], None) for path in gone]
    changed = {unit_of(change.path) for change in files if is_unit(change.path)}
    services = [service_name(instance.name) for instance in plan.instances]
    return ChangeSet(
        endpoint=plan.name,
        files=tuple(files),
        stop=tuple(unit_of(path) for path in gone),
        restart=tuple(name for name in services if name in changed),
        target=target_name(plan.name),
    )


def to_disable(installed: Installed, with_file: bool = True) -> ChangeSet:
    """What removes everything that `to_enable` brought; the endpoint's file only if told to.

    An endpoint that a package brings has to be masked to stay away.
    """
    present = _present(installed, with_file)
    files = [FileChange(path, text, None) for path, text in present.items()]
    if with_file and installed.is_shipped:
        path = endpoint_path(installed.name)
        files = [change for change in files if change.path != path]
        files += [FileChange(path, present.get(path), "")] if present.get(path) != "" else []
    units = [unit.service for unit in installed.units if not unit.name.endswith(".target")]
    return ChangeSet(
        endpoint=installed.name,
        files=tuple(files),
        stop=(target_name(installed.name), *units),
        restart=(),
        target=target_name(installed.name),
    )


def endpoint_path(name: str) -> str:
    return f"/etc/epyc-vllm/endpoints.d/{name}.toml"


def plan_path(name: str) -> str:
    return f"/var/lib/epyc-vllm/plans/{name}.json"


def _present(installed: Installed, with_file: bool) -> dict[str, str]:
    """Installed files by path, units first: on removal the endpoint's file goes last."""
    found = {unit.path: unit.text for unit in installed.units}
    if installed.plan_file is not None:
        found[plan_path(installed.name)] = installed.plan_file
    if with_file and installed.endpoint_file is not None:
        found[endpoint_path(installed.name)] = installed.endpoint_file
    return found
