"""Images from a registry: fetched with progress, kept by digest, and what happens without it."""

import re
from collections.abc import Iterator

import pytest

from tests.guest import image, parts
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = "example/tiny-chat"
PORT = 5000
NAME = f"localhost:{PORT}/vllm/standin:1"
REGISTRY = f"""\
version: 0.1
storage:
  filesystem:
    rootdirectory: /var/lib/docker-registry
http:
  addr: 127.0.0.1:{PORT}
"""
INSECURE = f'[[registry]]\nlocation = "localhost:{PORT}"\ninsecure = true\n'
UNITS = {
    "podman": "/etc/containers/systemd/epyc-vllm-tiny-chat-s0.container",
    "docker": "/etc/systemd/system/epyc-vllm-tiny-chat-s0.service",
}


@pytest.fixture
def registry(guest: Guest) -> Iterator[Guest]:
    """Debian's docker-registry, on loopback and without TLS, which both runtimes are told."""
    guest.write("/etc/containers/registries.conf.d/test.conf", INSECURE)
    guest.write("/root/registry.yml", REGISTRY)
    guest.sh(
        "systemd-run --quiet --collect --unit=registry docker-registry serve /root/registry.yml"
    )
    guest.sh("for n in $(seq 100); do curl -sf localhost:5000/v2/ && exit; sleep .1; done; exit 1")
    guest.sh(f"podman load --quiet --input {parts.IMAGES}/standin.tar", timeout=300)
    guest.sh(f"podman load --quiet --input {parts.IMAGES}/serves.tar", timeout=300)
    yield guest
    guest.sh(
        "systemctl stop registry; rm -rf /var/lib/docker-registry/* /root/registry.yml "
        "/etc/containers/registries.conf.d/test.conf",
        check=False,
    )
    guest.sh("podman image rm --all --force", check=False)


def push(guest: Guest, archive_name: str) -> str:
    """Makes the tag stand for another image; its digest."""
    guest.sh(f"podman push --quiet {archive_name} {NAME}", timeout=300)
    accept = "Accept: application/vnd.oci.image.manifest.v1+json"
    accept += ", application/vnd.docker.distribution.manifest.v2+json"
    headers = guest.sh(
        f"curl -sfI -H '{accept}' http://localhost:{PORT}/v2/vllm/standin/manifests/1"
    )
    (digest,) = set(re.findall(r"sha256:[0-9a-f]{64}", headers))
    return str(digest)


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_an_image_is_fetched_once_and_kept_by_digest(
    registry: Guest, epyc_vllm: EpycVllm, request: pytest.FixtureRequest, runtime: str
) -> None:
    guest = registry
    if runtime == "docker":
        request.getfixturevalue("docker")
    digest = push(guest, image.NAME)
    flags = ("--runtime", runtime, "--image", NAME, "--kv-gib", "1", "--yes")
    done = epyc_vllm("enable", MODEL, *flags)
    assert done.returncode == 0, done.stderr
    assert f"localhost:{PORT}/vllm/standin" in done.stderr  # what is fetched, told as it goes
    assert f"localhost:{PORT}/vllm/standin@{digest}" in guest.read(UNITS[runtime])
    # The tag moves on: what runs does not, and nothing is asked for.
    assert push(guest, image.SERVES) != digest
    again = epyc_vllm("enable", MODEL, *flags)
    assert "no changes" in again.stderr, again.stderr
    guest.sh("systemctl stop registry")
    changed = epyc_vllm("enable", MODEL, *flags, "--max-model-len", "512")
    assert changed.returncode == 0, changed.stderr
    assert digest in guest.read(UNITS[runtime])
    # Without image and registry: one sentence, and the endpoint's files as they were.
    before = guest.read(UNITS[runtime])
    guest.run(["systemctl", "stop", "epyc-vllm-tiny-chat.target"])
    guest.run(["systemctl", "stop", "epyc-vllm-tiny-chat-s0.service"])
    guest.sh(f"{runtime} image rm --force $({runtime} images --quiet | sort -u)")
    gone = epyc_vllm("enable", MODEL, *flags, "--max-model-len", "256")
    assert gone.returncode == 1
    (line,) = [line for line in gone.stderr.splitlines() if line.startswith("epyc-vllm: ")]
    assert f"the image {NAME} cannot be fetched" in line
    assert guest.read(UNITS[runtime]) == before
