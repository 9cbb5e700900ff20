"""How the firmware cuts sockets into NUMA nodes: NPS, or an L3 group a node; pure.

No file tells the setting itself, so it is told by the shape of nodes and L3 groups. In a guest that
shape is the hypervisor's, and on other processors the setting is not there: not known.
AMD's tuning guides for EPYC 7002 to 9005 describe "NUMA nodes per socket" and "ACPI SRAT L3 cache
as NUMA domain".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.facts.host import Cpu, L3Group, NumaNode, Socket

_NPS = (1, 2, 4)
# The distance that EPYC firmware gives to nodes that are L3 groups of one memory partition;
# partitions of a socket are 12 apart (Naples: 16), sockets 32.
_SAME_PARTITION = 11

Distances = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Partition:
    nps: int | None
    l3_as_numa: bool


def partition(
    cpu: Cpu,
    sockets: Sequence[Socket],
    nodes: Sequence[NumaNode],
    l3_groups: Sequence[L3Group],
    distances: Distances,
) -> Partition:
    """The setting that `nodes` (as the node directory has them) show on `sockets`.

    Where a socket has no more L3 groups than NPS4 has nodes and distances are not told, L3 as NUMA
    looks like NPS2 or NPS4 and is taken for it.
    """
    if not cpu.is_amd_epyc or cpu.hypervisor is not None or not nodes:
        return Partition(None, l3_as_numa=False)
    if len(sockets) > 1 and len({node for socket in sockets for node in socket.nodes}) == 1:
        # NPS0; numa=off on the kernel's command line looks the same.
        return Partition(0, l3_as_numa=False)
    if _nodes_are_l3_groups(sockets, nodes, l3_groups, distances):
        return Partition(_common([_partitions(s.nodes, distances) for s in sockets]), True)
    return Partition(_common([len(socket.nodes) for socket in sockets]), l3_as_numa=False)


def _nodes_are_l3_groups(
    sockets: Sequence[Socket],
    nodes: Sequence[NumaNode],
    l3_groups: Sequence[L3Group],
    distances: Distances,
) -> bool:
    groups = {group.cpus for group in l3_groups}
    if not all(node.cpus in groups for node in nodes if node.cpus):
        return False
    return any(
        len(socket.nodes) > max(_NPS)
        or 0 < _partitions(socket.nodes, distances) < len(socket.nodes)
        for socket in sockets
    )


def _partitions(nodes: Sequence[int], distances: Distances) -> int:
    """The memory partitions that the nodes of a socket are in; 0 where distances do not tell."""
    if not all((a, b) in distances for a in nodes for b in nodes):
        return 0
    near = ({b for b in nodes if distances[a, b] <= _SAME_PARTITION} for a in nodes)
    return len({frozenset(partition) for partition in near})


def _common(counts: Sequence[int]) -> int | None:
    """The NPS setting that all sockets share; None for none, and for shapes that no setting has."""
    return counts[0] if counts and len(set(counts)) == 1 and counts[0] in _NPS else None
