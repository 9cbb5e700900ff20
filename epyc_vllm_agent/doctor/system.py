"""Checks of systemd, cgroups and limits: can services be what the plan makes of them?"""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, advice, error, warning
from epyc_vllm_agent.doctor.seen import Seen


def check(seen: Seen) -> Iterator[Finding]:
    system, limits = seen.system, seen.limits
    if system.runs_systemd is False:
        yield error(
            "no-systemd",
            "systemd is not running: endpoints are its services",
            "boot the host with systemd as init",
        )
    elif system.systemd is not None and system.systemd < limits.systemd_minimum:
        yield error(
            "systemd-old",
            f"systemd {system.systemd} does not know all that the units use",
            f"systemd {limits.systemd_minimum} or later is needed",
        )
    if system.open_files is not None and system.open_files < limits.open_files_minimum:
        yield error(
            "open-files",
            f"fs.nr_open is {system.open_files}: units with LimitNOFILE="
            f"{limits.open_files_minimum} do not start",
            f"sysctl -w fs.nr_open={limits.open_files_minimum}, and in /etc/sysctl.d for the boot",
        )
    yield from _cgroups(seen)


def _cgroups(seen: Seen) -> Iterator[Finding]:
    controllers = seen.system.controllers
    if seen.system.is_cgroup_v1:
        yield advice(
            "cgroup-v1",
            "there is no cgroup v2 hierarchy: containers are pinned by their thread lists alone",
            "boot without systemd.unified_cgroup_hierarchy=0",
        )
    if controllers is None:
        return
    missing = [name for name in seen.limits.controllers if name not in controllers]
    if missing:
        yield warning(
            "controllers-missing",
            f"the cgroup controllers {', '.join(missing)} are not there: a container's memory "
            "cannot be bound to a socket",
            "boot without cgroup_disable=, and in a container delegate them",
        )
