"""data/generations.json as a frozen value, and the rules that find a part in it; reads no file.

Family and model of CPUID decide first: cloud names do not follow AMD's numbering. Where parts share
them (Bergamo and Siena), or where they match none, the name decides.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Routing(StrEnum):
    """How a generation is served, before the CPU's own flags are looked at."""

    VALIDATED = "validated"
    PINNED = "pinned"  # validated, but with the vLLM that the recipe pins only
    UNVALIDATED = "unvalidated"
    STOCK = "stock"  # no AVX-512 in any of its parts

    @property
    def is_validated(self) -> bool:
        return self in (Routing.VALIDATED, Routing.PINNED)


@dataclass(frozen=True, slots=True)
class Models:
    """CPUID models of one family that are one thing."""

    family: int
    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, signature: tuple[int | None, int | None]) -> bool:
        family, model = signature
        return (
            family == self.family
            and model is not None
            and any(first <= model <= last for first, last in self.ranges)
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The parts of one codename. Limits are None where not known."""

    codename: str
    generation: str
    routing: Routing
    zen_arch: str
    series: str
    models: Models
    names: tuple[str, ...]  # regular expressions of what follows "EPYC" in the model name
    max_sockets: int | None
    max_cores_per_socket: int | None
    memory_channels: int | None

    def is_named(self, model_name: str) -> bool:
        pattern = rf"\bEPYC\W+(?:Embedded\W+)?(?:{'|'.join(self.names)})\b"
        return re.search(pattern, model_name) is not None


@dataclass(frozen=True, slots=True)
class Core:
    """A range of CPUID models that share a core design, EPYC or not."""

    zen_arch: str
    models: Models


@dataclass(frozen=True, slots=True)
class Platform:
    """A hypervisor by how a DMI string begins or by the name of its clock."""

    hypervisor: str
    dmi: str | None
    clocksource: str | None


@dataclass(frozen=True, slots=True)
class Generations:
    parts: tuple[Part, ...]  # of those that match equally, the first is taken
    cores: tuple[Core, ...]
    platforms: tuple[Platform, ...]  # the first that shows is taken

    @classmethod
    def from_json(cls, text: str) -> "Generations":
        table = json.loads(text)
        parts = [_part(g, part) for g in table["generations"] for part in g["parts"]]
        cores = [Core(core["zen_arch"], _models(core)) for core in table["cores"]]
        platforms = [
            Platform(p["hypervisor"], p.get("dmi"), p.get("clocksource"))
            for p in table["platforms"]
        ]
        return cls(tuple(parts), tuple(cores), tuple(platforms))

    def identify(self, model_name: str, family: int | None, model: int | None) -> Part | None:
        """The part that an EPYC of this name, family and model is."""
        same_id = [part for part in self.parts if (family, model) in part.models]
        same_name = [part for part in same_id or self.parts if part.is_named(model_name)]
        return next(iter(same_name or same_id), None)

    def zen_arch(self, family: int | None, model: int | None) -> str | None:
        """The core design where only family and model are known."""
        return next((c.zen_arch for c in self.cores if (family, model) in c.models), None)

    def routing(self, generation: str | None) -> Routing | None:
        """How the generation of this name (`Cpu.generation`) is served; None: not known."""
        return next((part.routing for part in self.parts if part.generation == generation), None)

    def hypervisor(self, dmi: Iterable[str], clocksources: Iterable[str]) -> str | None:
        """The hypervisor that shows in a guest's firmware strings and clocks."""
        strings, clocks = tuple(dmi), tuple(clocksources)
        for platform in self.platforms:
            in_dmi = platform.dmi and any(text.startswith(platform.dmi) for text in strings)
            if in_dmi or platform.clocksource in clocks:
                return platform.hypervisor
        return None


def _part(generation: dict[str, Any], part: dict[str, Any]) -> Part:
    return Part(
        codename=part["codename"],
        generation=generation["name"],
        routing=Routing(generation["routing"]),
        zen_arch=part["zen_arch"],
        series=part["series"],
        models=_models(part),
        names=tuple(part["names"]),
        max_sockets=part["max_sockets"],
        max_cores_per_socket=part["max_cores_per_socket"],
        memory_channels=part["memory_channels"],
    )


def _models(entry: dict[str, Any]) -> Models:
    """The "models" of a table entry, written in hexadecimal as the kernel's sources do: "10-1f"."""
    ranges = (text.partition("-") for text in entry["models"])
    return Models(
        entry["family"],
        tuple((int(first, 16), int(last or first, 16)) for first, _, last in ranges),
    )
