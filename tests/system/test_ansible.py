"""The role of packaging/ansible by real ansible-core, over ssh, as a fleet is run."""

import json
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.guest import parts, sshd
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm, Standin

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

WORK = "/root/ansible"
FOLDER = "/etc/epyc-vllm/endpoints.d"
PATH = "epyc-vllm-apply.path"
RUNS = "journalctl -b -o cat -u epyc-vllm-apply.service --grep '^Starting' || true"
PLAY = """\
- hosts: all
  gather_facts: false
  roles:
    - role: epyc_vllm
"""
INVENTORY = f"box ansible_host=127.0.0.1 ansible_port={sshd.PORT} ansible_user=root\n"
CHAT = {
    "name": "chat",
    "model": "example/tiny-chat",
    "environment": str(parts.STANDIN),
    "kv_gib": 1,
    "cores": 1,
}
BASE = CHAT | {"name": "base", "model": "example/tiny-base"}


@pytest.fixture
def fleet(guest: Guest) -> Iterator[Guest]:
    """The guest as its own fleet of one: Ansible in it, and itself behind ssh."""
    guest.sh(f"rm -rf {WORK}; mkdir {WORK}")
    sshd.open_root(guest)
    guest.write(f"{WORK}/site.yml", PLAY)
    guest.write(f"{WORK}/hosts", INVENTORY)
    yield guest
    sshd.close(guest)
    guest.run(["systemctl", "disable", "--now", PATH])
    guest.sh(f"rm -rf {WORK}")


def play(
    fleet: Guest, endpoints: list[dict[str, Any]], *options: str, **variables: Any
) -> CompletedProcess[str]:
    """A run of the role; any outcome is fine."""
    given = {
        "epyc_vllm_package": "",
        "epyc_vllm_endpoints": endpoints,
        **variables,
    }
    fleet.write(f"{WORK}/variables.json", json.dumps(given))
    return fleet.run(
        [
            *("/usr/bin/python3", f"{parts.ANSIBLE}/bin/ansible-playbook", "-i", f"{WORK}/hosts"),
            *(f"{WORK}/site.yml", "-e", f"@{WORK}/variables.json", *options),
        ],
        environment={
            "LC_ALL": "C.UTF-8",  # it refuses any other encoding
            "PYTHONPATH": str(parts.ANSIBLE),
            "ANSIBLE_ROLES_PATH": str(parts.ROLES),
            "ANSIBLE_HOST_KEY_CHECKING": "false",
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_PIPELINING": "true",
        },
        check=False,
        timeout=600,
    )


def changed(done: CompletedProcess[str]) -> bool:
    """Whether the run that went well changed the host, by its own recap."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " failed=0 " in done.stdout
    return " changed=0 " not in done.stdout


def serving(epyc_vllm: EpycVllm, *names: str) -> bool:
    shown = json.loads(epyc_vllm("status", "--json").stdout)["endpoints"]
    found = {item["name"]: {i["health"] for i in item["instances"]} for item in shown}
    return found == {name: {"healthy"} for name in names}


def test_a_host_follows_its_list(fleet: Guest, epyc_vllm: EpycVllm) -> None:
    """Each state: check mode tells the truth, the first run changes, the second does nothing."""
    for endpoints in ([CHAT], [CHAT, BASE], [CHAT | {"max_model_len": 512}, BASE], [BASE], []):
        names = [str(endpoint["name"]) for endpoint in endpoints]
        before = fleet.sh(f"ls -l --time-style=full-iso {FOLDER} /etc/systemd/system")
        assert changed(play(fleet, endpoints, "--check", "--diff"))
        assert fleet.sh(f"ls -l --time-style=full-iso {FOLDER} /etc/systemd/system") == before
        assert changed(play(fleet, endpoints, epyc_vllm_restart=True))
        assert serving(epyc_vllm, *names)
        assert not changed(play(fleet, endpoints, "--check", "--diff"))
        assert not changed(play(fleet, endpoints))
    left = "find /etc/systemd/system -name 'epyc-vllm-*' ! -name epyc-vllm-watchdog.service"
    assert fleet.sh(left) == ""
    fleet.sh("test -d /var/lib/epyc-vllm/models/models--example--tiny-chat")


def test_it_is_the_same_where_files_are_applied_by_themselves(
    fleet: Guest, epyc_vllm: EpycVllm
) -> None:
    """Two endpoints at once get what they get in one run, and nothing else applies them."""
    made = []
    before = fleet.sh(RUNS)
    for verb, state in (("disable", "inactive"), ("enable", "active")):
        fleet.run(["systemctl", verb, "--now", PATH])
        assert changed(play(fleet, [CHAT, BASE]))
        assert serving(epyc_vllm, "chat", "base")
        made.append(fleet.sh("tail -n +1 /etc/systemd/system/epyc-vllm-*"))
        assert not changed(play(fleet, [CHAT, BASE], "--check", "--diff"))
        assert not changed(play(fleet, [CHAT, BASE]))
        assert changed(play(fleet, []))
        assert serving(epyc_vllm)
        assert fleet.run(["systemctl", "is-active", PATH], check=False).stdout.strip() == state
    assert made[0] == made[1]
    assert fleet.sh(RUNS) == before


def test_the_diff_shows_the_file(fleet: Guest) -> None:
    done = play(fleet, [CHAT], "--check", "--diff")
    assert '+model = "example/tiny-chat"' in done.stdout
    assert "+kv_gib = 1" in done.stdout


def test_a_file_of_somebody_elses_stays(fleet: Guest, epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm(
        *("enable", "example/tiny-base", "--name", "own", "--kv-gib", "1", "--cores", "1"),
        *("--environment", str(parts.STANDIN), "--yes"),
    )
    assert done.returncode == 0, done.stderr
    assert changed(play(fleet, [CHAT]))
    assert serving(epyc_vllm, "chat", "own")
    assert changed(play(fleet, []))
    assert serving(epyc_vllm, "own")


def test_values_arrive_as_they_were_given(
    fleet: Guest, epyc_vllm: EpycVllm, standin: Standin
) -> None:
    given = CHAT | {
        "throughput": False,
        "vllm_args": ["--odd", "a b"],
        "env": {"FIRST": "1", "SECOND": "two words"},
        "sockets": [0],
    }
    assert changed(play(fleet, [given]))
    shown = json.loads(epyc_vllm("plan", "chat", "--json").stdout)
    assert shown["instances"][0]["socket"] == 0
    record = standin.record("chat-s0")
    assert record["argv"][-2:] == ["--odd", "a b"]
    assert (record["environ"]["FIRST"], record["environ"]["SECOND"]) == ("1", "two words")


def test_what_is_wrong_fails_and_changes_nothing(fleet: Guest, epyc_vllm: EpycVllm) -> None:
    assert changed(play(fleet, [CHAT]))
    done = play(fleet, [CHAT, BASE | {"core": 1}])
    assert done.returncode != 0
    assert "unknown key 'core'" in done.stdout
    assert serving(epyc_vllm, "chat", "base") is False
    assert epyc_vllm("verify", "chat").returncode == 0
    done = play(fleet, [CHAT, CHAT])
    assert done.returncode != 0
    assert "a name of its own" in done.stdout
