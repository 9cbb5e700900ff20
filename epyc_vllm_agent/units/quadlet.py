"""Which quadlet keys a podman knows, and how values are written in a quadlet; pure.

A quadlet is read twice: by podman's generator, which splits and unquotes as systemd does, and then
by systemd in the service that the generator makes. podman-systemd.unit(5); data/quadlet.json.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.units import quoting

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@+=:,./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a container: its key with the key's value, and the same as an argument."""

    key: str | None  # None: no podman has a key for it
    value: str
    argument: str


@dataclass(frozen=True, slots=True)
class Keys:
    """The first podman that knows each key."""

    first: Mapping[str, str]

    @classmethod
    def from_json(cls, text: str) -> "Keys":
        return cls({str(key): str(value) for key, value in json.loads(text)["keys"].items()})

    def knows(self, version: str, key: str) -> bool:
        return numbers(version) >= numbers(self.first[key])


@cache
def keys() -> Keys:
    return Keys.from_json(read_data("quadlet.json"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def lines(options: tuple[Option, ...], version: str) -> tuple[str, ...]:
    """The options as lines of [Container]: by key where this podman has it and the key carries the
    value as it is, else as PodmanArgs=."""
    found, arguments = [], []
    for option in options:
        if option.key and keys().knows(version, option.key) and _carries(option):
            value = word(option.value) if option.key == "Environment" else option.value
            found.append(f"{option.key}={value}")
        else:
            arguments.append(word(option.argument))
    return (*found, *(f"PodmanArgs={argument}" for argument in arguments))


def _carries(option: Option) -> bool:
    """Volume= and the like are taken as they stand, without quotes: only plain values survive."""
    return option.key == "Environment" or bool(_PLAIN_VALUE.fullmatch(option.value))


def word(value: str) -> str:
    """`value` as one word of Exec=, PodmanArgs= or Environment=. The service that comes of it has
    no ":" before its command, so that systemd would put variables in: "$" is doubled."""
    return quoting.word(value.replace("$", "$$"))
