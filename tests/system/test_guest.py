"""The test host itself: it boots, reboots, shows another machine's CPU, and runs the real vLLM."""

import json
import os
import signal
import subprocess
import time

import pytest

from tests.guest import environment, hub, models, parts
from tests.guest.boot import Guest, sweep
from tests.guest.machine import Machine
from tests.system.conftest import EpycVllm, Standin

PLATFORM = (
    "from vllm.platforms import current_platform as p; "
    "print(type(p).__module__ + '.' + type(p).__qualname__)"
)
ZEN = "vllm.platforms.zen_cpu.ZenCpuPlatform"
STOCK = "vllm.platforms.cpu.CpuPlatform"


def test_it_runs_systemd_and_nothing_has_failed(guest: Guest) -> None:
    assert guest.sh("systemctl is-system-running --wait").strip() == "running"
    assert guest.read("/proc/1/comm").strip() == "systemd"
    assert guest.read("/etc/debian_version").startswith("13")


def test_its_network_is_its_own(guest: Guest) -> None:
    links = json.loads(guest.sh("ip -json link"))
    assert [link["ifname"] for link in links] == ["lo"]


class TestCommands:
    def test_output_and_exit_code_come_back(self, guest: Guest) -> None:
        done = guest.run(["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
        assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")

    @pytest.mark.parametrize("word", ["$HOME", "%n", "a b", "'", '"', "\\", "ü", "*"])
    def test_arguments_arrive_unchanged(self, guest: Guest, word: str) -> None:
        assert guest.run(["printf", "%s", word]).stdout == word

    def test_they_run_in_a_cgroup_of_the_guest(self, guest: Guest) -> None:
        line = guest.run(["grep", "^0::", "/proc/self/cgroup"]).stdout
        assert line.startswith("0::/system.slice/outside-")

    def test_input_environment_and_user(self, guest: Guest) -> None:
        done = guest.run(
            ["sh", "-c", 'cat; printf "%s " "$A"; id -un'],
            stdin="in ", environment={"A": "b c"}, user="nobody",
        )  # fmt: skip
        assert done.stdout == "in b c nobody\n"

    def test_one_that_takes_too_long_is_ended(self, guest: Guest) -> None:
        with pytest.raises(subprocess.TimeoutExpired):
            guest.run(["sleep", "4242"], timeout=1)
        assert guest.run(["pgrep", "-x", "sleep"], check=False).returncode == 1


class TestCpuinfo:
    def test_services_see_a_genoa(self, guest: Guest) -> None:
        done = guest.run(
            ["grep", "-c", "AMD EPYC 9654 96-Core Processor", "/proc/cpuinfo"],
            properties=["ProtectKernelTunables=yes", "ProtectProc=invisible"],
        )
        assert int(done.stdout) == int(guest.run(["nproc", "--all"]).stdout)

    @pytest.mark.parametrize(
        ("kind", "seen"),
        [("milan", "AMD EPYC 7713 64-Core Processor"), ("intel", "Intel(R) Xeon(R) Gold 6330")],
    )
    def test_it_can_be_another_machine(self, guest: Guest, kind: str, seen: str) -> None:
        guest.cpuinfo(kind)
        assert seen in guest.sh("grep -m1 'model name' /proc/cpuinfo")


def test_files_and_the_processor_survive_a_reboot(guest: Guest) -> None:
    guest.write("/var/lib/kept", "here\n")
    guest.cpuinfo("milan")
    before = guest.read("/proc/sys/kernel/random/boot_id")
    guest.reboot()
    assert guest.read("/proc/sys/kernel/random/boot_id") != before
    assert guest.read("/var/lib/kept") == "here\n"
    assert "7713" in guest.sh("grep -m1 'model name' /proc/cpuinfo")
    assert guest.sh("systemctl is-system-running --wait").strip() == "running"
    assert len(guest.sh("journalctl --list-boots --quiet").splitlines()) >= 2


def test_the_hub_answers_until_a_reboot(guest: Guest) -> None:
    url = f"http://127.0.0.1:{hub.PORT}/api/models/{models.CHAT}"
    assert json.loads(guest.sh(f"curl -sf {url}"))["id"] == models.CHAT
    guest.reboot()
    assert not hub.running(guest)


class TestStandin:
    def test_it_serves_as_an_endpoint(
        self, guest: Guest, epyc_vllm: EpycVllm, standin: Standin
    ) -> None:
        done = epyc_vllm("enable", models.CHAT, "--yes", "--environment", standin.path)
        assert done.returncode == 0, done.stderr
        record = standin.record("tiny-chat-s0")
        assert record["argv"][0] == "serve"
        assert record["environ"]["HF_HUB_OFFLINE"] == "1"
        names = guest.sh("ps -C VLLM::EngineCor,VLLM::Worker -o comm=").split()
        assert sorted(names) == ["VLLM::EngineCor", "VLLM::Worker"]

    def test_a_dead_engine_ends_it_with_code_0(self, guest: Guest, standin: Standin) -> None:
        standin.behave(death_seconds=0.2)
        model = parts.MODELS / models.CHAT.replace("/", "__")
        process = guest.popen([f"{standin.path}/bin/vllm", "serve", str(model), "--port", "8123"])
        try:
            guest.sh("until curl -sf http://127.0.0.1:8123/health; do sleep .1; done", timeout=30)
            engine = guest.sh("ps -C VLLM::EngineCor -o pid=").strip()
            guest.run(["kill", "-KILL", engine])
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
            guest.sh("rm -f /dev/shm/psm_*")  # as vLLM's: no unit's private folder goes with it
        assert process.returncode == 0
        assert "EngineDeadError" in log


class TestRealVllm:
    @pytest.mark.parametrize("path", [environment.ZENTORCH, environment.STOCK])
    def test_it_tells_its_version(self, guest: Guest, path: object) -> None:
        done = guest.run([f"{path}/bin/vllm", "--version"], user="nobody", timeout=120)
        assert done.stdout.strip() == "0.32.0+cpu"

    @pytest.mark.parametrize(
        ("kind", "path", "platform"),
        [
            ("genoa", environment.ZENTORCH, ZEN),
            ("genoa", environment.STOCK, STOCK),
            ("milan", environment.ZENTORCH, STOCK),
        ],
    )
    def test_it_chooses_its_platform_by_cpu_and_zentorch(
        self, guest: Guest, kind: str, path: object, platform: str
    ) -> None:
        guest.cpuinfo(kind)
        done = guest.run([f"{path}/bin/python", "-c", PLATFORM], user="nobody", timeout=120)
        assert done.stdout.strip() == platform


class TestSeveralGuests:
    def test_a_second_one_runs_beside_the_first(self, guest: Guest) -> None:
        other = Guest(f"{guest.name}-other")
        try:
            began = time.monotonic()
            other.up("milan")
            assert time.monotonic() - began < 60
            other.write("/only-here", "")
            assert guest.run(["test", "-e", "/only-here"], check=False).returncode == 1
            assert "9654" in guest.sh("grep -m1 'model name' /proc/cpuinfo")
            assert other.sh("hostname").strip() == other.name
        finally:
            other.down()
        assert not other.running
        assert guest.running

    def test_one_whose_nspawn_was_killed_is_replaced(self, guest: Guest) -> None:
        other = Guest(f"{guest.name}-killed")
        try:
            other.up()
            other.write("/left", "")
            os.kill(int(Machine(other.name).nspawn_pid.read_text()), signal.SIGKILL)
            other.up()
            assert other.run(["test", "-e", "/left"], check=False).returncode == 1
        finally:
            other.down()

    def test_one_of_a_run_that_is_gone_is_swept_away(self, guest: Guest) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        other = Guest(f"{guest.name}-orphan")
        try:
            other.up(owner=gone.pid)
            sweep()
            assert not other.running
            assert guest.running
        finally:
            other.down()
