"""The Debian package of HEAD, made by packaging/build-deb in a Debian 13; an apt source of it."""

import re
from collections.abc import Sequence
from pathlib import Path

from tests.guest import cache, project, rootfs
from tests.guest.environment import REPOSITORY
from tests.guest.outside import output
from tests.package import chroot

DEBIAN = REPOSITORY / "packaging/debian"
TOOLS = ("git", "lintian", "python3-pip", "piuparts", "mmdebstrap", "apt-utils")
# What the package is made of and built with; the rest of the tree only lies in its source.
PARTS = (
    *("epyc_vllm_agent", "data", "systemd", "docs", "pyproject.toml", "README.md"),
    *("packaging/debian", "packaging/build-deb", "packaging/make-environment"),
    *("packaging/make-manuals", "tests/unit", "tests/standin", "tests/guest/models.py"),
)
# Where things are in the chroot, and the last one in the guest too.
SOURCE, WHEELS, OUTPUT, SOURCES = "/src", "/wheels", "/out", "/srv/apt"
ENVIRONMENT = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS,
    # the checkout may be another user's
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
NEWER = "99.1"  # what the upgrade is to


def builder() -> Path:
    """A Debian 13 with what the package's build needs."""
    control = (DEBIAN / "control").read_text()
    (field,) = re.findall(r"^Build-Depends: (.*?)^\S", control, re.MULTILINE | re.DOTALL)
    needed = re.sub(r"\(.*?\)|<.*?>|\s", "", field).split(",")
    return rootfs.debian("build-root", ["build-essential", *TOOLS, *needed], ())


def wheels() -> Path:
    """The wheels that the package has a copy of, by their hashes."""
    pins = DEBIAN / "python.txt"

    def make(target: Path) -> None:
        target.mkdir()
        output(
            project.pip(), "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
            f"--dest={target}", f"--requirement={pins}",
        )  # fmt: skip

    return cache.part("package-wheels", pins.read_text(), make)


def package(*options: str) -> Path:
    """The folder with the .deb, the source package and lintian's words.

    The build sees the checkout read-only: it leaves the tree as it is.
    """

    def make(target: Path) -> None:
        target.mkdir()
        chroot.run(
            builder(),
            [f"{SOURCE}/packaging/build-deb", *options, OUTPUT],
            {REPOSITORY: f"{SOURCE}:ro", wheels(): WHEELS, target: OUTPUT},
            ENVIRONMENT,
        )  # fmt: skip

    parts = output("git", "-C", REPOSITORY, "rev-parse", *(f"HEAD:{name}" for name in PARTS))
    return cache.part("package", [parts, options, str(builder())], make)


def deb(folder: Path) -> Path:
    (found,) = folder.glob("*.deb")
    return found


def fresh() -> Path:
    """A host's file system that has nothing of what the package depends on."""
    return rootfs.debian("fresh-root", rootfs.BASE, ())


def sources(packages: Sequence[Path]) -> Path:
    """A folder for apt: these packages and all that they, autopkgtest and the shells need on a
    fresh host."""

    def make(target: Path) -> None:
        target.mkdir()
        wanted = " ".join(f"{OUTPUT}{number}/*.deb" for number, _ in enumerate(packages))
        chroot.run(
            fresh(),
            ["sh", "-c", _COLLECT.format(first=f"{OUTPUT}0", wanted=wanted, sources=SOURCES)],
            {folder: f"{OUTPUT}{number}" for number, folder in enumerate(packages)}
            | {target: SOURCES},
        )
        index = f"cd {SOURCES} && apt-ftparchive packages . >Packages"
        chroot.run(builder(), ["sh", "-c", index], {target: SOURCES})

    return cache.part("package-sources", [_COLLECT, *map(str, packages), str(fresh())], make)


_COLLECT = """\
set -e
apt-get update -qq
apt-get install -y -qq --no-install-recommends --download-only {first}/*.deb \
  autopkgtest dpkg-dev zsh fish
cp /var/cache/apt/archives/*.deb {wanted} {sources}
"""
