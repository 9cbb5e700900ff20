"""The watchdog on a booted host: what it gives up, what does not fool it, and what outlives it.

On the stand-in server and with short limits; real vLLM with the defaults: test_watchdog_vllm.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest import hub, parts
from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin, restore
from tests.system.watched import (
    CONFIG,
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

pytestmark = pytest.mark.timeout(1800)
long = pytest.mark.long

MESSAGE_ID = "7f1c3a52d9d84b0c8f5be0a6c4e2971d"
QUICK = """\
[watch]
interval_seconds = 2
sick_seconds = 8
hung_seconds = 20
canary_seconds = 10
prefill_seconds = 60
"""


@pytest.fixture(scope="module")
def guest(booted: Guest) -> Iterator[Guest]:
    """With short limits, which the running watchdog takes over by itself; kept for all tests."""
    before = booted.read(CONFIG)  # the hub's address
    booted.write(CONFIG, before + QUICK)
    booted.sh(f"systemctl restart {WATCHDOG}")
    yield booted
    restore(booted)
    booted.sh(f"systemctl restart {WATCHDOG}")


@pytest.fixture
def served(guest: Guest, epyc_vllm: EpycVllm, standin: Standin) -> Guest:
    """The endpoint as enable makes it, up and well, and no report of an earlier test."""
    standin.behave()
    guest.sh(f"systemctl start {WATCHDOG}; rm -f {REPORTS}/*")
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
    assert done.returncode == 0, done.stderr
    return guest


def main_pid(guest: Guest) -> str:
    return guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()


def assert_comes_back(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.run(["systemctl", "start", SERVICE], timeout=900)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0


@pytest.mark.parametrize(
    ("behaviour", "verdict", "cause"),
    [
        ({"health": "503"}, "sick", "the engine is dead"),
        ({"completion": "hang"}, "hung", "1 requests run"),  # the canary itself
        pytest.param({"health": "hang"}, "sick", "did not answer", marks=long),
        pytest.param({"running": 1}, "hung", "1 requests run", marks=long),
        pytest.param(
            *({"running": 1, "sigterm": "ignored", "orphans": True}, "hung", "1 requests run"),
            marks=long,
        ),
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
    assert report["evidence"]["agent"]
    assert any("Application startup complete" in line for line in report["log"])
    assert len(report["log"]) <= 50
    counted = [look["counters"] for look in seen["observations"] if look["counters"]]
    if verdict == "hung":  # a sick server is not asked for them
        assert counted
        assert counted[-1]["generation_tokens"] >= 0
    assert len(reports(served)) == 1
    assert_gone(served)
    standin.behave()
    assert_comes_back(served, epyc_vllm)


@long
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


@long
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
        {"running": 1, "burn": True},  # a long prefill
        pytest.param({"running": 128, "tokens_per_second": 2.0}, marks=long),  # saturated
    ],
)
def test_a_busy_server_is_let_be(
    served: Guest, standin: Standin, behaviour: dict[str, Any]
) -> None:
    standin.behave(**behaviour)
    time.sleep(30)  # hung_seconds is 20
    assert state(served) == "active"
    assert reports(served) == []
    seen = json.loads(served.read("/run/epyc-vllm/watchdog/tiny-chat-s0.json"))
    assert seen["verdict"] == "busy"


@long
def test_work_without_end_is_given_up_too(served: Guest, standin: Standin) -> None:
    standin.behave(running=1, burn=True)
    wait_failed(served)
    assert newest(served)["verdict"] == "hung"
    assert "no token has come for" in newest(served)["cause"]


@long
def test_a_server_that_goes_on_in_time_is_let_be(served: Guest, epyc_vllm: EpycVllm) -> None:
    for _ in range(3):
        served.sh(f"kill -STOP {main_pid(served)}; sleep 3; kill -CONT {main_pid(served)}; sleep 4")
    assert state(served) == "active"
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(served) == []


@long
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
    served.sh("sed -i 's/^max_model_len = 512$/max_model_len = 256/' /etc/epyc-vllm/endpoints.d/*")
    done = epyc_vllm("apply", "--restart")
    assert done.returncode == 0, done.stderr
    assert "256" in served.sh(f"systemctl show -P ExecStart {SERVICE}")
    served.reboot()
    wait_until(lambda: state(served) == "active")
    assert state(served, WATCHDOG) == "active"
    time.sleep(10)
    assert reports(served) == []
    assert epyc_vllm("disable", "tiny-chat").returncode == 0
    hub.start(served)  # a reboot ends it
    served.write(CONFIG, served.read(CONFIG) + QUICK)


@long
def test_a_host_that_was_paused_is_not_held_against_it(served: Guest, epyc_vllm: EpycVllm) -> None:
    """All of it, as a virtual machine is: its clock has gone on meanwhile."""
    with served.paused():
        time.sleep(40)
    time.sleep(20)
    assert state(served) == "active"
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(served) == []


def test_instances_are_followed_without_a_restart(served: Guest, epyc_vllm: EpycVllm) -> None:
    before = served.sh(f"systemctl show -P InvocationID {WATCHDOG}")

    def status() -> str:
        return served.sh(f"systemctl show -P StatusText {WATCHDOG}").strip()

    wait_until(lambda: status() == "1 of 1 instances run")
    assert epyc_vllm("enable", MODEL, "--cores", "1", "--yes").returncode == 0
    served.write(
        "/etc/epyc-vllm/endpoints.d/second.toml",
        f'model = "{MODEL}"\nenvironment = "{parts.STANDIN}"\ncores = 1\nkv_gib = 1\n',
    )
    done = epyc_vllm("apply")
    assert done.returncode == 0, done.stdout
    wait_until(lambda: status() == "2 of 2 instances run")
    served.sh("rm /etc/epyc-vllm/endpoints.d/second.toml")
    assert epyc_vllm("apply").returncode == 0
    wait_until(lambda: status() == "1 of 1 instances run")
    assert epyc_vllm("disable", "tiny-chat").returncode == 0
    wait_until(lambda: status() == "0 of 0 instances run")
    assert served.sh("ls -A /run/epyc-vllm/watchdog") == ""
    assert served.sh(f"systemctl show -P InvocationID {WATCHDOG}") == before


class TestItself:
    def test_killed_it_is_back_and_does_its_work(self, served: Guest, standin: Standin) -> None:
        pid = served.sh(f"systemctl show -P MainPID {WATCHDOG}").strip()
        served.run(["systemctl", "kill", "--signal=KILL", WATCHDOG])
        standin.behave(health="503")
        wait_failed(served)
        assert newest(served)["verdict"] == "sick"
        assert served.sh(f"systemctl show -P MainPID {WATCHDOG}").strip() not in ("0", pid)

    @long
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

    @long
    def test_stopped_the_endpoints_go_on(self, served: Guest, epyc_vllm: EpycVllm) -> None:
        served.run(["systemctl", "stop", WATCHDOG])
        assert state(served) == "active"
        assert epyc_vllm("verify", "tiny-chat").returncode == 0
        served.run(["systemctl", "restart", SERVICE])
        assert epyc_vllm("verify", "tiny-chat").returncode == 0
        assert reports(served) == []

    @long
    def test_it_outlives_the_bus_and_the_journal(self, served: Guest, standin: Standin) -> None:
        shown = f"systemctl show -P MainPID {WATCHDOG} dbus.service systemd-journald.service"
        pid, *others = served.sh(shown).split()
        served.sh("kill -KILL $(systemctl show -P MainPID dbus.service)")
        served.sh("systemctl restart systemd-journald.service")
        wait_until(lambda: state(served, "dbus.service") == "active")
        time.sleep(3)
        same, *anew = served.sh(shown).split()
        assert same == pid
        assert not set(anew) & {*others, "0"}
        standin.behave(health="503")
        wait_failed(served)
        assert newest(served)["verdict"] == "sick"

    @long
    def test_it_needs_no_hub_and_no_names(self, served: Guest, standin: Standin) -> None:
        hub.stop(served)
        served.sh("mv /etc/resolv.conf /etc/resolv.conf.away 2>/dev/null; ! getent hosts amd.com")
        try:
            served.sh(f"systemctl restart {WATCHDOG}")
            standin.behave(health="503")
            wait_failed(served)
            assert newest(served)["verdict"] == "sick"
        finally:
            served.sh("mv /etc/resolv.conf.away /etc/resolv.conf 2>/dev/null || true")
            config = served.read(CONFIG)
            hub.start(served)
            served.write(CONFIG, config)

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

    @pytest.fixture
    def keyed(self, served: Guest, epyc_vllm: EpycVllm) -> Iterator[Guest]:
        served.write("/etc/epyc-vllm/key", "VLLM_API_KEY=planted-key-4711\n", mode=0o600)
        done = epyc_vllm("enable", MODEL, "--yes", "--api-key-file", "/etc/epyc-vllm/key")
        assert done.returncode == 0, done.stderr
        yield served
        epyc_vllm("disable", "tiny-chat")

    def test_secrets_are_masked(self, keyed: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
        keyed.run(["systemctl", "stop", SERVICE])
        words = "PermissionError: hf_plantedTOKEN12345 and planted-key-4711 of Bearer abcdef"
        standin.behave(fail_loading=1, message=words)
        keyed.run(["systemctl", "start", SERVICE], check=False)
        wait_failed(keyed)
        (name,) = reports(keyed)
        report = keyed.read(f"{REPORTS}/{name}")
        entry = keyed.sh(f"journalctl -o json MESSAGE_ID={MESSAGE_ID} -n 1")
        agent = keyed.sh("journalctl -b -o cat _COMM=epyc-vllm")
        for text in (report, entry, agent, epyc_vllm("report").stdout):
            assert "PermissionError: hf_*** and *** of Bearer ***" in text
            for secret in ("plantedTOKEN", "planted-key", "abcdef"):
                assert secret not in text
        assert json.loads(report)["cause_code"] == "permission"

    @long
    def test_a_key_is_lent_for_the_canary_and_taken_back(
        self, keyed: Guest, standin: Standin
    ) -> None:
        path = "/run/epyc-vllm-keys/tiny-chat-s0"
        assert keyed.sh(f"stat -c %a:%U:%G {path}") == "640:root:_epyc-vllm-watch\n"
        assert keyed.run(["cat", path], user="nobody", check=False).returncode != 0
        standin.behave(completion="hang")
        wait_failed(keyed)
        assert newest(keyed)["verdict"] == "hung"
        assert keyed.run(["test", "-e", path], check=False).returncode == 1


class TestHook:
    @pytest.fixture
    def hooked(self, served: Guest) -> Iterator[Guest]:
        served.write(
            "/usr/local/sbin/hook",
            '#!/bin/sh\necho "$@" >> /run/hook.log; cp "$2" /run/hook.json; exec "$1"\n',
            mode=0o755,
        )
        served.write("/usr/local/sbin/slow", "#!/bin/sh\nsleep 4242\n", mode=0o755)
        served.sh("rm -f /run/hook.*")
        before = served.read(CONFIG)
        yield served
        served.write(CONFIG, before)

    @pytest.mark.parametrize(
        ("program", "said"),
        [
            ("/bin/false", "Failed with result 'exit-code'"),
            pytest.param("/bin/true", "", marks=long),
            pytest.param("/usr/local/sbin/slow", "Failed with result 'timeout'", marks=long),
        ],
    )
    def test_it_is_run_and_changes_nothing(
        self, hooked: Guest, standin: Standin, program: str, said: str
    ) -> None:
        hook = f'on_failure = ["/usr/local/sbin/hook", "{program}"]\non_failure_timeout = 5\n'
        hooked.write(CONFIG, hooked.read(CONFIG) + hook)
        standin.behave(exit=0)
        wait_failed(hooked)
        (name,) = reports(hooked)
        asked = f"{program} {REPORTS}/{name}\n"
        wait_until(lambda: hooked.sh("cat /run/hook.log 2>/dev/null || true") == asked)
        assert json.loads(hooked.read("/run/hook.json"))["instance"] == "tiny-chat-s0"
        log = "journalctl -b -o cat -u 'epyc-vllm-on-failure-*'"
        wait_until(lambda: said in hooked.sh(log))
        assert hooked.sh("ps -eo args= | grep '^sleep 4242' || true") == ""
        assert state(hooked) == "failed"

    @long
    def test_one_that_is_not_there(self, hooked: Guest, standin: Standin) -> None:
        hooked.write(CONFIG, hooked.read(CONFIG) + 'on_failure = ["/nonexistent/hook"]\n')
        standin.behave(exit=0)
        wait_failed(hooked)
        assert newest(hooked)["verdict"] == "dead"
        wait_until(lambda: "/nonexistent/hook" in hooked.sh("journalctl -b -o cat -p 4 -n 20"))


@long
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
