"""The watchdog on a booted host: what it gives up, what does not fool it, and what outlives it.

Most on the stand-in server and with short limits; the last part on real vLLM with the defaults.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest import parts
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm, Standin, restore

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MODEL = "example/tiny-chat"
ENVIRONMENT = ("--environment", str(parts.STANDIN))
SERVICE = "epyc-vllm-tiny-chat-s0.service"
WATCHDOG = "epyc-vllm-watchdog.service"
CONFIG = "/etc/epyc-vllm/epyc-vllm.toml"
REPORTS = "/var/lib/epyc-vllm/reports"
MESSAGE_ID = "7f1c3a52d9d84b0c8f5be0a6c4e2971d"
QUICK = """\
[watch]
interval_seconds = 2
sick_seconds = 8
hung_seconds = 20
canary_seconds = 10
prefill_seconds = 60
"""
PATIENCE = 300  # seconds; a loaded machine takes many times what an idle one does


@pytest.fixture
def quick(guest: Guest) -> Iterator[Guest]:
    """Short limits, which the running watchdog takes over by itself."""
    before = guest.read(CONFIG)  # the hub's address
    guest.sh(f"systemctl start {WATCHDOG}")
    guest.write(CONFIG, before + QUICK)
    yield guest
    guest.write(CONFIG, before)
    guest.sh(f"systemctl reset-failed; systemctl start {WATCHDOG}")


@pytest.fixture
def served(quick: Guest, epyc_vllm: EpycVllm) -> Guest:
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
    assert done.returncode == 0, done.stderr
    return quick


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


def main_pid(guest: Guest) -> str:
    return guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()


def assert_gone(guest: Guest) -> None:
    """No survivor with memory or the port, and it stays down."""
    assert guest.sh("ps -eo comm= | grep -i vllm | grep -v epyc-vllm || true") == ""
    assert guest.sh("ss -Hltn 'sport = :8000'") == ""
    time.sleep(3)
    assert state(guest) == "failed"


def assert_comes_back(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.run(["systemctl", "start", SERVICE], timeout=900)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0


@pytest.mark.parametrize(
    ("behaviour", "verdict", "cause"),
    [
        ({"health": "503"}, "sick", "the engine is dead"),
        ({"health": "hang"}, "sick", "did not answer"),
        ({"health": "503", "sigterm": "ignored"}, "sick", "the engine is dead"),
        ({"running": 1}, "hung", "1 requests run"),
        ({"running": 1, "sigterm": "ignored", "orphans": True}, "hung", "1 requests run"),
        ({"completion": "hang"}, "hung", "1 requests run"),  # the canary itself
    ],
)
def test_it_is_given_up_with_a_report(
    served: Guest,
    epyc_vllm: EpycVllm,
    standin: Standin,
    behaviour: dict[str, Any],
    verdict: str,
    cause: str,
) -> None:
    standin.behave(**behaviour)
    wait_failed(served)
    report = newest(served)
    assert report["verdict"] == verdict
    assert cause in report["cause"]
    assert report["phase"] == "serving"
    assert report["hint"]
    assert report["plan"]["stack"]["vllm"] == "0.32.0+cpu"
    seen = report["evidence"]["seen"]
    assert len(seen["observations"]) > 3
    assert {"vllm", "VLLM::EngineCor", "VLLM::Worker"} <= {p["name"] for p in seen["processes"]}
    assert report["evidence"]["nodes"][0]["free_bytes"] > 0
    assert len(reports(served)) == 1
    assert_gone(served)
    standin.behave()
    assert_comes_back(served, epyc_vllm)


def test_a_deaf_server_is_gone_within_the_stop_timeout(
    served: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    standin.behave(health="hang", sigterm="ignored")
    wait_until(lambda: state(served) == "deactivating")
    assert wait_failed(served) < 60  # TimeoutStopSec is 15
    assert newest(served)["verdict"] == "sick"
    assert newest(served)["exit"]["result"] == "timeout"
    assert_gone(served)
    standin.behave()
    assert_comes_back(served, epyc_vllm)


def test_a_stopped_server_is_sick_and_gone(served: Guest, epyc_vllm: EpycVllm) -> None:
    """SIGSTOP: systemd continues what it stops, so this one ends by itself when told to."""
    served.run(["kill", "-STOP", main_pid(served)])
    wait_failed(served)
    assert newest(served)["verdict"] == "sick"
    assert_gone(served)
    assert_comes_back(served, epyc_vllm)


def test_an_end_by_itself_is_dead_at_once(served: Guest, standin: Standin) -> None:
    time.sleep(5)  # so that the watchdog has seen it
    standin.behave(exit=0)
    assert wait_failed(served) < 20  # 2 when nothing else runs
    report = newest(served)
    assert (report["verdict"], report["exit"]["status"]) == ("dead", "0")
    # What the watchdog saw before is in the report that the unit itself made: there is but one.
    assert report["evidence"]["seen"]["verdict"] in ("healthy", "busy")
    assert len(reports(served)) == 1
    wait_until(lambda: "tiny-chat-s0 is dead" in served.sh(f"journalctl -u {WATCHDOG} -o cat"))


@pytest.mark.parametrize(
    "behaviour",
    [
        {"running": 128, "tokens_per_second": 2.0},  # saturated, with a queue
        {"running": 1, "burn": True},  # a long prefill
    ],
)
def test_a_busy_server_is_let_be(
    served: Guest, standin: Standin, behaviour: dict[str, Any]
) -> None:
    standin.behave(**behaviour)
    time.sleep(45)
    assert state(served) == "active"
    assert reports(served) == []
    seen = json.loads(served.read("/run/epyc-vllm/watchdog/tiny-chat-s0.json"))
    assert seen["verdict"] == "busy"


def test_work_without_end_is_given_up_too(served: Guest, standin: Standin) -> None:
    standin.behave(running=1, burn=True)
    wait_failed(served)
    assert newest(served)["verdict"] == "hung"
    assert "no token has come for" in newest(served)["cause"]


def test_a_server_that_goes_on_in_time_is_let_be(served: Guest, epyc_vllm: EpycVllm) -> None:
    for _ in range(3):
        served.sh(f"kill -STOP {main_pid(served)}; sleep 3; kill -CONT {main_pid(served)}; sleep 4")
    assert state(served) == "active"
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(served) == []


def test_what_somebody_asks_for_is_no_failure(
    served: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    standin.behave(sigterm="ignored")  # it takes its 15 seconds to stop, and is sick meanwhile
    served.run(["systemctl", "restart", SERVICE])
    standin.behave()
    served.run(["systemctl", "stop", SERVICE])
    served.run(["systemctl", "start", SERVICE])
    for arguments in (
        ("enable", MODEL, "--cores", "1", "--yes"),
        ("enable", "example/tiny-base", *ENVIRONMENT, "--cores", "1", "--yes"),
        ("disable", "tiny-base"),
        ("enable", MODEL, "--max-model-len", "512", "--yes"),
    ):
        done = epyc_vllm(*arguments)
        assert done.returncode == 0, done.stderr
    served.reboot()
    wait_until(lambda: state(served) == "active")
    assert state(served, WATCHDOG) == "active"
    time.sleep(10)
    assert reports(served) == []


def test_instances_are_followed_without_a_restart(served: Guest, epyc_vllm: EpycVllm) -> None:
    before = served.sh(f"systemctl show -P InvocationID {WATCHDOG}")

    def status() -> str:
        return served.sh(f"systemctl show -P StatusText {WATCHDOG}").strip()

    wait_until(lambda: status() == "1 of 1 instances run")
    epyc_vllm("disable", "tiny-chat")
    wait_until(lambda: status() == "0 of 0 instances run")
    assert served.sh("ls /run/epyc-vllm/watchdog") == ""
    assert served.sh(f"systemctl show -P InvocationID {WATCHDOG}") == before


class TestItself:
    def test_killed_it_is_back_and_does_its_work(self, served: Guest, standin: Standin) -> None:
        served.run(["systemctl", "kill", "--signal=KILL", WATCHDOG])
        standin.behave(health="503")
        wait_failed(served)
        assert newest(served)["verdict"] == "sick"
        assert served.sh(f"systemctl show -P NRestarts {WATCHDOG}").strip() == "1"

    def test_one_that_hangs_is_restarted_by_systemd(self, served: Guest) -> None:
        served.sh(f"systemctl kill --signal=STOP {WATCHDOG}")
        pid = served.sh(f"systemctl show -P MainPID {WATCHDOG}")
        wait_until(
            lambda: (
                served.sh(f"systemctl show -P MainPID {WATCHDOG}") not in (pid, "0\n")
                and state(served, WATCHDOG) == "active"
            )
        )
        assert "watchdog" in served.sh(f"journalctl -b -o cat -u {WATCHDOG} | grep -i timeout")
        assert state(served) == "active"

    def test_stopped_the_endpoints_go_on(self, served: Guest, epyc_vllm: EpycVllm) -> None:
        served.run(["systemctl", "stop", WATCHDOG])
        assert state(served) == "active"
        assert epyc_vllm("verify", "tiny-chat").returncode == 0
        served.run(["systemctl", "restart", SERVICE])
        assert epyc_vllm("verify", "tiny-chat").returncode == 0
        assert reports(served) == []

    def test_it_outlives_the_bus_and_the_journal(self, served: Guest, standin: Standin) -> None:
        pid = served.sh(f"systemctl show -P MainPID {WATCHDOG}")
        served.sh("kill -KILL $(systemctl show -P MainPID dbus.service)")
        served.sh("systemctl restart systemd-journald.service")
        wait_until(lambda: state(served, "dbus.service") == "active")
        time.sleep(3)
        assert served.sh(f"systemctl show -P MainPID {WATCHDOG}") == pid
        standin.behave(health="503")
        wait_failed(served)
        assert newest(served)["verdict"] == "sick"

    def test_it_is_hardened(self, guest: Guest) -> None:
        line = guest.sh(f"systemd-analyze security --no-pager {WATCHDOG} | tail -1")
        assert float(line.split(":")[1].split()[0]) <= 2.0
        assert guest.sh(f"systemctl show -P User {WATCHDOG}").strip() == "_epyc-vllm-watch"

    def test_it_may_stop_instances_and_nothing_else(self, served: Guest) -> None:
        def asked(verb: str, unit: str) -> int:
            command = ["systemctl", "--no-ask-password", verb, unit]
            return served.run(command, user="_epyc-vllm-watch", check=False).returncode

        assert asked("start", SERVICE) != 0
        assert asked("restart", SERVICE) != 0
        assert asked("stop", WATCHDOG) != 0
        assert asked("stop", "epyc-vllm.target") != 0
        assert asked("stop", "systemd-journald.service") != 0
        assert state(served) == "active"
        assert asked("stop", SERVICE) == 0
        assert state(served) == "inactive"


class TestReports:
    def test_the_journal_has_one_structured_entry(self, served: Guest, standin: Standin) -> None:
        invocation = served.sh(f"systemctl show -P InvocationID {SERVICE}").strip()
        standin.behave(exit=3)
        wait_failed(served)
        (name,) = reports(served)
        text = served.sh(
            f"journalctl -o json MESSAGE_ID={MESSAGE_ID} _SYSTEMD_INVOCATION_ID={invocation}"
        )
        (entry,) = map(json.loads, text.splitlines())
        assert entry["EPYC_VLLM_ENDPOINT"] == "tiny-chat"
        assert entry["EPYC_VLLM_INSTANCE"] == "tiny-chat-s0"
        assert entry["EPYC_VLLM_VERDICT"] == "dead"
        assert entry["EPYC_VLLM_CAUSE"] == "unknown"
        assert entry["EPYC_VLLM_REPORT"] == f"{REPORTS}/{name}"
        assert entry["PRIORITY"] == "3"
        assert entry["_SYSTEMD_UNIT"] == SERVICE

    def test_a_person_reads_it(self, served: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
        assert epyc_vllm("report").stdout == "no failure is reported\n"
        standin.behave(exit=3)
        wait_failed(served)
        done = epyc_vllm("report", "tiny-chat-s0")
        assert done.returncode == 0
        assert "the server ended unasked (exit status 3)" in done.stdout
        assert f"systemctl start {SERVICE}" in done.stdout
        assert "dead" in epyc_vllm("report", "--list").stdout
        assert epyc_vllm("report", "nobody").returncode == 2
        done = epyc_vllm("report", user="nobody")
        assert done.returncode == 3
        assert "root's to read" in done.stderr

    def test_secrets_are_masked(self, served: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
        served.write("/etc/epyc-vllm/key", "VLLM_API_KEY=planted-key-4711\n", mode=0o600)
        done = epyc_vllm("enable", MODEL, "--yes", "--api-key-file", "/etc/epyc-vllm/key")
        assert done.returncode == 0, done.stderr
        served.run(["systemctl", "stop", SERVICE])
        words = "MemoryError: hf_plantedTOKEN12345 and planted-key-4711 of Bearer abcdef"
        standin.behave(fail_loading=1, message=words)
        served.run(["systemctl", "start", SERVICE], check=False)
        wait_failed(served)
        (name,) = reports(served)
        report = served.read(f"{REPORTS}/{name}")
        entry = served.sh(f"journalctl -o json MESSAGE_ID={MESSAGE_ID} -n 1")
        for text in (report, entry, epyc_vllm("report").stdout):
            for secret in ("plantedTOKEN", "planted-key", "abcdef"):
                assert secret not in text
        assert json.loads(report)["verdict"] == "out-of-memory"
        assert "MemoryError: hf_*** and *** of Bearer ***" in report

    def test_a_key_is_lent_for_the_canary_and_taken_back(
        self, served: Guest, epyc_vllm: EpycVllm, standin: Standin
    ) -> None:
        served.write("/etc/epyc-vllm/key", "VLLM_API_KEY=planted-key-4711\n", mode=0o600)
        done = epyc_vllm("enable", MODEL, "--yes", "--api-key-file", "/etc/epyc-vllm/key")
        assert done.returncode == 0, done.stderr
        path = "/run/epyc-vllm-keys/tiny-chat-s0"
        assert served.sh(f"stat -c %a:%U:%G {path}") == "640:root:_epyc-vllm-watch\n"
        assert served.run(["cat", path], user="nobody", check=False).returncode != 0
        standin.behave(completion="hang")
        wait_failed(served)
        assert newest(served)["verdict"] == "hung"
        assert served.run(["test", "-e", path], check=False).returncode == 1


class TestHook:
    @pytest.fixture
    def hooked(self, quick: Guest) -> Guest:
        quick.write(
            "/usr/local/sbin/hook",
            '#!/bin/sh\necho "$@" >> /run/hook.log; cp "$2" /run/hook.json; exec "$1"\n',
            mode=0o755,
        )
        quick.write("/usr/local/sbin/slow", "#!/bin/sh\nsleep 4242\n", mode=0o755)
        quick.sh("rm -f /run/hook.*")
        return quick

    @pytest.mark.parametrize(
        ("program", "said"),
        [
            ("/bin/true", ""),
            ("/bin/false", "Failed with result 'exit-code'"),
            ("/usr/local/sbin/slow", "Failed with result 'timeout'"),
        ],
    )
    def test_it_is_run_and_changes_nothing(
        self, hooked: Guest, epyc_vllm: EpycVllm, standin: Standin, program: str, said: str
    ) -> None:
        hook = f'on_failure = ["/usr/local/sbin/hook", "{program}"]\non_failure_timeout = 5\n'
        hooked.write(CONFIG, hooked.read(CONFIG) + hook)
        assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
        standin.behave(exit=0)
        wait_failed(hooked)
        (name,) = reports(hooked)
        asked = f"{program} {REPORTS}/{name}\n"
        wait_until(lambda: hooked.sh("cat /run/hook.log 2>/dev/null || true") == asked)
        assert json.loads(hooked.read("/run/hook.json"))["instance"] == "tiny-chat-s0"
        log = "journalctl -b -o cat -u 'epyc-vllm-on-failure-*'"
        wait_until(lambda: said in hooked.sh(log))
        assert hooked.run(["pgrep", "-f", "sleep 4242"], check=False).returncode == 1
        assert state(hooked) == "failed"

    def test_one_that_is_not_there(
        self, hooked: Guest, epyc_vllm: EpycVllm, standin: Standin
    ) -> None:
        hooked.write(CONFIG, hooked.read(CONFIG) + 'on_failure = ["/nonexistent/hook"]\n')
        assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
        standin.behave(exit=0)
        wait_failed(hooked)
        assert newest(hooked)["verdict"] == "dead"


def test_a_day_of_probes_leaks_nothing() -> None:
    """100,000 cycles on a clock of its own against a real server on loopback."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.bench.watchdog", "--leak", "100000"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["cycles"] == 100_000
    assert found["probes"] > 100_000
    assert found["grown_bytes"] < 2 << 20
    assert found["descriptors"] == found["descriptors_before"]


