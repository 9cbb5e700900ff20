"""Where an instance's processes really may run, read back from /proc and compared with its plan.

A runtime may start a container and leave its cpuset out with no more than a warning (docker without
the controller), and an admin's drop-in or another tool may move it later.
https://docs.kernel.org/filesystems/proc.html, Cpus_allowed_list and Mems_allowed_list.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.facts.files import parse_list
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import contained

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the processes of an instance may use, together."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]


def differences(plan: EndpointPlan, systemd: Systemd) -> tuple[str, ...]:
    """A sentence for each running instance that is not where its plan has it."""
    found = (difference(plan, instance, systemd) for instance in plan.instances)
    return tuple(text for text in found if text)


def difference(plan: EndpointPlan, instance: Instance, systemd: Systemd) -> str | None:
    """None where it is as planned, or does not run."""
    unit = systemd.state(service_name(instance.name))
    if not unit.is_up or unit.main_pid is None:
        return None
    # Where there is a container, the unit's main process is the runtime's own.
    first = contained.server_pid(plan, instance) if plan.launch.container else unit.main_pid
    seen = look(_family(first)) if first else None
    return compare(plan, instance, seen) if seen else None


def compare(plan: EndpointPlan, instance: Instance, seen: Seen) -> str | None:
    """numactl binds by a policy of the process, which shows in no list: on the host only the CPUs
    tell."""
    stray = set(seen.cpus) - set(instance.cpus)
    far = set(seen.nodes) - set(instance.nodes) if plan.launch.container else set()
    if not stray and not far:
        return None
    cpus, nodes = cpulist.format(seen.cpus), cpulist.format(seen.nodes)
    return (
        f"{instance.name} is not where the plan has it: it may use CPUs {cpus} and memory of node "
        f"{nodes}, planned are CPUs {cpulist.format(instance.cpus)} and node "
        f"{cpulist.format(instance.nodes)}"
    )


def look(pids: Iterable[int]) -> Seen | None:
    """What these processes may use; those that are gone count for nothing."""
    cpus: set[int] = set()
    nodes: set[int] = set()
    for pid in pids:
        fields = _status(pid)
        cpus |= set(parse_list(fields.get("Cpus_allowed_list", "")) or ())
        nodes |= set(parse_list(fields.get("Mems_allowed_list", "")) or ())
    return Seen(tuple(sorted(cpus)), tuple(sorted(nodes))) if cpus else None


def _status(pid: int) -> dict[str, str]:
    try:
        text = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _family(pid: int) -> list[int]:
    """A process and all that come of it."""
    found = [pid]
    for parent in found:
        try:
            text = (_PROC / f"{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, text.split())
    return found
