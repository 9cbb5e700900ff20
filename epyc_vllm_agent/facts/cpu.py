"""Which processor this is: EPYC or not, generation, AVX-512, guest or not; knows no topology.

Files: https://docs.kernel.org/filesystems/proc.html (cpuinfo) and /sys/class/dmi/id
(https://docs.kernel.org/admin-guide/abi-testing.html, sysfs-class-dmi).
"""

import re

from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.cpuinfo import Identity, parse_identity
from epyc_vllm_agent.facts.files import read_text
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.paths import Paths

# The first stanza is enough, and longer ones than 3 KiB are not known. The whole file of 1024 CPUs
# has 2 MiB, and the kernel asks every CPU for its frequency to write it.
_HEAD_BYTES = 16 * 1024
_DMI = ("product_name", "sys_vendor")
# Small hypervisors (Firecracker) give their guests no DMI, but KVM's own clock.
_CLOCKS = "/sys/devices/system/clocksource/clocksource0/available_clocksource"


def read_cpu(paths: Paths, generations: Generations) -> Cpu:
    """Raises AgentError where there is no cpuinfo at all: nothing can be said of such a host."""
    text = read_text(paths.at("/proc/cpuinfo"), _HEAD_BYTES)
    if text is None:
        raise AgentError(
            "no-cpuinfo",
            f"{paths.at('/proc/cpuinfo')} cannot be read",
            "give --sysroot a directory that holds proc/cpuinfo (and sys/devices/system)",
        )
    identity = parse_identity(text)
    guest = "hypervisor" in identity.flags
    return describe(identity, generations, _hypervisor(paths, generations) if guest else None)


def describe(identity: Identity, generations: Generations, hypervisor: str | None) -> Cpu:
    """The processor of `identity` as `generations` knows it; a CPU other than EPYC has neither
    generation nor Zen architecture here."""
    epyc = is_amd_epyc(identity.vendor, identity.model_name)
    signature = identity.family, identity.model
    part = generations.identify(identity.model_name or "", *signature) if epyc else None
    zen_arch = part.zen_arch if part else generations.zen_arch(*signature) if epyc else None
    return Cpu(
        vendor=identity.vendor,
        model_name=identity.model_name,
        family=identity.family,
        model=identity.model,
        stepping=identity.stepping,
        is_amd_epyc=epyc,
        generation=part.generation if part else None,
        zen_arch=zen_arch,
        avx512f="avx512f" in identity.flags,
        avx512_bf16="avx512_bf16" in identity.flags,
        hypervisor=hypervisor,
        series=part.series if part else None,
    )


def is_amd_epyc(vendor: str | None, model_name: str | None) -> bool:
    """Only the name tells: Ryzen and Threadripper parts share EPYC's families and models."""
    return vendor == "AuthenticAMD" and re.search(r"\bEPYC\b", model_name or "") is not None


def _hypervisor(paths: Paths, generations: Generations) -> str:
    """Asked only where the CPU's flag says guest: bare-metal cloud hosts have the cloud's strings
    in their DMI too."""
    dmi = [read_text(paths.at(f"/sys/class/dmi/id/{name}")) for name in _DMI]
    clocks = (read_text(paths.at(_CLOCKS)) or "").split()
    return generations.hypervisor([text.strip() for text in dmi if text], clocks) or "unknown"
