"""Hosts from short descriptions: the proc and sys files that a kernel would show there.

`facts_of(HOSTS["genoa-2s-nps1"])` is the host as gathered, `build` writes its files below a root.
For a variant: `dataclasses.replace(HOSTS["milan-1s"], offline="3")`.
Formats: https://docs.kernel.org/admin-guide/cputopology.html and Linux drivers/base/node.c.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.paths import Paths

DATA = Path(__file__).parents[1] / "data"
GENERATIONS = Generations.from_json((DATA / "generations.json").read_text())

GIB = 1024**3
CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
CLOCKS = "sys/devices/system/clocksource/clocksource0"

_BASE = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid pni "
    "ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm svm abm sse4a "
    "topoext bmi1 avx2 smep bmi2 rdseed adx clflushopt sha_ni xsaveopt xsavec clzero rdpru"
)
_AVX512 = "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512_vnni"
_BF16 = f"{_BASE} {_AVX512} avx512_bf16"


@dataclass(frozen=True, slots=True)
class Processor:
    """What cpuinfo prints of a processor; None for ARM's keys."""

    model_name: str
    family: int
    model: int
    stepping: int = 1
    flags: str = _BF16
    vendor: str | None = "AuthenticAMD"


class Numbering(StrEnum):
    """How firmware and kernel number the threads of a core."""

    SPREAD = "i and i+N"
    ADJACENT = "2i and 2i+1"


class CpusetFile(StrEnum):
    """Where a restriction shows."""

    ROOT = "the root cgroup, as in a container"
    SLICE = "system.slice, by AllowedCPUs="
    V1 = "the cpuset hierarchy of cgroup v1"
    INIT = "the status of PID 1 alone"


@dataclass(frozen=True, slots=True)
class HostDescription:
    """A host. Lists as text are kernel lists; counts are of cores that firmware enables."""

    processor: Processor
    sockets: int = 1
    cores_per_socket: int = 16
    threads: int = 2
    numbering: Numbering = Numbering.SPREAD
    cores_per_l3: int | None = 8  # None: no cache directories
    nps: int = 1  # 0: one node over all sockets
    l3_as_numa: bool = False
    # One size for all nodes, or one for each; 0: memory-less, None: no meminfo file.
    memory_gib: tuple[int | None, ...] = (384,)
    used_gib: int = 0  # of each node, beside a page cache that the kernel can drop
    cpuless_memory_gib: tuple[int, ...] = ()  # more nodes, with memory only (CXL)
    offline: str = ""
    isolated: str = ""
    missing_cpus: str = ""  # numbers that the numbering skips
    core_ids: tuple[int, ...] = ()  # of one socket's cores, where not 0, 1, 2, ...
    package_ids: tuple[int, ...] = ()
    node_ids: tuple[int, ...] = ()
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    cpuset_file: CpusetFile = CpusetFile.ROOT
    node_directory: bool = True
    cpu_directory: bool = True
    cpu_lists: bool = True  # False: each CPU's directory, but no lists of them
    distances: bool = True
    before_linux_5_3: bool = False  # thread_siblings_list and cpumap
    dmi: str | None = None  # the vendor in it
    clocksources: str = "tsc hpet"
    listening: tuple[int, ...] = ()
    listening_ipv6: tuple[int, ...] = ()

    @property
    def node_count(self) -> int:
        """Nodes that have CPUs."""
        if self.nps == 0:
            return 1
        return self.sockets * self.nodes_per_socket

    @property
    def nodes_per_socket(self) -> int:
        if self.l3_as_numa:
            return self.cores_per_socket // (self.cores_per_l3 or self.cores_per_socket)
        return self.nps


@dataclass(frozen=True, slots=True)
class Thread:
    """A CPU with the indexes (not numbers) of what it belongs to."""

    cpu: int
    socket: int
    core: int  # of its socket
    node: int
    l3: int


