"""Names, places and the mark of our unit files; renders none."""

from dataclasses import dataclass
from pathlib import PurePosixPath

SYSTEM_UNITS = PurePosixPath("/etc/systemd/system")
MARK = "# Written by epyc-vllm for the endpoint "


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A unit file: its absolute path on the host and its whole text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def target_name(endpoint: str) -> str:
    return f"epyc-vllm-{endpoint}.target"


def service_name(instance: str) -> str:
    return f"epyc-vllm-{instance}.service"
