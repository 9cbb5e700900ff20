"""The watchdog and the report of each failure on real vLLM, with the limits as they are shipped.

One server, broken and brought back with `systemctl start` in turn: a start takes it a minute.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epyc_vllm_agent.watch.diagnosis import Signatures, diagnose
from tests.guest.boot import Guest
from tests.guest.environment import REPOSITORY
from tests.system.conftest import restore
from tests.system.watched import (
    MODEL,
    REPORTS,
    SERVICE,
    WATCHDOG,
    assert_gone,
    newest,
    reports,
    state,
    wait_failed,
    wait_until,
)

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(3600)]

ENGINE, WORKER, SERVER = "VLLM::EngineCor", "VLLM::Worker", "vllm"
DROP_IN = f"/run/systemd/system/{SERVICE}.d/test.conf"


@pytest.fixture(scope="module")
def host(booted: Guest) -> Iterator[Guest]:
    restore(booted)
    booted.sh(f"systemctl restart {WATCHDOG}")
    # Nothing compiled: it starts sooner, and dies and hangs as ever.
    booted.run(["epyc-vllm", "enable", MODEL, "--yes", "--vllm-arg=--enforce-eager"], timeout=1500)
    yield booted
    restore(booted)


@pytest.fixture
def up(host: Guest) -> Guest:
    """The server as the test before brought it back."""
    host.sh(f"rm -f {REPORTS}/*")
    if state(host) != "active":
        start(host)
    verify(host)
    return host


@pytest.fixture
def down(host: Guest) -> Guest:
    """Stopped, or as the test before left it: for what fails in the start."""
    host.run(["systemctl", "stop", SERVICE])
    host.sh(f"rm -f {REPORTS}/*")
    return host


def start(guest: Guest) -> bool:
    return guest.run(["systemctl", "start", SERVICE], check=False, timeout=1500).returncode == 0


def verify(guest: Guest) -> None:
    guest.run(["epyc-vllm", "verify", "tiny-chat"], timeout=300)


def send(guest: Guest, signal: str, process: str) -> None:
    guest.run(["pkill", f"-{signal}", "-x", process])


def ask(guest: Guest, choices: int = 4) -> None:
    """A request that takes minutes; returns when it runs."""
    body = {
        "model": MODEL, "prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "n": choices,
    }  # fmt: skip
    url = "http://127.0.0.1:8000/v1/completions"
    guest.popen(["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)])
    wait_until(lambda: counted(guest, "num_requests_running") > 0)


def counted(guest: Guest, name: str) -> float:
    metrics = guest.sh("curl -s http://127.0.0.1:8000/metrics")
    found = [line for line in metrics.splitlines() if line.startswith(f"vllm:{name}{{")]
    return sum(float(line.split()[-1]) for line in found)


@contextmanager
def drop_in(guest: Guest, lines: str) -> Iterator[None]:
    guest.write(DROP_IN, f"[Service]\n{lines}\n")
    guest.sh("systemctl daemon-reload")
    try:
        yield
    finally:
        guest.sh(f"rm {DROP_IN}; systemctl daemon-reload")


def failed(guest: Guest, verdict: str, code: str) -> dict[str, Any]:
    """The one report of a failure, which left nothing behind and can be started again."""
    assert len(reports(guest)) == 1
    report = newest(guest)
    assert (report["verdict"], report["cause_code"]) == (verdict, code), report["cause"]
    assert report["hint"]
    assert report["log"]
    assert_gone(guest)
    return report


def comes_back(guest: Guest) -> None:
    assert start(guest)
    verify(guest)
    assert state(guest) == "active"


def test_a_good_start_has_no_sign_of_a_failure(up: Guest) -> None:
    """Else the report of any failure after it would name that one."""
    run = up.sh(f"systemctl show -P InvocationID {SERVICE}").strip()
    log = up.sh(f"journalctl -o cat _SYSTEMD_INVOCATION_ID={run}").splitlines()
    assert any("Application startup complete" in line for line in log)
    signatures = Signatures.from_json((REPOSITORY / "data/failures.json").read_text())
    assert diagnose(log, signatures) is None


@pytest.mark.parametrize(
    ("process", "code"),
    [(ENGINE, "engine-died"), (WORKER, "worker-killed"), (SERVER, "signal")],
)
def test_killed(up: Guest, process: str, code: str) -> None:
    send(up, "KILL", process)
    assert wait_failed(up) < 150
    failed(up, "dead", code)
    comes_back(up)


def test_stopped_for_a_while_it_goes_on(up: Guest) -> None:
    send(up, "STOP", ENGINE)
    time.sleep(40)
    send(up, "CONT", ENGINE)
    verify(up)
    assert state(up) == "active"
    assert reports(up) == []


@pytest.mark.parametrize("process", [ENGINE, WORKER])
def test_one_that_stands_still_with_a_request(up: Guest, process: str) -> None:
    ask(up)
    send(up, "STOP", process)
    assert wait_failed(up) < 240  # 120 and the stop
    report = failed(up, "hung", "hung")
    assert "requests run" in report["cause"]
    states = {p["name"]: p["state"] for p in report["evidence"]["seen"]["processes"]}
    assert states[process] == "T"
    comes_back(up)


@pytest.mark.parametrize("process", [ENGINE, WORKER])
def test_one_that_stands_still_idle(up: Guest, process: str) -> None:
    time.sleep(10)
    send(up, "STOP", process)
    assert wait_failed(up) < 240
    failed(up, "hung", "hung")
    comes_back(up)


def test_a_saturated_server_is_let_be(up: Guest) -> None:
    """More requests than it takes at once (128), for longer than hung_seconds."""
    before, waiting = counted(up, "generation_tokens_total"), 0.0
    ask(up, choices=160)
    ended = time.monotonic() + 150
    while time.monotonic() < ended:
        waiting = max(waiting, counted(up, "num_requests_waiting"))
        if not counted(up, "num_requests_running"):
            ask(up, choices=160)
        time.sleep(5)
    assert waiting > 0
    assert counted(up, "generation_tokens_total") > before
    assert state(up) == "active"
    seen = json.loads(up.read("/run/epyc-vllm/watchdog/tiny-chat-s0.json"))
    assert seen["verdict"] == "busy"
    assert reports(up) == []
    up.run(["systemctl", "restart", SERVICE], timeout=1500)


def test_an_engine_that_dies_on_its_first_request(down: Guest) -> None:
    with drop_in(down, "Environment=VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=0"):
        assert not start(down)
    report = failed(down, "start-failed", "step-timeout")
    assert report["phase"] == "completion"
    comes_back(down)


def test_memory_that_is_not_there(down: Guest) -> None:
    with drop_in(down, "LimitDATA=400M"):
        assert not start(down)
    report = failed(down, "out-of-memory", "out-of-memory")
    assert report["phase"] == "health"
    comes_back(down)


def test_a_context_that_is_refused(down: Guest) -> None:
    command = down.sh(f"systemctl cat {SERVICE} | sed -n 's/^ExecStart=//p'").strip()
    with drop_in(down, f"ExecStart=\nExecStart={command} --max-model-len 1000000"):
        assert not start(down)
    report = failed(down, "start-failed", "context-too-long")
    assert report["phase"] == "health"
    comes_back(down)


def test_a_port_that_another_program_has_taken(up: Guest) -> None:
    """Its owner was killed, and somebody started something else by hand."""
    send(up, "KILL", SERVER)
    wait_failed(up)
    failed(up, "dead", "signal")
    up.sh(f"rm -f {REPORTS}/*; systemd-run -q -u stranger python3 -m http.server 8000")
    wait_until(lambda: up.sh("ss -Hltn 'sport = :8000'") != "")
    assert not start(up)
    report = newest(up)
    assert (report["verdict"], report["phase"]) == ("start-failed", "preflight")
    assert "port 8000 is in use by another program" in report["cause"]
    assert state(up) == "failed"
    assert state(up, "stranger") == "active"
    up.run(["systemctl", "stop", "stranger"])
    assert_gone(up)
    comes_back(up)
