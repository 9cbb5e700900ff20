"""Checks of the processor: is it one that the recipe is for?"""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, advice, error, warning
from epyc_vllm_agent.doctor.seen import Seen
from epyc_vllm_agent.facts.generations import Routing


def check(seen: Seen) -> Iterator[Finding]:
    cpu, routing = seen.facts.cpu, seen.shipped.routing
    name = cpu.model_name or cpu.vendor or "a CPU that does not tell its name"
    if not cpu.is_amd_epyc:
        fix = "serve from an AMD EPYC host; --accept not-epyc is for trying things out"
        kind = warning if "not-epyc" in seen.accepted else error
        yield kind("not-epyc", f"{name} is no AMD EPYC", fix)
    elif not cpu.avx512_bf16:
        yield from _stock(seen, name)
    elif not (routing and routing.is_validated) and "unvalidated-cpu" not in seen.accepted:
        yield warning(
            "unvalidated-cpu",
            f"zentorch is not validated on {cpu.generation or 'this generation of EPYC'} ({name})",
            "accept it by name with --accept unvalidated-cpu, or serve on Genoa, Turin or Venice",
        )


def _stock(seen: Seen, name: str) -> Iterator[Finding]:
    cpu, routing = seen.facts.cpu, seen.shipped.routing
    if routing and routing is not Routing.STOCK and cpu.hypervisor:
        yield warning(
            "avx512-masked",
            f"{name} has AVX-512 BF16, but the hypervisor ({cpu.hypervisor}) hides it",
            "give the guest the host's CPU model (host-passthrough) to serve with zentorch",
        )
    elif cpu.avx512f:
        yield warning(
            "no-bf16",
            f"{name} shows AVX-512 without BF16, which zentorch needs",
            "look for a setting of firmware or hypervisor that hides avx512_bf16",
        )
    kind = advice if "stock-cpu" in seen.accepted else warning
    yield kind(
        "stock-cpu",
        f"{name} has no AVX-512 BF16: zentorch cannot run, stock vLLM can, unaccelerated",
        "accept that by name: --accept stock-cpu",
    )
