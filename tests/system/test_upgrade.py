"""`upgrade`: another stack is pinned; the endpoint moves when told, and back where it fails."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.guest import image, parts
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm

pytestmark = pytest.mark.timeout(900)

MODEL, NAME = "example/tiny-chat", "tiny-chat"
SERVICE, CONTAINER = "epyc-vllm-tiny-chat-s0.service", "epyc-vllm-tiny-chat-s0"
DATA = "/opt/epyc-vllm/share/epyc-vllm"
BACK = "the earlier files are back, and the endpoint runs as before"


@pytest.fixture(autouse=True)
def _data(guest: Guest) -> Iterator[None]:
    """The shipped facts as they are afterwards, and images to move between."""
    guest.sh(f"cp -a {DATA} /root/shipped")  # on the disk: one of the tests reboots
    for name in ("standin", "newer", "broken"):
        guest.run(["podman", "load", "-q", "-i", f"{parts.IMAGES}/{name}.tar"], timeout=300)
    yield
    guest.sh(f"test -d /root/shipped && rm -rf {DATA} && mv /root/shipped {DATA}")
    guest.sh("rm -rf /srv/newer /srv/broken")


def ship(guest: Guest, name: str, change: str, value: Any) -> None:
    """A new version's data: the value at `change`, names joined by dots, of the file `name`."""
    facts = json.loads(guest.read(f"{DATA}/{name}"))
    *above, last = change.split(".")
    place = facts
    for key in above:
        place = place[key]
    place[last] = value
    guest.write(f"{DATA}/{name}", json.dumps(facts))


def pin(guest: Guest, name: str) -> None:
    """The zentorch image of the recipe is now `name`, with what the stand-in says it has."""
    known = {"vllm": "0.32.0", "zentorch": "2.13.0.1", "serves": False}
    ship(guest, "epyc.json", "images.zentorch", {"image": name, "source": "a test", **known})


def enable(epyc_vllm: EpycVllm, *flags: str) -> str:
    done = epyc_vllm("enable", MODEL, "--kv-gib", "1", "--yes", *flags)
    assert done.returncode == 0, done.stderr
    return done.stderr


def runs(guest: Guest) -> str:
    """The name of the image that serves, and which start this is."""
    name = guest.sh(f"podman inspect --format '{{{{.ImageName}}}}' {CONTAINER}")
    start = guest.sh(f"systemctl show --property=InvocationID --value {SERVICE}")
    return f"{name.strip()} {start.strip()}"


def digest(guest: Guest, name: str) -> str:
    return guest.sh(f"podman image inspect --format '{{{{.Digest}}}}' {name}").strip()


def offered(epyc_vllm: EpycVllm) -> str | None:
    """What status says could be moved to; doctor says the same."""
    (shown,) = json.loads(epyc_vllm("status", "--json").stdout)["endpoints"]
    found = json.loads(epyc_vllm("doctor", "--json").stdout)["advisories"]
    told = [item["seen"] for item in found if item["code"] == "stack-outdated"]
    pinned: str | None = shown["upgrade"]
    assert bool(told) == (pinned is not None)
    assert pinned is None or pinned in told[0]
    return pinned


