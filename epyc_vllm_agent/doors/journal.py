"""The journal: a run of a unit read through journalctl, an entry written to journald's socket."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.errors import ActionFailed


def tail(invocation_id: str, lines: int = 50, until: float | None = None) -> tuple[str, ...]:
    """The last lines that the unit's processes wrote in that invocation, oldest first.

    `until`: seconds since the epoch. Empty where the journal cannot be read: a missing log must not
    hide the failure it is for.
    """
    end = [] if until is None else [f"--until=@{until:.6f}"]
    return _read(lines, *end, f"_SYSTEMD_INVOCATION_ID={invocation_id}")


def of_unit(unit: str, lines: int = 50) -> tuple[str, ...]:
    """The last lines of this boot about a unit, systemd's own among them; empty as `tail`."""
    return _read(lines, "--boot", f"--unit={unit}")


def _read(lines: int, *matches: str) -> tuple[str, ...]:
    query = ["journalctl", "--no-pager", "--output=json", "--all", f"--lines={lines}", *matches]
    try:
        command.run(["journalctl", "--sync"], timeout_seconds=20)
        done = command.run(query, timeout_seconds=30)
    except ActionFailed:
        return ()
    return tuple(text for text in map(_message, done.stdout.splitlines()) if text)


SOCKET = Path("/run/systemd/journal/socket")


def send(fields: Mapping[str, str], to: Path = SOCKET) -> bool:
    """Writes one entry with those fields; False where journald does not take it.

    https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
    """
    entry = b"".join(_field(name, value.encode()) for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(5)
            sender.sendto(entry, str(to))
    except OSError:
        return False
    return True


def _field(name: str, value: bytes) -> bytes:
    """Always with its length: a value may hold a line break."""
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


def _message(line: str) -> str:
    """MESSAGE of one JSON entry: text, or a list of bytes where it is not clean UTF-8."""
    try:
        message = json.loads(line).get("MESSAGE") or ""
    except ValueError:
        return ""
    if isinstance(message, list):
        return bytes(message).decode("utf-8", "replace")
    return str(message)
