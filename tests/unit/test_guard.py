"""The guard of conftest.py itself: what a unit test must not reach is out of its reach."""

import os
import socket
import subprocess

import pytest

from epyc_vllm_agent.doors.systemd import DBusSystemd
from epyc_vllm_agent.errors import ActionFailed


def test_no_program_is_started() -> None:
    with pytest.raises(Exception, match="started a program"):
        subprocess.run(["true"], check=True)
    with pytest.raises(Exception, match="started a program"):
        os.system("true")  # noqa: S605


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80)])
def test_nothing_beyond_loopback_is_connected(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as outside, pytest.raises(Exception, match="connected to"):
        outside.connect(address)


def test_the_system_bus_is_not_there() -> None:
    with socket.socket(socket.AF_UNIX) as bus, pytest.raises(Exception, match="connected to"):
        bus.connect("/run/dbus/system_bus_socket")
    with pytest.raises(ActionFailed):
        DBusSystemd()
