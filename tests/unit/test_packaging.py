"""The Debian package's files beside what they must agree with."""

import re
import tomllib
from pathlib import Path

import pytest

import epyc_vllm_agent
from epyc_vllm_agent.config.config import load
from epyc_vllm_agent.doors.hub import _OLDEST
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.stacks import release

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "packaging/debian"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXAMPLES = sorted((ROOT / "data/examples").glob("*.toml"))
PIN = re.compile(r"^huggingface_hub==(\S+) --hash=sha256:[0-9a-f]{64}$", re.MULTILINE)


def test_there_is_one_version() -> None:
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"epyc-vllm ({PROJECT['version']}) ")
    assert epyc_vllm_agent.__version__ == PROJECT["version"]


def test_the_private_copy_is_pinned_and_new_enough() -> None:
    (version,) = PIN.findall((DEBIAN / "python.txt").read_text())
    (wanted,) = [line for line in PROJECT["dependencies"] if line.startswith("huggingface_hub>=")]
    assert release(wanted.partition(">=")[2]) == _OLDEST
    assert release(version) >= _OLDEST


def test_no_maintainer_script_knows_an_endpoint_or_their_target() -> None:
    """A restart of the target at an upgrade would restart every endpoint."""
    rules = (DEBIAN / "rules").read_text()
    lines = re.findall(r"^\tdh_installsystemd (.*)$", rules, re.MULTILINE)
    assert [line.split() for line in lines] == [
        ["--no-enable", "epyc-vllm-watchdog.service"],
        ["epyc-vllm-apply.path"],
    ]
    for line in lines:
        assert (ROOT / "systemd" / line.split()[-1]).is_file()
    for script in DEBIAN.glob("epyc-vllm.p*"):
        assert "systemctl" not in script.read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid(example: Path, tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.endpoints.mkdir(parents=True)
    (paths.endpoints / example.name).write_text(example.read_text())
    found = load(paths)
    assert found.errors == ()
    assert [endpoint.name for endpoint in found.endpoints] == [example.stem]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
