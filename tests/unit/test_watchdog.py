"""The watchdog's loop against a real HTTP server on loopback, with a clock and systemd of ours."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.doors.systemd import Listed, UnitState, Watching
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import evidence, lent, marks
from epyc_vllm_agent.watch.decide import Observation, Verdict
from epyc_vllm_agent.watch.evidence import Seen
from epyc_vllm_agent.watch.marks import Mark
from epyc_vllm_agent.watch.watchdog import Watchdog
from tests.fakes import FakeSystemd
from tests.hosts import HOSTS, build, facts_of
from tests.httpserver import Server
from tests.plans import endpoint, plan

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m}} x"}} {running:.1f}
vllm:num_requests_waiting{{engine="0",model_name="m}} x"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 5.0
vllm:prompt_tokens_total{{engine="0",model_name="m}} x"}} 7.0
vllm:generation_tokens_total{{engine="0",model_name="m}} x"}} {tokens:.1f}
"""


@dataclass
class Host:
    """A host with one endpoint "a" that runs on the loopback server, and its watchdog."""

    paths: Paths
    systemd: FakeSystemd
    server: Server
    plan: EndpointPlan
    now: float = 1000.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watchdog = self.new_watchdog()

    def new_watchdog(self, spawn: Callable[[Callable[[], None]], None] | None = None) -> Watchdog:
        def connect() -> Watching:
            self.systemd.list_units("*")  # a bus that is gone refuses this too
            return self.systemd

        return Watchdog(
            self.paths, connect, lambda: self.now, spawn or (lambda work: work()), self.said.append
        )

    @property
    def service(self) -> str:
        return service_name(self.plan.instances[0].name)

    @property
    def name(self) -> str:
        return self.plan.instances[0].name

    def serve(self, running: int = 0, tokens: int = 0) -> None:
        self.server.serve_model(self.plan.config.client_name)
        self.server.answer("/metrics", METRICS.format(running=running, tokens=tokens))

    def store(self, made: EndpointPlan) -> None:
        (self.paths.plans / f"{made.name}.json").write_text(encode_plan(made))
        for instance in made.instances:
            unit = self.paths.units / service_name(instance.name)
            unit.parent.mkdir(parents=True, exist_ok=True)
            unit.write_text("[Service]\n")

    def live(self, seconds: float, step: float = 1.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.watchdog.step()
            self.now += step

    def seen(self) -> Seen | None:
        invocation = self.systemd.state(self.service).invocation_id
        return evidence.left(self.paths, self.name, invocation or "")

    def stops(self) -> list[str]:
        return [unit for _, unit in self.systemd.made("queue_stop")]


def planned(server: Server, name: str = "a") -> EndpointPlan:
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint(name))
    return replace(made, instances=(replace(made.instances[0], port=server.port),))


@pytest.fixture
def host(tmp_path: Path, server: Server) -> Host:
    paths = build(HOSTS["genoa-1s"], tmp_path)
    paths.plans.mkdir(parents=True)
    made = Host(paths, FakeSystemd(paths), server, planned(server))
    made.store(made.plan)
    made.serve()
    made.systemd.start(made.service)
    return made


def test_a_healthy_instance_is_left_alone(host: Host) -> None:
    host.live(300)
    assert host.stops() == []
    seen = host.seen()
    assert seen is not None
    assert (seen.verdict, len(seen.observations)) == (Verdict.HEALTHY, 3)
    assert host.watchdog.status == "1 of 1 instances run"
    assert len([path for _, path, _, _ in host.server.asked if path == "/health"]) == 60
    assert host.said == [f"{host.name} is healthy: it answers, and nothing waits"]