def build(description: HostDescription, root: Path) -> Paths:
    """Writes the host below `root`."""
    made: set[Path] = set()
    for name, text in files(description).items():
        path = root / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        path.write_text(text)
    return Paths(root)


@cache
def facts_of(description: HostDescription) -> HostFacts:
    """What is gathered of the host; once for each description, as writing it is the slow part."""
    with tempfile.TemporaryDirectory() as root:
        return gather(build(description, Path(root)), GENERATIONS)


def files(description: HostDescription) -> Mapping[str, str]:
    """Every file of the host by its path below the root."""
    offline = set(cpulist.parse(description.offline))
    everything = tuple(threads(description))
    online = [thread for thread in everything if thread.cpu not in offline]
    found = dict(_proc_files(description, online))
    if description.cpu_directory:
        found |= _cpu_list_files(description, everything, online)
        for thread in online:
            found |= _cpu_files(description, thread, online)
    if description.node_directory:
        found |= _node_files(description, online)
    return found | dict(_cpuset_files(description))


def threads(description: HostDescription) -> Iterator[Thread]:
    """All CPUs of the host, offline ones too, in order of sockets, cores and threads."""
    d = description
    cores = d.sockets * d.cores_per_socket
    skipped = set(cpulist.parse(d.missing_cpus))
    count = cores * d.threads
    numbers = [n for n in range(count + len(skipped)) if n not in skipped][:count]
    for index in range(cores):
        socket, core = divmod(index, d.cores_per_socket)
        node = socket * d.nodes_per_socket + core * d.nodes_per_socket // d.cores_per_socket
        l3 = index // (d.cores_per_l3 or d.cores_per_socket)
        for thread in range(d.threads):
            spread = d.numbering is Numbering.SPREAD
            position = thread * cores + index if spread else index * d.threads + thread
            yield Thread(numbers[position], socket, core, node, l3)


def _proc_files(d: HostDescription, online: Iterable[Thread]) -> Iterator[tuple[str, str]]:
    yield "proc/cpuinfo", "\n".join(_stanza(d, thread) for thread in by_number(online)) + "\n"
    sizes = [size for size in (*_node_sizes(d), *d.cpuless_memory_gib) if size is not None]
    if sizes:
        memory = [_memory(size, d.used_gib) for size in sizes]
        available = sum(sum(fields.values()) - fields["MemTotal"] for fields in memory)
        total = sum(fields["MemTotal"] for fields in memory)
        yield "proc/meminfo", f"MemTotal: {total} kB\nMemAvailable: {available} kB\n"
    for name, digits, ports in (("tcp", 8, d.listening), ("tcp6", 32, d.listening_ipv6)):
        yield f"proc/net/{name}", _sockets(digits, ports)
    yield f"{CLOCKS}/available_clocksource", f"{d.clocksources}\n"
    if d.dmi:
        yield "sys/class/dmi/id/sys_vendor", f"{d.dmi}\n"


def by_number(online: Iterable[Thread]) -> list[Thread]:
    return sorted(online, key=lambda thread: thread.cpu)


def _stanza(d: HostDescription, thread: Thread) -> str:
    processor = d.processor
    if processor.vendor is None:
        return f"processor\t: {thread.cpu}\nFeatures\t: {processor.flags}\nCPU part\t: 0xd40\n"
    return (
        f"processor\t: {thread.cpu}\n"
        f"vendor_id\t: {processor.vendor}\n"
        f"cpu family\t: {processor.family}\n"
        f"model\t\t: {processor.model}\n"
        f"model name\t: {processor.model_name}\n"
        f"stepping\t: {processor.stepping}\n"
        f"physical id\t: {_package(d, thread)}\n"
        f"siblings\t: {d.cores_per_socket * d.threads}\n"
        f"core id\t\t: {_core_id(d, thread)}\n"
        f"cpu cores\t: {d.cores_per_socket}\n"
        f"flags\t\t: {processor.flags}\n"
    )


