"""Verdicts as a table: what was seen, second by second, and what is made of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config.config import Watch
from epyc_vllm_agent.doors.probe import Counters, Probe
from epyc_vllm_agent.watch.decide import (
    KEPT,
    Canary,
    Decision,
    Observation,
    Verdict,
    Worker,
    decide,
    remember,
    wants_canary,
)

POLICY = Watch()
OK = Probe(True, False, 0.01, None)
DEAD_ENGINE = Probe(False, False, 0.01, "HTTP 503: ")
REFUSED = Probe(False, True, 0.01, "nothing listens at http://127.0.0.1:8000/health")
SILENT = Probe(False, False, 5.0, "http://127.0.0.1:8000/health did not answer: ReadTimeout")


@dataclass
class Server:
    """An instance in simulated time: what a look at it would show now."""

    at: float = 1000.0
    invocation_id: str = "1"
    active_state: str = "active"
    job: str | None = None
    result: str | None = "success"
    health: Probe | None = OK
    running: int | None = 0
    waiting: int = 0
    tokens: float = 0
    tokens_per_second: float = 0
    cores: tuple[float, ...] | None = (0.007,)  # that each worker uses
    used: tuple[float, ...] = (10.0, 10.0)
    canary: Canary | None = None

    def look(self) -> Observation:
        counters, workers = None, None
        if self.running is not None:
            counters = Counters(self.running, self.waiting, 7, int(self.tokens))
        if self.cores is not None:
            workers = tuple(Worker(50 + i, self.used[i]) for i in range(len(self.cores)))
        return Observation(
            self.at, self.invocation_id, self.active_state, "running", self.job, self.result,
            self.health, counters, workers, self.canary,
        )  # fmt: skip

    def live(self, seconds: float) -> None:
        self.at += seconds
        self.tokens += self.tokens_per_second * seconds
        cores = self.cores or ()
        self.used = tuple(a + b * seconds for a, b in zip(self.used, cores, strict=False))


def lived(server: Server, seconds: float, policy: Watch = POLICY) -> Iterator[Decision]:
    """Decisions on a server that goes on so, each interval, after a healthy minute."""
    history: tuple[Observation, ...] = ()
    healthy = Server(at=server.at - 60, used=server.used, cores=server.cores and (0.0, 0.0))
    while healthy.at < server.at - 1e-6:
        history = remember(history, healthy.look(), policy)
        healthy.live(policy.interval_seconds)
    began = server.at
    while server.at <= began + seconds:
        history = remember(history, server.look(), policy)
        yield decide(history, policy, server.at)
        server.live(policy.interval_seconds)


def first_failure(server: Server, seconds: float = 4000, policy: Watch = POLICY) -> float | None:
    """Seconds from the last good look to the verdict; None where there is none."""
    for number, decision in enumerate(lived(server, seconds, policy)):
        if decision.verdict.failed:
            return (number + 1) * policy.interval_seconds
    return None


@pytest.mark.parametrize(
    ("server", "verdict", "within"),
    [
        (Server(health=DEAD_ENGINE), Verdict.SICK, 30),
        (Server(health=REFUSED), Verdict.SICK, 30),
        (Server(health=SILENT), Verdict.SICK, 30),
        (Server(health=SILENT, running=None, cores=None), Verdict.SICK, 30),
        (Server(health=DEAD_ENGINE, cores=(4.0,)), Verdict.SICK, 30),
        # No thread of the API server is free, but the engine works: for as long as a hang may take.
        (Server(health=SILENT, running=None, cores=(0.0,)), Verdict.SICK, 30),
        (Server(running=1), Verdict.HUNG, 120),
        (Server(running=3, waiting=50), Verdict.HUNG, 120),
        (Server(running=0, waiting=1), Verdict.HUNG, 120),
        # One rank is stuck, the other spins at the barrier.
        (Server(running=1, cores=(1.0, 0.0)), Verdict.HUNG, 120),
        # Deaf, and a worker in an endless loop.
        (Server(health=SILENT, running=None, cores=(8.0,)), Verdict.SICK, 1800),
        # An endless loop computes too: the longer limit is for it.
        (Server(running=1, cores=(8.0, 8.0)), Verdict.HUNG, 1800),
        # Whether it computes cannot be seen: not judged by the short limit.
        (Server(running=1, cores=None), Verdict.HUNG, 1800),
        (Server(canary=Canary(1000.0)), Verdict.HUNG, 60),
        (Server(canary=Canary(1000.0), cores=(1.0,)), Verdict.HUNG, 1800),
        (Server(canary=Canary(1000.0), running=None), Verdict.HUNG, 60),
    ],
)
def test_what_is_given_up_and_when(server: Server, verdict: Verdict, within: float) -> None:
    *before, last = _until_failed(server)
    passed = (len(before) + 1) * POLICY.interval_seconds
    assert last.verdict is verdict
    assert passed <= within
    assert passed >= within - 2 * POLICY.interval_seconds
    assert {decision.verdict for decision in before} <= {Verdict.BUSY, Verdict.HEALTHY}


def _until_failed(server: Server) -> list[Decision]:
    found = []
    for decision in lived(server, 4000):
        found.append(decision)
        if decision.verdict.failed:
            return found
    raise AssertionError(f"never given up: {found[-1]}")


@pytest.mark.parametrize(
    ("server", "verdict"),
    [
        (Server(), Verdict.HEALTHY),
        (Server(running=None), Verdict.HEALTHY),
        (Server(running=128, waiting=5000, tokens_per_second=0.5), Verdict.BUSY),
        (Server(running=1, tokens_per_second=0.02), Verdict.BUSY),  # one token in 50 seconds
        (Server(running=1, cores=(8.0, 7.0)), Verdict.BUSY),  # prefill: half an hour may it take
        (Server(running=1, cores=(0.3,)), Verdict.BUSY),  # on a machine that is overloaded
        (Server(running=1, cores=None), Verdict.BUSY),
        (Server(canary=Canary(1.0, OK)), Verdict.HEALTHY),
        (Server(canary=Canary(1.0, DEAD_ENGINE)), Verdict.HEALTHY),  # 4xx says nothing of a hang
        (Server(health=SILENT, running=1, cores=(8.0,)), Verdict.BUSY),
    ],
)
def test_who_is_not_given_up(server: Server, verdict: Verdict) -> None:
    assert {decision.verdict for decision in lived(server, 1700)} == {verdict}


@pytest.mark.parametrize(
    ("server", "verdict"),
    [
        (Server(active_state="failed", result="oom-kill"), Verdict.OUT_OF_MEMORY),
        (Server(active_state="failed", result="exit-code"), Verdict.DEAD),
        (Server(active_state="failed", result="timeout"), Verdict.DEAD),
        (Server(active_state="inactive"), Verdict.STOPPED),
        (Server(active_state="deactivating", health=SILENT, running=1), Verdict.STOPPED),
        (Server(job="stop", health=SILENT, running=1), Verdict.STOPPED),
        (Server(job="restart", health=REFUSED), Verdict.STOPPED),
        (Server(active_state="activating", health=None, running=None), Verdict.LOADING),
        (Server(active_state="activating", health=REFUSED), Verdict.LOADING),
        (Server(active_state="reloading"), Verdict.LOADING),
    ],
)
def test_what_the_unit_says_goes_first(server: Server, verdict: Verdict) -> None:
    assert {decision.verdict for decision in lived(server, 300)} == {verdict}


def test_nothing_seen_is_nothing_known() -> None:
    assert decide((), POLICY, 5.0).verdict is Verdict.LOADING
    assert not wants_canary((), POLICY, 5.0)


def recovering(bad: Server, seconds: float, then: Callable[[Server], Server]) -> list[Verdict]:
    """Verdicts on a server that is bad for a while, good for a step, and so on ten times."""
    history: tuple[Observation, ...] = ()
    verdicts = []
    now = 1000.0
    for _ in range(10):
        began = now
        while now < began + seconds:
            history = remember(history, replace(bad, at=now).look(), POLICY)
            verdicts.append(decide(history, POLICY, now).verdict)
            now += POLICY.interval_seconds
        good = then(replace(bad, at=now))
        history = remember(history, good.look(), POLICY)
        bad = replace(good, at=now, health=bad.health)
        now += POLICY.interval_seconds
    return verdicts


def test_a_hang_that_ends_in_time_is_forgotten() -> None:
    def token(server: Server) -> Server:
        return replace(server, tokens=server.tokens + 1)

    assert set(recovering(Server(running=1), 100, token)) == {Verdict.BUSY}


def test_a_sickness_that_ends_in_time_is_forgotten() -> None:
    def answer(server: Server) -> Server:
        return replace(server, health=OK)

    assert set(recovering(Server(health=SILENT), 20, answer)) == {Verdict.BUSY}


def test_a_prefill_that_then_hangs_is_given_up_from_there() -> None:
    history: tuple[Observation, ...] = ()
    server = Server(running=1, cores=(8.0, 8.0))
    for _ in range(120):  # 10 minutes
        history = remember(history, server.look(), POLICY)
        assert decide(history, POLICY, server.at).verdict is Verdict.BUSY
        server.live(5)
    server.cores = (0.0, 0.0)
    for number in range(1, 40):
        history = remember(history, server.look(), POLICY)
        if decide(history, POLICY, server.at).verdict.failed:
            assert 105 <= number * 5 <= 125
            return
        server.live(5)
    raise AssertionError("never given up")


@pytest.mark.parametrize("bad", [Server(health=SILENT), Server(health=REFUSED), Server(running=1)])
@pytest.mark.parametrize("gap", [60.0, 3600.0, 1e7])
def test_time_in_which_nobody_looked_is_not_held_against_it(bad: Server, gap: float) -> None:
    """A paused machine or a stopped watchdog: the first looks after it decide nothing."""
    good = replace(bad, at=1000.0, health=OK, running=0)
    history: tuple[Observation, ...] = (good.look(),)
    for number in range(3 if not bad.running else 2):
        now = 1000.0 + (number + 1) * gap
        history = remember(history, replace(bad, at=now).look(), POLICY)
        decision = decide(history, POLICY, now)
        if number < 2:
            assert not decision.verdict.failed, decision


def test_a_clock_that_goes_backwards_decides_nothing() -> None:
    history: tuple[Observation, ...] = ()
    for at in (5000.0, 4000.0, 3000.0, 2000.0):
        history = remember(history, Server(at=at, running=1, health=SILENT).look(), POLICY)
        assert not decide(history, POLICY, at).verdict.failed


def test_a_new_run_starts_from_nothing() -> None:
    history: tuple[Observation, ...] = ()
    for number in range(4):
        history = remember(history, Server(at=number * 5.0, health=REFUSED).look(), POLICY)
    history = remember(history, Server(at=20, invocation_id="2", health=REFUSED).look(), POLICY)
    assert len(history) == 1


def test_loading_is_not_held_against_what_it_loaded() -> None:
    history = remember((), Server(at=0, active_state="activating", health=None).look(), POLICY)
    history = remember(history, Server(at=500, health=REFUSED).look(), POLICY)
    assert [one.at for one in history] == [500]


class TestCanary:
    def test_after_idle_time_and_then_once_in_so_much(self) -> None:
        sent = []
        history: tuple[Observation, ...] = ()
        server = Server()
        for _ in range(120):
            history = remember(history, server.look(), POLICY)
            if wants_canary(history, POLICY, server.at):
                sent.append(server.at - 1000)
                server.canary = Canary(server.at, OK)
                server.tokens += 8
            server.live(5)
        assert sent[0] == 60
        gaps = {b - a for a, b in pairwise(sent)}
        assert gaps <= {60.0, 65.0}

    @pytest.mark.parametrize(
        "server",
        [
            Server(running=1),
            Server(waiting=1),
            Server(tokens_per_second=1),
            Server(canary=Canary(1000.0)),
            Server(canary=Canary(1699.0, DEAD_ENGINE)),
            Server(health=SILENT),
            Server(health=None),
            Server(active_state="activating"),
            Server(job="stop"),
        ],
    )
    def test_not_where_it_is_of_no_use(self, server: Server) -> None:
        history: tuple[Observation, ...] = ()
        for _ in range(140):
            history = remember(history, server.look(), POLICY)
            server.live(5)
        assert not wants_canary(history, POLICY, history[-1].at)

    @pytest.mark.parametrize("seconds", [0, 600])
    def test_as_rarely_as_configured(self, seconds: int) -> None:
        policy = Watch(canary_seconds=seconds, hung_seconds=1000)
        history: tuple[Observation, ...] = ()
        server = Server()
        asked = []
        for _ in range(130):
            history = remember(history, server.look(), policy)
            asked.append(wants_canary(history, policy, server.at))
            server.live(5)
        assert asked.index(True) == 120 if seconds else not any(asked)

    def test_one_that_waits_behind_a_long_idle_time_is_not_late_at_once(self) -> None:
        """Without counters only canaries show life: the time before one is not the time of one."""
        history: tuple[Observation, ...] = ()
        server = Server(running=None)
        for _ in range(100):
            history = remember(history, server.look(), POLICY)
            server.live(5)
        server.canary = Canary(server.at)
        history = remember(history, server.look(), POLICY)
        assert decide(history, POLICY, server.at).verdict is Verdict.BUSY


@pytest.mark.parametrize(
    "server", [Server(), Server(running=None), Server(running=5, tokens_per_second=3)]
)
def test_a_healthy_history_stays_short(server: Server) -> None:
    history: tuple[Observation, ...] = ()
    for number in range(5000):
        server.canary = Canary(float(number), OK)
        history = remember(history, server.look(), POLICY)
        server.live(5)
    assert KEPT <= len(history) <= 20


STATES = st.builds(
    Server,
    at=st.floats(0, 1e6),
    invocation_id=st.sampled_from("12"),
    active_state=st.sampled_from(["active", "activating", "failed", "inactive"]),
    health=st.sampled_from([OK, DEAD_ENGINE, REFUSED, SILENT, None]),
    running=st.none() | st.integers(0, 3),
    tokens=st.integers(0, 3),
    cores=st.none() | st.just((0.0,)),
    canary=st.none() | st.builds(Canary, st.floats(0, 1e6), st.none() | st.just(OK)),
)


@given(st.lists(STATES, min_size=1, max_size=30))
def test_whatever_is_seen_has_a_verdict_and_a_reason(seen: list[Server]) -> None:
    history: tuple[Observation, ...] = ()
    for server in seen:
        history = remember(history, server.look(), POLICY)
        decision = decide(history, POLICY, server.at)
        assert decision.reason
        assert isinstance(wants_canary(history, POLICY, server.at), bool)


def test_policies_of_other_speeds_scale() -> None:
    policy = Watch(interval_seconds=1, sick_seconds=5, hung_seconds=20, canary_seconds=10)
    assert first_failure(Server(health=REFUSED), policy=policy) in (4, 5)
    assert first_failure(Server(running=1), policy=policy) in (18, 19, 20)
