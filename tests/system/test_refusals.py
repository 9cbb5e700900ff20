"""Failures: one plain sentence each, the documented exit code, and nothing left behind."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.guest import hub
from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin

pytestmark = pytest.mark.timeout(600)

MODEL = "example/tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"


@pytest.fixture
def leaves_nothing(guest: Guest) -> Iterator[None]:
    """After the test: no file of the endpoint, no process, no port, no half-written file."""
    yield
    files = guest.sh(
        "find /etc/systemd/system /etc/epyc-vllm/endpoints.d /var/lib/epyc-vllm/plans"
        " -name '*tiny*' -o -name '.epyc-vllm*'"
    )
    assert files == ""
    assert guest.sh("pgrep -f '[v]llm(_standin)? serve' || true") == ""
    assert guest.sh("ss -Hltn 'sport = :8000'") == ""
    assert guest.sh("ls /dev/shm | grep -v ^libpod_lock || true") == ""


def one_sentence(stderr: str) -> str:
    """The one line that speaks as the command itself, behind the log of a failed start."""
    said = stderr.rpartition("\n---\n")[2]
    (line,) = [line for line in said.splitlines() if line.startswith("epyc-vllm: ")]
    assert "Traceback" not in stderr
    return line


@pytest.mark.usefixtures("leaves_nothing")
class TestNothingIsStarted:
    def test_unknown_model(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("enable", "example/tiny-nowhere", *ENVIRONMENT, "--yes")
        assert done.returncode in (1, 2, 3)
        assert "example/tiny-nowhere" in one_sentence(done.stderr)

    def test_port_busy(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        guest.sh("systemd-run -q --collect --unit=squatter python3 -m http.server 8123")
        guest.sh(
            "for n in $(seq 50); do ss -Hltn 'sport = :8123' | grep -q . && exit; sleep .1; done"
        )
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", "--port", "8123")
        guest.sh("systemctl stop squatter")
        assert done.returncode == 3
        assert "port 8123 is in use by another program" in one_sentence(done.stderr)

    def test_path_without_a_config(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        guest.sh("mkdir -p /srv/tiny-empty")
        done = epyc_vllm("enable", "/srv/tiny-empty", *ENVIRONMENT, "--yes")
        assert done.returncode in (2, 3)
        assert "config.json" in one_sentence(done.stderr)

    def test_no_such_environment(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("enable", MODEL, "--environment", "/opt/none", "--yes")
        assert done.returncode == 3
        assert "/opt/none is no Python environment" in one_sentence(done.stderr)

    def test_no_terminal_and_no_yes(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT)
        assert done.returncode == 3
        assert "no terminal" in one_sentence(done.stderr)

    def test_unknown_key_in_a_file(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        path = "/etc/epyc-vllm/endpoints.d/odd.toml"
        guest.write(path, f'model = "{MODEL}"\nmax_modle_len = 5\n')
        done = epyc_vllm("enable", "odd", "--yes")
        guest.sh(f"rm {path}")
        assert done.returncode == 2
        assert "did you mean 'max_model_len'" in one_sentence(done.stderr)

    def test_disk_full(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        """The weights are there; the file system that the units go to has no room left."""
        assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
        assert epyc_vllm("disable", "tiny-chat").returncode == 0
        guest.sh("mount -t tmpfs -o size=64k tmpfs /var/lib/epyc-vllm/plans")
        guest.sh("head -c 64k /dev/zero > /var/lib/epyc-vllm/plans/filler")
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
        staged = guest.sh("ls -A /var/lib/epyc-vllm/plans").split()
        guest.sh("umount /var/lib/epyc-vllm/plans")
        assert done.returncode == 1
        assert "No space left on device" in one_sentence(done.stderr)
        assert staged == ["filler"]

    def test_as_a_normal_user(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", user="nobody")
        assert done.returncode == 3
        assert "needs root" in one_sentence(done.stderr)
        assert "sudo" in done.stderr

    def test_without_systemd(self, guest: Guest) -> None:
        """A host whose init is another: /run/systemd/system is not there (sd_booted(3))."""
        command = "mount -t tmpfs tmpfs /run/systemd && epyc-vllm enable x --yes"
        done = guest.run(["unshare", "--mount", "sh", "-c", command], check=False)
        assert done.returncode == 3
        assert "systemd is not running on this host" in one_sentence(done.stderr)

    def test_a_plan_that_does_not_fit(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", "--kv-gib", "4096")
        assert done.returncode == 3
        assert "GiB on node 0 of socket 0" in one_sentence(done.stderr)


MODELS, CACHE = "/var/lib/epyc-vllm/models", "/var/cache/epyc-vllm"
FULL = "mount -t tmpfs -o size=64k tmpfs {0}; head -c 64k /dev/zero > {0}/filler"
READ_ONLY = "mount --bind {0} {0}; mount -o remount,bind,ro {0}"


class TestADiskThatTakesNothing:
    """What runs goes on, its files stay as they were."""

    @pytest.mark.parametrize(
        ("place", "fault", "reason"),
        [
            (MODELS, FULL, r"disk ran full|models has [\d.]+ \S+ free"),
            (MODELS, READ_ONLY, "Read-only file system|cannot be written"),
            (CACHE, FULL, "MiB left, 64 MiB are needed"),
            (CACHE, READ_ONLY, "cannot be written below .* .Read-only file system"),
        ],
    )
    def test_one_sentence(
        self, guest: Guest, epyc_vllm: EpycVllm, place: str, fault: str, reason: str
    ) -> None:
        flags = (*ENVIRONMENT, "--cores", "1", "--yes")
        assert epyc_vllm("enable", MODEL, *flags).returncode == 0
        before = guest.sh("cat /etc/systemd/system/epyc-vllm-tiny* /etc/epyc-vllm/endpoints.d/*")
        # the endpoint's own model is there already: another one is to be fetched
        wanted = (MODEL, "--max-model-len", "512") if place == CACHE else ("example/tiny-base",)
        guest.sh(fault.format(place))
        try:
            done = epyc_vllm("enable", *wanted, *flags)
        finally:
            guest.sh(f"umount {place}")
        assert done.returncode in (1, 3), done.stderr
        assert re.search(reason, one_sentence(done.stderr))
        after = guest.sh("cat /etc/systemd/system/epyc-vllm-tiny* /etc/epyc-vllm/endpoints.d/*")
        assert after == before
        assert epyc_vllm("verify", "tiny-chat").returncode == 0


@pytest.mark.usefixtures("leaves_nothing")
class TestStartFails:
    def test_server_exits_while_loading(
        self, guest: Guest, epyc_vllm: EpycVllm, standin: Standin
    ) -> None:
        standin.behave(fail_loading=1, message="RuntimeError: it is what it is")
        count = f"journalctl -u {SERVICE} -o cat | grep -c 'Starting epyc-vllm' || true"
        before = int(guest.sh(count))
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
        assert done.returncode == 1
        assert "failed in phase health: the server exited while loading" in one_sentence(
            done.stderr
        )
        assert "it is what it is" in done.stderr
        assert "nothing is retried" in done.stderr
        assert guest.run(["systemctl", "is-failed", SERVICE], check=False).stdout == "failed\n"
        assert int(guest.sh(count)) == before + 1

    def test_known_cause_is_named(self, epyc_vllm: EpycVllm, standin: Standin) -> None:
        standin.behave(
            fail_loading=1, message="InvalidCxxCompiler: No working C++ compiler found in config"
        )
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
        assert done.returncode == 1
        assert "there is no C++ compiler" in one_sentence(done.stderr)
        assert "apt-get install g++" in done.stderr

    @pytest.mark.parametrize(
        ("behaviour", "phase"),
        [
            ({"completion": "error"}, "completion"),
            ({"completion": "no-choices"}, "completion"),
            ({"completion": "500"}, "completion"),
            ({"completion": "exit"}, "completion"),
            ({"models": "missing"}, "models"),
            ({"health": "503"}, "health"),
        ],
    )
    def test_up_but_does_not_answer(
        self,
        guest: Guest,
        epyc_vllm: EpycVllm,
        standin: Standin,
        behaviour: dict[str, str],
        phase: str,
    ) -> None:
        standin.behave(**behaviour)
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
        assert done.returncode == 1
        assert f"failed in phase {phase}" in one_sentence(done.stderr)
        assert guest.run(["systemctl", "is-failed", SERVICE], check=False).stdout == "failed\n"

    def test_never_healthy_ends_with_its_time(self, epyc_vllm: EpycVllm, standin: Standin) -> None:
        standin.behave(load_seconds=600)
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", "--start-timeout", "10")
        assert done.returncode == 1
        assert "not healthy within 10 s" in one_sentence(done.stderr)


def test_unasked_exit_with_status_0_is_a_failure(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
    standin.behave(exit=0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if guest.run(["systemctl", "is-active", SERVICE], check=False).stdout == "failed\n":
            break
        time.sleep(0.2)
    assert guest.run(["systemctl", "is-failed", SERVICE], check=False).stdout == "failed\n"
    (name,) = guest.sh("ls /var/lib/epyc-vllm/reports").split()
    report = json.loads(guest.read(f"/var/lib/epyc-vllm/reports/{name}"))
    assert report["phase"] == "serving"
    assert report["exit"] == {"result": "success", "code": "exited", "status": "0"}
    standin.behave()
    guest.run(["systemctl", "start", SERVICE])
    assert epyc_vllm("verify").returncode == 0


def test_changing_an_endpoint_that_then_fails_puts_the_old_one_back(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
    before = guest.sh("cat /etc/systemd/system/epyc-vllm-* /etc/epyc-vllm/endpoints.d/*")
    done = epyc_vllm(
        "enable", MODEL, "--yes", "--vllm-arg=--hf-overrides={}", "--max-model-len", "99999"
    )
    assert done.returncode == 1
    assert "the earlier files are back" in done.stderr
    assert guest.sh("cat /etc/systemd/system/epyc-vllm-* /etc/epyc-vllm/endpoints.d/*") == before
    assert epyc_vllm("verify", "tiny-chat").returncode == 0


def test_port_taken_between_plan_and_start(guest: Guest, epyc_vllm: EpycVllm) -> None:
    assert epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").returncode == 0
    guest.run(["systemctl", "stop", SERVICE])
    guest.sh("systemd-run -q --collect --unit=squatter python3 -m http.server 8000")
    guest.sh("for n in $(seq 50); do ss -Hltn 'sport = :8000' | grep -q . && exit; sleep .1; done")
    began = time.monotonic()
    done = guest.run(["systemctl", "start", SERVICE], check=False)
    assert done.returncode != 0
    assert time.monotonic() - began < 30  # nothing was loaded
    log = guest.sh(f"journalctl -u {SERVICE} -o cat")
    guest.sh("systemctl stop squatter")
    assert "port 8000 is in use by another program" in log


@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.3, 2.0, 4.0])
def test_killed_while_enable_runs(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin, seconds: float
) -> None:
    """SIGKILL at several moments; the next run ends as an undisturbed one."""
    standin.behave(load_seconds=3)
    guest.sh("rm -rf /var/lib/epyc-vllm/models/*")
    command = f"timeout -s KILL {seconds} epyc-vllm enable {MODEL} {' '.join(ENVIRONMENT)} --yes"
    guest.run(["sh", "-c", command], check=False)
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
    assert done.returncode == 0, done.stderr
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    names = guest.sh(
        "ls -A /etc/epyc-vllm/endpoints.d /var/lib/epyc-vllm/plans /etc/systemd/system"
    )
    assert ".epyc-vllm" not in names
    assert "no changes" in epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes").stderr


def test_a_second_run_at_the_same_time_exits_4(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    standin.behave(load_seconds=15)
    first = guest.popen(["epyc-vllm", "enable", MODEL, *ENVIRONMENT, "--yes"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if guest.run(["systemctl", "is-active", SERVICE], check=False).stdout == "activating\n":
            break
        time.sleep(0.2)
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes")
    assert done.returncode == 4
    assert "another epyc-vllm run is changing this host" in one_sentence(done.stderr)
    assert first.wait(timeout=120) == 0
    assert hub.running(guest)
