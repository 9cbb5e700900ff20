"""packaging/make-environment: what it installs by the pins, and what it leaves alone."""

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging/make-environment"
VERSION = "0.32.0+cpu"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("make_environment", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    path = tmp_path / "lib/python3.11/site-packages"
    path.mkdir(parents=True)
    return path


class TestPins:
    def test_they_are_those_of_the_data_file(self, script: ModuleType) -> None:
        data = SCRIPT.parent.parent / "data/epyc.json"
        pinned = json.loads(data.read_text())["environment"]
        pins = script.read_pins(data, zentorch=True)
        assert list(pins.requirements) == pinned["requirements"]
        assert list(pins.no_deps) == pinned["no_deps"]
        assert any(name.startswith("zentorch==") for name in pins.no_deps)

    def test_without_zentorch_nothing_of_it_is_installed(self, script: ModuleType) -> None:
        pins = script.read_pins(SCRIPT.parent.parent / "data/epyc.json", zentorch=False)
        assert pins.no_deps == ()


class TestClearing:
    def test_a_folder_of_somebody_else_is_left_alone(
        self, script: ModuleType, tmp_path: Path
    ) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(script.Failure, match="not empty and not a Python environment"):
            script.clear(tmp_path)
        assert (tmp_path / "thesis.tex").exists()

    def test_an_unfinished_environment_goes(self, script: ModuleType, tmp_path: Path) -> None:
        target = tmp_path / "vllm"
        target.mkdir()
        (target / "pyvenv.cfg").touch()
        script.clear(target)
        assert not target.exists()

    def test_a_missing_or_empty_folder_is_fine(self, script: ModuleType, tmp_path: Path) -> None:
        script.clear(tmp_path / "none")
        script.clear(tmp_path)
        assert tmp_path.exists()


class TestAlias:
    def test_vllm_gets_a_name_and_a_version_with_cpu(
        self, script: ModuleType, tmp_path: Path, packages: Path
    ) -> None:
        script.add_alias(tmp_path, VERSION)
        text = (packages / f"vllm-{VERSION}.dist-info/METADATA").read_text()
        assert "Name: vllm\n" in text
        assert f"Version: {VERSION}\n" in text

    def test_a_real_vllm_distribution_keeps_its_own(
        self, script: ModuleType, tmp_path: Path, packages: Path
    ) -> None:
        (packages / "vllm-0.25.1.dist-info").mkdir()
        script.add_alias(tmp_path, VERSION)
        assert [path.name for path in packages.iterdir()] == ["vllm-0.25.1.dist-info"]
