"""Values to plain JSON and back: what fits comes back equal, what does not is found on reading."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.plan.values import EndpointPlan
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    text: str
    colour: Colour
    inner: Inner | None
    pairs: tuple[tuple[str, int], ...]
    either: str | tuple[int, ...]
    ports: frozenset[int]
    flag: bool = False


GOOD: dict[str, Any] = {
    "text": "a",
    "colour": "red",
    "inner": {"number": 1, "share": 2},
    "pairs": [["a", 1]],
    "either": [1, 2],
    "ports": [3, 1],
    "flag": True,
}


def test_reads_what_is_written() -> None:
    value = from_plain(Outer, GOOD)
    assert value == Outer(
        "a", Colour.RED, Inner(1, 2.0), (("a", 1),), (1, 2), frozenset({1, 3}), True
    )
    assert to_plain(value) == GOOD | {"ports": [1, 3]}


@given(
    st.builds(
        Outer,
        text=st.text(),
        colour=st.sampled_from(Colour),
        inner=st.none() | st.builds(Inner, number=st.integers(), share=st.floats(allow_nan=False)),
        pairs=st.lists(st.tuples(st.text(), st.integers())).map(tuple),
        either=st.text() | st.lists(st.integers()).map(tuple),
        ports=st.frozensets(st.integers()),
        flag=st.booleans(),
    )
)
def test_every_value_comes_back(value: Outer) -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value)))) == value


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"text": 1}, "text"),
        ({"colour": "green"}, "green"),
        ({"colour": ["red"]}, "red"),
        ({"inner": {"number": True}}, "number"),
        ({"inner": {"number": 1.0}}, "number"),
        ({"inner": {}}, "number"),
        ({"inner": []}, "inner"),
        ({"inner": {"number": 1, "share": "x"}}, "share"),
        ({"inner": {"number": 1, "share": True}}, "share"),
        ({"pairs": [["a"]]}, "pairs"),
        ({"pairs": "ab"}, "pairs"),
        ({"pairs": [[1, 1]]}, "pairs"),
        ({"either": [1, "x"]}, "either"),
        ({"either": None}, "either"),
        ({"ports": ["1"]}, "ports"),
        ({"flag": 1}, "flag"),
        ({"flag": None}, "flag"),
    ],
)
def test_names_what_does_not_fit(change: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_plain(Outer, GOOD | change)


@pytest.mark.parametrize("plain", [None, [], "x", 3])
def test_something_else_than_a_table(plain: object) -> None:
    with pytest.raises(ValueError, match="not a table"):
        from_plain(Outer, plain)


def test_a_missing_field_without_a_default_is_an_error() -> None:
    with pytest.raises(ValueError, match="text"):
        from_plain(Outer, {key: value for key, value in GOOD.items() if key != "text"})


def test_defaults_and_unknown_fields() -> None:
    short = {key: value for key, value in GOOD.items() if key != "flag"} | {"newer": {"a": 1}}
    assert from_plain(Outer, short).flag is False


@pytest.mark.parametrize("sockets", ["all", "auto", [1]])
def test_a_plan_comes_back(sockets: object) -> None:
    config = endpoint(sockets=sockets, env={"A": "b"}, vllm_args=["--x", "ü 'q'"])
    value = plan(facts_of(HOSTS["genoa-2s-nps2"]), config)
    assert value.instances
    text = json.dumps(to_plain(value), ensure_ascii=False)
    assert from_plain(EndpointPlan, json.loads(text)) == value
