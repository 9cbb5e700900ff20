"""The emulated machines: sockets, nodes and cores, as QEMU is told and as the kernel shows them."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.guest import cpuinfo

NODE_GIB = 6  # of which only what is touched is taken from this machine


@dataclass(frozen=True, slots=True)
class Topology:
    """`nodes` are NUMA nodes per socket, `cores` cores per node, without SMT."""

    name: str
    nodes: int
    cores: int
    sockets: int = 2

    @property
    def cpus(self) -> int:
        return self.sockets * self.nodes * self.cores

    def socket_cpus(self, socket: int) -> tuple[int, ...]:
        each = self.nodes * self.cores
        return tuple(range(socket * each, (socket + 1) * each))

    def socket_nodes(self, socket: int) -> tuple[int, ...]:
        return tuple(range(socket * self.nodes, (socket + 1) * self.nodes))

    def node_cpus(self, node: int) -> tuple[int, ...]:
        return tuple(range(node * self.cores, (node + 1) * self.cores))


TOPOLOGIES = {
    made.name: made
    for made in (
        Topology("small", nodes=1, cores=2),
        Topology("nps1", nodes=1, cores=4),
        Topology("nps2", nodes=2, cores=2),
    )
}


def arguments(topology: Topology) -> list[str]:
    """QEMU's: memory, CPUs, nodes and the distances between them."""
    count = topology.sockets * topology.nodes
    words = ["-m", f"{count * NODE_GIB}G"]
    cores = topology.nodes * topology.cores
    words += ["-smp", f"{topology.cpus},sockets={topology.sockets},cores={cores},threads=1"]
    for node in range(count):
        cpus = topology.node_cpus(node)
        words += ["-object", f"memory-backend-ram,id=m{node},size={NODE_GIB}G"]
        words += ["-numa", f"node,nodeid={node},cpus={cpus[0]}-{cpus[-1]},memdev=m{node}"]
    for one in range(count):
        for other in range(one + 1, count):
            near = one // topology.nodes == other // topology.nodes
            words += ["-numa", f"dist,src={one},dst={other},val={12 if near else 32}"]
    return words


def cpuinfo_of(topology: Topology, processor: str) -> str:
    """The /proc/cpuinfo of "genoa" or "milan" with this many CPUs: emulation has no AVX-512."""
    with tempfile.TemporaryDirectory() as folder:
        each = topology.nodes * topology.cores
        for cpu in range(topology.cpus):
            place = Path(folder, f"cpu{cpu}/topology")
            place.mkdir(parents=True)
            (place / "physical_package_id").write_text(str(cpu // each))
            (place / "core_id").write_text(str(cpu % each))
        return cpuinfo.render(processor, Path(folder))