class TestRealVllm:
    """One server, killed and brought back in turn; in the order in which the tests stand here."""

    @pytest.fixture(scope="class")
    def host(self, booted: Guest) -> Iterator[Guest]:
        restore(booted)
        booted.sh(f"systemctl restart {WATCHDOG}")
        booted.run(["epyc-vllm", "enable", MODEL, "--yes"], timeout=1500)
        yield booted
        restore(booted)

    @pytest.fixture
    def up(self, host: Guest) -> Guest:
        if state(host) != "active":
            host.sh(f"rm -f {REPORTS}/*")
            host.run(["systemctl", "start", SERVICE], timeout=1500)
        host.run(["epyc-vllm", "verify", "tiny-chat"], timeout=300)
        return host

    @pytest.mark.parametrize(
        ("process", "code"),
        [
            ("VLLM::EngineCor", "engine-died"),
            ("VLLM::Worker", "worker-killed"),
            ("vllm", "unknown"),
        ],
    )
    def test_killed(self, up: Guest, process: str, code: str) -> None:
        up.sh(f"pkill -KILL -x '{process}'")
        assert wait_failed(up) < 150
        report = newest(up)
        assert (report["verdict"], report["cause_code"]) == ("dead", code)
        assert report["log"]
        assert_gone(up)

    def test_stopped_for_a_while_it_goes_on(self, up: Guest) -> None:
        up.sh("pkill -STOP -x VLLM::EngineCor; sleep 40; pkill -CONT -x VLLM::EngineCor")
        up.run(["epyc-vllm", "verify", "tiny-chat"], timeout=300)
        assert state(up) == "active"
        assert reports(up) == []

    def test_a_worker_that_stands_still_with_a_request(self, up: Guest) -> None:
        body = {
            "model": MODEL, "prompt": "Hello", "max_tokens": 3500, "ignore_eos": True, "n": 4,
        }  # fmt: skip
        url = "http://127.0.0.1:8000/v1/completions"
        up.popen(
            ["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        )
        wait_until(lambda: "num_requests_running" in _running(up))
        up.sh("pkill -STOP -x VLLM::Worker")
        assert wait_failed(up) < 240  # 120 and the stop
        report = newest(up)
        assert (report["verdict"], report["cause_code"]) == ("hung", "hung")
        states = {p["name"]: p["state"] for p in report["evidence"]["seen"]["processes"]}
        assert states["VLLM::Worker"] == "T"
        assert_gone(up)

    def test_an_engine_that_stands_still_idle(self, up: Guest) -> None:
        time.sleep(10)
        up.sh("pkill -STOP -x VLLM::EngineCor")
        assert wait_failed(up) < 240
        report = newest(up)
        assert (report["verdict"], report["cause_code"]) == ("hung", "hung")
        assert report["cause"].startswith("one token was asked for")
        assert_gone(up)

    def test_memory_that_is_not_there(self, up: Guest) -> None:
        up.run(["systemctl", "stop", SERVICE])
        drop_in = f"/run/systemd/system/{SERVICE}.d/limit.conf"
        up.write(drop_in, "[Service]\nLimitDATA=400M\n")
        up.sh("systemctl daemon-reload")
        try:
            assert up.run(["systemctl", "start", SERVICE], check=False, timeout=900).returncode
        finally:
            up.sh(f"rm -rf {Path(drop_in).parent}; systemctl daemon-reload")
        report = newest(up)
        assert (report["verdict"], report["cause_code"]) == ("out-of-memory", "out-of-memory")
        assert report["phase"] == "health"
        assert_gone(up)


def _running(guest: Guest) -> str:
    """The line of /metrics that counts requests, once there is one."""
    return guest.sh(
        "curl -s http://127.0.0.1:8000/metrics | grep '^vllm:num_requests_running.* [1-9]' || true"
    )
