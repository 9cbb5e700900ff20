"""The watchdog's loop: looks at every instance that runs, decides, stops what is given up.

It follows the stored plans and never plans, pulls or writes units. A unit's own last step makes
the report (watch/unit_steps.py): the watchdog leaves it what it saw and asks systemd for the stop.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from epyc_vllm_agent.config.config import Watch
from epyc_vllm_agent.doors.notify import notify
from epyc_vllm_agent.doors.systemd import Listed, UnitState, Watching
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.facts.processes import Process, processes
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import evidence, marks
from epyc_vllm_agent.watch.aside import Aside, Work
from epyc_vllm_agent.watch.decide import (
    Canary,
    Decision,
    Observation,
    Verdict,
    decide,
    is_out,
    remember,
    wants_canary,
)
from epyc_vllm_agent.watch.follow import Followed
from epyc_vllm_agent.watch.looks import Look, Looker

PATTERN = "epyc-vllm-*.service"
Spawn = Callable[[Work], None]
Say = Callable[[str], None]


@dataclass
class _Watched:
    """An instance with what is known of it; only the loop's own thread changes it."""

    plan: EndpointPlan
    instance: Instance
    listed: Listed | None = None
    state: UnitState | None = None
    history: tuple[Observation, ...] = ()
    decision: Decision = field(default_factory=lambda: decide((), Watch(), 0.0))
    canary: Canary | None = None
    due: float = 0.0
    is_looking: bool = False
    given_up: str | None = None  # the run whose stop was asked for
    left: tuple[Verdict, float] | None = None  # what was left for the report, and when

    @property
    def service(self) -> str:
        return service_name(self.instance.name)

    @property
    def runs(self) -> bool:
        return self.state is not None and self.state.active_state == "active"

    def is_left(self, now: float, seconds: float) -> bool:
        """Whether the last verdict was left for the report, and not too long ago."""
        if self.left is None:
            return False
        return self.left[0] is self.decision.verdict and now - self.left[1] < seconds

    def take_in(self, state: UnitState, look: Look | None, policy: Watch, now: float) -> None:
        if self.history and self.history[-1].invocation_id != state.invocation_id:
            self.canary = self.left = None
        seen = Observation(
            at=now,
            invocation_id=state.invocation_id,
            active_state=state.active_state,
            sub_state=state.sub_state,
            job=state.job,
            result=state.result,
            health=look.health if look else None,
            counters=look.counters if look else None,
            workers=look.workers if look else None,
            canary=self.canary,
        )
        self.history = remember(self.history, seen, policy)
        self.decision = decide(self.history, policy, now)