class TestImage:
    @pytest.fixture(autouse=True)
    def _enabled(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        pin(guest, image.NAME)
        enable(epyc_vllm, "--runtime", "podman")

    def test_it_moves_when_it_is_told_to_and_not_before(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        assert offered(epyc_vllm) is None
        before = runs(guest)
        pin(guest, image.NEWER)
        assert offered(epyc_vllm) == image.NEWER
        assert "no changes" in enable(epyc_vllm)
        guest.run(["systemctl", "restart", SERVICE])
        assert digest(guest, image.NAME) in runs(guest)
        done = epyc_vllm("upgrade", NAME, "--yes")
        assert done.returncode == 0, done.stderr
        assert digest(guest, image.NEWER) in runs(guest)
        assert runs(guest) != before
        assert epyc_vllm("verify", NAME).returncode == 0
        assert offered(epyc_vllm) is None
        before = runs(guest)
        assert "no changes" in epyc_vllm("upgrade", NAME).stderr
        assert runs(guest) == before
        guest.reboot()
        guest.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=300)
        assert epyc_vllm("verify", NAME).returncode == 0
        assert digest(guest, image.NEWER) in runs(guest)

    @pytest.mark.long
    def test_one_that_does_not_start_is_taken_back(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        pin(guest, image.BROKEN)
        plan = guest.read(f"/var/lib/epyc-vllm/plans/{NAME}.json")
        done = epyc_vllm("upgrade", NAME, "--yes")
        assert done.returncode == 1
        assert BACK in done.stderr
        assert digest(guest, image.NAME) in runs(guest)
        assert epyc_vllm("verify", NAME).returncode == 0
        assert guest.read(f"/var/lib/epyc-vllm/plans/{NAME}.json") == plan
        assert offered(epyc_vllm) == image.BROKEN

    @pytest.mark.long
    def test_what_cannot_be_had_or_is_not_accepted_stops_nothing(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        before = runs(guest)
        pin(guest, "localhost/none:9")
        done = epyc_vllm("upgrade", NAME, "--yes")
        assert (done.returncode, runs(guest)) == (1, before)
        assert "localhost/none:9 cannot be fetched" in done.stderr
        pin(guest, image.NEWER)
        ship(guest, "stacks.json", "validated", _but_the_standins(guest))
        done = epyc_vllm("upgrade", NAME, "--yes")
        assert (done.returncode, runs(guest)) == (3, before)
        assert "--accept unvalidated-stack" in done.stderr
        done = epyc_vllm("upgrade", NAME)
        assert (done.returncode, runs(guest)) == (3, before)
        done = epyc_vllm("upgrade", NAME, "--yes", "--accept", "unvalidated-stack")
        assert done.returncode == 0, done.stderr
        assert digest(guest, image.NEWER) in runs(guest)

    @pytest.mark.long
    def test_an_archive_brings_it_to_a_host_without_a_way_out(
        self, guest: Guest, epyc_vllm: EpycVllm
    ) -> None:
        wanted = digest(guest, image.NEWER)
        guest.sh(f"podman image rm --force {image.NEWER}")
        pin(guest, image.NEWER)
        archive = f"{parts.IMAGES}/newer.tar"
        done = epyc_vllm("upgrade", NAME, "--yes", "--image-archive", archive)
        assert done.returncode == 0, done.stderr
        assert wanted in runs(guest)

    @pytest.mark.long
    def test_an_image_of_the_administrators_is_his(self, guest: Guest, epyc_vllm: EpycVllm) -> None:
        done = epyc_vllm("upgrade", NAME, "--yes", "--image", image.NEWER)
        assert done.returncode == 0, done.stderr
        pin(guest, image.BROKEN)
        assert offered(epyc_vllm) is None
        assert f'image = "{image.NEWER}"' in guest.read(f"/etc/epyc-vllm/endpoints.d/{NAME}.toml")


def _but_the_standins(guest: Guest) -> list[dict[str, Any]]:
    known = json.loads(guest.read(f"{DATA}/stacks.json"))["validated"]
    return [item for item in known if item["vllm"] != "0.32.0"]


@pytest.mark.long
def test_an_environment_moves_to_one_beside_it(guest: Guest, epyc_vllm: EpycVllm) -> None:
    ship(guest, "epyc.json", "environment.default_path", str(parts.STANDIN))
    enable(epyc_vllm, "--runtime", "host")
    ship(guest, "epyc.json", "environment.vllm_version", "0.33.0+cpu")
    assert offered(epyc_vllm) == "0.33.0+cpu"
    done = epyc_vllm("upgrade", NAME, "--yes")
    assert done.returncode == 3
    assert f"{parts.STANDIN} has vLLM 0.32.0+cpu, and 0.33.0+cpu is pinned now" in done.stderr
    ship(guest, "epyc.json", "environment.vllm_version", "0.32.0+cpu")
    guest.sh(f"cp -r {parts.STANDIN} /srv/newer && cp -r {parts.STANDIN} /srv/broken")
    guest.write("/srv/broken/bin/vllm", "#!/bin/sh\nexit 7\n", mode=0o755)
    done = epyc_vllm("upgrade", NAME, "--yes", "--environment", "/srv/broken")
    assert done.returncode == 1
    assert BACK in done.stderr
    assert epyc_vllm("verify", NAME).returncode == 0
    done = epyc_vllm("upgrade", NAME, "--yes", "--environment", "/srv/newer")
    assert done.returncode == 0, done.stderr
    assert epyc_vllm("verify", NAME).returncode == 0
    assert "/srv/newer" in guest.sh(f"systemctl cat {SERVICE}")


@pytest.mark.parametrize("name", ["absent", "../x"])
def test_nothing_to_upgrade(epyc_vllm: EpycVllm, name: str) -> None:
    done = epyc_vllm("upgrade", name, "--yes")
    assert done.returncode == 2
    assert "there is no enabled endpoint" in done.stderr