def _sockets(digits: int, ports: Iterable[int]) -> str:
    """A listening socket for each port, and a connection from the port above to the one below."""
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt"]
    for index, port in enumerate(ports):
        anywhere = "0" * digits
        lines.append(f"{index:4}: {anywhere}:{port:04X} {anywhere}:0000 0A 00000000:00000000")
        lines.append(f"{index:4}: {anywhere}:{port + 1:04X} {anywhere}:{port - 1:04X} 01 00000000")
    return "\n".join(lines) + "\n"


def _cpu_list_files(
    d: HostDescription, everything: Iterable[Thread], online: Iterable[Thread]
) -> dict[str, str]:
    present = [thread.cpu for thread in everything]
    # Firmware often announces empty sockets: they are possible, and so "offline" for the kernel.
    possible = range(max(present) + 1 + len(present))
    on = [thread.cpu for thread in online]
    lists = {
        "present": present,
        "possible": possible,
        "online": on,
        "offline": set(possible) - set(on),
        "isolated": cpulist.parse(d.isolated),
    }
    found = {f"{CPUS}/{name}": f"{cpulist.format(cpus)}\n" for name, cpus in lists.items()}
    if not d.cpu_lists:
        found = {}
    # CPUs without the file cannot be put offline.
    return found | {f"{CPUS}/cpu{cpu}/online": "0\n" for cpu in set(present) - set(on)}


def _cpu_files(d: HostDescription, thread: Thread, online: Iterable[Thread]) -> dict[str, str]:
    core = [t.cpu for t in online if (t.socket, t.core) == (thread.socket, thread.core)]
    cpu = f"{CPUS}/cpu{thread.cpu}"
    core_name = "thread_siblings_list" if d.before_linux_5_3 else "core_cpus_list"
    found = {
        f"{cpu}/topology/{core_name}": cpulist.format(core),
        f"{cpu}/topology/physical_package_id": str(_package(d, thread)),
        f"{cpu}/topology/core_id": str(_core_id(d, thread)),
    }
    if d.cores_per_l3 is not None:
        sharing = [t.cpu for t in online if t.l3 == thread.l3]
        found |= {
            f"{cpu}/cache/index3/level": "3",
            f"{cpu}/cache/index3/shared_cpu_list": cpulist.format(sharing),
        }
    return {name: f"{text}\n" for name, text in found.items()}


def _node_files(d: HostDescription, online: Iterable[Thread]) -> dict[str, str]:
    sizes = [*_node_sizes(d), *d.cpuless_memory_gib]
    found: dict[str, str] = {}
    for index, size in enumerate(sizes):
        number, folder = _node_id(d, index), f"{NODES}/node{_node_id(d, index)}"
        cpus = [thread.cpu for thread in online if thread.node == index]
        if d.before_linux_5_3:
            found[f"{folder}/cpumap"] = _mask(cpus)
        else:
            found[f"{folder}/cpulist"] = f"{cpulist.format(cpus)}\n"
        if size is not None:
            fields = _memory(size, d.used_gib).items()
            lines = (f"Node {number} {key}: {value:14} kB\n" for key, value in fields)
            found[f"{folder}/meminfo"] = "".join(lines) + f"Node {number} HugePages_Total: 0\n"
        if d.distances:
            row = (str(_distance(d, index, other)) for other in range(len(sizes)))
            found[f"{folder}/distance"] = " ".join(row) + "\n"
    numbers = [_node_id(d, index) for index in range(len(sizes))]
    return found | {f"{NODES}/online": f"{cpulist.format(numbers)}\n"}


def _node_sizes(d: HostDescription) -> tuple[int | None, ...]:
    same = len(d.memory_gib) == 1
    sizes = d.memory_gib * d.node_count if same else d.memory_gib
    assert len(sizes) == d.node_count, f"{d.node_count} nodes, {len(sizes)} sizes"
    return sizes


