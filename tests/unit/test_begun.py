"""What outlives a killed run, and what an instance notes as it starts."""

from pathlib import Path

import pytest

from epyc_vllm_agent.apply import begun
from epyc_vllm_agent.changes import running
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.units.names import UnitFile


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def test_what_is_begun_is_read_until_it_has_ended(paths: Paths) -> None:
    assert begun.read(paths) == {}
    begun.begin(paths, {"a": ("a-s0", "a-s1"), "b": ()})
    begun.begin(paths, {"c": ()})
    assert begun.read(paths) == {"a": ("a-s0", "a-s1"), "b": (), "c": ()}
    begun.end(paths, ["a", "absent"])
    assert begun.read(paths) == {"b": (), "c": ()}
    begun.end(paths, ["b", "c"])
    assert not paths.begun.exists()
    begun.end(paths, ["b"])


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a": 1}', "\0"])
def test_a_file_that_nobody_wrote_is_none(paths: Paths, text: str) -> None:
    paths.begun.parent.mkdir(parents=True)
    paths.begun.write_text(text)
    assert begun.read(paths) == {}


@pytest.mark.parametrize("kind", ["service", "container"])
def test_an_instance_notes_the_unit_that_it_starts_with(paths: Paths, kind: str) -> None:
    folder = paths.units if kind == "service" else paths.quadlets
    folder.mkdir(parents=True)
    path = folder / f"epyc-vllm-a-s0.{kind}"
    path.write_text("[Service]\n")
    running.note(paths, "a-s0", "c0ffee")
    assert running.noted(paths, "a-s0") == ("c0ffee", UnitFile(str(path), "[Service]\n").digest)
    assert running.noted(paths, "a-s1") is None


@pytest.mark.parametrize("text", ["", "one", "one two three", "\xff"])
def test_a_note_that_is_none(paths: Paths, text: str) -> None:
    paths.run.mkdir(parents=True)
    (paths.run / "a-s0.unit").write_text(text)
    assert running.noted(paths, "a-s0") is None
