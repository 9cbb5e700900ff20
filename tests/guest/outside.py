"""Programs of the outer machine: running them, installing those that are missing; no guest here."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PREREQUISITES = {  # a program to look for: the Debian package that has it
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
PREREQUISITE_LIBRARIES = {"libnuma.so.1": "libnuma1"}  # vLLM's CPU kernels link to it


class GuestError(Exception):
    """The test host cannot be built, booted or reached; one sentence says why."""


def say(text: str) -> None:
    sys.stderr.write(f"guest: {text}\n")
    sys.stderr.flush()


def output(*command: str | Path, **environment: str) -> str:
    """What a program prints; GuestError with its last words where it fails."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if result.returncode != 0:
        complaint = (result.stderr.strip() or result.stdout.strip() or "no message")[-2000:]
        raise GuestError(f"{' '.join(words)} failed ({result.returncode}): {complaint}")
    return result.stdout


def missing_packages(libraries: str) -> Sequence[str]:
    """The Debian packages to install, given what `ldconfig -p` prints."""
    packages = {package for program, package in PREREQUISITES.items() if not shutil.which(program)}
    packages |= {
        package for library, package in PREREQUISITE_LIBRARIES.items() if library not in libraries
    }
    return sorted(packages | _missing_of_python())


def _missing_of_python() -> set[str]:
    """Debian splits its Python; any other has headers and ensurepip, or cannot be helped."""
    if sys.base_prefix != "/usr":
        return set()
    headers = Path(f"/usr/include/python{sys.version_info.major}.{sys.version_info.minor}/Python.h")
    missing = set() if headers.is_file() else {"python3-dev"}
    return missing if importlib.util.find_spec("ensurepip") else missing | {"python3-venv"}


def install_prerequisites() -> None:
    packages = missing_packages(output("/sbin/ldconfig", "-p"))
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise GuestError(f"these Debian packages are needed here: {', '.join(packages)}")
    say(f"installing {', '.join(packages)}")
    output("apt-get", "update", "-qq")
    output(
        "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages,
        DEBIAN_FRONTEND="noninteractive",
    )  # fmt: skip
