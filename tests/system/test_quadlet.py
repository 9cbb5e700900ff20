"""An endpoint in a podman quadlet: the stand-in server in an image, as a sysadmin uses it."""

import json
import re
import time

import pytest

from tests import golden
from tests.guest import image, parts
from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, SMALL, EpycVllm
from tests.unitsyntax import split

pytestmark = pytest.mark.timeout(900)

MODEL = "example/tiny-chat"
QUADLET = "/etc/containers/systemd/epyc-vllm-tiny-chat-s0.container"
SERVICE, TARGET = "epyc-vllm-tiny-chat-s0.service", "epyc-vllm-tiny-chat.target"
CONTAINER = "epyc-vllm-tiny-chat-s0"
PODMAN = ("--runtime", "podman", "--image", image.NAME, *SMALL)
ARCHIVE = f"{parts.IMAGES}/standin.tar"
PACKAGED = "/usr/bin/epyc-vllm"  # where the kept sets of units have the program
GENERATOR = "/usr/lib/systemd/system-generators/podman-system-generator"


# What tells of the controller: the root's file, and a hierarchy of v1 where the machine has one.
WITHOUT_CPUSET = """
sed 's/cpuset//' /sys/fs/cgroup/cgroup.controllers > /run/controllers
mount --bind /run/controllers /sys/fs/cgroup/cgroup.controllers
umount /run/cpuset-v1 2>/dev/null || true
"""
WITH_CPUSET = """
umount /sys/fs/cgroup/cgroup.controllers
[ ! -d /run/cpuset-v1 ] || mount -t cgroup -o cpuset cpuset /run/cpuset-v1
"""


@pytest.fixture(autouse=True)
def _image(guest: Guest) -> None:
    guest.run(["podman", "load", "--quiet", "--input", ARCHIVE], timeout=300)


def enable(epyc_vllm: EpycVllm, *flags: str) -> str:
    done = epyc_vllm("enable", MODEL, *PODMAN, "--yes", *flags)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refused(epyc_vllm: EpycVllm, *flags: str) -> tuple[int, str]:
    """The exit code and the one sentence that the command says for itself."""
    done = epyc_vllm("enable", MODEL, "--yes", *flags)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("epyc-vllm: ")]
    return done.returncode, line


def state(guest: Guest, unit: str = SERVICE) -> str:
    deadline = time.monotonic() + 120
    while True:
        found = guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()
        if found != "deactivating" or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def containers(guest: Guest) -> list[str]:
    return guest.sh("podman ps --all --format '{{.Names}}'").split()


def quadlets(guest: Guest) -> list[str]:
    return guest.sh("find /etc/containers/systemd -type f").split()


def server(guest: Guest) -> int:
    """The server's process as the guest numbers it."""
    first = guest.sh(f"podman inspect --format '{{{{.State.Pid}}}}' {CONTAINER}").strip()
    return int(guest.sh(f"pgrep --parent {first}").split()[0])


def environ(guest: Guest) -> dict[str, str]:
    text = guest.read(f"/proc/{server(guest)}/environ")
    return dict(entry.split("=", 1) for entry in text.rstrip("\0").split("\0"))


def reports(guest: Guest) -> list[str]:
    return guest.sh("ls /var/lib/epyc-vllm/reports").split()


def test_a_whole_life(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert "no changes" in enable(epyc_vllm)
    guest.run(["systemctl", "stop", SERVICE])
    assert state(guest) == "inactive"
    assert containers(guest) == []
    guest.run(["systemctl", "start", TARGET])
    assert epyc_vllm("verify", "tiny-chat").returncode == 0  # the start job waited for it
    guest.run(["systemctl", "restart", SERVICE])
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    guest.reboot()
    guest.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=300)
    assert epyc_vllm("verify", "tiny-chat").returncode == 0
    assert reports(guest) == []
    done = epyc_vllm("disable", "tiny-chat")
    assert done.returncode == 0
    assert QUADLET in done.stdout
    assert quadlets(guest) == []
    assert guest.run(["systemctl", "cat", SERVICE], check=False).returncode != 0
    assert containers(guest) == []
    assert guest.sh("ls /dev/shm | grep -v ^libpod_lock || true") == ""
    assert guest.sh("ls /var/cache/epyc-vllm | grep tiny || true") == ""
    assert guest.sh("ss -Hltn 'sport = :8000'") == ""


