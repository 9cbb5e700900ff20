"""The quadlet generator of Debian's next release: it accepts what is rendered for its podman."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.guest import cache, rootfs
from tests.guest.outside import install_prerequisites, output
from tests.quadlets import HOSTS_BY_NAME, quadlets

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # of a release that still moves

SUITE = "forky"
GENERATOR = "usr/libexec/podman/quadlet"


def _make(target: Path) -> None:
    target.mkdir()
    output(
        "mmdebstrap", "--quiet", "--variant=extract", "--include=podman",
        '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Install-Recommends "false"',
        SUITE, target / "tree", *rootfs.mirror(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def tree() -> Path:
    install_prerequisites()
    return cache.part("next-podman", SUITE, _make) / "tree"


@pytest.fixture(scope="module")
def version(tree: Path) -> str:
    return output(tree / GENERATOR, "-version").strip()


def generate(tree: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / GENERATOR, "-dryrun"],
        env={**os.environ, "QUADLET_UNIT_DIRS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("host", HOSTS_BY_NAME)
def test_it_accepts_its_quadlets(tree: Path, version: str, tmp_path: Path, host: str) -> None:
    assert tuple(map(int, version.split("."))) >= (5, 8)
    units = quadlets(HOSTS_BY_NAME[host](version))
    for unit in units:
        (tmp_path / unit.name).write_text(unit.text)
    done = generate(tree, tmp_path)
    assert done.returncode == 0, done.stderr
    for unit in units:
        assert f"---{unit.service}---" in done.stdout
    first = tmp_path / units[0].name
    first.write_text(units[0].text.replace("Network=host", "XNetwork=host"))
    assert "unsupported key 'XNetwork'" in generate(tree, tmp_path).stderr
