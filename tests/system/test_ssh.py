"""--host against a real sshd: the same answers as on the host, and a name for every failure."""

import json
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.guest import sshd
from tests.guest.boot import Guest
from tests.guest.sshd import PORT, start
from tests.system.conftest import EpycVllm

pytestmark = pytest.mark.timeout(1200)

BOX = f"127.0.0.1:{PORT}"
KNOWN = "/root/.ssh/known_hosts"


@pytest.fixture
def box(guest: Guest) -> Iterator[Guest]:
    """The guest with sshd, and with a key of root's that opens root's account."""
    sshd.open_root(guest)
    yield guest
    sshd.close(guest)
    guest.sh(
        "rm -f /root/.bashrc;"
        "for user in jo.doe locked; do userdel -rf $user 2>/dev/null; done; true"
    )


# What moves while one looks.
MOVING = {"available_gb", "free_bytes"}


def still(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: still(item) for key, item in value.items() if key not in MOVING}
    return [still(item) for item in value] if isinstance(value, list) else value


def answer(done: CompletedProcess[str]) -> Any:
    assert done.returncode in (0, 5), done.stderr
    return still(json.loads(done.stdout))


def fails(done: CompletedProcess[str], code: int, part: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("processor", ["genoa", "milan", "intel"])
def test_detect_answers_the_same_as_on_the_host(
    box: Guest, epyc_vllm: EpycVllm, processor: str
) -> None:
    box.cpuinfo(processor)
    here = answer(epyc_vllm("detect", "--json"))
    assert here["logical_cores"] > 0
    assert here["topology"][0]["nodes"]
    for name in (BOX, f"[::1]:{PORT}", f"root@localhost:{PORT}"):
        assert answer(epyc_vllm("detect", "--host", name, "--json")) == here


def test_text_answers_the_same_too(box: Guest, epyc_vllm: EpycVllm) -> None:
    here = epyc_vllm("detect").stdout.splitlines()
    there = epyc_vllm("detect", "--host", BOX).stdout.splitlines()
    assert [line for line in here if "GiB" not in line] == [
        line for line in there if "GiB" not in line
    ]


def test_stored_plans_and_endpoint_files_come_along(box: Guest, epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm(
        *("enable", "example/tiny-chat", "--environment", "/opt/vllm-standin", "--yes"), timeout=600
    )
    assert done.returncode == 0, done.stderr
    here = answer(epyc_vllm("detect", "--json"))
    assert [seat["name"] for seat in here["instances"]] == ["tiny-chat-s0"]
    assert answer(epyc_vllm("detect", "--host", BOX, "--json")) == here
    done = epyc_vllm("plan", "example/tiny-base", "--host", BOX, timeout=300)
    assert done.returncode == 3
    assert "socket 0 is held by endpoint tiny-chat" in done.stderr


def test_doctor_judges_the_files_and_says_what_it_did_not_ask(
    box: Guest, epyc_vllm: EpycVllm
) -> None:
    here = answer(epyc_vllm("doctor", "--json", timeout=900))
    there = answer(epyc_vllm("doctor", "--host", BOX, "--json", timeout=300))
    for field in ("zentorch_capable", "ram_gb", "gates", "requires_confirmation"):
        assert there[field] == here[field]
    assert (there["not_asked"], there["stack"], there["runtime"]) == (BOX, None, None)
    assert "podman is installed there and was not asked" in there["runtime_detail"]
    assert there["hf_cache"]["path"] == here["hf_cache"]["path"]
    box.cpuinfo("intel")
    assert epyc_vllm("doctor", "--host", BOX, "--json").returncode == 5


def test_plan_says_that_the_stack_is_assumed(box: Guest, epyc_vllm: EpycVllm) -> None:
    plan = ("plan", "example/tiny-chat", "--host", BOX, "--json")
    done = epyc_vllm(*plan, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["probed"] is False
    assert found["versions"]["platform"] == found["prediction"]["platform"]
    assert any("was not asked" in warning for warning in found["warnings"])
    assert found["model"]["path"].startswith("/var/lib/epyc-vllm/models/")
    (service,) = [unit["text"] for unit in found["units"] if "-s0." in unit["path"]]
    assert "epyc-vllm-host-" not in service  # the folder that the files were read from
    assert "ExecStart=:/usr/bin/numactl" in service
    box.cpuinfo("milan")
    assert epyc_vllm(*plan, timeout=300).returncode == 3
    assert epyc_vllm(*plan, "--accept", "stock-cpu", timeout=300).returncode == 0


def test_faults_of_files_are_named_by_their_path_there(box: Guest, epyc_vllm: EpycVllm) -> None:
    box.write("/etc/epyc-vllm/endpoints.d/odd.toml", "colour = 1\n")
    done = epyc_vllm("doctor", "--host", BOX, "--json")
    assert done.returncode == 5
    (fault,) = json.loads(done.stdout)["errors"]
    assert fault["seen"].startswith("/etc/epyc-vllm/endpoints.d/odd.toml:1: unknown key")
    box.write("/var/lib/epyc-vllm/plans/cut.json", "{")
    done = epyc_vllm("detect", "--host", BOX)
    assert done.returncode == 0
    assert "the stored plan /var/lib/epyc-vllm/plans/cut.json cannot be read" in done.stderr
    box.write("/etc/epyc-vllm/epyc-vllm.toml", "colour = 1\n")
    done = epyc_vllm("plan", "example/tiny-chat", "--host", BOX)
    fails(done, 2, f"{BOX}: /etc/epyc-vllm/epyc-vllm.toml:1: unknown key")


def test_a_directory_over_there_cannot_be_planned(box: Guest, epyc_vllm: EpycVllm) -> None:
    assert box.running
    done = epyc_vllm("plan", "/srv/models/example__tiny-chat", "--host", BOX)
    fails(done, 3, f"is a directory on {BOX}")


def test_nothing_is_left_on_either_side(box: Guest, epyc_vllm: EpycVllm) -> None:
    look = (
        "find / -xdev \\( -path /proc -o -path /sys -o -path /var/log \\) -prune -o -print | sort"
    )
    look = f"{look}; ls /tmp /dev/shm"
    epyc_vllm("detect", "--host", BOX)  # known_hosts is written
    before = box.sh(look)
    epyc_vllm("detect", "--host", BOX)
    assert box.sh(look) == before


def test_a_shell_that_greets(box: Guest, epyc_vllm: EpycVllm) -> None:
    box.write("/root/.bashrc", "echo Welcome; echo to:this host\n")
    assert answer(epyc_vllm("detect", "--host", BOX, "--json"))["cpu_model"].startswith("AMD EPYC")


def test_an_odd_user(box: Guest, epyc_vllm: EpycVllm) -> None:
    box.sh(
        "useradd --badname -m jo.doe && mkdir -p /home/jo.doe/.ssh &&"
        "cp /root/.ssh/id_ed25519.pub /home/jo.doe/.ssh/authorized_keys &&"
        "chown -R jo.doe /home/jo.doe && usermod -p x jo.doe"
    )
    here = answer(epyc_vllm("detect", "--json"))
    assert answer(epyc_vllm("detect", "--host", f"jo.doe@{BOX}", "--json")) == here


class TestFailures:
    def test_a_host_key_is_kept_and_a_changed_one_refused(
        self, box: Guest, epyc_vllm: EpycVllm
    ) -> None:
        assert epyc_vllm("detect", "--host", BOX).returncode == 0
        known = box.read(KNOWN)
        assert box.read(f"{sshd.FOLDER}/host.pub").split()[1] in known  # the name is hashed
        box.sh(f"rm {sshd.FOLDER}/host*; ssh-keygen -q -t ed25519 -N '' -f {sshd.FOLDER}/host")
        start(box)
        done = epyc_vllm("detect", "--host", BOX)
        fails(done, 1, "its host key is another than the known one")
        assert box.read(KNOWN) == known

    def test_a_stricter_configuration_is_not_weakened(
        self, box: Guest, epyc_vllm: EpycVllm
    ) -> None:
        box.write("/root/.ssh/config", "StrictHostKeyChecking yes\n", 0o600)
        done = epyc_vllm("detect", "--host", BOX)
        fails(done, 1, "its host key is not known")
        assert box.run(["test", "-e", KNOWN], check=False).returncode != 0

    def test_a_password_prompt(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        box.sh("useradd -m locked && echo locked:secret | chpasswd")
        done = epyc_vllm("detect", "--host", f"locked@{BOX}")
        fails(done, 1, "without asking for a password")
        assert "ssh-copy-id" in done.stderr

    def test_nobody_listens(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        assert box.running
        fails(epyc_vllm("detect", "--host", "127.0.0.1:2223"), 1, "nothing listens there")

    def test_one_that_listens_and_says_nothing(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        script = (
            "import socket, time; s = socket.socket();"
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
            "s.bind(('127.0.0.1', 2224)); s.listen(); time.sleep(300)"
        )
        box.run(["systemd-run", "-q", "--collect", "--unit=test-mute", "python3", "-c", script])
        box.sh(sshd.WAIT.replace(str(PORT), "2224"))
        done = epyc_vllm("detect", "--host", "127.0.0.1:2224", timeout=200)
        box.sh("systemctl stop test-mute")
        fails(done, 1, "did not answer within 10 seconds")

    def test_an_unknown_name(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        assert box.running
        fails(epyc_vllm("detect", "--host", "nowhere.invalid", timeout=200), 1, "no such host")

    def test_no_cpuinfo(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        start(box, "unshare --mount sh -c 'mount --bind /dev/null /proc/cpuinfo; exec \"$@\"' sh")
        fails(epyc_vllm("detect", "--host", BOX), 1, "shows no /proc/cpuinfo")

    def test_a_shell_that_runs_nothing(self, box: Guest, epyc_vllm: EpycVllm) -> None:
        box.sh("usermod -s /usr/sbin/nologin root")
        try:
            done = epyc_vllm("detect", "--host", BOX)
        finally:
            box.sh("usermod -s /bin/bash root")
        fails(done, 1, "did not send its files")

    @pytest.mark.parametrize(
        "name", ["-oProxyCommand=touch /run/pwned", "-oProxyCommand=touch${IFS}/run/pwned",
                 "root@-oProxyCommand=touch /run/pwned", "$(touch /run/pwned)@127.0.0.1",
                 "x;touch /run/pwned;@127.0.0.1", "127.0.0.1;touch /run/pwned"],
    )  # fmt: skip
    @pytest.mark.parametrize("verb", ["detect", "doctor", "plan"])
    def test_options_and_commands_in_a_name(
        self, guest: Guest, epyc_vllm: EpycVllm, verb: str, name: str
    ) -> None:
        fails(epyc_vllm(verb, f"--host={name}"), 2, "--host")
        assert guest.run(["test", "-e", "/run/pwned"], check=False).returncode != 0

    def test_two_other_hosts_at_once(self, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("--sysroot", "/srv", "detect", "--host", BOX)
        fails(done, 2, "--host and --sysroot")
