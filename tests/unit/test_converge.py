"""Carrying changes out: started, taken back on failure, completed after a kill at any moment."""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent import interrupts
from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.converge import Converged, StartFailed
from epyc_vllm_agent.changes.changes import to_disable, to_enable
from epyc_vllm_agent.changes.installed import installed
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.doors.systemd import Listed
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch import failure
from epyc_vllm_agent.watch.failure import Exit
from epyc_vllm_agent.watch.marks import Mark
from tests.fakes import FakeSystemd, KilledError
from tests.hosts import HOSTS, facts_of
from tests.plans import SIGNATURES, endpoint, plan

TARGET = "epyc-vllm-qwen3-8b.target"
FIRST, SECOND = "epyc-vllm-qwen3-8b-s0.service", "epyc-vllm-qwen3-8b-s1.service"
ALL = {TARGET, FIRST, SECOND}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


@pytest.fixture
def systemd(paths: Paths) -> FakeSystemd:
    return FakeSystemd(paths)


def planned(config: EndpointConfig | None = None) -> EndpointPlan:
    return plan(facts_of(HOSTS["genoa-2s-nps1"]), config)


def enable(
    paths: Paths, systemd: FakeSystemd, made: EndpointPlan, text: str = "model = 1\n"
) -> Converged:
    changes = to_enable(made, text, render(made), installed(paths, made.name))
    services = [service_name(instance.name) for instance in made.instances]
    return converge.enable(paths, changes, services, systemd, log=lambda _: ("a line",))


def disable(paths: Paths, systemd: FakeSystemd, name: str = "qwen3-8b") -> None:
    converge.disable(paths, to_disable(installed(paths, name)), [], systemd)


def files(paths: Paths) -> dict[str, str]:
    return {
        str(path.relative_to(paths.root)): path.read_text()
        for path in paths.root.rglob("*")
        if path.is_file() and "reports" not in path.parts
    }


def test_a_new_endpoint_comes_up(paths: Paths, systemd: FakeSystemd) -> None:
    made = planned()
    done = enable(paths, systemd, made)
    assert len(done.changed) == 5
    assert done.started == (FIRST, SECOND)
    assert systemd.active() == ALL
    assert systemd.enabled == {TARGET}
    assert systemd.made("start") == [("start", TARGET)]
    assert set(files(paths)) == {
        "etc/epyc-vllm/endpoints.d/qwen3-8b.toml",
        "var/lib/epyc-vllm/plans/qwen3-8b.json",
        *(f"etc/systemd/system/{name}" for name in ALL),
    }


def test_the_same_again_does_nothing(paths: Paths, systemd: FakeSystemd) -> None:
    made = planned()
    enable(paths, systemd, made)
    before, invocation = files(paths), systemd.state(FIRST).invocation_id
    systemd.calls.clear()
    assert enable(paths, systemd, made).is_nothing
    assert systemd.made("start", "stop", "restart", "reload") == []
    assert files(paths) == before
    assert systemd.state(FIRST).invocation_id == invocation


def test_what_was_stopped_by_hand_is_started(paths: Paths, systemd: FakeSystemd) -> None:
    made = planned()
    enable(paths, systemd, made)
    systemd.stop(SECOND)
    first = systemd.state(FIRST).invocation_id
    assert enable(paths, systemd, made) == Converged((), (SECOND,))
    assert systemd.state(FIRST).invocation_id == first
    assert systemd.active() == ALL


