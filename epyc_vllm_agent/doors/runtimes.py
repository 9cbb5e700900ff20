"""What podman and docker say of themselves when asked for nothing; starts, pulls, makes nothing.

Both make things when they are only asked: podman its storage at the first look for an image,
docker's socket the daemon. So each is asked no more than what is there already can answer.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.errors import ActionFailed

_SECONDS = 30
_STORAGE = Path("/var/lib/containers/storage/libpod")
_PIDFILE = Path("/run/docker.pid")
_SOCKET = Path("/run/docker.sock")


@dataclass(frozen=True, slots=True)
class Asked:
    """`image_present` is None where this user cannot see the images that services use."""

    version: str | None  # None: not installed
    fault: str | None = None
    fix: str | None = None
    image_present: bool | None = None


def podman(image: str) -> Asked:
    try:
        done = command.run(["podman", "--version"], timeout_seconds=_SECONDS)
    except ActionFailed as error:
        return _missing(error)
    version = re.search(r"\d+(\.\d+)+", done.stdout)
    if done.status != 0 or version is None:
        said = (done.stderr or done.stdout).strip()
        return Asked("", f"podman does not work: {said}", "reinstall podman")
    return Asked(version[0], image_present=_in_podman(image))


def _in_podman(image: str) -> bool | None:
    if os.geteuid() != 0:
        return None
    if not _STORAGE.is_dir():
        return False
    done = command.run(["podman", "image", "exists", image], timeout_seconds=_SECONDS)
    return done.status == 0


def docker(image: str) -> Asked:
    try:
        done = command.run(["docker", "--version"], timeout_seconds=_SECONDS)
    except ActionFailed as error:
        return _missing(error)
    installed = re.search(r"\d+(\.\d+)+", done.stdout)
    version = installed[0] if installed else ""
    if not _PIDFILE.exists() or not _SOCKET.exists():
        fix = "systemctl enable --now docker"
        return Asked(version, f"docker {version} is installed, its daemon does not run", fix)
    if not os.access(_SOCKET, os.R_OK | os.W_OK):
        fix = "run this as root, or add the user to the group docker"
        return Asked(version, f"this user may not talk to docker {version}", fix)
    return _reached(version, image)


def _reached(version: str, image: str) -> Asked:
    done = command.run(["docker", "version", "--format", "{{json .}}"], timeout_seconds=_SECONDS)
    try:
        server = json.loads(done.stdout)["Server"]["Version"]
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Asked(
            version, f"docker's daemon does not answer: {said}", "see journalctl -u docker"
        )
    found = command.run(["docker", "image", "inspect", image], timeout_seconds=_SECONDS)
    return Asked(str(server), image_present=found.status == 0)


def _missing(error: ActionFailed) -> Asked:
    """Not installed; one that does not end is installed and broken."""
    if error.code == "command-timeout":
        return Asked("", error.message, error.hint)
    return Asked(None)
