"""Interrupted, killed, hurried: whatever the moment, the host is as before or as asked for."""

import json
import time

import pytest

from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin

pytestmark = pytest.mark.timeout(900)

MODEL = "example/tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"
TARGET = "epyc-vllm-tiny-chat.target"
FILES = (
    "cat /etc/epyc-vllm/endpoints.d/* /etc/systemd/system/epyc-vllm-* "
    "/var/lib/epyc-vllm/plans/* 2>/dev/null; ls -A /etc/systemd/system/epyc-vllm.target.wants "
    "/etc/epyc-vllm/endpoints.d /var/lib/epyc-vllm/plans 2>/dev/null; true"
)


def enable(epyc_vllm: EpycVllm, *flags: str) -> None:
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", *flags)
    assert done.returncode == 0, done.stderr


def state(guest: Guest, unit: str = SERVICE) -> str:
    return guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()


def await_state(guest: Guest, wanted: str, unit: str = SERVICE) -> None:
    deadline = time.monotonic() + 120
    while state(guest, unit) != wanted:
        assert time.monotonic() < deadline, f"{unit} is {state(guest, unit)}, not {wanted}"
        time.sleep(0.2)


def interrupted(guest: Guest, signal: str, seconds: float, *flags: str) -> int:
    words = ["timeout", f"--signal={signal}", str(seconds), "epyc-vllm", "enable", MODEL]
    done = guest.run([*words, *ENVIRONMENT, "--yes", *flags], check=False, timeout=300)
    assert "Traceback" not in done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("signal", "seconds"), [("INT", 0.5), ("TERM", 1.0), ("HUP", 2.0), ("INT", 4.0), ("TERM", 4.0)]
)
def test_an_interrupted_first_enable_leaves_nothing(
    guest: Guest, standin: Standin, signal: str, seconds: float
) -> None:
    standin.behave(load_seconds=60)
    before = guest.sh(FILES)
    interrupted(guest, signal, seconds)
    assert guest.sh(FILES) == before
    assert state(guest, TARGET) == "inactive"
    assert state(guest) in ("inactive", "failed")
    assert guest.sh("pgrep -f '[v]llm_standin serve' || true") == ""


@pytest.mark.parametrize(
    ("signal", "seconds"), [("INT", 0.7), ("TERM", 1.5), ("HUP", 4.0), ("INT", 4.0)]
)
def test_an_interrupted_change_leaves_the_endpoint_as_it_was(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin, signal: str, seconds: float
) -> None:
    enable(epyc_vllm)
    before = guest.sh(FILES)
    standin.behave(load_seconds=8)
    interrupted(guest, signal, seconds, "--max-model-len", "512")
    assert guest.sh(FILES) == before
    await_state(guest, "active")
    assert epyc_vllm("verify", "tiny-chat").returncode == 0


def test_a_change_while_it_loads_takes_effect(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    standin.behave(load_seconds=6)
    guest.run(["systemctl", "start", "--no-block", SERVICE])
    await_state(guest, "activating")
    enable(epyc_vllm, "--max-model-len", "512")
    pid = guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()
    argv = guest.read(f"/proc/{pid}/cmdline").split("\0")
    assert argv[argv.index("--max-model-len") + 1] == "512"


def test_a_killed_readiness_step_is_no_readiness(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    standin.behave(load_seconds=300)
    guest.run(["systemctl", "start", "--no-block", SERVICE])
    time.sleep(4)
    guest.sh("pkill -KILL -f '[u]nit ready'")
    await_state(guest, "failed")


def test_a_server_killed_from_outside_is_a_failure(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    guest.sh(f"kill -KILL $(systemctl show -P MainPID {SERVICE})")
    await_state(guest, "failed")
    (name,) = guest.sh("ls /var/lib/epyc-vllm/reports").split()
    report = json.loads(guest.read(f"/var/lib/epyc-vllm/reports/{name}"))
    assert report["exit"]["status"] == "KILL"


@pytest.mark.parametrize("delay", [0.02, 0.2, 0.5, 1.0])
def test_a_stop_right_after_a_start_is_no_failure(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin, delay: float
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    standin.behave(load_seconds=300)
    began = time.monotonic()
    guest.sh(f"systemctl start --no-block {TARGET}; sleep {delay}; systemctl stop {SERVICE}")
    assert time.monotonic() - began < 14  # TimeoutStopSec= is 15
    assert state(guest) == "inactive"
    assert guest.sh("ls /var/lib/epyc-vllm/reports") == ""


def test_purge_takes_downloads_and_never_a_directory(guest: Guest, epyc_vllm: EpycVllm) -> None:
    mine = "/var/lib/epyc-vllm/models/mine"
    guest.run(["cp", "-r", "/srv/models/example__tiny-chat", mine])
    done = epyc_vllm("enable", mine, "--name", "mine", *ENVIRONMENT, "--yes")
    assert done.returncode == 0, done.stderr
    assert epyc_vllm("disable", "mine", "--purge").returncode == 0
    assert "config.json" in guest.sh(f"ls {mine}")
    guest.run(["rm", "-r", mine])


def test_disable_ends_a_server_whose_unit_file_is_gone(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    guest.sh(f"rm /etc/systemd/system/{SERVICE} /etc/systemd/system/{TARGET}")
    guest.run(["systemctl", "daemon-reload"])
    assert epyc_vllm("disable", "tiny-chat").returncode == 0
    assert guest.sh("pgrep -f '[v]llm_standin serve' || true") == ""
    assert guest.sh("find /etc/systemd/system -name '*tiny-chat*'") == ""


def test_a_broken_plan_hides_nobody_else(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm, "--cores", "1")
    guest.write("/var/lib/epyc-vllm/plans/other.json", "{")
    done = epyc_vllm("status")
    assert done.returncode == 0
    assert "healthy" in done.stdout
    assert "problem  other" in done.stdout
    assert epyc_vllm("verify").returncode == 0
    assert epyc_vllm("disable", "other").returncode == 0
    assert "other" not in epyc_vllm("status").stdout


def test_plan_works_for_an_ordinary_user(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    guest.sh("useradd --create-home sam 2>/dev/null || true")
    home = {"HOME": "/home/sam"}
    done = epyc_vllm("plan", "example/tiny-base", *ENVIRONMENT, user="sam", environment=home)
    assert "Traceback" not in done.stderr
    assert done.returncode == 3  # the socket is held; the plan itself was made
    assert "socket 0 is held by endpoint tiny-chat" in done.stdout


def test_many_failed_starts_do_not_use_up_a_limit(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    standin.behave(fail_loading=1, load_seconds=0)
    for _ in range(7):
        guest.run(["systemctl", "start", SERVICE], check=False)
        assert state(guest) == "failed"
    standin.behave()
    enable(epyc_vllm)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
