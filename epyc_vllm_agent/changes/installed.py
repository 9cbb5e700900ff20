"""What is installed on this host: stored plans and our unit files; reads only."""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.config import layers
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import MARK, UnitFile


@dataclass(frozen=True, slots=True)
class Installed:
    """The endpoint's files as they lie on the host; None or empty where there are none."""

    name: str
    endpoint_file: str | None  # text of endpoints.d/NAME.toml
    plan_file: str | None  # text of plans/NAME.json
    units: tuple[UnitFile, ...]
    is_shipped: bool = False  # a package brings the endpoint, in /usr/share

    @property
    def exists(self) -> bool:
        masked = self.is_shipped and self.endpoint_file == ""
        return self.is_made or (self.has_file and not masked)

    @property
    def has_file(self) -> bool:
        return self.endpoint_file is not None or self.is_shipped

    @property
    def is_made(self) -> bool:
        """Whether anything was made of the endpoint's file."""
        return bool(self.units) or self.plan_file is not None


def installed(paths: Paths, name: str) -> Installed:
    return Installed(
        name=name,
        endpoint_file=_read(paths.endpoints / f"{name}.toml"),
        plan_file=_read_plan(paths, name),
        units=tuple(unit for owner, unit in _owned_units(paths) if owner == name),
        is_shipped=layers.is_shipped(paths, name),
    )


def all_made(paths: Paths) -> dict[str, Installed]:
    """What was made of endpoints' files, by the endpoint's name; the files themselves are left out.

    One look at the folders of units for all of them.
    """
    units: dict[str, list[UnitFile]] = {}
    for owner, unit in _owned_units(paths):
        units.setdefault(owner, []).append(unit)
    names = {*units, *(path.stem for path in paths.plans.glob("*.json"))}
    return {
        name: Installed(name, None, _read_plan(paths, name), tuple(units.get(name, ())))
        for name in sorted(names)
    }


def names(paths: Paths) -> tuple[str, ...]:
    """Every endpoint of which something is installed, in alphabetical order."""
    found = {path.stem for path in paths.plans.glob("*.json")}
    found |= {owner for owner, _ in _owned_units(paths)}
    return tuple(sorted({*found, *layers.names(paths)}))


def encode_plan(plan: EndpointPlan) -> str:
    return json.dumps(to_plain(plan), indent=1, ensure_ascii=False) + "\n"


def stored_plan(paths: Paths, name: str) -> EndpointPlan | None:
    """The plan that the endpoint was last brought up with.

    Raises ActionFailed where the file is there but is none: what it reserves would be unknown.
    """
    text = _read_plan(paths, name)
    if text is None:
        return None
    try:
        return _checked(name, from_plain(EndpointPlan, json.loads(text)))
    except ValueError as error:
        raise ActionFailed(
            "plan-unreadable",
            f"the stored plan {paths.plans / name}.json cannot be read ({error})",
            f"`epyc-vllm disable {name}` removes it, `epyc-vllm enable` writes it anew",
        ) from error


def _checked(name: str, plan: EndpointPlan) -> EndpointPlan:
    """A plan that was edited by hand may have every type right and still be none."""
    ipaddress.ip_address(plan.config.address)
    if plan.name != name or not plan.instances or not all(i.ranks for i in plan.instances):
        raise ValueError("it is another endpoint's, or has no instances or ranks")
    return plan


def _read_plan(paths: Paths, name: str) -> str | None:
    """With odd bytes replaced: then it is no JSON, and still something that can be removed."""
    return _read(paths.plans / f"{name}.json", "replace")


def stored_plans(paths: Paths, but: Sequence[str] = ()) -> tuple[EndpointPlan, ...]:
    found = [path.stem for path in sorted(paths.plans.glob("*.json")) if path.stem not in but]
    plans = [stored_plan(paths, name) for name in found]
    return tuple(plan for plan in plans if plan is not None)


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored plans, read once; those that cannot be read with why."""

    plans: Mapping[str, EndpointPlan]
    broken: Mapping[str, ActionFailed]

    def beside(self, name: str) -> tuple[EndpointPlan, ...]:
        """Those of the other endpoints. Raises ActionFailed where one of them cannot be read."""
        for other, error in self.broken.items():
            if other != name:
                raise error
        return tuple(plan for plan in self.plans.values() if plan.name != name)

    def having(self, name: str, plan: EndpointPlan | None) -> "Stored":
        """The same with that plan for `name`, or without one."""
        plans = {other: had for other, had in self.plans.items() if other != name}
        broken = {other: error for other, error in self.broken.items() if other != name}
        return Stored(plans | ({name: plan} if plan else {}), broken)


def read_stored(paths: Paths) -> Stored:
    plans, broken = {}, {}
    for path in sorted(paths.plans.glob("*.json")):
        try:
            plan = stored_plan(paths, path.stem)
        except ActionFailed as error:
            broken[path.stem] = error
            continue
        if plan is not None:
            plans[path.stem] = plan
    return Stored(plans, broken)


def _owned_units(paths: Paths) -> list[tuple[str, UnitFile]]:
    """Our unit files with the endpoint that their first line names; no other file is touched."""
    found = []
    places = (paths.units, paths.quadlets)
    for path in sorted(path for place in places for path in place.glob("epyc-vllm-*")):
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.startswith(MARK):
            owner = text.removeprefix(MARK).split(".", 1)[0]
            host_path = "/" + str(path.relative_to(paths.root))
            found.append((owner, UnitFile(host_path, text)))
    return found


def _read(path: Path, errors: str = "strict") -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ActionFailed(
            "file-unreadable", f"{path} cannot be read ({error})", "look at its rights and content"
        ) from error
