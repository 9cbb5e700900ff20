"""What the tests of the watchdog ask of an instance on the booted host, and wait for."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.guest.boot import Guest

MODEL = "example/tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"
WATCHDOG = "epyc-vllm-watchdog.service"
CONFIG = "/etc/epyc-vllm/epyc-vllm.toml"
REPORTS = "/var/lib/epyc-vllm/reports"
PATIENCE = 300  # seconds; a loaded machine takes many times what an idle one does


def state(guest: Guest, unit: str = SERVICE) -> str:
    return guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()


def wait_until(what: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Seconds until it was so."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if what():
            return time.monotonic() - began
        time.sleep(0.3)
    raise AssertionError(f"not so within {seconds} s")


def wait_failed(guest: Guest, seconds: float = PATIENCE) -> float:
    return wait_until(lambda: state(guest) == "failed", seconds)


def reports(guest: Guest) -> list[str]:
    return guest.sh(f"ls {REPORTS}").split()


def newest(guest: Guest) -> dict[str, Any]:
    done = guest.run(["epyc-vllm", "report", "tiny-chat", "--json"])
    (found,) = json.loads(done.stdout)["reports"]
    result: dict[str, Any] = found
    return result


def assert_gone(guest: Guest) -> None:
    """No survivor with memory or the port, and it stays down."""
    assert guest.sh("ps -eo comm= | grep -i vllm | grep -v epyc-vllm || true") == ""
    assert guest.sh("ss -Hltn 'sport = :8000'") == ""
    assert guest.sh(f"systemctl show -P TasksCurrent {SERVICE}") in ("0\n", "[not set]\n")
    time.sleep(3)
    assert state(guest) == "failed"