def _memory(size_gib: int, used_gib: int) -> dict[str, int]:
    """Fields of a node in kB, of which all but `used_gib` is free or soon freed."""
    total = size_gib * GIB // 1024
    left = max(total - used_gib * GIB // 1024, 0)
    cache = left // 16
    return {
        "MemTotal": total,
        "MemFree": left - 3 * cache,
        "Active(file)": cache,
        "Inactive(file)": cache,
        "SReclaimable": cache,
    }


def _distance(d: HostDescription, one: int, other: int) -> int:
    """As EPYC firmware writes them; a node without CPUs is as far as another socket."""
    if one == other:
        return 10
    if max(one, other) >= d.node_count or one // d.nodes_per_socket != other // d.nodes_per_socket:
        return 32
    per_partition = d.nodes_per_socket // d.nps if d.l3_as_numa else 1
    return 11 if one // per_partition == other // per_partition else 12


def _cpuset_files(d: HostDescription) -> Iterator[tuple[str, str]]:
    cpus, mems = d.cpuset_cpus, d.cpuset_mems
    if d.cpuset_file is CpusetFile.INIT:
        fields = (("Cpus_allowed_list", cpus), ("Mems_allowed_list", mems))
        lines = (f"{key}:\t{value}\n" for key, value in fields if value is not None)
        yield "proc/1/status", "Name:\tsystemd\n" + "".join(lines)
        return
    cpus_name, mems_name = {
        CpusetFile.ROOT: ("cpuset.cpus.effective", "cpuset.mems.effective"),
        CpusetFile.SLICE: (
            "system.slice/cpuset.cpus.effective",
            "system.slice/cpuset.mems.effective",
        ),
        CpusetFile.V1: ("cpuset/cpuset.effective_cpus", "cpuset/cpuset.effective_mems"),
    }[d.cpuset_file]
    for name, value in ((cpus_name, cpus), (mems_name, mems)):
        if value is not None:
            yield f"sys/fs/cgroup/{name}", f"{value}\n"


def _package(d: HostDescription, thread: Thread) -> int:
    return d.package_ids[thread.socket] if d.package_ids else thread.socket


def _core_id(d: HostDescription, thread: Thread) -> int:
    return d.core_ids[thread.core] if d.core_ids else thread.core


def _node_id(d: HostDescription, index: int) -> int:
    return d.node_ids[index] if d.node_ids else index


def _mask(cpus: Iterable[int]) -> str:
    bits = sum(1 << cpu for cpu in cpus)
    words = [
        f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(bits.bit_length(), 1), 32)
    ]
    return ",".join(reversed(words)) + "\n"


GENOA = Processor("AMD EPYC 9124 16-Core Processor", 25, 17)
TURIN = Processor("AMD EPYC 9135 16-Core Processor", 26, 2)
MILAN = Processor("AMD EPYC 7313 16-Core Processor", 25, 1, flags=_BASE)
ROME = Processor("AMD EPYC 7302 16-Core Processor", 23, 49, 0, flags=_BASE)
NAPLES = Processor("AMD EPYC 7301 16-Core Processor", 23, 1, 2, flags=_BASE)
SNOWY_OWL = Processor("AMD EPYC 3201 8-Core Processor", 23, 1, 2, flags=_BASE)
TRENTO = Processor("AMD EPYC 7A53 64-Core Processor", 25, 48, flags=_BASE)
BERGAMO = Processor("AMD EPYC 9754 128-Core Processor", 25, 160, 2)
SIENA = Processor("AMD EPYC 8124P 16-Core Processor", 25, 160, 2)
EPYC_4004 = Processor("AMD EPYC 4124P 4-Core Processor", 25, 97, 2)
EPYC_4005 = Processor("AMD EPYC 4545P 16-Core Processor", 26, 68, 0)
TURIN_DENSE = Processor("AMD EPYC 9965 192-Core Processor", 26, 17, 0)
VENICE = Processor("AMD EPYC 9996 256-Core Processor", 26, 80, 0)
GENOA_GUEST = Processor("AMD EPYC-Genoa Processor", 25, 17, 0, flags=f"{_BF16} hypervisor")
# The hypervisor's CPU model leaves AVX-512 out, the processor below has it.
GENOA_MASKED = replace(GENOA_GUEST, flags=f"{_BASE} hypervisor")
RYZEN = Processor("AMD Ryzen 9 9950X 16-Core Processor", 26, 68, 0)
XEON = Processor(
    "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", 6, 106, 6, f"{_BASE} {_AVX512}", "GenuineIntel"
)
ARM = Processor("", 0, 0, flags="fp asimd sve", vendor=None)