def to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Watchdog:
    def __init__(
        self,
        paths: Paths,
        connect: Callable[[], Watching],
        clock: Callable[[], float] = time.monotonic,
        spawn: Spawn | None = None,
        say: Say = to_stderr,
    ) -> None:
        self._paths = paths
        self._connect = connect
        self._clock = clock
        self._spawn = spawn or Aside()
        self._say = say
        self._systemd: Watching | None = None
        self._followed = Followed(paths, say)
        self._looker = Looker(paths)
        self._watched: dict[str, _Watched] = {}
        self._done: SimpleQueue[Work] = SimpleQueue()
        self._complaint: str | None = None

    @property
    def policy(self) -> Watch:
        return self._followed.policy

    @property
    def status(self) -> str:
        runs = [watched for watched in self._watched.values() if watched.runs]
        return f"{len(runs)} of {len(self._watched)} instances run"

    def run(self, stopping: threading.Event) -> None:
        """Steps until told to stop; systemd hears of each step."""
        self.step()
        gc.freeze()  # what is loaded stays: it need not be gone through for each few looks
        notify("READY=1", f"STATUS={self.status}")
        while not stopping.wait(self.policy.dead_seconds / 2):
            self.step()
            notify("WATCHDOG=1", f"STATUS={self.status}")
        notify("STOPPING=1")

    def step(self) -> None:
        """Everything that is due now: follow, look at units, take in probes, decide, act."""
        self._follow()
        try:
            systemd = self._systemd = self._systemd or self._connect()
            listed = {unit.name: unit for unit in systemd.list_units(PATTERN)}
            for watched in self._watched.values():
                self._follow_unit(watched, listed.get(watched.service), systemd)
            while not self._done.empty():
                self._done.get()()
            for watched in self._watched.values():
                self._start_look(watched)
            self._complain(None)
        except ActionFailed as error:  # the bus restarts: the next step connects anew
            self._systemd = None
            self._complain(error.message)

    def _follow(self) -> None:
        """Instances come and go with the stored plans."""
        plans = self._followed.plans()
        if plans is None:
            return
        wanted = {instance.name: (plan, instance) for plan in plans for instance in plan.instances}
        for name in self._watched.keys() - wanted.keys():
            del self._watched[name]
        evidence.keep(self._paths, wanted)
        for name, (plan, instance) in wanted.items():
            known = self._watched.setdefault(name, _Watched(plan, instance))
            known.plan, known.instance = plan, instance

    def _follow_unit(self, watched: _Watched, listed: Listed | None, systemd: Watching) -> None:
        """Asks for a unit's details where the list shows that something has changed."""
        if listed == watched.listed and (watched.state or listed is None):
            return
        if listed is None:
            watched.listed, watched.state, watched.history = None, None, ()
            return
        state = watched.state = self._state(watched, systemd)
        watched.listed = listed
        watched.due = self._clock()
        self._take_in(watched, state, None)
        if watched.runs and not state.job:
            watched.given_up = None  # whoever started it again meanwhile took the stop away
            self._finish(watched, state, systemd)

    def _state(self, watched: _Watched, systemd: Watching) -> UnitState:
        """The unit's state, with the control group that its server is in."""
        state = systemd.state(watched.service)
        mark = marks.read(self._paths, watched.instance.name, state.invocation_id or "")
        group = (mark.control_group if mark else None) or state.control_group
        return replace(state, control_group=group)

    def _finish(self, watched: _Watched, state: UnitState, systemd: Watching) -> None:
        """Carries out a verdict whose stop a killed watchdog did not come to."""
        if state.invocation_id is None:
            return
        seen = evidence.left(self._paths, watched.instance.name, state.invocation_id)
        if seen and seen.verdict.failed:
            self._say(f"{watched.instance.name} was found {seen.verdict} before: stopping it")
            systemd.queue_stop(watched.service)

    def _start_look(self, watched: _Watched) -> None:
        now, state = self._clock(), watched.state
        if state is None or not watched.runs or watched.is_looking or now < watched.due:
            return
        watched.is_looking = True
        watched.due = now + self.policy.interval_seconds
        plan, instance, policy = watched.plan, watched.instance, self.policy
        is_asking = is_out(watched.canary)

        def look() -> None:
            found = None
            try:
                group = state.control_group
                found = self._looker.look(plan, instance, group, policy, is_asking)
            finally:
                self._done.put(lambda: self._looked(watched, state.invocation_id, found))

        self._spawn(look)

    def _looked(self, watched: _Watched, run: str | None, look: Look | None) -> None:
        watched.is_looking = False
        if self._watched.get(watched.instance.name) is not watched:  # its plan is gone
            return
        state = watched.state
        if state is None or state.invocation_id != run or not watched.runs:
            return
        if watched.given_up == run or state.job:  # what was left for the report stays
            return
        self._take_in(watched, state, look)
        if watched.decision.verdict.failed:
            self._give_up(watched)
            return
        now = self._clock()
        if wants_canary(watched.history, self.policy, now):
            self._send_canary(watched, now)
        if not watched.is_left(now, _LEFT_FOR * self.policy.interval_seconds):
            self._leave(watched, state)

    def _take_in(self, watched: _Watched, state: UnitState, look: Look | None) -> None:
        before = watched.decision.verdict
        watched.take_in(state, look, self.policy, self._clock())
        verdict = watched.decision.verdict
        if watched.given_up == state.invocation_id:  # its end is no news
            return
        if verdict is not before and {verdict, before} != _QUIET:
            self._say(f"{watched.instance.name} is {verdict}: {watched.decision.reason}")

    def _send_canary(self, watched: _Watched, now: float) -> None:
        if not self._looker.may_ask(watched.plan, watched.instance):
            return
        sent = watched.canary = Canary(now)
        policy = self.policy

        def answered(canary: Canary) -> None:
            if watched.canary == sent:
                watched.canary = canary

        def ask() -> None:
            answer = self._looker.canary(watched.plan, watched.instance, policy)
            self._done.put(lambda: answered(Canary(now, answer)))

        self._spawn(ask)

    def _leave(self, watched: _Watched, state: UnitState, found: Sequence[Process] = ()) -> bool:
        """Leaves what was seen for the report; whether that could be done."""
        if state.invocation_id is None:
            return False
        seen = evidence.seen_of(
            state.invocation_id,
            time.time(),
            self._clock(),
            watched.decision,
            watched.history,
            found,
        )
        try:
            evidence.leave(self._paths, watched.instance.name, seen)
        except OSError as error:
            self._say(f"{self._paths.watchdog} cannot be written ({error.strerror})")
            return False
        watched.left = watched.decision.verdict, self._clock()
        return True

    def _give_up(self, watched: _Watched) -> None:
        """Evidence first, then the stop: without the evidence it would look as one asked for."""
        if self._systemd is None or watched.state is None:
            return
        run = watched.state.invocation_id
        state = watched.state = self._state(watched, self._systemd)
        if state.invocation_id != run or state.active_state != "active" or state.job:
            return
        group = state.control_group
        if self._leave(watched, state, processes(self._paths, group) if group else ()):
            self._say(f"stopping {watched.service}")
            self._systemd.queue_stop(watched.service)
            watched.given_up = run

    def _complain(self, complaint: str | None) -> None:
        """Says what is wrong once, and once that it is over."""
        if complaint == self._complaint:
            return
        self._say(complaint if complaint else f"over: {self._complaint}")
        self._complaint = complaint


_LEFT_FOR = 3  # intervals: it costs as much as a probe
_QUIET = {Verdict.HEALTHY, Verdict.BUSY}  # a server goes from one to the other all day
