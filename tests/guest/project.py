"""The project in the guest: its wheel, what the wheel needs there, and packaging/install run."""

import hashlib
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.guest import cache
from tests.guest.boot import Guest
from tests.guest.environment import REPOSITORY
from tests.guest.outside import output

WHEELHOUSE = Path("/srv/wheelhouse")  # where it is in the guest
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "epyc_vllm_agent", "data", "systemd")
NO_WHEEL = "pydbus"  # Debian's own serves

# Of the guest, whose pip the wheels are for: Debian 13's /usr/bin/python3.
TARGET = (
    *("--only-binary=:all:", "--python-version=3.13", "--implementation=cp"),
    *("--abi=cp313", "--abi=abi3", "--abi=none"),
    *("--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64"),
)


def pip() -> Path:
    """A Python with pip and nothing else: the running one may have none."""

    def make(target: Path) -> None:
        output(sys.executable, "-m", "venv", target)

    return cache.part("pip", [sys.version, sys.base_prefix], make) / "bin/python"


def wheelhouse() -> Path:
    """The wheels of all that the project requires.

    Debian has most of it, but huggingface_hub wants some of it newer (its httpx2 a later h11).
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [line for line in project["dependencies"] if not line.startswith(NO_WHEEL)]

    def make(target: Path) -> None:
        output(pip(), "-m", "pip", "download", "--quiet", f"--dest={target}", *TARGET, *wanted)

    return cache.part("wheelhouse", [wanted, TARGET], make)


def _files(entry: Path) -> list[Path]:
    found = [entry] if entry.is_file() else entry.rglob("*")
    return sorted(path for path in found if path.is_file() and path.suffix != ".pyc")


def _digest() -> str:
    summary = hashlib.sha256()
    for name in SOURCES:
        for path in _files(REPOSITORY / name):
            summary.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    return summary.hexdigest()


def wheel() -> Path:
    """The wheel of this checkout as it is now, built from a copy: the tree stays clean."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as copy:
            for name in SOURCES:
                source = REPOSITORY / name
                if source.is_dir():
                    shutil.copytree(source, Path(copy, name))
                else:
                    shutil.copy2(source, copy)
            output(pip(), "-m", "pip", "wheel", "--quiet", "--no-deps", f"-w{target}", copy)

    return next(cache.part("wheel", _digest(), make).glob("*.whl"))


def install(guest: Guest) -> None:
    """Installs the project as on a real host, from the wheelhouse instead of an index."""
    made = wheel()
    guest.copy(REPOSITORY / "packaging/install", "/root/install")
    guest.copy(made, f"/root/{made.name}")
    guest.run(
        ["bash", "/root/install", f"/root/{made.name}"],
        environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELHOUSE)},
        timeout=300,
    )
