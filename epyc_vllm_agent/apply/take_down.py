"""Removes an endpoint: its units, plan and file, its compile caches, and its weights if asked."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.changes.changes import to_disable
from epyc_vllm_agent.changes.installed import installed, names, stored_plan, stored_plans
from epyc_vllm_agent.config.config import require_name
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import ActionFailed, ConfigError
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan


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
        changes = to_disable(found)
        converge.disable(paths, changes, systemd)
        removed = [change.path for change in changes.files]
        services = [unit for unit in changes.stop if unit.endswith(".service")]
        removed += _remove_run_state(paths, services)
        weights = _weights(paths, plan)
        if weights and purge:
            shutil.rmtree(weights, ignore_errors=True)
            removed, weights = [*removed, weights], None
    return TakenDown(name, tuple(removed), weights)


def _plan(paths: Paths, name: str) -> EndpointPlan | None:
    try:
        return stored_plan(paths, name)
    except ActionFailed:  # unreadable: everything but the weights can still be removed
        return None


def _remove_run_state(paths: Paths, services: list[str]) -> list[str]:
    removed = []
    for service in services:
        instance = service.removeprefix("epyc-vllm-").removesuffix(".service")
        (paths.run / f"{instance}.json").unlink(missing_ok=True)
        cache = paths.cache / instance
        if cache.is_dir():
            shutil.rmtree(cache, ignore_errors=True)
            removed.append(str(cache))
    return removed


def _weights(paths: Paths, plan: EndpointPlan | None) -> str | None:
    """The model's folder in our own cache, None where it is foreign or another endpoint uses it."""
    if plan is None or not plan.model.path.startswith(f"{paths.models}/"):
        return None
    folder = plan.model.path.split("/snapshots/")[0]
    try:
        others = stored_plans(paths)
    except ActionFailed:  # one that cannot be read may use it
        return None
    users = [other for other in others if other.model.path.startswith(folder + "/")]
    return None if users or not Path(folder).is_dir() else folder