def test_a_change_restarts_what_runs(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    before = systemd.state(FIRST).invocation_id
    done = enable(paths, systemd, planned(endpoint(max_model_len=8192)))
    assert done.started == (FIRST, SECOND)
    assert systemd.state(FIRST).invocation_id != before
    assert "--max-model-len 8192" in (paths.units / FIRST).read_text()
    assert not systemd.state(FIRST).needs_reload


def test_a_socket_less_stops_its_instance(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    enable(paths, systemd, planned(endpoint(sockets=[1])))
    assert systemd.active() == {TARGET, SECOND}
    assert not (paths.units / FIRST).exists()


def report(paths: Paths, systemd: FakeSystemd) -> None:
    """Failed starts leave a report, as the units' own last step does."""

    def stored(unit: str, invocation_id: str) -> None:
        instance = unit.removeprefix("epyc-vllm-").removesuffix(".service")
        failure.store(
            paths,
            failure.compose(
                "qwen3-8b",
                instance,
                invocation_id,
                1.0,
                Mark(invocation_id, "health", "the server exited while loading"),
                Exit("exit-code", "exited", "1"),
                ["OSError: [Errno 98] Address already in use"],
                None,
                SIGNATURES,
            ),
        )

    systemd.on_failed_start = stored


def test_a_new_endpoint_that_fails_leaves_nothing(paths: Paths, systemd: FakeSystemd) -> None:
    systemd.failing = {SECOND}
    report(paths, systemd)
    with pytest.raises(StartFailed) as caught:
        enable(paths, systemd, planned())
    assert caught.value.message.startswith(
        "qwen3-8b-s1 failed in phase health: the port is in use by another program"
    )
    assert caught.value.outcome == "nothing is retried; its files were removed again"
    assert caught.value.details is not None
    assert "Errno 98" in caught.value.details
    assert files(paths) == {}
    assert systemd.active() == set()
    assert systemd.enabled == set()
    assert len(systemd.made("start")) == 1


def test_a_change_that_fails_is_taken_back(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    before = files(paths)
    starts = iter([{FIRST}, set[str]()])

    def fail_once(method: str, unit: str) -> None:
        if method == "start":
            systemd.failing = next(starts)

    systemd.when = fail_once
    with pytest.raises(StartFailed) as caught:
        enable(paths, systemd, planned(endpoint(max_model_len=8192)))
    assert "the earlier files are back" in str(caught.value.outcome)
    assert files(paths) == before
    assert systemd.active() == ALL
    assert systemd.enabled == {TARGET}
    assert not systemd.state(FIRST).needs_reload


def test_a_failed_start_of_an_unchanged_endpoint_keeps_its_files(
    paths: Paths, systemd: FakeSystemd
) -> None:
    enable(paths, systemd, planned())
    before = files(paths)
    systemd.stop(TARGET)
    systemd.failing = {FIRST}
    with pytest.raises(StartFailed) as caught:
        enable(paths, systemd, planned())
    assert files(paths) == before
    assert systemd.state(FIRST).active_state == "failed"
    assert "a line" in str(caught.value.details)  # no report was left
    assert "removed" not in str(caught.value.outcome)


def test_the_administrators_own_file_stays_where_its_first_start_fails(
    paths: Paths, systemd: FakeSystemd
) -> None:
    paths.endpoints.mkdir(parents=True)
    (paths.endpoints / "qwen3-8b.toml").write_text("model = 1\n")
    before = files(paths)
    systemd.failing = {FIRST}
    with pytest.raises(StartFailed):
        enable(paths, systemd, planned())
    assert files(paths) == before


def test_a_write_that_fails_stops_nothing(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    invocation = systemd.state(FIRST).invocation_id
    changed = planned(endpoint(max_model_len=8192))
    changes = to_enable(changed, "x", render(changed), installed(paths, "qwen3-8b"))
    before = files(paths)
    plans = paths.plans
    plans.rename(plans.with_name("away"))
    plans.write_text("a file where the folder was")
    with pytest.raises(ActionFailed) as caught:
        converge.enable(paths, changes, [FIRST, SECOND], systemd)
    assert caught.value.code == "write-failed"
    plans.unlink()
    plans.with_name("away").rename(plans)
    assert files(paths) == before
    assert systemd.active() == ALL
    assert systemd.state(FIRST).invocation_id == invocation


def test_a_rename_that_fails_brings_back_what_ran(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    changed = planned(endpoint(max_model_len=8192))
    changes = to_enable(changed, "x", render(changed), installed(paths, "qwen3-8b"))
    (paths.units / SECOND).unlink()
    (paths.units / SECOND).mkdir()
    with pytest.raises(ActionFailed, match=SECOND):
        converge.enable(paths, changes, [FIRST, SECOND], systemd)
    assert FIRST in systemd.active()
    assert "--max-model-len 4096" in (paths.units / FIRST).read_text()


@pytest.mark.parametrize("method", ["reload", "enable", "start"])
def test_systemd_that_refuses_leaves_nothing(
    paths: Paths, systemd: FakeSystemd, method: str
) -> None:
    systemd.refusing = {method}
    with pytest.raises(ActionFailed, match=f"systemd did not {method}"):
        enable(paths, systemd, planned())
    assert files(paths) == {}
    assert systemd.active() == set()
    assert systemd.enabled == set()


@pytest.mark.parametrize("method", ["reload", "enable", "start", "stop"])
def test_an_interrupt_leaves_the_state_before(
    paths: Paths, systemd: FakeSystemd, method: str
) -> None:
    enable(paths, systemd, planned())
    before = files(paths)
    asked: list[str] = []

    def interrupt(called: str, _: str) -> None:
        if called == method and not asked:
            asked.append(called)
            raise KeyboardInterrupt

    systemd.when = interrupt
    with pytest.raises(KeyboardInterrupt):
        enable(paths, systemd, planned(endpoint(max_model_len=8192)))
    assert files(paths) == before
    assert systemd.active() == ALL


@pytest.mark.parametrize("method", ["stop", "reload", "start", "wait"])
def test_an_interrupt_of_what_an_interrupt_takes_back(
    paths: Paths, systemd: FakeSystemd, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran is told to start again, however impatient somebody is."""
    enable(paths, systemd, planned())
    before = files(paths)
    taken_back = False

    def interrupt(called: str, _: str) -> None:
        nonlocal taken_back
        if called == "wait" and not taken_back:
            taken_back = True
            raise KeyboardInterrupt
        if called == method and taken_back:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(interrupts, "_ECHO_SECONDS", 0.0)
    systemd.when = interrupt
    with handled(), pytest.raises(KeyboardInterrupt):
        enable(paths, systemd, planned(endpoint(max_model_len=8192)))
    systemd.when = None
    assert files(paths) == before
    systemd.wait(TARGET)
    assert systemd.active() == ALL


@contextlib.contextmanager
def handled() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    interrupts.unify()
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_an_interrupt_that_comes_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with handled():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        now[0] += 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_of_the_first_start(paths: Paths, systemd: FakeSystemd) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    made = planned()
    changes = to_enable(made, "x", render(made), installed(paths, made.name))
    with pytest.raises(KeyboardInterrupt):
        converge.enable(paths, changes, [FIRST, SECOND], systemd, interrupt)
    assert files(paths) == {}
    assert systemd.active() == set()


class TestAGeneratorThatLeavesAUnitOut:
    """Its file is there, and after the reload systemd has no such unit."""

    @pytest.fixture
    def systemd(self, paths: Paths) -> FakeSystemd:
        class Lossy(FakeSystemd):
            lost: str | None = None

            def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]:
                return tuple(
                    replace(one, load_state="not-found") if one.name == self.lost else one
                    for one in super().load_units(names)
                )

        return Lossy(paths)

    def test_the_first_time(self, paths: Paths, systemd: FakeSystemd) -> None:
        setattr(systemd, "lost", SECOND)  # noqa: B010 - of the subclass
        with pytest.raises(ActionFailed, match=f"no usable unit {SECOND} after the reload") as told:
            enable(paths, systemd, planned())
        assert told.value.code == "unit-missing"
        assert files(paths) == {}
        assert systemd.active() == set()

    def test_of_a_changed_one(self, paths: Paths, systemd: FakeSystemd) -> None:
        enable(paths, systemd, planned())
        before = files(paths)
        setattr(systemd, "lost", FIRST)  # noqa: B010
        with pytest.raises(ActionFailed, match="no usable unit"):
            enable(paths, systemd, planned(endpoint(max_model_len=8192)))
        assert files(paths) == before
        assert systemd.active() == ALL


def killed_at(systemd: FakeSystemd, call: int) -> None:
    """From the call of that number on the process does nothing any more, not even clean up."""

    def kill(_method: str, _unit: str) -> None:
        if len(systemd.calls) >= call:
            raise KilledError

    systemd.when = kill


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("first", [True, False])
def test_a_killed_enable_is_completed_by_the_next(
    paths: Paths, systemd: FakeSystemd, call: int, first: bool
) -> None:
    """What `kill -9` leaves at each moment is written by hand: a fake cannot stop our cleaning."""
    made = planned(endpoint(max_model_len=8192))
    if not first:
        enable(paths, systemd, planned())
    changes = to_enable(made, "model = 1\n", render(made), installed(paths, made.name))
    for change in changes.files[:call]:
        path = paths.at(change.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change.new or "")
    (paths.units / ".epyc-vllm-staged-00").parent.mkdir(parents=True, exist_ok=True)
    (paths.units / ".epyc-vllm-staged-00").write_text("half")
    enable(paths, systemd, made)
    assert systemd.active() == ALL
    assert systemd.enabled == {TARGET}
    assert len(files(paths)) == 5
    for name in (FIRST, SECOND):
        assert "--max-model-len 8192" in (paths.units / name).read_text()
        assert not systemd.state(name).needs_reload
        invocation = systemd.state(name).invocation_id
        assert enable(paths, systemd, made).is_nothing
        assert systemd.state(name).invocation_id == invocation


def test_an_endpoint_written_and_running_but_never_enabled_at_boot(
    paths: Paths, systemd: FakeSystemd
) -> None:
    made = planned()
    enable(paths, systemd, made)
    systemd.enabled.clear()
    enable(paths, systemd, made)
    assert systemd.enabled == {TARGET}


@pytest.mark.parametrize("running", [True, False])
def test_disable_removes_all_and_only_that(
    paths: Paths, systemd: FakeSystemd, running: bool
) -> None:
    enable(paths, systemd, planned(endpoint("other", cores=1)))
    before = files(paths)
    enable(paths, systemd, planned())
    if not running:
        systemd.stop(TARGET)
    disable(paths, systemd)
    assert files(paths) == before
    assert systemd.enabled == {"epyc-vllm-other.target"}
    assert systemd.active() == {
        "epyc-vllm-other.target",
        "epyc-vllm-other-s0.service",
        "epyc-vllm-other-s1.service",
    }
    assert systemd.state(FIRST).load_state == "not-found"


def test_disable_forgets_a_failure(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    systemd.stop(TARGET)
    systemd.failing = {FIRST}
    systemd.start(TARGET)
    assert systemd.state(FIRST).active_state == "failed"
    disable(paths, systemd)
    assert systemd.state(FIRST).active_state == "inactive"


@pytest.mark.parametrize("call", range(4))
def test_a_killed_disable_is_completed_by_the_next(
    paths: Paths, systemd: FakeSystemd, call: int
) -> None:
    enable(paths, systemd, planned())
    killed_at(systemd, len(systemd.calls) + call)
    with pytest.raises(KilledError):
        disable(paths, systemd)
    systemd.when = None
    if installed(paths, "qwen3-8b").exists:
        disable(paths, systemd)
    assert files(paths) == {}
    assert systemd.active() == set()
    assert systemd.enabled == set()


def test_disable_keeps_everything_where_a_stop_fails(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, planned())
    before = files(paths)
    systemd.refusing = {"stop"}
    with pytest.raises(ActionFailed):
        disable(paths, systemd)
    assert files(paths) == before
