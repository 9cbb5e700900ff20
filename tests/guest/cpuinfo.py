"""What /proc/cpuinfo says on other machines, as text; mounts nothing.

The guest has this machine's CPUs and /sys, so their numbers and places are taken from there.
vLLM's in-tree Zen platform and our own detection go by this file alone. The flags are the ones
that such machines print, cut to those that anything here looks at.
"""

from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")

_BASE = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 ht syscall nx pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid pni pclmulqdq ssse3 fma "
    "cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm fsgsbase bmi1 avx2 smep "
    "bmi2 erms invpcid rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xgetbv1 umip rdpid"
)
_AMD = "mmxext fxsr_opt cmp_legacy svm extapic cr8_legacy sse4a misalignsse topoext clzero rdpru"
_AVX512 = (
    "avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512_vbmi2 avx512_vnni "
    "avx512_bitalg avx512_vpopcntdq gfni vaes vpclmulqdq"
)


@dataclass(frozen=True, slots=True)
class Processor:
    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    flags: str


PROCESSORS = {
    "genoa": Processor(
        "AuthenticAMD", 25, 17, 1, "AMD EPYC 9654 96-Core Processor",
        f"{_BASE} {_AMD} {_AVX512} avx512_bf16",
    ),
    "milan": Processor(
        "AuthenticAMD", 25, 1, 1, "AMD EPYC 7713 64-Core Processor", f"{_BASE} {_AMD} pku vaes"
    ),
    "intel": Processor(
        "GenuineIntel", 6, 106, 6, "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", f"{_BASE} {_AVX512}"
    ),
}  # fmt: skip


def has_bfloat16() -> bool:
    """Whether this machine itself has what it takes, whatever the guest is told."""
    return "avx512_bf16" in Path("/proc/cpuinfo").read_text()


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    number: int
    socket: int
    core: int


def logical_cpus(folder: Path = CPUS) -> tuple[LogicalCpu, ...]:
    places = folder.glob("cpu[0-9]*/topology")
    cpus = [
        LogicalCpu(
            number=int(place.parent.name.removeprefix("cpu")),
            socket=int((place / "physical_package_id").read_text()),
            core=int((place / "core_id").read_text()),
        )
        for place in places
    ]
    return tuple(sorted(cpus, key=lambda cpu: cpu.number))


def render(kind: str, folder: Path = CPUS) -> str:
    machine = logical_cpus(folder)
    return "".join(_block(PROCESSORS[kind], cpu, machine) for cpu in machine)


def _block(processor: Processor, cpu: LogicalCpu, machine: tuple[LogicalCpu, ...]) -> str:
    neighbours = [other for other in machine if other.socket == cpu.socket]
    lines = {
        "processor\t": cpu.number,
        "vendor_id\t": processor.vendor,
        "cpu family\t": processor.family,
        "model\t\t": processor.model,
        "model name\t": processor.name,
        "stepping\t": processor.stepping,
        "cpu MHz\t\t": "2400.000",
        "cache size\t": "1024 KB",
        "physical id\t": cpu.socket,
        "siblings\t": len(neighbours),
        "core id\t\t": cpu.core,
        "cpu cores\t": len({other.core for other in neighbours}),
        "fpu\t\t": "yes",
        "cpuid level\t": 16,
        "flags\t\t": processor.flags,
        "bogomips\t": "4800.00",
        "address sizes\t": "52 bits physical, 57 bits virtual",
    }
    return "".join(f"{key}: {value}\n" for key, value in lines.items()) + "\n"
