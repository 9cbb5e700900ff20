"""What a command line asks for, merged with the endpoint's file."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config.config import load
from epyc_vllm_agent.config.request import Wanted, slug, wanted
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths
from tests.plans import endpoint


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.endpoints.mkdir(parents=True)
    return paths


def ask(paths: Paths, what: str, name: str | None = None, **flags: Any) -> Wanted:
    return wanted(paths, load(paths), what, name, flags)


def write(paths: Paths, name: str, text: str) -> str:
    (paths.endpoints / f"{name}.toml").write_text(text)
    return text


def test_a_model_makes_a_new_endpoint(paths: Paths) -> None:
    made = ask(paths, "Qwen/Qwen3-8B", port=9000, accept=["not-epyc"])
    assert made.config == endpoint("qwen3-8b", port=9000, accept=["not-epyc"])
    assert tomllib.loads(made.file_text or "") == {
        "model": "Qwen/Qwen3-8B",
        "port": 9000,
        "accept": ["not-epyc"],
    }
    assert list(paths.endpoints.iterdir()) == []


def test_defaults_of_the_host_are_not_written_into_the_file(paths: Paths) -> None:
    paths.config_file.write_text("[defaults]\ncores = 4\n")
    made = ask(paths, "Qwen/Qwen3-8B")
    assert made.config.cores == 4
    assert made.file_text
    assert "cores" not in made.file_text


def test_an_endpoints_name_takes_its_file(paths: Paths) -> None:
    text = write(paths, "search", 'model = "org/name" # ours\nport = 8100\n')
    made = ask(paths, "search")
    assert (made.config.name, made.config.model, made.config.port) == ("search", "org/name", 8100)
    assert made.file_text == text


def test_the_same_model_again_takes_its_file(paths: Paths) -> None:
    text = write(paths, "name", 'model = "org/name"\nport = 8100\n')
    made = ask(paths, "org/name", port=8100)
    assert (made.file_text, made.config.port) == (text, 8100)


def test_flags_win_and_only_their_lines_change(paths: Paths) -> None:
    write(paths, "name", '# note\nmodel = "org/name"\nport = 8100 # why\ncores = 2\n')
    made = ask(paths, "name", port=8200)
    assert made.file_text == '# note\nmodel = "org/name"\nport = 8200 # why\ncores = 2\n'
    assert (made.config.port, made.config.cores) == (8200, 2)


def test_a_name_that_serves_another_model(paths: Paths) -> None:
    write(paths, "name", 'model = "other/name"\n')
    for name in (None, "name"):
        with pytest.raises(ConfigError) as caught:
            ask(paths, "org/name", name)
        assert caught.value.code == "name-taken"
        assert "'other/name'" in caught.value.message


def test_directories_are_one_however_they_are_written(paths: Paths) -> None:
    assert ask(paths, "/srv/models/../models/tiny/").config.model == "/srv/models/tiny"


@pytest.mark.parametrize(
    "name", ["../epyc-vllm", "a/b", "", ".", "A", "a\n", "x" * 300, "a\0b", "\udcff", "é"]
)
def test_names_that_are_no_names(paths: Paths, name: str) -> None:
    paths.config_file.write_text("")
    with pytest.raises(ConfigError):
        ask(paths, "org/name", name)


@pytest.mark.parametrize(
    "what", ["x" * 300, "a\0b", "\udcff", "org/" + "n" * 5000, "a\nb", "../epyc-vllm", "/srv/\n"]
)
def test_models_that_are_none_end_in_a_reason(paths: Paths, what: str) -> None:
    """A model that passes is looked up later; what must not happen is another kind of error."""
    try:
        made = ask(paths, what)
    except ConfigError as error:
        assert error.message.isprintable()  # noqa: PT017 - both outcomes are right
    else:
        assert made.config.model == what


def test_a_broken_file_is_named(paths: Paths) -> None:
    write(paths, "name", "model = \n")
    with pytest.raises(ConfigError, match=r"name\.toml:1: not valid TOML"):
        ask(paths, "name")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("org/Model_v1.5--x", "model-v1-5-x"),
        ("/srv/models/tiny/", "tiny"),
        ("/srv/Ünïcode é", "n-code"),
        ("org/" + "a" * 60, "a" * 40),
        ("org/" + "a" * 39 + "-b", "a" * 39),
    ],
)
def test_names_made_of_models(model: str, name: str) -> None:
    assert slug(model) == name


@given(st.text())
def test_every_name_made_is_a_name(model: str) -> None:
    try:
        name = slug(model)
    except ConfigError as error:
        assert error.hint == "give one with --name"  # noqa: PT017 - both outcomes are right
    else:
        assert endpoint(name).name == name
