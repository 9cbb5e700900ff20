"""The text of /proc/cpuinfo as values; knows its x86 keys, not what processor they mean.

arch/x86/kernel/cpu/proc.c writes a stanza for each online CPU. Other architectures have other
keys (ARM: no vendor, no model name), and containers may see a filtered or renumbered file.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from epyc_vllm_agent.facts.files import parse_number


@dataclass(frozen=True, slots=True)
class Identity:
    """What the first stanza says of the processor; all stanzas of an x86 host agree in this."""

    vendor: str | None
    model_name: str | None
    family: int | None
    model: int | None
    stepping: int | None
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    number: int
    package: int | None
    core: int | None  # repeats in another package, on old AMD parts even inside one


def parse_identity(text: str) -> Identity:
    fields = next(_stanzas(text), {})
    return Identity(
        vendor=fields.get("vendor_id"),
        model_name=fields.get("model name"),
        family=parse_number(fields.get("cpu family", "")),
        model=parse_number(fields.get("model", "")),
        stepping=parse_number(fields.get("stepping", "")),
        flags=frozenset(fields.get("flags", "").split()),
    )


def parse_logical_cpus(text: str) -> tuple[LogicalCpu, ...]:
    """Every CPU listed, in order; the topology where /sys tells none."""
    found = []
    for fields in _stanzas(text):
        number = parse_number(fields.get("processor", ""))
        if number is not None:
            package = parse_number(fields.get("physical id", ""))
            core = parse_number(fields.get("core id", ""))
            found.append(LogicalCpu(number, package, core))
    return tuple(found)


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    for stanza in text.strip().split("\n\n"):
        lines = (line.partition(":") for line in stanza.splitlines())
        yield {key.strip(): value.strip() for key, colon, value in lines if colon}
