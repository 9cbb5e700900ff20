"""`sockets = "auto"`: reservations first, then load, and an endpoint keeps what it has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent.doors.load import busy_percent, shares
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.placement import Had, Load, Placed, needs_load, place
from epyc_vllm_agent.plan.values import EndpointPlan, Hold
from tests.hosts import GENERATIONS, HOSTS, facts_of
from tests.plans import RECIPE, endpoint, kv_layout, plan

FACTS = facts_of(HOSTS["genoa-2s-nps1"])
LIMIT = RECIPE.load.busy_percent


def load(*percents: float) -> Load:
    return Load(tuple(enumerate(percents)), LIMIT)


def hold(socket: int, cores: int = 16) -> Hold:
    taken = FACTS.sockets[socket].cores[:cores]
    cpus = tuple(cpu for core in taken for cpu in core.cpus)
    return Hold("other", f"other-s{socket}", socket, cpus, 8000, ())


def placed(
    found: Load | None, holds: Sequence[Hold] = (), had: Had | None = None, **keys: Any
) -> Placed:
    config = endpoint(**{"sockets": "auto", **keys})
    return place(config, FACTS, holds, 32, kv_layout(), found, had or Had())


def test_the_threshold_is_the_recipes() -> None:
    assert (LIMIT, RECIPE.load.sample_seconds) == (15, 0.5)


@pytest.mark.parametrize(
    ("percents", "socket", "warned"),
    [
        ((0, 0), 0, False),
        ((14.9, 3), 0, False),  # both free: the first
        ((15, 3), 1, False),
        ((90, 14.9), 1, False),
        ((3, 90), 0, False),
        ((90, 40), 1, True),
        ((40, 90), 0, True),
        ((15, 15), 0, True),
    ],
)
def test_the_load_rule(percents: tuple[float, ...], socket: int, warned: bool) -> None:
    found = placed(load(*percents))
    assert [placement.socket for placement in found.placements] == [socket]
    assert [warning == found.busy for warning in found.warnings] == [True] * warned
    if warned:
        assert f"socket {socket} is {percents[socket]:.0f} % busy" in found.warnings[0]
    for number, percent in enumerate(percents):
        assert f"socket {number} {percent:.0f} %" in found.reason


def test_a_held_socket_comes_after_a_busy_one() -> None:
    """A server that waits for requests shows no load."""
    found = placed(load(0, 90), [hold(0, 4)], cores=4)
    assert [placement.socket for placement in found.placements] == [1]
    assert "no other endpoint holds it" in found.reason
    assert found.busy is not None


def test_of_held_sockets_the_one_with_room() -> None:
    found = placed(load(0, 0), [hold(0), hold(1, 4)], cores=8)
    assert [placement.socket for placement in found.placements] == [1]
    assert "every socket is held" in found.reason


def test_a_held_socket_is_taken_where_the_free_one_has_no_room() -> None:
    facts = facts_of(replace(HOSTS["genoa-2s-nps1"], offline="8-15,40-47"))
    config = endpoint(sockets="auto", cores=12)
    found = place(config, facts, [hold(1, 2)], 32, kv_layout(), load(0, 0))
    assert [placement.socket for placement in found.placements] == [1]
    assert "have no room" in found.reason


def test_a_forced_socket_is_taken_busy_as_it_is() -> None:
    found = placed(load(0, 99), sockets=[1])
    assert [placement.socket for placement in found.placements] == [1]
    assert (found.reason, found.warnings) == ("chosen by the administrator", ())


def test_without_a_sample_the_first_free_socket() -> None:
    found = placed(None)
    assert [placement.socket for placement in found.placements] == [0]
    assert found.reason == "no other endpoint holds it"


def test_a_sample_that_tells_of_one_socket_only() -> None:
    found = placed(Load(((0, 50.0),), LIMIT))
    assert [placement.socket for placement in found.placements] == [1]


def test_an_endpoint_keeps_its_socket_although_it_is_what_loads_it() -> None:
    had = Had((1,), frozenset(), "the reason of then", "the warning of then")
    found = placed(load(0, 99), had=had)
    assert [placement.socket for placement in found.placements] == [1]
    assert (found.reason, found.warnings) == ("the reason of then", ("the warning of then",))


def test_it_moves_where_its_socket_is_no_longer_there() -> None:
    found = placed(load(99, 0), had=Had((7,)))
    assert [placement.socket for placement in found.placements] == [1]


@pytest.mark.parametrize(
    ("keys", "had", "host", "expected"),
    [
        ({}, Had(), "genoa-2s-nps1", True),
        ({}, Had((1,)), "genoa-2s-nps1", False),
        ({}, Had((7,)), "genoa-2s-nps1", True),
        ({}, Had(), "genoa-1s", False),
        ({"sockets": "all"}, Had(), "genoa-2s-nps1", False),
        ({"sockets": [1]}, Had(), "genoa-2s-nps1", False),
    ],
)
def test_load_is_sampled_only_for_a_choice(
    keys: dict[str, Any], had: Had, host: str, expected: bool
) -> None:
    config = endpoint(**{"sockets": "auto", **keys})
    assert needs_load(config, facts_of(HOSTS[host]), (), had) == expected


def test_a_plan_made_again_is_the_same() -> None:
    first = busy_plan(load(90, 40))
    assert first.socket_warning in first.warnings
    assert [instance.socket for instance in first.instances] == [1]
    assert busy_plan(None, first) == first


def busy_plan(found: Load | None, previous: EndpointPlan | None = None) -> EndpointPlan:
    return plan(FACTS, endpoint(sockets="auto"), previous=previous, load=found)


TWO = facts_of(replace(HOSTS["genoa-2s-nps1"], cores_per_socket=2, offline="1,5"))


def times(busy: dict[int, float], facts: HostFacts = TWO) -> list[tuple[float, float]]:
    """Counters after one second, of which each CPU was busy for a share."""
    online = sorted(c for s in facts.sockets for core in s.cores for c in core.cpus)
    return [(101.0, 51.0 - busy.get(cpu, 0.0)) for cpu in online]


ZERO = [(100.0, 50.0)] * 6


def test_shares_of_sockets() -> None:
    """CPUs 1 and 5 are offline: the counters of the others stand side by side."""
    assert [cpu for s in TWO.sockets for core in s.cores for cpu in core.cpus] == [0, 4, 2, 6, 3, 7]
    found = shares(TWO.sockets, ZERO, times({2: 1.0, 6: 1.0, 3: 0.5, 0: 0.25}))
    assert found == ((0, 12.5), (1, 62.5))


@pytest.mark.parametrize("after", [[], [(101.0, 51.0)] * 5, [(101.0, 51.0)] * 8])
def test_counters_that_cannot_be_told_apart_say_nothing(after: list[tuple[float, float]]) -> None:
    assert shares(TWO.sockets, ZERO, after) == ()


def test_a_clock_that_stood_still_says_nothing() -> None:
    assert shares(TWO.sockets, ZERO, ZERO) == ()


def test_counters_that_ran_backwards_stay_within_bounds() -> None:
    """iowait may decrease (proc_stat(5))."""
    for idle in (48.0, 53.0):
        found = shares(TWO.sockets, ZERO, [(101.0, idle)] * 6)
        assert [percent for _, percent in found] == [100.0 if idle < 50 else 0.0] * 2


def test_a_sample_of_the_machine_this_runs_on() -> None:
    """The real counters; of a container that shows fewer CPUs than there are, nothing."""
    sockets = gather(Paths(), GENERATIONS).sockets
    found = busy_percent(sockets, 0.05)
    assert [number for number, _ in found] in ([socket.id for socket in sockets], [])
    assert all(0 <= percent <= 100 for _, percent in found)
