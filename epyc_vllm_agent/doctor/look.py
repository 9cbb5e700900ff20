"""Sees what the checks go by: files, programs' versions, the environment's stack; judges nothing.

It leaves no file and starts no service: what it asks is named in doors/runtimes.py and
doors/environment.py.
"""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes.installed import all_made, stored_plan
from epyc_vllm_agent.config.config import Config
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doctor.seen import (
    Cache,
    Environment,
    Feature,
    Limits,
    Programs,
    Runtime,
    Seen,
    System,
    Token,
    Upgrade,
)
from epyc_vllm_agent.doors import command, environment, runtimes
from epyc_vllm_agent.doors.runtimes import Asked
from epyc_vllm_agent.doors.systemd import DBusSystemd
from epyc_vllm_agent.errors import ActionFailed, AgentError
from epyc_vllm_agent.facts.files import read_number, read_text
from epyc_vllm_agent.facts.mounts import filesystem_of
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Survey
from epyc_vllm_agent.plan.gates import stack_name
from epyc_vllm_agent.plan.platform import predict
from epyc_vllm_agent.plan.stacks import release
from epyc_vllm_agent.plan.upgrade import available
from epyc_vllm_agent.plan.values import Prediction
from epyc_vllm_agent.watch.drift import Drift, drift

# Read beside what `gather` reads, and what only has to be there.
FILES = ("proc/self/mountinfo", "proc/sys/fs/nr_open", "sys/fs/cgroup/cgroup.controllers")
_FOLDERS = ("usr/local/bin", "usr/bin", "bin", "usr/sbin", "sbin")
_PROGRAMS = ("podman", "docker", "numactl", "taskset", "g++")
PRESENT = (
    "run/systemd/system",
    "var/lib/epyc-vllm/models",
    *(f"{folder}/{name}" for folder in _FOLDERS for name in _PROGRAMS),
)


def look(survey: Survey, accepted: tuple[str, ...], where: str | None, image: str | None) -> Seen:
    """What there is to see; of another host (`--host`, `--sysroot`) only its files."""
    limits = limits_of(read_data("doctor.json"), read_data("quadlet.json"))
    path = where or dict(survey.config.defaults).get("environment")
    path = str(path or survey.recipe.environment.default_path)
    wanted = image or survey.recipe.images.of(stack_name(survey.facts.cpu)).image
    here = not survey.is_elsewhere
    env = _environment(survey, path) if here else None
    root = survey.paths.root
    # A folder with a host's /proc and /sys alone does not tell what else that host has.
    whole = here or survey.far is not None or (root / "usr/bin").is_dir()
    return Seen(
        facts=survey.facts,
        config=_as_named_there(survey),
        shipped=survey.shipped,
        limits=limits,
        accepted=accepted,
        image=wanted,
        runtimes=_runtimes(limits, wanted) if here else _installed(root) if whole else (),
        environment=env,
        prediction=_prediction(survey, env),
        cache=_cache(survey.paths, here),
        token=_token(survey.config.hub_token_file) if here else None,
        programs=_programs(limits, root) if whole else None,
        system=_system(survey, here, whole),
        switches=survey.recipe.throughput.env,
        upgrades=_upgrades(survey),
        drift=_drift(survey),
        far=None if here else (survey.far or str(root)),
    )


def _upgrades(survey: Survey) -> tuple[Upgrade, ...]:
    """Of the stored plans; one that cannot be read tells nothing."""
    found = []
    for path in sorted(survey.paths.plans.glob("*.json")):
        with suppress(ActionFailed):
            plan = stored_plan(survey.paths, path.stem)
            pinned = available(plan, survey.recipe) if plan else None
            if plan and pinned:
                container = plan.launch.container
                has = container.image if container else f"vLLM {plan.stack.vllm}"
                found.append(Upgrade(plan.name, has, pinned))
    return tuple(found)


def _drift(survey: Survey) -> tuple[Drift, ...]:
    """Of the endpoints with a plan that can be read; a host far away shows too few of its files."""
    if survey.is_elsewhere:
        return ()
    runs, found = _running(), list[Drift]()
    for name, made in all_made(survey.paths).items():
        plan = survey.stored.plans.get(name)
        if plan:
            found += drift(plan, made, survey.config, survey.facts, runs)
    return tuple(found)


def _running() -> Callable[[str], bool] | None:
    """Which services are at work; None where systemd cannot be asked."""
    try:
        units = DBusSystemd().list_units("epyc-vllm-*")
    except ActionFailed:
        return None
    running = {unit.name for unit in units if unit.runs}
    return lambda service: service in running


def _as_named_there(survey: Survey) -> Config:
    """The configuration with its faults in the other host's own paths."""
    root = f"{survey.paths.root}/".replace("//", "/")
    faults = survey.config.faults
    named = tuple(replace(fault, message=fault.message.replace(root, "/")) for fault in faults)
    return replace(survey.config, faults=named) if survey.far else survey.config