def test_what_runs_is_what_was_planned(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm, "--max-model-len", "1024")
    argv = guest.read(f"/proc/{server(guest)}/cmdline").rstrip("\0").split("\0")
    assert argv[argv.index("serve") + 1].startswith("/root/.cache/huggingface/models--example")
    assert argv[argv.index("--max-model-len") + 1] == "1024"
    assert argv[argv.index("--served-model-name") + 1] == MODEL
    assert "--device" not in argv
    found = environ(guest)
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert found["HF_HUB_OFFLINE"] == "1"
    host = json.loads(guest.sh(f"podman inspect {CONTAINER}"))[0]
    assert host["HostConfig"]["IpcMode"] == "host"
    assert host["HostConfig"]["NetworkMode"] == "host"
    assert "CAP_SYS_NICE" in host["EffectiveCaps"]
    assert (host["HostConfig"]["CpusetCpus"], host["HostConfig"]["CpusetMems"]) == ("0-1", "0")
    mounts = {mount["Destination"]: mount for mount in host["Mounts"]}
    assert mounts["/root/.cache/huggingface"]["RW"] is False
    assert mounts["/root/.cache/huggingface"]["Source"] == "/var/lib/epyc-vllm/models"
    assert "vllm-0.32.0" in mounts["/var/cache/epyc-vllm"]["Source"]
    status = guest.read(f"/proc/{server(guest)}/status")
    assert "Cpus_allowed_list:\t0-1\n" in status
    (shown,) = json.loads(epyc_vllm("status", "--json").stdout)["endpoints"]
    assert shown["instances"][0]["placement"] is None


def test_the_stack_is_asked_in_the_image(guest: Guest, epyc_vllm: EpycVllm) -> None:
    """The stand-in's platform goes by cpuinfo and zentorch, as vLLM's does."""
    made = json.loads(epyc_vllm("plan", MODEL, *PODMAN, "--json").stdout)
    assert made["versions"]["platform"].endswith("ZenCpuPlatform")
    guest.cpuinfo("milan")
    code, line = refused(epyc_vllm, *PODMAN)
    assert code == 3
    assert "stock-cpu" in line


