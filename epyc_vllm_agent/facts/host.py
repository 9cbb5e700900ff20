"""What is known of a host, as frozen values; reads nothing itself (see `gather`).

CPU, core, node and socket numbers are the kernel's own and may have gaps. Memory is in bytes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as /proc/cpuinfo and data/generations.json know it."""

    vendor: str | None
    model_name: str | None  # None: cpuinfo has no such line (ARM)
    family: int | None
    model: int | None
    stepping: int | None
    is_amd_epyc: bool
    generation: str | None  # the seed's names: "Genoa", "Turin", "EPYC 4004", ...; None: not known
    zen_arch: str | None  # as the seed writes it: "Zen4", "Zen4c", ...
    avx512f: bool
    avx512_bf16: bool
    hypervisor: str | None  # "kvm", "vmware", ... or "unknown" where only the flag says so
    series: str | None = None  # "9004", "9005", ...; None: not known, or not an EPYC


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: its online threads, lowest CPU number first."""

    socket: int
    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NumaNode:
    id: int
    cpus: tuple[int, ...]  # online ones
    memory_bytes: int | None  # None where the host has no node directory and no meminfo
    free_bytes: int | None  # MemFree plus what the kernel drops first (page cache, slab)


@dataclass(frozen=True, slots=True)
class Socket:
    id: int
    nodes: tuple[int, ...]
    cores: tuple[Core, ...]  # in order of their first CPU


@dataclass(frozen=True, slots=True)
class L3Group:
    """Cores that share one L3 cache (a CCX)."""

    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostFacts:
    cpu: Cpu
    sockets: tuple[Socket, ...]
    nodes: tuple[NumaNode, ...]
    l3_groups: tuple[L3Group, ...]
    threads_per_core: int
    nps: int | None  # the firmware's NPS setting (0: sockets interleaved); None where not known
    l3_as_numa: bool
    offline_cpus: tuple[int, ...]
    isolated_cpus: tuple[int, ...]
    allowed_cpus: tuple[int, ...]  # online and inside the cpuset that this system may use
    allowed_nodes: tuple[int, ...]
    memory_bytes: int | None
    available_bytes: int | None
    listening_ports: frozenset[int]  # TCP, any address
    numa_known: bool = True  # False: no node directory, `nodes` is one node made of the whole host

    def node(self, node_id: int) -> NumaNode:
        return next(node for node in self.nodes if node.id == node_id)

    def socket(self, socket_id: int) -> Socket | None:
        return next((socket for socket in self.sockets if socket.id == socket_id), None)

    @property
    def physical_cores(self) -> int:
        return sum(len(socket.cores) for socket in self.sockets)

    @property
    def logical_cpus(self) -> int:
        return sum(len(core.cpus) for socket in self.sockets for core in socket.cores)
