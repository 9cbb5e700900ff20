"""Real vLLM in a podman quadlet, on the Zen platform and on the stock one.

The image is the guest's own file system; vLLM's environment is mounted into every container, as is
the other machine's cpuinfo. A server takes a minute to start.
"""

import json
from collections.abc import Iterator

import pytest

from tests.guest import rootfs
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(3600)]

MODEL = "example/tiny-chat"
START = 1500.0  # seconds; about 75 where nothing else runs
CONTAINERS = "/etc/containers/containers.conf"
QUADLET = "/etc/containers/systemd/epyc-vllm-tiny-chat-s0.container"
ZEN, STOCK = "localhost/vllm-zen:1", "localhost/vllm-stock:1"
FOLDERS = ("/opt/vllm", "/opt/vllm-stock", "/opt/vllm-python")


@pytest.fixture
def images(guest: Guest) -> Iterator[None]:
    before = guest.read(CONTAINERS)
    mounted = [f"{folder}:{folder}:ro" for folder in FOLDERS]
    volumes = json.dumps([f"{rootfs.CPUINFO}:/proc/cpuinfo:ro", *mounted])
    kept = [line for line in before.splitlines() if not line.startswith("volumes")]
    at = kept.index("[containers]") + 1
    guest.write(CONTAINERS, "\n".join([*kept[:at], f"volumes = {volumes}", *kept[at:]]) + "\n")
    left_out = "--exclude=./var/lib/containers --exclude=./var/cache --exclude=./var/log"
    for name, environment in ((ZEN, "/opt/vllm"), (STOCK, "/opt/vllm-stock")):
        path = f"ENV PATH={environment}/bin:/usr/bin:/bin"
        guest.sh(
            f"tar -C / -c --one-file-system {left_out} . |"
            f" podman import --quiet --change '{path}' - {name}",
            timeout=900,
        )
    yield
    guest.write(CONTAINERS, before)
    guest.sh("podman image rm --all --force", timeout=300)


@pytest.mark.usefixtures("images")
def test_zen_and_stock_and_what_is_refused(guest: Guest, epyc_vllm: EpycVllm) -> None:
    podman = ("--runtime", "podman", "--kv-gib", "1", "--yes")
    done = epyc_vllm("enable", MODEL, *podman, "--image", STOCK, timeout=START)
    assert done.returncode == 3
    assert "zentorch is not active" in done.stderr

    done = epyc_vllm("enable", MODEL, *podman, "--image", ZEN, timeout=START)
    assert done.returncode == 0, done.stderr
    assert "ZenCpuPlatform" in done.stderr
    assert epyc_vllm("verify", "tiny-chat", timeout=START).returncode == 0
    shown = json.loads(epyc_vllm("show", "tiny-chat", "--json").stdout)
    curl = shown["endpoints"][0]["connections"][0]["curl"]
    assert json.loads(guest.sh(curl, timeout=600))["object"] == "chat.completion"
    probed = json.loads(epyc_vllm("plan", "tiny-chat", "--json").stdout)["versions"]
    assert probed["platform"] == "vllm.platforms.zen_cpu.ZenCpuPlatform"
    assert probed["probed"] is True
    unit = "epyc-vllm-tiny-chat-s0.service"
    assert f"Image={ZEN.partition(':')[0]}@sha256:" in guest.read(QUADLET)
    guest.run(["systemctl", "stop", unit], timeout=300)
    assert guest.sh(f"systemctl show -P Result {unit}") == "success\n"
    guest.run(["systemctl", "start", unit], timeout=START)
    assert json.loads(guest.sh(curl, timeout=600))["object"] == "chat.completion"  # at once
    assert epyc_vllm("disable", "tiny-chat").returncode == 0

    guest.cpuinfo("milan")
    done = epyc_vllm("enable", MODEL, *podman, "--image", STOCK, timeout=START)
    assert done.returncode == 3
    assert "stock-cpu" in done.stderr
    accepted = ("--accept", "stock-cpu")
    done = epyc_vllm("enable", MODEL, *podman, "--image", STOCK, *accepted, timeout=START)
    assert done.returncode == 0, done.stderr
    assert epyc_vllm("verify", "tiny-chat", timeout=START).returncode == 0
    assert json.loads(guest.sh(curl, timeout=600))["object"] == "chat.completion"
    probed = json.loads(epyc_vllm("plan", "tiny-chat", "--json").stdout)["versions"]
    assert probed["platform"] == "vllm.platforms.cpu.CpuPlatform"
    assert probed["probed"] is True