def test_auto_takes_the_quadlet_where_its_image_is(guest: Guest, epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm("enable", MODEL, "--image", image.NAME, "--yes", *SMALL)
    assert done.returncode == 0, done.stderr
    assert guest.read(QUADLET).startswith("# Written by epyc-vllm")
    # and moves to the host and back with its files
    done = epyc_vllm("enable", MODEL, "--runtime", "host", *ENVIRONMENT, "--yes")
    assert done.returncode == 0, done.stderr
    assert quadlets(guest) == []
    assert containers(guest) == []
    enable(epyc_vllm)
    assert containers(guest) == [CONTAINER]
    assert guest.sh(f"ls /etc/systemd/system/{SERVICE}", check=False) == ""


def test_an_entrypoint_that_serves_gets_arguments_only(guest: Guest, epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm(
        *("enable", MODEL, "--image", image.SERVES, "--yes", *SMALL),
        *("--image-archive", f"{parts.IMAGES}/serves.tar"),
    )
    assert done.returncode == 0, done.stderr
    argv = guest.read(f"/proc/{server(guest)}/cmdline").split("\0")
    assert argv.count("serve") == 1


def test_an_archive_without_a_name_gets_the_endpoints(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.sh("podman image rm --all --force")
    done = epyc_vllm(
        *("enable", MODEL, "--image", image.NAME, "--yes", *SMALL),
        *("--image-archive", f"{parts.IMAGES}/nameless.tar"),
    )
    assert done.returncode == 0, done.stderr
    # The image is here: nothing is fetched.
    again = epyc_vllm("enable", MODEL, "--image", image.NAME, "--yes", *SMALL)
    assert "no changes" in again.stderr


@pytest.mark.parametrize("archive", ["standin", "serves"])
def test_a_key_reaches_the_server_and_nobody_else(
    guest: Guest, epyc_vllm: EpycVllm, archive: str
) -> None:
    name = image.NAME if archive == "standin" else image.SERVES
    guest.write("/etc/epyc-vllm/key", "VLLM_API_KEY=planted$(x)-4712\n", mode=0o600)
    done = epyc_vllm(
        *("enable", MODEL, "--image", name, "--image-archive", f"{parts.IMAGES}/{archive}.tar"),
        *("--yes", "--address", "0.0.0.0", "--api-key-file", "/etc/epyc-vllm/key"),
    )
    assert done.returncode == 0, done.stderr
    assert environ(guest)["VLLM_API_KEY"] == "planted$(x)-4712"
    assert guest.sh("stat -c %a /run/epyc-vllm/tiny-chat-s0.key") == "600\n"
    places = "/etc/systemd /etc/containers /var/lib/epyc-vllm /run/systemd/generator"
    script = f"word='planted$(x)'; word+=-4712; grep -rlF -- \"$word\" {places}; "
    script += 'journalctl | grep -cF -- "$word"; '
    script += f'podman inspect {CONTAINER} | grep -cF -- "$word"'
    assert guest.sh(script, check=False).split() == ["0", "0"]
    guest.run(["systemctl", "stop", SERVICE])
    assert guest.sh("ls /run/epyc-vllm/*.key", check=False) == ""


class TestEnds:
    def test_a_stop_while_loading_is_quick_and_no_failure(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        enable(epyc_vllm)
        guest.run(["systemctl", "stop", SERVICE])
        guest.sh(f"sed -i 's/^Exec=/Environment=STANDIN_LOAD_SECONDS=600\\n&/' {QUADLET}")
        guest.run(["systemctl", "daemon-reload"])
        guest.run(["systemctl", "start", "--no-block", SERVICE])
        time.sleep(5)
        assert state(guest) == "activating"
        began = time.monotonic()
        guest.run(["systemctl", "stop", SERVICE])
        assert time.monotonic() - began < 14
        assert state(guest) == "inactive"
        assert containers(guest) == []
        assert reports(guest) == []

    @pytest.mark.parametrize("who", ["VLLM::EngineCor", "VLLM::Worker", "vllm", "conmon"])
    def test_a_death_is_a_failure_and_leaves_nothing(
        self, guest: Guest, epyc_vllm: EpycVllm, who: str
    ) -> None:
        enable(epyc_vllm)
        guest.sh(f"pkill -KILL -x '{who}'")
        deadline = time.monotonic() + 120
        while state(guest) == "active" and time.monotonic() < deadline:
            time.sleep(0.5)
        assert state(guest) == "failed"
        assert len(reports(guest)) == 1
        assert containers(guest) == []
        assert guest.sh("pgrep -f '[v]llm serve' || true") == ""
        guest.run(["systemctl", "start", SERVICE])
        assert epyc_vllm("verify", "tiny-chat").returncode == 0

    def test_a_start_that_fails_names_its_cause(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        guest.write(
            "/etc/epyc-vllm/endpoints.d/tiny-chat.toml",
            f'model = "{MODEL}"\nruntime = "podman"\nimage = "{image.NAME}"\nkv_gib = 1\n'
            'env = { STANDIN_FAIL_LOADING = "1", STANDIN_MESSAGE = "InvalidCxxCompiler: none" }\n',
        )
        done = epyc_vllm("enable", "tiny-chat", "--yes")
        assert done.returncode == 1
        assert "there is no C++ compiler" in done.stderr
        assert "log lines of tiny-chat-s0" in done.stderr
        assert quadlets(guest) == []
        assert containers(guest) == []


class TestRefused:
    def test_an_image_that_is_not_to_be_had(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        code, line = refused(epyc_vllm, "--runtime", "podman", "--image", "localhost/none:1")
        assert code == 1
        assert "the image localhost/none:1 cannot be fetched" in line
        assert quadlets(guest) == []

    @pytest.mark.parametrize(
        ("archive", "reason"),
        [
            ("/srv/corrupt.tar", "cannot load /srv/corrupt.tar"),
            ("/srv/missing.tar", "there is no file /srv/missing.tar"),
            (f"{parts.IMAGES}/serves.tar", "holds localhost/vllm-standin-serves:1, not"),
        ],
    )
    def test_an_archive_that_is_of_no_use(
        self, guest: Guest, epyc_vllm: EpycVllm, archive: str, reason: str
    ) -> None:
        guest.sh(f"head -c 3000000 {ARCHIVE} > /srv/corrupt.tar")
        code, line = refused(epyc_vllm, *PODMAN, "--image-archive", archive)
        assert code == 1
        assert reason in line
        assert quadlets(guest) == []
        left = "ls /etc/epyc-vllm/endpoints.d /var/lib/epyc-vllm/plans | grep tiny || true"
        assert guest.sh(left) == ""

    def test_a_foreign_container_of_the_same_name_stays(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        guest.sh(f"podman create --name {CONTAINER} --entrypoint /usr/bin/sleep {image.NAME} 3600")
        try:
            code, line = refused(epyc_vllm, *PODMAN)
            assert code == 3
            assert f"there is a container {CONTAINER} that epyc-vllm did not make" in line
            assert containers(guest) == [CONTAINER]
        finally:
            guest.sh(f"podman rm --force --time 0 {CONTAINER}")

    def test_what_the_generator_refuses_changes_nothing(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        enable(epyc_vllm)
        before = guest.read(QUADLET)
        real = guest.sh(f"readlink -f {GENERATOR}").strip()
        guest.sh(f"mv {real} {real}.real")
        guest.write(
            real,
            "#!/bin/sh\n"
            "echo \"quadlet-generator[1]: unsupported key 'RunInit' in group 'Container'\" >&2\n"
            "exit 1\n",
            mode=0o755,
        )
        try:
            code, line = refused(epyc_vllm, *PODMAN, "--max-model-len", "512")
        finally:
            guest.sh(f"mv {real}.real {real}")
        assert code == 1
        assert "unsupported key 'RunInit'" in line
        assert guest.read(QUADLET) == before
        assert state(guest) == "active"
        assert epyc_vllm("verify", "tiny-chat").returncode == 0

    def test_an_image_that_went_away_before_a_start(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        enable(epyc_vllm)
        guest.run(["systemctl", "stop", SERVICE])
        guest.sh("podman image rm --all --force")
        assert guest.run(["systemctl", "start", SERVICE], check=False).returncode != 0
        log = guest.sh(f"journalctl -u {SERVICE} -o cat")
        assert "is not on this host any more" in log
        assert "run `epyc-vllm enable tiny-chat`" in log

    def test_a_port_that_is_taken_at_the_start(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        enable(epyc_vllm)
        before = guest.read(QUADLET)
        guest.run(["systemctl", "stop", SERVICE])
        guest.sh("systemd-run -q --collect --unit=squatter python3 -m http.server 8000")
        guest.sh(
            "for n in $(seq 300); do ss -Hltn 'sport = :8000' | grep -q . && exit; sleep .1; done"
        )
        try:
            assert guest.run(["systemctl", "start", SERVICE], check=False).returncode != 0
            assert "port 8000 is in use by another program" in epyc_vllm("report").stdout
            assert containers(guest) == []
        finally:
            guest.run(["systemctl", "stop", "squatter"])
        assert guest.read(QUADLET) == before
        guest.run(["systemctl", "start", SERVICE])
        assert epyc_vllm("verify", "tiny-chat").returncode == 0


def test_without_the_cpuset_controller(guest: Guest, epyc_vllm: EpycVllm) -> None:
    """It starts unpinned and says so: before the launch, after it, and in status."""
    guest.sh(WITHOUT_CPUSET)
    try:
        said = enable(epyc_vllm, "--cores", "1")
        shown = epyc_vllm("status").stdout
    finally:
        guest.sh(WITH_CPUSET)
    assert "the cpuset controller is not there" in said
    assert "--cpuset" not in guest.read(QUADLET)
    assert "tiny-chat-s0 is not where the plan has it: it may use CPUs 0-1" in said
    assert "it may use CPUs 0-1" in shown


def text(value: object) -> str:
    """JSON's strings and lists are TOML's."""
    return json.dumps(value, ensure_ascii=False)


def test_words_arrive_unchanged(guest: Guest, epyc_vllm: EpycVllm) -> None:
    odd = (
        *("two words", 'double " quote', "single ' quote", "100% %n %% %H", "$HOME ${PATH} $$"),
        *("back\\slash \\n \\x41 trailing\\", "gemütlich 模型 🙂", "a;b", "#comment", "{{ x }}"),
        *("<&>|*?[]~`!", "@", "-", ":x", "+"),
    )
    values = {f"ODD_{number}": word for number, word in enumerate(odd)}
    lines = [
        f'model = "{MODEL}"',
        'runtime = "podman"',
        f'image = "{image.NAME}"',
        f"vllm_args = {text([part for word in odd for part in ('--odd', word)])}",
        "env = { " + ", ".join(f"{key} = {text(word)}" for key, word in values.items()) + " }",
    ]
    guest.write("/etc/epyc-vllm/endpoints.d/tiny-chat.toml", "\n".join(lines) + "\n")
    done = epyc_vllm("enable", "tiny-chat", "--yes")
    assert done.returncode == 0, done.stderr
    argv = guest.read(f"/proc/{server(guest)}/cmdline").rstrip("\0").split("\0")
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--odd"] == list(odd)
    found = environ(guest)
    assert [found[name] for name in values] == list(odd)


def test_the_generated_service_is_whole(guest: Guest, epyc_vllm: EpycVllm) -> None:
    enable(epyc_vllm)
    made = guest.sh(f"systemctl cat {SERVICE}")
    (command,) = re.findall(r"^ExecStart=(.*)$", made, re.MULTILINE)
    run = split(command)
    assert run[:2] == ["/usr/bin/podman", "run"]
    assert {"--ipc=host", "--cpuset-cpus=0-1", "--cpuset-mems=0", "--init"} <= set(run)
    assert not [word for word in run if word.startswith("--shm-size")]
    (pinned,) = [word for word in run if "@sha256:" in word]
    assert pinned.startswith("localhost/vllm-standin@sha256:")
    assert not re.search("^[A-Z].*network-online.target", made, re.MULTILINE)
    done = guest.run(["systemd-analyze", "verify", "--generators=yes", "--man=no", SERVICE, TARGET])
    assert done.stderr == ""
    assert guest.sh(f"systemctl is-enabled {SERVICE}", check=False).strip() == "generated"


KEPT = golden.FOLDER / "quadlet"


@pytest.mark.parametrize("name", sorted(path.name for path in KEPT.iterdir()))
def test_the_kept_sets_pass_the_generator_and_verify(guest: Guest, name: str) -> None:
    """What is rendered for any podman: this one reads it, and systemd takes what it makes."""
    files = sorted((KEPT / name).iterdir())
    guest.sh("rm -rf /run/kept; mkdir -p /run/kept/quadlets /run/kept/units")
    try:
        for file in files:
            folder = "quadlets" if file.suffix == ".container" else "units"
            guest.write(f"/run/kept/{folder}/{file.name}", file.read_text())
        guest.sh(f'ln -s "$(command -v epyc-vllm)" {PACKAGED}')
        said = guest.sh(f"QUADLET_UNIT_DIRS=/run/kept/quadlets {GENERATOR} /run/kept/units 2>&1")
        assert said == ""
        services = {f"{file.stem}.service" for file in files if file.suffix == ".container"}
        assert services
        made = set(guest.sh("ls /run/kept/units").split())
        assert services <= made
        kinds = (".service", ".target")
        units = " ".join(f"/run/kept/units/{unit}" for unit in sorted(made) if unit.endswith(kinds))
        assert guest.sh(f"systemd-analyze verify --man=no {units} 2>&1") == ""
    finally:
        guest.sh(f"rm -rf /run/kept {PACKAGED}")
