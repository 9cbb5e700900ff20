"""Removes an endpoint: its units, plan and file, its compile caches, and its weights if asked."""

import contextlib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.changes.changes import ChangeSet, to_disable
from epyc_vllm_agent.changes.installed import installed, names, stored_plan, stored_plans
from epyc_vllm_agent.config.config import require_name
from epyc_vllm_agent.doors.hubcache import Cache, check_model_id
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import ActionFailed, ConfigError
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import ALL_TARGET, WATCHDOG, service_name


@dataclass(frozen=True, slots=True)
class TakenDown:
    endpoint: str
    removed: tuple[str, ...]
    kept_weights: str | None


def take_down(paths: Paths, name: str, systemd: Systemd, purge: bool) -> TakenDown:
    """Stops and removes what `enable` made, and only that; weights stay unless `purge`.

    Raises ConfigError where nothing of that name is installed.
    """
    require_name(name)  # it becomes a part of paths that are removed
    with locked(paths):
        found = installed(paths, name)
        if not found.exists:
            known = ", ".join(names(paths)) or "none"
            raise ConfigError(
                "no-such-endpoint", f"there is no endpoint {name!r}", f"endpoints here: {known}"
            )
        plan = _plan(paths, name)
        removed = remove(paths, to_disable(found), systemd)
        weights = _weights(paths, plan)
        if weights and purge:
            shutil.rmtree(weights, ignore_errors=True)
            removed, weights = [*removed, str(weights)], None
    return TakenDown(name, tuple(removed), str(weights) if weights else None)


def withdraw(paths: Paths, systemd: Systemd) -> tuple[str, ...]:
    """Stops every endpoint and removes the units of all; returns their paths.

    Endpoint files, plans and weights stay: for the removal of the program itself, after which an
    installation finds them as they were.
    """
    removed: list[str] = []
    with locked(paths):
        for name in names(paths):
            units = replace(installed(paths, name), plan_file=None)
            changes = to_disable(units, with_file=False)
            services = _services(name, _plan(paths, name), changes, systemd)
            converge.disable(paths, changes, services, systemd)
            removed += [change.path for change in changes.files]
        for unit in (ALL_TARGET, WATCHDOG):
            with contextlib.suppress(ActionFailed):  # it may be gone, or never have been enabled
                systemd.disable(unit)
        with contextlib.suppress(ActionFailed):  # else it stays active when its file is gone
            systemd.stop(ALL_TARGET)
    return tuple(removed)


def remove(paths: Paths, changes: ChangeSet, systemd: Systemd) -> list[str]:
    """Carries out what `to_disable` says, with compile caches and marks; under the lock.

    Returns what was removed.
    """
    services = _services(changes.endpoint, _plan(paths, changes.endpoint), changes, systemd)
    gone: list[str] = []
    converge.disable(
        paths, changes, services, systemd, lambda: gone.extend(_remove_run_state(paths, services))
    )
    return [*(change.path for change in changes.files), *gone]


def _plan(paths: Paths, name: str) -> EndpointPlan | None:
    try:
        return stored_plan(paths, name)
    except ActionFailed:  # unreadable: everything but the weights can still be removed
        return None


def _remove_run_state(paths: Paths, services: list[str]) -> list[str]:
    removed = []
    for service in services:
        instance = service.removeprefix("epyc-vllm-").removesuffix(".service")
        for mark in (f"{instance}.json", f"{instance}.unit"):
            (paths.run / mark).unlink(missing_ok=True)
        cache = paths.cache / instance
        if cache.is_dir():
            shutil.rmtree(cache, ignore_errors=True)
            removed.append(str(cache))
    return removed


def _services(
    name: str, plan: EndpointPlan | None, changes: ChangeSet, systemd: Systemd
) -> list[str]:
    """Every service of the endpoint, by its files, its plan and what systemd still has loaded.

    One of the three may be gone: a server whose unit file was deleted runs on.
    """
    found = [unit for unit in changes.stop if unit.endswith(".service")]
    found += [service_name(instance.name) for instance in plan.instances] if plan else []
    loaded = systemd.list_units(service_name(f"{name}-s*"))
    pattern = re.escape(service_name(f"{name}-s@")).replace("@", r"\d+(n\d+)?")
    found += [unit.name for unit in loaded if re.fullmatch(pattern, unit.name)]
    return list(dict.fromkeys(found))


def _weights(paths: Paths, plan: EndpointPlan | None) -> Path | None:
    """The model's folder in our own cache; None for a directory of the administrator's.

    It is made of the hub's id and not of a path: what is removed must be ours. None as well where
    another endpoint uses it.
    """
    if plan is None or plan.model.revision is None:
        return None
    folder = Cache(paths.models).folder(check_model_id(plan.model.id))
    try:
        others = stored_plans(paths)
    except ActionFailed:  # one that cannot be read may use it
        return None
    used = any(plan.model.id == other.model.id for other in others)
    return None if used or not folder.is_dir() or folder.is_symlink() else folder
