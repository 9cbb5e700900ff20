"""The booted test host for all system tests: one per session, put back in order after each test."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.guest import cache, hub, parts, project, rootfs
from tests.guest.boot import Guest, sweep
from tests.guest.outside import install_prerequisites

EpycVllm = Callable[..., CompletedProcess[str]]
CONTROL = "/run/vllm-standin.json"
# Little memory: a host beside this one may run real vLLM on the same memory.
SMALL = ("--kv-gib", "1")
ENVIRONMENT = ("--environment", str(parts.STANDIN), *SMALL)
# The guest's own file systems are overlays, over which docker's storage has to be a plain one; and
# where the cpuset controller sits on the outer machine's v1, its v2 tree has nothing to limit with.
RUNC = "/usr/local/bin/runc-with-cpuinfo"
DOCKER = {
    "storage-driver": "vfs",
    "iptables": False,
    "bridge": "none",
    "runtimes": {"with-cpuinfo": {"path": RUNC}},
    "default-runtime": "with-cpuinfo",
}


@dataclass(frozen=True, slots=True)
class Standin:
    """The stand-in for vLLM in the guest: how it behaves, and what it was started with."""

    guest: Guest
    path: str = str(parts.STANDIN)

    def behave(self, **behaviour: Any) -> None:
        """See tests/standin/vllm_standin/control.py; ports={"8001": {...}} for one server."""
        self.guest.write(CONTROL, json.dumps(behaviour))

    def record(self, instance: str) -> dict[str, Any]:
        """argv, environ, uid, cwd and cpus of the instance's server."""
        text = self.guest.sh(f"cat /var/cache/epyc-vllm/{instance}/*/standin.json")
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture(scope="session")
def booted() -> Iterator[Guest]:
    """A guest with the project installed and a model hub, for as long as the session."""
    if os.geteuid() != 0:
        pytest.fail("the system tests boot a host and need root")
    install_prerequisites()
    sweep()
    guest = Guest(f"system-{os.getpid()}", parts.binds())
    try:
        guest.up(owner=os.getpid())
        project.install(guest)
        # What a test writes is applied when it says so; test_apply.py lets it be applied by itself.
        guest.run(["systemctl", "disable", "--now", "epyc-vllm-apply.path"])
        hub.start(guest)
        yield guest
    finally:
        guest.down()


@pytest.fixture(scope="module", autouse=True)
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Files that start real vLLM wait for each other, over processes."""
    if request.node.get_closest_marker("real") is None:
        yield
        return
    with cache.lock("real-vllm"):
        yield


@pytest.fixture
def guest(booted: Guest) -> Iterator[Guest]:
    yield booted
    restore(booted)


@pytest.fixture
def epyc_vllm(guest: Guest) -> EpycVllm:
    """Runs epyc-vllm in the guest: epyc_vllm("enable", "x", "--yes"); any exit code is fine."""

    def run(*arguments: str, timeout: float = 300, **options: Any) -> CompletedProcess[str]:
        return guest.run(["epyc-vllm", *arguments], check=False, timeout=timeout, **options)

    return run


@pytest.fixture
def standin(guest: Guest) -> Standin:
    return Standin(guest)


@pytest.fixture
def docker(guest: Guest) -> Iterator[str]:
    """docker's daemon, started in the guest."""
    guest.copy(Path(rootfs.__file__).with_name("runc-with-cpuinfo"), RUNC)
    guest.write("/etc/docker/daemon.json", json.dumps(DOCKER))
    guest.sh("systemctl unmask docker.service docker.socket containerd.service")
    guest.sh("systemctl start docker.service", timeout=300)
    yield "docker"
    guest.sh("docker rm --force $(docker ps --all --quiet) 2>/dev/null", check=False)
    guest.sh("systemctl stop docker.service docker.socket containerd.service")
    guest.sh("systemctl mask docker.service docker.socket containerd.service")


def restore(guest: Guest) -> None:
    """Disables every endpoint and undoes what a test may have changed about the host."""
    guest.sh(f"rm -f {CONTROL}")
    guest.cpuinfo("genoa")
    for file in guest.sh("ls /etc/epyc-vllm/endpoints.d").split():
        name = file.removesuffix(".toml")
        guest.run(["epyc-vllm", "disable", name, "--purge"], check=False, timeout=180)
    guest.sh(_SCRUB, timeout=180)
    hub.start(guest)


# Whatever a failed test left; the endpoints of the others are gone already. What stacks answered is
# kept: it is keyed by the environment and the CPU, and asking takes 10 s or more.
_SCRUB = """
systemctl stop 'epyc-vllm-*' 2>/dev/null
for unit in /etc/systemd/system/epyc-vllm-*; do
  [ -e "$unit" ] && rm -rf "$unit"
done
for unit in /etc/containers/systemd/*; do
  [ -e "$unit" ] && rm -rf "$unit"
done
podman rm --all --force --time 0 >/dev/null 2>&1
rm -rf /etc/epyc-vllm/endpoints.d/* /var/lib/epyc-vllm/plans/* /var/lib/epyc-vllm/reports/*
find /var/cache/epyc-vllm -mindepth 1 -maxdepth 1 ! -name probes -exec rm -rf {} +
systemctl daemon-reload
systemctl reset-failed
"""
