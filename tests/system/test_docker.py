"""The plain container service: with docker and its daemon, and with podman before quadlets."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.guest import image, parts
from tests.guest.boot import Guest
from tests.system.conftest import SMALL, EpycVllm

pytestmark = pytest.mark.timeout(900)

MODEL = "example/tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
CONTAINER = "epyc-vllm-tiny-chat-s0"
ARCHIVE = ("--image", image.NAME, "--image-archive", f"{parts.IMAGES}/standin.tar")
GENERATOR = "/usr/libexec/podman/quadlet"


@pytest.fixture
def podman(guest: Guest) -> Iterator[str]:
    """podman as it was before quadlets: no generator."""
    links = "/usr/lib/systemd/system-generators/podman-system-generator"
    guest.sh(f"mv {GENERATOR} {GENERATOR}.away; mv {links} {links}.away")
    yield "podman"
    guest.sh(f"mv {GENERATOR}.away {GENERATOR}; mv {links}.away {links}")


@pytest.fixture(params=["docker", "podman"])
def program(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def enable(epyc_vllm: EpycVllm, program: str, *flags: str) -> str:
    done = epyc_vllm("enable", MODEL, "--runtime", program, *ARCHIVE, *SMALL, "--yes", *flags)
    assert done.returncode == 0, done.stderr
    return done.stderr


def containers(guest: Guest, program: str) -> list[str]:
    return guest.sh(f"{program} ps --all --format '{{{{.Names}}}}'").split()


def state(guest: Guest) -> str:
    deadline = time.monotonic() + 120
    while True:
        found = guest.run(["systemctl", "is-active", SERVICE], check=False).stdout.strip()
        if found != "deactivating" or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def reports(guest: Guest) -> list[str]:
    return guest.sh("ls /var/lib/epyc-vllm/reports").split()


def test_a_whole_life(guest: Guest, epyc_vllm: EpycVllm, program: str) -> None:
    enable(epyc_vllm, program)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert f"ExecStart=:/usr/bin/{program} run" in guest.read(UNIT)
    log = guest.sh(f"journalctl -u {SERVICE} -o cat")
    assert "Application startup complete" in log
    done = guest.run(["systemd-analyze", "verify", "--man=no", SERVICE])
    assert done.stderr == ""
    guest.run(["systemctl", "stop", SERVICE])
    assert state(guest) == "inactive"
    assert containers(guest, program) == []
    guest.run(["systemctl", "start", SERVICE])
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(guest) == []
    assert epyc_vllm("disable", "tiny-chat").returncode == 0
    assert containers(guest, program) == []
    assert guest.sh("ls /dev/shm | grep -v ^libpod_lock || true") == ""


def test_it_is_where_the_plan_has_it_or_says_so(
    guest: Guest, epyc_vllm: EpycVllm, program: str
) -> None:
    """docker only warns where it cannot limit, and starts the server on all CPUs."""
    enable(epyc_vllm, program, "--cores", "1")
    first = guest.sh(f"{program} inspect --format '{{{{.State.Pid}}}}' {CONTAINER}").strip()
    (told,) = json.loads(epyc_vllm("status", "--json").stdout)["endpoints"]
    (instance,) = told["instances"]
    cpus = re.search(r"Cpus_allowed_list:\t(.*)", guest.read(f"/proc/{first}/status"))
    assert cpus
    pinned = cpus[1] == "0"
    assert pinned == (instance["placement"] is None), instance
    assert pinned or f"it may use CPUs {cpus[1]}" in epyc_vllm("status").stdout


def test_it_is_back_after_a_reboot(guest: Guest, epyc_vllm: EpycVllm, program: str) -> None:
    enable(epyc_vllm, program)
    guest.reboot()
    guest.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=300)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0


def test_a_killed_client_leaves_no_container(
    guest: Guest, epyc_vllm: EpycVllm, program: str
) -> None:
    enable(epyc_vllm, program)
    pid = guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()
    guest.sh(f"kill -KILL {pid}")
    deadline = time.monotonic() + 120
    while state(guest) == "active" and time.monotonic() < deadline:
        time.sleep(0.5)
    assert state(guest) == "failed"
    assert containers(guest, program) == []
    assert guest.sh("pgrep -f '[v]llm serve' || true") == ""
    assert len(reports(guest)) == 1


def test_a_stop_while_loading_is_quick(guest: Guest, epyc_vllm: EpycVllm, program: str) -> None:
    enable(epyc_vllm, program)
    guest.run(["systemctl", "stop", SERVICE])
    guest.sh(f"sed -i 's/ --env=VLLM_CACHE_ROOT/ --env=STANDIN_LOAD_SECONDS=600&/' {UNIT}")
    guest.run(["systemctl", "daemon-reload"])
    guest.run(["systemctl", "start", "--no-block", SERVICE])
    time.sleep(5)
    assert state(guest) == "activating"
    began = time.monotonic()
    guest.run(["systemctl", "stop", SERVICE])
    assert time.monotonic() - began < 20
    assert state(guest) == "inactive"
    assert containers(guest, program) == []
    assert reports(guest) == []


def test_a_foreign_container_of_the_same_name_stays(
    guest: Guest, epyc_vllm: EpycVllm, program: str
) -> None:
    guest.sh(f"{program} load --input {parts.IMAGES}/standin.tar", timeout=300)
    guest.sh(f"{program} create --name {CONTAINER} --entrypoint sleep {image.NAME} 3600")
    try:
        done = epyc_vllm(
            *("enable", MODEL, "--runtime", program, "--image", image.NAME, *SMALL, "--yes")
        )
        assert done.returncode == 3
        assert f"there is a container {CONTAINER} that epyc-vllm did not make" in done.stderr
        assert containers(guest, program) == [CONTAINER]
    finally:
        guest.sh(f"{program} rm --force {CONTAINER}")


def test_a_daemon_that_does_not_answer(guest: Guest, epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm("enable", MODEL, "--runtime", "docker", "--image", image.NAME, "--yes")
    assert done.returncode == 3
    assert "docker's daemon does not answer" in done.stderr
    assert "systemctl enable --now docker.service" in done.stderr
