"""Names, places and the mark of our unit files; renders none."""

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

SYSTEM_UNITS = PurePosixPath("/etc/systemd/system")
QUADLETS = PurePosixPath("/etc/containers/systemd")
ALL_TARGET = "epyc-vllm.target"  # systemd/ ships it, and the next
WATCHDOG = "epyc-vllm-watchdog.service"
MARK = "# Written by epyc-vllm for the endpoint "


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A unit file: its absolute path on the host and its whole text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def service(self) -> str:
        """The unit that systemd knows it by: a quadlet becomes a service."""
        return unit_of(self.path)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def target_name(endpoint: str) -> str:
    return f"epyc-vllm-{endpoint}.target"


def service_name(instance: str) -> str:
    return f"epyc-vllm-{instance}.service"


def quadlet_name(instance: str) -> str:
    return f"epyc-vllm-{instance}.container"


def unit_of(path: str) -> str:
    """The unit that the file at `path` makes."""
    name = PurePosixPath(path).name
    return name.removesuffix(".container") + ".service" if name.endswith(".container") else name


def is_unit(path: str) -> bool:
    return PurePosixPath(path).parent in (SYSTEM_UNITS, QUADLETS)
