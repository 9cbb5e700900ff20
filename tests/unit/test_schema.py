"""The shipped schemas are the settings table's, and let pass whatever the program takes."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config import schema, settings
from epyc_vllm_agent.config.settings import Setting
from tests.hosts import DATA
from tests.jsonschema import faults

MADE = {"endpoint.schema.json": schema.endpoint(), "epyc-vllm.schema.json": schema.host()}
ALL = [*settings.ENDPOINT, *settings.HOST, *settings.HUB, *settings.WATCH]


@pytest.mark.parametrize("name", schema.FILES)
def test_the_shipped_ones_are_current(name: str) -> None:
    assert json.loads((DATA / name).read_text()) == MADE[name], "run packaging/make-schemas"


def test_the_shipped_files_pass() -> None:
    shipped = tomllib.loads((DATA / "epyc-vllm.toml").read_text())
    assert list(faults(shipped, MADE["epyc-vllm.schema.json"])) == []
    examples = sorted((DATA / "examples").glob("*.toml"))
    assert examples
    for path in examples:
        found = faults(tomllib.loads(path.read_text()), MADE["endpoint.schema.json"])
        assert list(found) == [], path


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**6),
    st.text(max_size=8),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["all", "auto", "/opt/vllm", "/a b", "/x*", "127.0.0.1", "bfloat16", "restart", "-x", ""]
    ),
    st.sampled_from(["docker.io/org/name:tag", "https://hub.example.org", "stock-cpu", "_user"]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text("A_1-", max_size=3), SCALARS, max_size=2),
)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
@given(value=VALUES)
def test_what_the_program_takes_passes(setting: Setting, value: Any) -> None:
    try:
        setting.check(value)
    except ValueError:
        return
    assert list(faults(value, setting.check.schema)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", 80),
        ("port", 65536),
        ("port", "8000"),
        ("throughput", 1),
        ("sockets", []),
        ("sockets", [0, 0]),
        ("sockets", "some"),
        ("accept", ["all"]),
        ("env", {"A-B": "x"}),
        ("env", {"A": 1}),
        ("environment", "opt"),
        ("image", "name"),
        ("served_model_name", "-x"),
        ("served_model_name", "a\nb"),
        ("on_change", "never"),
        ("colour", "red"),
    ],
)
def test_what_an_editor_can_already_tell(key: str, value: Any) -> None:
    assert list(faults({key: value}, MADE["endpoint.schema.json"]))