def test_an_engine_that_is_dead_is_stopped_with_evidence(host: Host) -> None:
    host.live(20)
    host.server.answer("/health", "", 503)
    host.live(30)
    assert host.stops() == [host.service]
    seen = host.seen()
    assert seen is not None
    assert seen.verdict is Verdict.SICK
    assert seen.reason == "5 probes in a row failed: /health answers 503: the engine is dead"
    assert len(seen.observations) > 5
    assert seen.observations[-1].at == 0
    assert seen.observations[-1].health is not None
    assert not seen.observations[-1].health.ok
    host.serve()  # it recovers while the job waits: what was seen of it stays
    host.live(300)
    assert host.stops() == [host.service]
    assert host.seen() == seen


def test_requests_that_stand_still_are_no_verdict_where_cpu_time_is_not_seen(host: Host) -> None:
    host.serve(running=1)
    host.live(600)
    assert host.stops() == []
    host.live(1300)
    assert host.stops() == [host.service]
    seen = host.seen()
    assert seen is not None
    assert seen.verdict is Verdict.HUNG


def group(host: Host, cpu_ticks: int) -> None:
    """The unit's control group with a worker that has used so much CPU time."""
    folder = host.paths.at("/sys/fs/cgroup/system.slice") / host.service / "payload"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("77\n78\n79\n")
    for pid, name in ((77, "VLLM::EngineCor"), (78, "VLLM::Worker")):
        stat = host.paths.proc / str(pid) / "stat"
        stat.parent.mkdir(parents=True, exist_ok=True)
        fields = ["S", *["0"] * 10, str(cpu_ticks), "0", *["0"] * 7, "1000", "512"]
        stat.write_text(f"{pid} ({name}) {' '.join(fields)}\n")


class InGroup(FakeSystemd):
    def state(self, unit: str) -> UnitState:
        return replace(super().state(unit), control_group=f"/system.slice/{unit}")


def test_a_worker_that_stands_still_is_seen(host: Host) -> None:
    host.systemd = InGroup(host.paths)
    host.systemd.start(host.service)
    group(host, 500)
    host.live(10)
    host.serve(running=1)
    host.live(100)
    assert host.stops() == []
    host.live(25)
    assert host.stops() == [host.service]
    seen = host.seen()
    assert seen is not None
    assert [(p.pid, p.name, p.state) for p in seen.processes] == [
        (77, "VLLM::EngineCor", "S"),
        (78, "VLLM::Worker", "S"),
    ]
    assert [w.pid for w in observed(host).workers or ()] == [78]


def test_the_workers_of_an_idle_server_are_not_looked_at(host: Host) -> None:
    host.systemd = InGroup(host.paths)
    host.systemd.start(host.service)
    group(host, 500)
    host.live(20)
    assert observed(host).health is not None
    assert observed(host).workers is None
    host.serve(running=1)
    host.live(20)
    assert observed(host).workers is not None
    host.server.answer("/health", "", status=503)
    host.live(20)
    assert observed(host).counters is None
    assert observed(host).workers is not None


def observed(host: Host) -> Observation:
    """The last one that was left for a report."""
    seen = host.seen()
    assert seen is not None
    return seen.observations[-1]


def test_a_server_of_a_daemon_is_found_by_the_mark(host: Host) -> None:
    group(host, 500)
    where = f"/system.slice/{host.service}/payload"
    run = str(host.systemd.state(host.service).invocation_id)
    marks.write(host.paths, host.name, Mark(run, "serving", control_group=where))
    host.serve(running=1)
    host.live(130)
    assert host.stops() == [host.service]


def test_a_worker_that_computes_is_let_be(host: Host) -> None:
    host.systemd = InGroup(host.paths)
    host.systemd.start(host.service)
    host.serve(running=1)
    for number in range(300):
        group(host, 500 + 300 * number)
        host.live(1)
    assert host.stops() == []


def test_one_token_is_asked_for_when_nothing_runs(host: Host) -> None:
    host.live(130)
    asked = [json.loads(body) for _, path, _, body in host.server.asked if "chat" in path]
    assert [body["max_tokens"] for body in asked] == [1, 1]