_GENOA = HostDescription(GENOA, cores_per_l3=4)
_TURIN = HostDescription(TURIN)
_MILAN = HostDescription(MILAN, memory_gib=(256,))
_ROME = HostDescription(ROME, cores_per_l3=2, memory_gib=(256,))
_NAPLES = HostDescription(NAPLES, cores_per_l3=2, nps=4, memory_gib=(64,))
_VENICE = HostDescription(VENICE, cores_per_socket=32, cores_per_l3=16, memory_gib=(1024,))

HOSTS = {
    "genoa-1s": _GENOA,
    "genoa-2s-nps1": replace(_GENOA, sockets=2),
    "genoa-2s-nps2": replace(_GENOA, sockets=2, nps=2, memory_gib=(192,)),
    "genoa-2s-nps4": replace(_GENOA, sockets=2, nps=4, memory_gib=(96,)),
    "genoa-guest": replace(_GENOA, processor=GENOA_GUEST, dmi="QEMU", memory_gib=(64,)),
    "genoa-guest-masked": replace(_GENOA, processor=GENOA_MASKED, dmi="QEMU", memory_gib=(64,)),
    "turin-1s": _TURIN,
    "turin-2s-nps1": replace(_TURIN, sockets=2),
    "turin-2s-nps4": replace(_TURIN, sockets=2, cores_per_l3=4, nps=4, memory_gib=(96,)),
    "turin-dense-2s": HostDescription(TURIN_DENSE, sockets=2, cores_per_l3=16),
    "milan-1s": _MILAN,
    "milan-2s-nps4": replace(_MILAN, sockets=2, cores_per_l3=4, nps=4, memory_gib=(64,)),
    "rome-1s-l3numa": replace(_ROME, l3_as_numa=True, memory_gib=(32,)),
    "rome-2s-nps1": replace(_ROME, sockets=2),
    "naples-1s": _NAPLES,
    "naples-2s": replace(_NAPLES, sockets=2),
    "snowy-owl-1s": HostDescription(SNOWY_OWL, cores_per_socket=8, cores_per_l3=4, threads=1),
    "trento-1s": HostDescription(TRENTO, cores_per_socket=32, nps=4, memory_gib=(128,)),
    "bergamo-2s": HostDescription(BERGAMO, sockets=2, cores_per_socket=32),
    "siena-1s": HostDescription(SIENA, memory_gib=(192,)),
    "epyc4004-1s": HostDescription(EPYC_4004, cores_per_socket=4, memory_gib=(64,)),
    "epyc4005-1s": HostDescription(EPYC_4005, memory_gib=(128,)),
    "venice-1s": _VENICE,
    "venice-2s": replace(_VENICE, sockets=2),
    "venice-2s-largest": replace(_VENICE, sockets=2, cores_per_socket=256, cores_per_l3=32),
    "ryzen-1s": HostDescription(RYZEN, memory_gib=(64,)),
    "xeon-2s": HostDescription(XEON, sockets=2, cores_per_l3=16, memory_gib=(256,)),
    "arm-1s": HostDescription(ARM, threads=1, cores_per_l3=16, memory_gib=(128,)),
}
