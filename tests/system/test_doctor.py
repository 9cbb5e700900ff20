"""doctor on a booted host: its verdicts with real vLLM, and that it leaves everything as it is."""

import itertools
import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.guest.boot import Guest
from tests.jsonschema import faults
from tests.system.conftest import EpycVllm

pytestmark = pytest.mark.timeout(1800)

SCHEMA = json.loads((Path(__file__).parents[2] / "data/doctor.schema.json").read_text())
PROBE = 900.0


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert list(faults(found, SCHEMA)) == []
    assert found["ready"] == (done.returncode == 0)
    assert done.returncode in (0, 5), done.stderr
    assert "Traceback" not in done.stderr
    return found


def codes(found: dict[str, Any], *severities: str) -> set[str]:
    return {finding["code"] for severity in severities for finding in found[severity]}


def test_a_host_that_is_fine(epyc_vllm: EpycVllm) -> None:
    found = answer(epyc_vllm("doctor", "--json", timeout=PROBE))
    assert found["ready"] is True
    assert found["requires_confirmation"] is False
    assert found["zentorch_capable"] is True
    assert found["compatibility"]["status"] == "proceed"
    assert found["conda_path_available"] is True
    assert found["runtime"] == "podman"
    assert found["stack"]["platform"] == found["prediction"]["platform"]
    assert found["hf_cache"]["path"] == "/var/lib/epyc-vllm/models"


@pytest.mark.parametrize(
    ("processor", "environment", "code", "status", "confirm", "error"),
    [
        ("genoa", "/opt/vllm-stock", 5, "blocked", False, "zentorch-not-active"),
        ("milan", "/opt/vllm", 0, "confirmation_required", True, None),
        ("milan", "/opt/vllm-stock", 0, "confirmation_required", True, None),
        ("intel", "/opt/vllm", 5, "blocked", False, "not-epyc"),
        ("genoa", "/opt/nothing", 0, None, False, None),
    ],
)
def test_verdicts(
    guest: Guest,
    epyc_vllm: EpycVllm,
    processor: str,
    environment: str,
    code: int,
    status: str | None,
    confirm: bool,
    error: str | None,
) -> None:
    guest.cpuinfo(processor)
    done = epyc_vllm("doctor", "--json", "--environment", environment, timeout=PROBE)
    found = answer(done)
    assert done.returncode == code
    assert found["compatibility"]["status"] == status
    assert found["requires_confirmation"] is confirm
    assert codes(found, "errors") == ({error} if error else set())
    if error:
        assert error in done.stderr


def test_gates_are_accepted_by_name(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.cpuinfo("intel")
    done = epyc_vllm("doctor", "--json", "--accept", "not-epyc", timeout=PROBE)
    assert (done.returncode, answer(done)["compatibility"]["status"]) == (0, "proceed")
    guest.cpuinfo("milan")
    done = epyc_vllm("doctor", "--json", "--accept", "stock-cpu", timeout=PROBE)
    assert answer(done)["requires_confirmation"] is False


# Names, sizes, owners and times of every file; not of those that the asking itself makes.
TREE = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp \
  -o -path /var/log/journal \) -prune -o -printf '%p %y %s %U %m %T@\n' | sort
find /run /tmp /dev/shm \( -path /run/systemd -o -path /run/dbus -o -path /run/user \
  -o -path /run/epyc-vllm -o -path /run/log \) -prune -o -printf '%p %y %s %U %m\n' \
  | grep -v outside | sort
"""
UNITS = "systemctl list-units --all --plain --no-legend | grep -v -e outside- -e test-hub | sort"


@pytest.mark.parametrize("environment", ["/opt/vllm", "/opt/vllm-stock"])
def test_nothing_is_changed(guest: Guest, epyc_vllm: EpycVllm, environment: str) -> None:
    guest.sh("rm -rf /var/cache/epyc-vllm/*")  # no probe is remembered
    trees, units = [], []
    for _ in range(2):
        trees.append(guest.sh(TREE))
        units.append(guest.sh(UNITS))
        epyc_vllm("doctor", "--environment", environment, timeout=PROBE)
    trees.append(guest.sh(TREE))
    units.append(guest.sh(UNITS))
    assert len(trees[0].splitlines()) > 1000
    for before, after in itertools.pairwise(trees):
        assert set(before.splitlines()) ^ set(after.splitlines()) == set()
    assert units[0] == units[1] == units[2]


def test_what_is_missing_is_told(guest: Guest) -> None:
    """Without compiler and numactl, and with the models behind a link."""
    script = """
    for program in /usr/bin/g++ /usr/bin/numactl; do
      mount --bind /dev/null "$(readlink -f $program)"
    done
    mkdir -p /run/linked && mount -t tmpfs tmpfs /run/linked
    mount --bind /run/linked /var/lib/epyc-vllm/models
    exec epyc-vllm doctor --json
    """
    done = guest.run(["unshare", "--mount", "sh", "-c", script], check=False, timeout=PROBE)
    found = answer(done)
    assert {"no-compiler", "no-numactl"} <= codes(found, "errors", "warnings")
    assert found["hf_cache"]["filesystem"] == "tmpfs"


def test_the_cache_behind_a_link_is_named_by_its_real_path(
    guest: Guest, epyc_vllm: EpycVllm
) -> None:
    models = "/var/lib/epyc-vllm/models"
    guest.sh(f"mkdir -p /srv/elsewhere && rmdir {models} 2>/dev/null || mv {models} /srv/kept")
    guest.sh(f"ln -s /srv/elsewhere {models}")
    try:
        found = answer(epyc_vllm("doctor", "--json", timeout=PROBE))
    finally:
        guest.sh(f"rm {models}; mv /srv/kept {models} 2>/dev/null || mkdir {models}")
        guest.sh("rmdir /srv/elsewhere")
    assert found["hf_cache"]["path"] == "/srv/elsewhere"
    assert found["hf_cache"]["mount"].startswith("-v /srv/elsewhere:")


def test_files_of_the_configuration_are_judged(guest: Guest, epyc_vllm: EpycVllm) -> None:
    folder = "/etc/epyc-vllm/endpoints.d"
    guest.write(f"{folder}/frozen.toml", 'model = "a/b"\nenv = { TORCHINDUCTOR_FREEZING = "1" }\n')
    guest.write(f"{folder}/odd.toml", 'modle = "a/b"\n')
    done = epyc_vllm("doctor", "--json", timeout=PROBE)
    assert done.returncode == 5
    assert {"freezing-alone", "config-invalid"} <= codes(answer(done), "errors")


def test_as_an_ordinary_user(epyc_vllm: EpycVllm) -> None:
    found = answer(epyc_vllm("doctor", "--json", user="nobody", timeout=PROBE))
    assert found["runtimes"][0]["image_present"] is None
    assert "cache-read-only" not in codes(found, "errors")


def test_as_text(epyc_vllm: EpycVllm) -> None:
    done = epyc_vllm("doctor", timeout=PROBE)
    assert done.returncode == 0
    for part in ("Verdict      proceed", "ZenCpuPlatform", "podman 5", "warning  ", "fix: "):
        assert part in done.stdout