def test_a_canary_that_hangs_is_given_up(host: Host) -> None:
    host.systemd = InGroup(host.paths)
    host.systemd.start(host.service)
    group(host, 500)
    waiting: list[Callable[[], None]] = []

    def spawn(work: Callable[[], None]) -> None:
        canary = "ask" in work.__qualname__
        waiting.append(work) if canary else work()

    host.watchdog = host.new_watchdog(spawn)
    host.live(114)
    assert (len(waiting), host.stops()) == (1, [])
    host.live(6)
    assert host.stops() == [host.service]
    seen = host.seen()
    assert seen is not None
    assert seen.reason.startswith("one token was asked for")


def test_a_canary_of_an_endpoint_with_a_key_needs_the_key(host: Host) -> None:
    config = replace(host.plan.config, api_key_file="/etc/key")
    host.store(replace(host.plan, config=config))
    host.server.key = "s3cret"
    host.live(100)
    assert not any("completions" in path for _, path, _, _ in host.server.asked)
    host.paths.keys.mkdir(parents=True)
    lent.lend(host.paths, host.name, "s3cret")
    assert (host.paths.keys / host.name).stat().st_mode & 0o777 == 0o640
    host.server.answer("/metrics", "")  # the server's key guards it in this stand-in only
    host.live(100)
    asked = [head for _, path, head, _ in host.server.asked if "completions" in path]
    assert {head["Authorization"] for head in asked} == {"Bearer s3cret"}
    lent.take_back(host.paths, host.name)
    assert lent.borrow(host.paths, host.name) is None


def test_what_somebody_stops_is_not_judged(host: Host) -> None:
    host.live(20)
    host.server.answer("/health", "", 503)
    host.live(20)
    host.systemd.jobs[host.service] = "stop"
    host.live(60)
    assert host.stops() == []


def test_a_stop_that_comes_just_before_the_verdict_wins(host: Host) -> None:
    host.live(20)
    host.server.answer("/health", "", 503)
    listed, systemd = host.systemd, Late(host.paths)
    systemd.__dict__ |= listed.__dict__
    host.systemd = systemd
    host.watchdog = host.new_watchdog()
    host.live(60)
    assert host.stops() == []
    assert any("sick" in line for line in host.said)


class Late(FakeSystemd):
    """Its list does not show yet that a stop is queued."""

    def state(self, unit: str) -> UnitState:
        found = super().state(unit)
        return replace(found, job="stop") if self.made("list_units")[40:] else found

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        return tuple(replace(unit, job=None) for unit in super().list_units(pattern))


def test_the_end_of_a_unit_is_noticed(host: Host) -> None:
    host.live(10)
    host.systemd.end(host.service)
    host.live(2)
    assert host.said[-1] == f"{host.name} is dead: the unit failed (result exit-code)"
    assert host.stops() == []
    host.systemd.start(host.service)
    host.live(10)
    assert host.said[-1].startswith(f"{host.name} is healthy")


def test_instances_come_and_go_without_a_restart(host: Host) -> None:
    host.live(10)
    other = planned(host.server, "b")
    host.store(other)
    host.systemd.start(service_name("b-s0"))
    host.live(10)
    assert host.watchdog.status == "2 of 2 instances run"
    (host.paths.plans / "a.json").unlink()
    host.live(5)
    assert host.watchdog.status == "1 of 1 instances run"
    assert not (host.paths.watchdog / f"{host.name}.json").exists()
    assert (host.paths.watchdog / "b-s0.json").exists()


def test_a_look_that_ends_after_its_plan_leaves_nothing(host: Host) -> None:
    waiting: list[Callable[[], None]] = []
    host.watchdog = host.new_watchdog(waiting.append)
    host.live(1)
    (host.paths.plans / "a.json").unlink()
    waiting.pop()()
    host.live(2)
    assert list(host.paths.watchdog.glob("*")) == []


