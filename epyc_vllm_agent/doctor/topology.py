"""Checks of CPUs, nodes and memory: will instances get what the host seems to have?"""

from collections.abc import Iterator

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.doctor.finding import Finding, advice, warning
from epyc_vllm_agent.doctor.seen import Seen
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.sizes import gib


def check(seen: Seen) -> Iterator[Finding]:
    yield from _cpus(seen.facts)
    yield from _nodes(seen.facts)
    free = seen.facts.available_bytes
    if free is not None and free < seen.limits.free_memory_bytes:
        yield warning(
            "memory-low",
            f"{gib(free)} of {gib(seen.facts.memory_bytes)} are available: hardly a model fits",
            "stop what holds the memory, or use a host with more",
        )


def _cpus(facts: HostFacts) -> Iterator[Finding]:
    if facts.offline_cpus:
        yield advice(
            "cpus-offline",
            f"CPUs {cpulist.format(facts.offline_cpus)} are offline",
            "put them online: echo 1 > /sys/devices/system/cpu/cpuN/online",
        )
    if facts.isolated_cpus:
        yield advice(
            "cpus-isolated",
            f"CPUs {cpulist.format(facts.isolated_cpus)} are isolated (isolcpus=)",
            "services still get them where they are pinned; drop isolcpus= if nothing needs it",
        )
    missing = facts.logical_cpus - len(facts.allowed_cpus)
    if missing > 0:
        yield warning(
            "cpuset-restricted",
            f"services may use {cpulist.format(facts.allowed_cpus) or 'none'} of "
            f"{facts.logical_cpus} CPUs",
            "see AllowedCPUs= of system.slice, or the cpuset of the container this runs in",
        )


def _nodes(facts: HostFacts) -> Iterator[Finding]:
    if not facts.numa_known:
        yield warning(
            "numa-unknown",
            "the kernel shows no NUMA nodes: memory cannot be bound to a socket",
            "boot without numa=off and with a kernel that has CONFIG_NUMA",
        )
        return
    empty = [node.id for node in facts.nodes if node.memory_bytes == 0 and node.cpus]
    if empty:
        yield warning(
            "node-without-memory",
            f"node {cpulist.format(empty)} has CPUs and no memory: its cores are not used",
            "put memory on it, or set NPS1 in the firmware so that its cores share a node",
        )
    sizes = {node.memory_bytes for node in facts.nodes if node.cpus and node.memory_bytes}
    if sizes and max(sizes) > 1.25 * min(sizes):
        yield advice(
            "nodes-unequal",
            f"NUMA nodes have from {gib(min(sizes))} to {gib(max(sizes))}: the smallest bounds "
            "the KV cache of every rank",
            "populate the memory channels alike",
        )
    several = max(len(socket.nodes) for socket in facts.sockets)
    if several > 1:
        yield advice(
            "several-nodes",
            f"a socket has {several} NUMA nodes: an instance runs one rank on each, where the "
            "model's heads can be divided so",
            "for models that cannot, set NPS1 in the firmware",
        )
