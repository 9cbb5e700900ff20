"""What a unit's steps do besides where its server is in a container: its key, its end, its rest.

The unit's main process is not the server there: it is conmon for a quadlet and the runtime's client
in a plain service, and its death by a signal is not the server's.
"""

import contextlib
import os
import signal
from pathlib import Path

from epyc_vllm_agent.changes.installed import stored_plan
from epyc_vllm_agent.doors import containers
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.facts import processes
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units import container
from epyc_vllm_agent.watch import readiness


def prepare(paths: Paths, plan: EndpointPlan, instance: Instance) -> None:
    """Clears a left-over container of this instance, and lays the API key out for the server."""
    if plan.launch.container is None:
        return
    containers.remove(plan.launch.container.program, instance.name)
    key = readiness.api_key(plan)
    if key is not None:
        _write_secret(paths.at(container.key_file(instance)), key)


def server_group(paths: Paths, plan: EndpointPlan, instance: Instance) -> str | None:
    """The control group of a server that a container runtime's daemon put into one of its own."""
    pid = server_pid(plan, instance)
    return processes.group_of(paths, pid) if pid else None


def server_pid(plan: EndpointPlan, instance: Instance) -> int | None:
    """The first process of the instance's container; None where it runs in none."""
    if plan.launch.container is None:
        return None
    try:
        name = containers.container_name(instance.name)
        found = containers.container(plan.launch.container.program, name)
    except ActionFailed:
        return None
    return (found.pid or None) if found else None


def end(plan: EndpointPlan, instance: Instance, main_pid: int) -> None:
    """Kills the server at once."""
    if plan.launch.container is None:
        # Nobody else sends this one, so the unit can tell it from a kill: SuccessExitStatus=.
        with contextlib.suppress(ProcessLookupError):  # the stop's own SIGTERM ended it already
            os.kill(main_pid, signal.SIGVTALRM)
    else:
        containers.kill(plan.launch.container.program, containers.container_name(instance.name))


def clear(paths: Paths, name: str) -> None:
    """Removes what outlived the unit's main process; nothing where the server ran on the host.

    It must not fail: the steps after it tell what happened.
    """
    with contextlib.suppress(ActionFailed, OSError):
        plan = stored_plan(paths, name.rpartition("-s")[0])
        instance = plan.instance(name) if plan else None
        if plan and instance and plan.launch.container:
            containers.remove(plan.launch.container.program, name)
            paths.at(container.key_file(instance)).unlink(missing_ok=True)


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
