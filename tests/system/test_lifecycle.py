"""What a sysadmin does with an endpoint, on the stand-in server: it needs a second to load."""

import json
import re
import time

import pytest

from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin

pytestmark = pytest.mark.timeout(600)

MODEL = "example/tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"
TARGET = "epyc-vllm-tiny-chat.target"
ALL = "epyc-vllm.target"


def enable(epyc_vllm: EpycVllm, *flags: str) -> None:
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", *flags)
    assert done.returncode == 0, done.stderr


def state(guest: Guest, unit: str) -> str:
    """Its active state, once a stop that is under way has ended."""
    deadline = time.monotonic() + 60
    while True:
        found = guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()
        if found != "deactivating" or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def reports(guest: Guest) -> list[str]:
    return guest.sh("ls /var/lib/epyc-vllm/reports").split()


@pytest.mark.parametrize("unit", [SERVICE, TARGET, ALL])
def test_stop_and_start_of_instance_endpoint_and_all(
    guest: Guest, epyc_vllm: EpycVllm, unit: str
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", unit])
    assert state(guest, SERVICE) == "inactive"
    assert guest.sh("ss -Hltn 'sport = :8000'") == ""
    guest.run(["systemctl", "start", unit])
    # The start job ends when the server has answered, so it is up at once.
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    guest.run(["systemctl", "restart", unit])
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(guest) == []


def test_an_instance_started_alone_is_stopped_with_all(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", ALL])
    assert state(guest, SERVICE) == "inactive"
    guest.run(["systemctl", "start", SERVICE])
    assert state(guest, SERVICE) == "active"
    guest.run(["systemctl", "stop", ALL])
    assert state(guest, SERVICE) == "inactive"


def test_a_stop_at_once_followed_by_a_start_is_no_failure(
    guest: Guest, epyc_vllm: EpycVllm
) -> None:
    enable(epyc_vllm)
    guest.sh(f"systemctl stop --no-block {SERVICE}; systemctl start {SERVICE}")
    assert state(guest, SERVICE) == "active"
    assert reports(guest) == []


def test_a_stop_while_loading_is_quick_and_no_failure(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    standin.behave(load_seconds=300)
    guest.run(["systemctl", "start", "--no-block", SERVICE])
    time.sleep(3)
    assert state(guest, SERVICE) == "activating"
    began = time.monotonic()
    guest.run(["systemctl", "stop", SERVICE])
    assert time.monotonic() - began < 14  # TimeoutStopSec is 15
    assert state(guest, SERVICE) == "inactive"
    assert reports(guest) == []


def test_boot_starts_it_and_does_not_wait_for_it(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])  # a stopped one comes back too: it is enabled
    guest.reboot()  # returns when multi-user.target is active
    guest.run(["systemctl", "is-system-running", "--wait"], check=False)
    assert state(guest, SERVICE) == "active"
    chain = guest.sh("systemd-analyze critical-chain multi-user.target")
    assert "multi-user.target @" in chain
    assert "tiny-chat" not in chain  # the watchdog may be in it: it is up in a moment


def test_disabled_target_stays_down_after_a_reboot(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    guest.run(["systemctl", "disable", TARGET])
    guest.reboot()
    guest.run(["systemctl", "is-system-running", "--wait"], check=False)
    assert state(guest, SERVICE) == "inactive"


def test_units_pass_systemd_analyze_verify(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    done = guest.run(["systemd-analyze", "verify", "--man=no", SERVICE, TARGET, ALL])
    assert done.stderr == ""


def test_a_server_is_shut_in(guest: Guest, epyc_vllm: EpycVllm) -> None:
    """systemd's own score, of 10 for a service that may do anything."""
    enable(epyc_vllm)
    told = guest.sh(f"systemd-analyze security --no-pager {SERVICE}").splitlines()[-1]
    score = re.search(r"exposure level for \S+: ([\d.]+)", told)
    assert score, told
    assert float(score[1]) <= 4.0


def test_readiness_names_the_platform_and_what_it_is_given(
    guest: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    enable(epyc_vllm, "--max-model-len", "1024")
    record = standin.record("tiny-chat-s0")
    assert record["environ"]["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert record["environ"]["HF_HUB_OFFLINE"] == "1"
    assert "libtcmalloc_minimal.so.4" in record["environ"]["LD_PRELOAD"]
    assert record["uid"] != 0
    argv = record["argv"]
    assert argv[argv.index("--max-model-len") + 1] == "1024"
    assert "HF_TOKEN" not in record["environ"]


def test_taskset_serves_where_numactl_is_missing(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.sh("mv /usr/bin/numactl /usr/bin/numactl.away")
    try:
        done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", "--cores", "1")
        assert done.returncode == 0, done.stderr
        assert "numactl is missing: CPUs are pinned by taskset" in done.stderr
        pid = guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()
        assert "Cpus_allowed_list:\t0\n" in guest.read(f"/proc/{pid}/status")
        guest.sh("mv /usr/bin/taskset /usr/bin/taskset.away")
        done = epyc_vllm("enable", MODEL, "--yes")
        assert done.returncode == 0, done.stderr
        assert "the server runs unpinned" in done.stderr
    finally:
        guest.sh("cd /usr/bin; for f in *.away; do mv $f ${f%.away}; done")


def test_admin_edits_of_the_file_stay(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    path = "/etc/epyc-vllm/endpoints.d/tiny-chat.toml"
    mine = "# kept for the night shift\n" + guest.read(path) + 'vllm_args = ["--seed", "7"]\n'
    guest.write(path, mine)
    enable(epyc_vllm, "--max-model-len", "512")
    assert guest.read(path) == mine + "max_model_len = 512\n"
    pid = guest.sh(f"systemctl show -P MainPID {SERVICE}").strip()
    argv = guest.read(f"/proc/{pid}/cmdline").split("\0")
    assert argv[argv.index("--seed") + 1] == "7"
    assert argv[argv.index("--max-model-len") + 1] == "512"


def test_disable_takes_only_what_enable_made(guest: Guest, epyc_vllm: EpycVllm) -> None:
    foreign = "/etc/systemd/system/epyc-vllm-tiny-chat-s9.service"
    guest.write(foreign, "[Service]\nExecStart=/bin/true\n")
    enable(epyc_vllm)
    done = epyc_vllm("disable", "tiny-chat", "--json")
    removed = json.loads(done.stdout)["removed"]
    assert done.returncode == 0
    assert foreign not in removed
    assert guest.read(foreign).startswith("[Service]")
    listing = guest.sh("find /etc/systemd/system /etc/epyc-vllm/endpoints.d -name '*tiny-chat*'")
    assert listing.split() == [foreign]
    assert epyc_vllm("disable", "tiny-chat").returncode == 2


def test_an_api_key_is_asked_for_and_used(guest: Guest, epyc_vllm: EpycVllm) -> None:
    open_address = ("--address", "0.0.0.0")
    done = epyc_vllm("enable", MODEL, *ENVIRONMENT, "--yes", *open_address)
    assert done.returncode == 3
    assert "open-address" in done.stderr
    guest.write("/etc/epyc-vllm/key", "VLLM_API_KEY=planted-key-4711\n", mode=0o600)
    enable(epyc_vllm, *open_address, "--api-key-file", "/etc/epyc-vllm/key")
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    shown = epyc_vllm("show", "tiny-chat").stdout
    assert "$VLLM_API_KEY" in shown
    places = "/etc/systemd /var/lib/epyc-vllm /etc/epyc-vllm/endpoints.d /run/epyc-vllm"
    # The shell puts the word together: systemd logs the command line that looks for it.
    script = f"word=planted-key-; word+=4711; grep -rl $word {places}; journalctl | grep -c $word"
    assert guest.sh(script, check=False).split() == ["0"]
