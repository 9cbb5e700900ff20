"""Files dropped, changed and removed on the booted host: applied by themselves, or by `apply`."""

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.guest import parts
from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin

pytestmark = pytest.mark.timeout(600)

FOLDER = "/etc/epyc-vllm/endpoints.d"
APPLY = "epyc-vllm-apply.service"
PATH = "epyc-vllm-apply.path"
SERVICE = "epyc-vllm-a-s0.service"
UNIT = f"/etc/systemd/system/{SERVICE}"


@pytest.fixture
def watched(guest: Guest) -> Iterator[Guest]:
    """The guest with the path unit at work, which other tests do without."""
    guest.run(["systemctl", "enable", "--now", PATH])
    yield guest
    guest.run(["systemctl", "disable", "--now", PATH])
    settle(guest)
    guest.sh(f"systemctl reset-failed; rm -rf {FOLDER}/*.d")


def text(*lines: str) -> str:
    made = ['model = "example/tiny-chat"', f'environment = "{parts.STANDIN}"']
    return "\n".join([*made, "cores = 1", "kv_gib = 1", *lines]) + "\n"


def drop(guest: Guest, name: str, *lines: str) -> None:
    guest.write(f"{FOLDER}/{name}.toml", text(*lines))


def until(guest: Guest, holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not {what}: " + guest.sh(f"journalctl -n 40 -o cat -u {APPLY}"))
        time.sleep(0.3)


def state(guest: Guest, unit: str = SERVICE) -> str:
    return guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()


def settle(guest: Guest) -> None:
    """Until the run that a file began has ended, if one did."""
    time.sleep(1)
    until(guest, lambda: state(guest, APPLY) not in ("active", "activating"), "settled")


def argv(guest: Guest, service: str = SERVICE) -> list[str]:
    """Of the running server; nothing while it is restarted."""
    script = f"cat /proc/$(systemctl show -P MainPID {service})/cmdline 2>/dev/null || true"
    return guest.sh(script).split("\0")


def runs_of(guest: Guest) -> int:
    """How often a change of files has begun a run since the boot."""
    lines = guest.sh(f"journalctl -b -o cat -u {APPLY} --grep '^Starting' || true")
    return len(lines.splitlines())


def answer(epyc_vllm: EpycVllm, *arguments: str, code: int = 0) -> dict[str, dict[str, object]]:
    done = epyc_vllm("apply", "--json", *arguments)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["changed"] == any(one["changed"] for one in found["endpoints"])
    return {one["name"]: one for one in found["endpoints"]}


def test_a_file_is_applied_by_itself_changed_and_removed(
    watched: Guest, epyc_vllm: EpycVllm
) -> None:
    drop(watched, "a")
    until(watched, lambda: state(watched) == "active", "up")
    settle(watched)
    assert state(watched, APPLY) == "inactive"
    assert epyc_vllm("verify", "a").returncode == 0

    drop(watched, "a", "max_model_len = 512")
    until(watched, lambda: " 512" in watched.read(UNIT), "written")
    settle(watched)
    assert "512" not in argv(watched)
    shown = epyc_vllm("status")
    assert f"drift    a: {SERVICE} runs with an older unit" in shown.stdout
    assert answer(epyc_vllm)["a"]["pending"] == [SERVICE]
    assert answer(epyc_vllm, "--restart")["a"]["started"] == [SERVICE]
    assert "512" in argv(watched)
    assert "drift" not in epyc_vllm("status").stdout

    drop(watched, "a", "max_model_len = 256", 'on_change = "restart"')
    until(watched, lambda: "256" in argv(watched), "restarted")
    settle(watched)

    watched.sh(f"rm {FOLDER}/a.toml")
    until(watched, lambda: state(watched) == "inactive", "gone")
    settle(watched)
    assert watched.sh("ls /var/lib/epyc-vllm/plans; find /etc/systemd -name '*vllm-a[-.]*'") == ""
    assert watched.sh("pgrep -f '[v]llm_standin serve' || true") == ""


def test_a_broken_file_beside_a_good_one_is_a_failed_run_and_no_loop(
    watched: Guest, epyc_vllm: EpycVllm
) -> None:
    drop(watched, "a")
    until(watched, lambda: state(watched) == "active", "up")
    settle(watched)
    before = watched.sh(f"systemctl show -P InvocationID {SERVICE}")
    watched.write(f"{FOLDER}/a.toml", text("max_model_length = 3"))
    drop(watched, "b")
    until(watched, lambda: state(watched, "epyc-vllm-b-s0.service") == "active", "up beside it")
    until(watched, lambda: state(watched, APPLY) == "failed", "failed")
    count = runs_of(watched)
    time.sleep(6)
    assert runs_of(watched) == count
    said = watched.sh(f"journalctl -b -o cat -u {APPLY}")
    assert "a.toml:5: unknown key 'max_model_length', did you mean 'max_model_len'?" in said
    assert "Traceback" not in said
    assert watched.sh(f"systemctl show -P InvocationID {SERVICE}") == before
    assert answer(epyc_vllm, code=2)["a"]["action"] == "error"
    drop(watched, "a")  # mended
    until(watched, lambda: state(watched, APPLY) == "inactive", "well again")


def test_a_burst_is_one_run_and_what_comes_meanwhile_is_not_lost(
    watched: Guest, standin: Standin
) -> None:
    before = runs_of(watched)
    for number in range(20):
        watched.write(f"{FOLDER}/odd-{number}.toml", "model = 1\n")
    watched.sh(f"rm {FOLDER}/odd-*.toml")
    drop(watched, "a")
    until(watched, lambda: state(watched) == "active", "up")
    settle(watched)
    assert runs_of(watched) == before + 1

    standin.behave(load_seconds=8)
    drop(watched, "b")
    until(watched, lambda: state(watched, "epyc-vllm-b-s0.service") == "activating", "loading")
    drop(watched, "a", "max_model_len = 512")
    until(watched, lambda: " 512" in watched.read(UNIT), "written")
    settle(watched)


def test_enables_own_write_begins_no_second_change(watched: Guest, epyc_vllm: EpycVllm) -> None:
    arguments = (*ENVIRONMENT, "--cores", "1", "--yes")
    before = runs_of(watched)
    done = epyc_vllm("enable", "example/tiny-chat", "--name", "a", *arguments)
    assert done.returncode == 0, done.stderr
    invocation = watched.sh(f"systemctl show -P InvocationID {SERVICE}")
    settle(watched)
    assert runs_of(watched) == before + 1
    assert state(watched, APPLY) == "inactive"
    done = epyc_vllm("disable", "a")
    assert done.returncode == 0, done.stderr
    settle(watched)
    assert state(watched, APPLY) == "inactive"
    assert invocation


def test_the_switch(watched: Guest) -> None:
    file = "/etc/epyc-vllm/epyc-vllm.toml"
    kept = watched.sh(f"cat {file} 2>/dev/null || true")
    try:
        watched.write(file, "auto_apply = false\n")
        drop(watched, "a")
        settle(watched)
        assert state(watched, APPLY) == "inactive"
        assert state(watched) == "inactive"
        assert "auto_apply is off" in watched.sh(f"journalctl -b -o cat -n 5 -u {APPLY}")
        watched.write(file, kept)
        until(watched, lambda: state(watched) == "active", "up once it is on")
        settle(watched)
    finally:
        watched.write(file, kept)


def test_check_diff_and_answers(guest: Guest, epyc_vllm: EpycVllm) -> None:
    drop(guest, "a")
    done = epyc_vllm("apply", "--check", "--diff")
    assert done.returncode == 6
    assert f"+++ {UNIT}" in done.stdout
    assert "create   a: 3 files, start" in done.stdout
    assert guest.sh("ls /var/lib/epyc-vllm/plans") == ""
    assert answer(epyc_vllm, "--check", code=6)["a"]["action"] == "create"
    done = epyc_vllm("apply")
    assert done.returncode == 0, done.stderr
    assert "create   a: 3 files, started" in done.stdout
    done = epyc_vllm("apply", "--check")
    assert (done.returncode, done.stdout) == (0, "no changes\n")
    assert answer(epyc_vllm)["a"]["changed"] is False
    drop(guest, "a", "cores = 99")  # set twice: not TOML
    assert answer(epyc_vllm, "--check", code=2)["a"]["action"] == "error"
    guest.write(f"{FOLDER}/a.toml", text().replace("cores = 1", "cores = 99"))
    assert answer(epyc_vllm, "--check", code=3)["a"]["action"] == "error"
    assert answer(epyc_vllm, code=3)["a"]["action"] == "error"
    assert state(guest) == "active"


def test_drift_is_told_and_restored(guest: Guest, epyc_vllm: EpycVllm) -> None:
    drop(guest, "a")
    assert epyc_vllm("apply").returncode == 0
    before = guest.read(UNIT)
    guest.write(UNIT, before + "# by hand\n")
    told = f"{UNIT} is not as its plan makes it"
    assert f"drift    a: {told} (epyc-vllm apply)" in epyc_vllm("status").stdout
    findings = epyc_vllm("doctor", "--json").stdout
    assert "unit-changed" in findings
    assert epyc_vllm("apply").returncode == 0
    assert guest.read(UNIT) == before
    assert "drift" not in epyc_vllm("status").stdout

    guest.run(["systemctl", "stop", SERVICE])
    guest.sh("systemd-run --unit=squatter python3 -m http.server --bind 127.0.0.1 8000")
    try:
        until(guest, lambda: guest.sh("ss -Hltn 'sport = :8000'") != "", "taken")
        assert "port 8000 of a-s0 is in use by another program" in epyc_vllm("status").stdout
        guest.run(["systemctl", "start", SERVICE], check=False)
        assert state(guest) == "failed"
        assert answer(epyc_vllm)["a"]["started"] == [SERVICE]
        assert argv(guest)[argv(guest).index("--port") + 1] == "8001"
    finally:
        guest.run(["systemctl", "stop", "squatter"])


def test_two_endpoints_swap_their_ports(guest: Guest, epyc_vllm: EpycVllm) -> None:
    for name, port in (("a", 8100), ("b", 8101)):
        drop(guest, name, f"port = {port}")
    assert epyc_vllm("apply").returncode == 0
    for name, port in (("a", 8101), ("b", 8100)):
        drop(guest, name, f"port = {port}")
    done = epyc_vllm("apply")
    assert (done.returncode, "`epyc-vllm apply --restart` moves both" in done.stdout) == (3, True)
    found = answer(epyc_vllm, "--restart")
    assert [found[name]["started"] for name in "ab"] == [[SERVICE], ["epyc-vllm-b-s0.service"]]
    for name, port in (("a", 8101), ("b", 8100)):
        running = argv(guest, f"epyc-vllm-{name}-s0.service")
        assert running[running.index("--port") + 1] == str(port)
        assert epyc_vllm("verify", name).returncode == 0
    assert answer(epyc_vllm)["a"]["changed"] is False


def test_two_at_once(guest: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
    standin.behave(load_seconds=5)
    drop(guest, "a")
    guest.sh("systemd-run --unit=first epyc-vllm apply")
    until(guest, lambda: state(guest) == "activating", "loading")
    assert epyc_vllm("apply", "--no-wait").returncode == 4
    done = epyc_vllm("apply")
    assert (done.returncode, done.stdout) == (0, "no changes\n")
    assert "waiting: another epyc-vllm run is changing this host" in done.stderr


def test_a_reboot(watched: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
    drop(watched, "a")
    until(watched, lambda: state(watched) == "active", "up")
    settle(watched)
    standin.behave(load_seconds=20)
    watched.reboot()  # returns when multi-user.target is active
    assert state(watched, PATH) == "active"
    assert state(watched) == "activating"
    watched.run(["systemctl", "is-system-running", "--wait"], check=False)
    chain = watched.sh("systemd-analyze critical-chain multi-user.target")
    assert "multi-user.target @" in chain
    assert "epyc-vllm-a" not in chain
    assert "network-online" not in chain
    assert state(watched) == "active"
    assert answer(epyc_vllm)["a"]["changed"] is False


def test_a_start_that_fails_is_told_as_enable_tells_it(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    standin.behave(fail_loading=1, message="InvalidCxxCompiler: none")
    drop(guest, "a")
    done = epyc_vllm("apply")
    assert done.returncode == 1
    assert "a-s0 failed in phase health: there is no C++ compiler" in done.stdout
    assert "InvalidCxxCompiler: none" in done.stderr  # the log of the run
    assert re.search(r"last \d+ log lines", done.stderr)
    assert done.stderr.splitlines()[-1] == "epyc-vllm: could not be applied: a"
    drop(guest, "b")
    error = answer(epyc_vllm, code=1)["b"]["error"]
    assert isinstance(error, dict)
    assert "InvalidCxxCompiler: none" in error["details"]


def test_shipped_units_pass_systemd_analyze_verify(guest: Guest) -> None:
    done = guest.sh("systemd-analyze verify --man=no /usr/local/lib/systemd/system/epyc-vllm* 2>&1")
    assert done == ""