def limits_of(doctor: str, quadlet: str) -> Limits:
    table: dict[str, Any] = json.loads(doctor)
    keys: dict[str, Any] = json.loads(quadlet)
    return Limits(
        systemd_minimum=table["systemd"]["minimum"],
        open_files_minimum=table["open_files"]["minimum"],
        free_memory_bytes=table["memory"]["minimum_free_bytes"],
        free_cache_bytes=table["cache"]["minimum_free_bytes"],
        network_filesystems=tuple(table["cache"]["network_filesystems"]),
        controllers=tuple(table["controllers"]["wanted"]),
        compiler=table["compiler"]["program"],
        quadlet_first=keys["first"],
        quadlet_keys=tuple(Feature(name, first) for name, first in keys["keys"].items()),
    )


def _environment(survey: Survey, path: str) -> Environment:
    try:
        stack = pipeline.ask_environment(survey, path, remember=False).stack
    except AgentError as error:
        return Environment(path, None, error.message, error.hint)
    return Environment(
        path, stack, preload=environment.preload(path, survey.recipe.environment.preload)
    )


def _prediction(survey: Survey, found: Environment | None) -> Prediction | None:
    if found is None or found.stack is None:
        return None
    return predict(survey.facts.cpu, found.stack, survey.shipped.stacks.platforms)


def _runtimes(limits: Limits, image: str) -> tuple[Runtime, ...]:
    """podman first: its services need no daemon."""
    podman, docker = runtimes.podman(image), runtimes.docker(image)
    return (_podman(limits, podman), _runtime("docker", docker))


def _podman(limits: Limits, asked: Asked) -> Runtime:
    found = _runtime("podman", asked)
    if found.is_usable and release(found.version) < release(limits.quadlet_first):
        fault = f"podman {found.version} has no quadlet: {limits.quadlet_first} was the first"
        return Runtime("podman", found.version, fault, "install a later podman", None)
    return found


def _runtime(name: str, asked: Asked) -> Runtime:
    return Runtime(name, asked.version, asked.fault, asked.fix, asked.image_present)


def _installed(root: Path) -> tuple[Runtime, ...]:
    """Of another host: installed or not, but not which version and whether it works."""
    found = []
    for name in ("podman", "docker"):
        there = environment.tool(name, root) is not None
        fault = f"{name} is installed there and was not asked" if there else None
        fix = "run doctor on that host" if there else None
        found.append(Runtime(name, "" if there else None, fault, fix, None))
    return tuple(found)


def _programs(limits: Limits, root: Path) -> Programs:
    return Programs(
        compiler=environment.tool(limits.compiler, root),
        numactl=environment.tool("numactl", root),
        taskset=environment.tool("taskset", root),
    )


def _cache(paths: Paths, here: bool) -> Cache:
    path = paths.models
    named = "/" + str(path.relative_to(paths.root))
    real = path.resolve() if here else Path(named)
    mounts = read_text(paths.at("/proc/self/mountinfo")) or ""
    above = next((folder for folder in (real, *real.parents) if folder.exists()), Path("/"))
    root = here and os.geteuid() == 0
    return Cache(
        path=named,
        real=str(real),
        exists=path.is_dir(),
        filesystem=filesystem_of(mounts, str(real)),
        free_bytes=_free(above) if here else None,
        # access(2) asks an NFS server too: where it squashes root, root may not.
        is_writable=os.access(above, os.W_OK) if root else None,
    )


def _free(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _token(path: str | None) -> Token | None:
    if path is None:
        return None
    try:
        mode = Path(path).stat().st_mode
        empty = not Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return Token(path, getattr(error, "strerror", None) or "it is no text", False)
    return Token(path, "it is empty" if empty else None, bool(mode & 0o004))


def _system(survey: Survey, here: bool, whole: bool) -> System:
    paths = survey.paths
    controllers = read_text(paths.at("/sys/fs/cgroup/cgroup.controllers"))
    return System(
        runs_systemd=paths.at("/run/systemd/system").exists() if whole else None,
        systemd=_systemd_version() if here else None,
        controllers=None if controllers is None else tuple(controllers.split()),
        is_cgroup_v1=controllers is None and paths.at("/sys/fs/cgroup/cpuset").is_dir(),
        open_files=read_number(paths.at("/proc/sys/fs/nr_open")),
        user_exists=environment.is_user(survey.config.user) if here else None,
    )


def _systemd_version() -> int | None:
    try:
        done = command.run(["systemctl", "--version"], timeout_seconds=10)
    except ActionFailed:
        return None
    found = re.match(r"systemd (\d+)", done.stdout)
    return int(found[1]) if found else None
