"""Keeps unit tests to themselves: no program, no system bus, no network but loopback."""

import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.httpserver import Server, serving

# A busy machine must not fail a test; nothing is kept between runs.
settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")

# Host trees are thousands of small files, and what is written atomically is synced: both take
# milliseconds in memory and seconds on a busy disk.
_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it are made by tempfile
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK | os.X_OK):
    tempfile.tempdir = str(_MEMORY)

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_guarded = False
_may_fork = False


class OutsideError(Exception):
    """A unit test reached for the world outside."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook (PEP 578): it sees what libraries do, without replacing anything of theirs."""
    if not _guarded:
        return
    if event in _PROGRAMS and not (event == "os.fork" and _may_fork):
        raise OutsideError(f"a unit test started a program: {arguments[:2]}")
    if event in ("socket.connect", "socket.sendto") and not _is_loopback(arguments[1]):
        raise OutsideError(f"a unit test connected to {arguments[1]}")


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple):  # a path: the system bus and its like
        return False
    try:
        return bool(ipaddress.ip_address(str(address[0])).is_loopback)
    except ValueError:
        return bool(address[0] == "localhost")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def _nothing_outside(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    global _guarded, _may_fork
    _may_fork = request.node.get_closest_marker("forks") is not None
    # GLib connects in C, which no audit hook sees.
    for bus in ("DBUS_SYSTEM_BUS_ADDRESS", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.setenv(bus, "unix:path=/nonexistent/bus")
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    _guarded = True
    yield
    _guarded = False


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
