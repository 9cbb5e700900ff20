"""Which huggingface_hub is taken: the host's own, or the copy that the Debian package brings."""

import sys
from pathlib import Path

import pytest

from epyc_vllm_agent.doors.hub import provide_library
from epyc_vllm_agent.errors import ActionFailed


def has(folder: Path, version: str) -> Path:
    """`folder` as a place of Python modules with huggingface_hub of this version."""
    info = folder / f"huggingface_hub-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: huggingface_hub\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    return folder


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    return has(tmp_path / "packaged", "1.23.0")


@pytest.mark.parametrize("version", ["1.0", "1.23.0", "2.4.0"])
def test_the_hosts_own_is_preferred(
    version: str, packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(has(tmp_path / "own", version))])
    provide_library(packaged)
    assert str(packaged) not in sys.path


@pytest.mark.parametrize("version", ["0.36.2", None])
def test_the_packaged_one_serves_where_it_is_old_or_missing(
    version: str | None, packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = has(tmp_path / "own", version) if version else tmp_path
    monkeypatch.setattr(sys, "path", [str(own)])
    provide_library(packaged)
    provide_library(packaged)
    assert sys.path == [str(packaged), str(own)]


def test_neither_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(has(tmp_path, "0.36.2"))])
    with pytest.raises(ActionFailed, match=r"huggingface_hub 0\.36\.2 is too old"):
        provide_library(tmp_path / "none")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none")])
    with pytest.raises(ActionFailed, match="huggingface_hub is missing"):
        provide_library(tmp_path / "none")
