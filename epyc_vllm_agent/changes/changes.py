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


def to_enable(
    plan: EndpointPlan, endpoint_file: str, units: tuple[UnitFile, ...], installed: Installed
) -> ChangeSet:
    """What makes `installed` into the wanted endpoint file, plan and units."""
    wanted = {
        endpoint_path(plan.name): endpoint_file,
        plan_path(plan.name): encode_plan(plan),
        **{unit.path: unit.text for unit in units},
    }
    present = _present(installed)
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


def to_disable(installed: Installed) -> ChangeSet:
    """What removes everything that `to_enable` brought."""
    present = _present(installed)
    units = [unit.service for unit in installed.units if not unit.name.endswith(".target")]
    return ChangeSet(
        endpoint=installed.name,
        files=tuple(FileChange(path, text, None) for path, text in present.items()),
        stop=(target_name(installed.name), *units),
        restart=(),
        target=target_name(installed.name),
    )


def endpoint_path(name: str) -> str:
    return f"/etc/epyc-vllm/endpoints.d/{name}.toml"


def plan_path(name: str) -> str:
    return f"/var/lib/epyc-vllm/plans/{name}.json"


def _present(installed: Installed) -> dict[str, str]:
    """Installed files by path, units first: on removal the endpoint's file goes last."""
    found = {unit.path: unit.text for unit in installed.units}
    if installed.plan_file is not None:
        found[plan_path(installed.name)] = installed.plan_file
    if installed.endpoint_file is not None:
        found[endpoint_path(installed.name)] = installed.endpoint_file
    return found
