"""Ports: kept over re-plans, otherwise free, never twice, never beyond the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.plan.ports import choose
from epyc_vllm_agent.plan.values import Hold, Refusal

NAMES = ("a-s0", "a-s1")


def hold(port: int) -> Hold:
    return Hold("other", "other-s0", 0, (), port, ())


def test_the_first_free_ones() -> None:
    assert choose(NAMES, None, {}, [hold(8000)], {8002}) == {"a-s0": 8001, "a-s1": 8003}


def test_ports_are_kept_while_they_are_in_use_by_their_instances() -> None:
    previous = {"a-s0": 8005, "a-s1": 8000}
    assert choose(NAMES, None, previous, [], {8005, 8000}) == previous


def test_a_new_instance_does_not_get_a_siblings_port() -> None:
    """The second socket served first; its server does not run now."""
    assert choose(NAMES, None, {"a-s1": 8000}, [], set()) == {"a-s0": 8001, "a-s1": 8000}


def test_a_port_that_another_endpoint_was_given_is_left() -> None:
    assert choose(NAMES[:1], None, {"a-s0": 8000}, [hold(8000)], {8000}) == {"a-s0": 8001}


def test_a_given_port_is_the_first_of_a_row() -> None:
    assert choose(NAMES, 9000, {"a-s0": 8000}, [], {8000}) == {"a-s0": 9000, "a-s1": 9001}


def test_a_given_port_that_the_endpoint_itself_uses() -> None:
    previous = {"a-s0": 9000, "a-s1": 9001}
    assert choose(NAMES, 9000, previous, [], {9000, 9001}) == previous
    assert choose(NAMES, 9001, previous, [], {9000, 9001}) == {"a-s0": 9001, "a-s1": 9002}


def test_a_given_port_of_another_endpoint() -> None:
    found = choose(NAMES, 8999, {}, [hold(9000)], set())
    assert isinstance(found, Refusal)
    assert found.code == "port-reserved"
    assert "port 9000 belongs to endpoint other (instance other-s0)" in found.message


def test_a_given_port_in_use() -> None:
    found = choose(NAMES, 9000, {"a-s0": 8000}, [], {9001})
    assert isinstance(found, Refusal)
    assert (found.code, "port 9001" in found.message) == ("port-busy", True)


@pytest.mark.parametrize("base", [65535, 65534])
def test_a_row_that_goes_beyond_the_last_port(base: int) -> None:
    found = choose(("a", "b", "c"), base, {}, [], set())
    assert isinstance(found, Refusal)
    assert found.code == "port-beyond"


FEW = st.integers(7999, 8006)


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True),
    st.none() | FEW,
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), FEW).filter(
        lambda ports: len(set(ports.values())) == len(ports)
    ),
    st.sets(FEW),
    st.sets(FEW),
)
def test_no_port_is_given_twice_or_taken_from_others(
    names: list[str], base: int | None, previous: dict[str, int], held: set[int], busy: set[int]
) -> None:
    found = choose(names, base, previous, [hold(port) for port in held], busy)
    if isinstance(found, Refusal):
        assert base is not None
        return
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert not set(found.values()) & held
    assert set(found.values()) & busy <= set(previous.values())
    if base is None:
        kept = {name: port for name, port in previous.items() if port not in held}
        assert {name: found[name] for name in names if name in kept}.items() <= kept.items()