def test_what_an_earlier_watchdog_left_of_others_is_removed(host: Host) -> None:
    host.live(10)
    for name in ("gone-s0.json", ".gone-s0.new"):
        (host.paths.watchdog / name).write_text("{}")
    host.watchdog = host.new_watchdog()
    host.live(1)
    assert [path.name for path in host.paths.watchdog.iterdir()] == [f"{host.name}.json"]


def test_a_plan_that_cannot_be_read_hides_no_other(host: Host) -> None:
    (host.paths.plans / "0-broken.json").write_text("{")
    host.live(10)
    assert host.watchdog.status == "1 of 1 instances run"
    assert sum("cannot be read" in line for line in host.said) == 1
    (host.paths.plans / "a.json").write_text("{")
    host.live(10)
    assert host.watchdog.status == "1 of 1 instances run"  # as it was before


def test_settings_are_followed(host: Host) -> None:
    host.live(10)
    host.paths.config_file.parent.mkdir(parents=True)
    host.paths.config_file.write_text("[watch]\ninterval_seconds = 1\nsick_seconds = 4\n")
    host.live(10)
    host.paths.config_file.write_text("[watch]\nsick = 4\n")
    host.server.answer("/health", "", 503)
    host.live(5)
    assert any("the settings stay as they were" in line for line in host.said)
    assert host.stops() == [host.service]


def test_a_bus_that_restarts_is_waited_for(host: Host) -> None:
    host.live(10)
    host.systemd.refusing = {"list_units"}
    host.live(60)
    assert sum("systemd did not list_units" in line for line in host.said) <= 2
    host.systemd.refusing = set()
    host.server.answer("/health", "", 503)
    host.live(35)
    assert host.stops() == [host.service]


def test_a_stop_that_is_refused_is_asked_for_again(host: Host) -> None:
    host.live(10)
    host.server.answer("/health", "", 503)
    host.systemd.refusing = {"queue_stop"}
    host.live(60)
    host.systemd.refusing = set()
    host.live(10)
    assert host.systemd.state(host.service).job == "stop"


def test_without_evidence_nothing_is_stopped(host: Host) -> None:
    host.live(10)
    host.server.answer("/health", "", 503)
    host.paths.run.mkdir(parents=True, exist_ok=True)
    for file in host.paths.watchdog.iterdir():
        file.unlink()
    host.paths.watchdog.rmdir()
    host.paths.watchdog.write_text("in the way")
    host.live(60)
    assert host.stops() == []
    assert any("cannot be written" in line for line in host.said)


def test_a_killed_watchdog_leaves_its_verdict_to_the_next(host: Host) -> None:
    host.live(10)
    state = host.systemd.state(host.service)
    verdict = Seen(str(state.invocation_id), 0.0, Verdict.HUNG, "it hung")
    evidence.leave(host.paths, host.name, verdict)
    host.watchdog = host.new_watchdog()
    host.live(1)
    assert host.stops() == [host.service]


def test_a_new_watchdog_waits_before_it_judges(host: Host) -> None:
    host.server.answer("/health", "", 503)
    host.live(24)
    host.watchdog = host.new_watchdog()
    host.live(20)
    assert host.stops() == []


def test_a_host_that_slept_is_not_held_against_it(host: Host) -> None:
    host.live(20)
    host.server.answer("/health", "", 503)
    host.live(2)
    host.now += 7200
    host.live(6)
    host.serve()
    host.live(60)
    assert host.stops() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"invocation_id": "1"}', "[" * 100000])
def test_what_was_left_and_cannot_be_read_is_nothing(host: Host, text: str) -> None:
    host.live(10)
    (host.paths.watchdog / f"{host.name}.json").write_text(text)
    assert host.seen() is None


def test_a_link_is_not_followed(host: Host) -> None:
    host.live(10)
    path = host.paths.watchdog / f"{host.name}.json"
    path.rename(path.with_name("other"))
    path.symlink_to("other")
    assert host.seen() is None
