"""Sockets, cores and L3 groups from /sys, or from cpuinfo where /sys tells none; knows no memory.

Files: /sys/devices/system/cpu/..., https://docs.kernel.org/admin-guide/cputopology.html and
https://docs.kernel.org/admin-guide/abi-testing.html (sysfs-devices-system-cpu: cache/indexN).
Each list is read once for all CPUs in it: a host of 1024 CPUs takes 1100 small reads, not 4000.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.facts.cpuinfo import LogicalCpu, parse_logical_cpus
from epyc_vllm_agent.facts.files import read_list, read_number, read_text
from epyc_vllm_agent.facts.host import Core, L3Group, NumaNode, Socket
from epyc_vllm_agent.paths import Paths

_CPUS = "/sys/devices/system/cpu"
# After L1d, L1i and L2: the order of CPUID 8000001D, arch/x86/kernel/cpu/cacheinfo.c.
_L3 = "cache/index3"


@dataclass(frozen=True, slots=True)
class CpuNumbers:
    online: tuple[int, ...]
    offline: tuple[int, ...]  # present, so that they could be put online
    isolated: tuple[int, ...]


def read_cpu_numbers(paths: Paths) -> CpuNumbers:
    """The CPUs of this host; those of cpuinfo where /sys does not number them."""
    present = read_list(paths.at(f"{_CPUS}/present")) or _listed(paths)
    online = read_list(paths.at(f"{_CPUS}/online"))
    if online is None:
        # CPU 0 has no `online` file where it cannot be put offline.
        folder = _folder(paths)
        on = (cpu for cpu in present if read_number(f"{folder}/cpu{cpu}/online") != 0)
        online = tuple(on) or tuple(sorted(cpu.number for cpu in _cpuinfo(paths)))
    # `offline` also counts possible CPUs that are not there (empty sockets), hence not that file.
    offline = tuple(sorted(set(present) - set(online)))
    return CpuNumbers(online, offline, read_list(paths.at(f"{_CPUS}/isolated")) or ())


def read_sockets(
    paths: Paths, online: Sequence[int], nodes: Sequence[NumaNode]
) -> tuple[Socket, ...]:
    """The sockets in order of their numbers; a CPU that no node lists is on the first node."""
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    first_node = min((node.id for node in nodes), default=0)
    found: dict[int, list[Core]] = {}
    for package, cpus in _cores(paths, online):
        core = Core(package, node_of.get(cpus[0], first_node), cpus)
        found.setdefault(package, []).append(core)
    return tuple(_socket(number, found[number]) for number in sorted(found))


def read_l3_groups(paths: Paths, online: Sequence[int]) -> tuple[L3Group, ...]:
    """The L3 groups in order of their first CPU; none where a hypervisor shows no L3."""
    folder = _folder(paths)
    if not online or read_number(f"{folder}/cpu{online[0]}/{_L3}/level") != 3:
        return ()
    groups = _partition(online, lambda cpu: read_list(f"{folder}/cpu{cpu}/{_L3}/shared_cpu_list"))
    return tuple(L3Group(cpus) for cpus in groups)


def _socket(number: int, cores: Sequence[Core]) -> Socket:
    return Socket(number, tuple(sorted({core.node for core in cores})), tuple(cores))


def _cores(paths: Paths, online: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The package and the CPUs of each core, in order of its first CPU."""
    folder = _folder(paths)
    if not online or _core_siblings(folder, online[0]) is None:
        yield from _cores_of_cpuinfo(_cpuinfo(paths), online)
        return
    for cpus in _partition(online, lambda cpu: _core_siblings(folder, cpu)):
        package = read_number(f"{folder}/cpu{cpus[0]}/topology/physical_package_id")
        # -1: firmware that describes no packages (arm64 without PPTT).
        yield max(package or 0, 0), cpus


def _cores_of_cpuinfo(
    listed: Iterable[LogicalCpu], online: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    by_number = {cpu.number: cpu for cpu in listed}
    cores: dict[tuple[int, int | None, int | None], list[int]] = {}
    for number in online:
        cpu = by_number.get(number, LogicalCpu(number, None, None))
        # Without a core id each CPU counts as a core of its own.
        own = number if cpu.core is None else None
        cores.setdefault((cpu.package or 0, cpu.core, own), []).append(number)
    for (package, _, _), cpus in cores.items():
        yield package, tuple(cpus)


def _core_siblings(folder: str, cpu: int) -> tuple[int, ...] | None:
    """The threads of a CPU's core; the second name is the one before Linux 5.3."""
    topology = f"{folder}/cpu{cpu}/topology"
    found = read_list(f"{topology}/core_cpus_list")
    return read_list(f"{topology}/thread_siblings_list") if found is None else found


def _partition(
    cpus: Sequence[int], members: Callable[[int], tuple[int, ...] | None]
) -> Iterator[tuple[int, ...]]:
    """Groups of `cpus`, each read from its first CPU; members that are not in `cpus` (offline
    ones) are left out."""
    left = set(cpus)
    for cpu in cpus:
        if cpu not in left:
            continue
        group = {cpu, *(members(cpu) or ())} & left
        left -= group
        yield tuple(sorted(group))


def _folder(paths: Paths) -> str:
    """The CPUs' folder as text: see `read_text`."""
    return str(paths.at(_CPUS))


def _listed(paths: Paths) -> tuple[int, ...]:
    try:
        names = [entry.name for entry in paths.at(_CPUS).iterdir()]
    except OSError:
        return ()
    matches = (re.fullmatch(r"cpu(\d+)", name) for name in names)
    return tuple(sorted(int(match[1]) for match in matches if match))


def _cpuinfo(paths: Paths) -> tuple[LogicalCpu, ...]:
    return parse_logical_cpus(read_text(paths.at("/proc/cpuinfo")) or "")
