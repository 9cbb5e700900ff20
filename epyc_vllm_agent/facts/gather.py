"""The facts of a host from the files below /proc and /sys of one root; starts no program.

All that is not known of a host is None or empty in HostFacts: captures may be a cpuinfo alone.
"""

from collections.abc import Sequence

from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts import memory, topology
from epyc_vllm_agent.facts.cpu import read_cpu
from epyc_vllm_agent.facts.cpuset import read_cpuset
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.facts.host import HostFacts, NumaNode
from epyc_vllm_agent.facts.listening import read_listening_ports
from epyc_vllm_agent.facts.partition import partition
from epyc_vllm_agent.paths import Paths

# Every file that `gather` reads, as shell patterns below the root: what has to be fetched to
# gather the facts of another machine here.
FILES = (
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/1/status",
    "proc/net/tcp",
    "proc/net/tcp6",
    "sys/class/dmi/id/product_name",
    "sys/class/dmi/id/sys_vendor",
    "sys/devices/system/clocksource/clocksource0/available_clocksource",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/cpu[0-9]*/online",
    "sys/devices/system/cpu/cpu[0-9]*/cache/index3/level",
    "sys/devices/system/cpu/cpu[0-9]*/cache/index3/shared_cpu_list",
    "sys/devices/system/cpu/cpu[0-9]*/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
    "sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list",
    "sys/devices/system/node/node[0-9]*/cpulist",
    "sys/devices/system/node/node[0-9]*/cpumap",
    "sys/devices/system/node/node[0-9]*/distance",
    "sys/devices/system/node/node[0-9]*/meminfo",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/cpuset.mems.effective",
    "sys/fs/cgroup/cpuset/cpuset.effective_cpus",
    "sys/fs/cgroup/cpuset/cpuset.effective_mems",
    "sys/fs/cgroup/system.slice/cpuset.cpus.effective",
    "sys/fs/cgroup/system.slice/cpuset.mems.effective",
)


def gather(paths: Paths, generations: Generations) -> HostFacts:
    """The host below `paths.root`. Raises AgentError where not even a CPU can be found there."""
    cpu = read_cpu(paths, generations)
    numbers = topology.read_cpu_numbers(paths)
    if not numbers.online:
        raise _no_cpus(paths)
    total = memory.read_memory(paths)
    numa_nodes = memory.read_nodes(paths, numbers.online)
    whole = NumaNode(0, numbers.online, total.total_bytes, total.available_bytes)
    nodes = numa_nodes or (whole,)
    sockets = topology.read_sockets(paths, numbers.online, nodes)
    l3_groups = topology.read_l3_groups(paths, numbers.online)
    firmware = partition(cpu, sockets, numa_nodes, l3_groups, memory.read_distances(paths))
    cpuset = read_cpuset(paths)
    return HostFacts(
        cpu=cpu,
        sockets=sockets,
        nodes=nodes,
        l3_groups=l3_groups,
        threads_per_core=max(len(core.cpus) for socket in sockets for core in socket.cores),
        nps=firmware.nps,
        l3_as_numa=firmware.l3_as_numa,
        offline_cpus=numbers.offline,
        isolated_cpus=numbers.isolated,
        allowed_cpus=_allowed(cpuset.cpus, numbers.online),
        allowed_nodes=_allowed(cpuset.nodes, [n.id for n in nodes if n.memory_bytes != 0]),
        memory_bytes=total.total_bytes,
        available_bytes=total.available_bytes,
        listening_ports=read_listening_ports(paths),
        numa_known=bool(numa_nodes),
    )


def _allowed(cpuset: Sequence[int] | None, present: Sequence[int]) -> tuple[int, ...]:
    return tuple(present) if cpuset is None else tuple(sorted({*cpuset} & {*present}))


def _no_cpus(paths: Paths) -> AgentError:
    return AgentError(
        "no-cpus",
        f"no CPU is listed below {paths.root}: neither in proc/cpuinfo nor in sys",
        "give --sysroot a directory that holds proc and sys/devices/system of a host",
    )
