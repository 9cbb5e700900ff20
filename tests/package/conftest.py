"""The package of HEAD, built once, and a fresh host that has never seen it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest import models, parts
from tests.guest.boot import Guest, sweep
from tests.guest.environment import REPOSITORY
from tests.guest.outside import install_prerequisites
from tests.package import build

APT = f"deb [trusted=yes] file:{build.SOURCES} ./\n"


@pytest.fixture(scope="session")
def built() -> Path:
    if os.geteuid() != 0:
        pytest.fail("the package is built and installed as root")
    install_prerequisites()
    return build.package()


@pytest.fixture(scope="session")
def newer() -> Path:
    """The same under a higher version."""
    return build.package("--quick", "--version", build.NEWER)


@pytest.fixture(scope="module")
def host(built: Path, newer: Path) -> Iterator[Guest]:
    """A booted Debian 13 without the package, whose apt knows it and what it depends on."""
    sweep()
    binds = {
        models.folder(): parts.MODELS,
        build.sources([built, newer]): Path(build.SOURCES),
        REPOSITORY / "tests/standin": parts.STANDIN,
        REPOSITORY / "tests/hubserver.py": parts.HUB_SERVER,
        built: Path("/srv/package"),
    }
    guest = Guest(f"package-{os.getpid()}", binds, build.fresh)
    try:
        guest.up(owner=os.getpid())
        guest.sh("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*")
        guest.write("/etc/apt/sources.list", APT)
        guest.sh("apt-get update -qq")
        yield guest
    finally:
        guest.down()
