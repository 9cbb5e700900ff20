"""From what was seen of an instance to a verdict; pure: no clock, no probes, nothing is stopped.

Times are CLOCK_MONOTONIC, which neither a set clock nor a suspended host moves. Where the watchdog
itself did not run (stopped, a paused machine, no CPU time), the gap between two observations counts
as one usual step and not as time in which the server stood still.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from epyc_vllm_agent.config.config import Watch
from epyc_vllm_agent.doors.probe import Counters, Probe

SICK_PROBES = 3  # in a row: one may fail for a reason of the moment
KEPT = 12  # observations that are always kept: a minute of them for the report
_MOST = 4000  # kept at all, whatever the settings
_LATE = 3  # intervals, or _LATE_SECONDS: what a step may take before it is a gap
_LATE_SECONDS = 15.0  # on a machine that is overloaded
# Of one core, by every worker. Measured: an idle worker 0.007, one that computes its whole cores.
_BUSY_CORES = 0.1


class Verdict(StrEnum):
    STOPPED = "stopped"  # or about to be, because somebody asked for it
    LOADING = "loading"
    HEALTHY = "healthy"
    BUSY = "busy"
    SICK = "sick"
    HUNG = "hung"
    DEAD = "dead"
    OUT_OF_MEMORY = "out-of-memory"
    START_FAILED = "start-failed"  # of reports: the start job, not the watchdog, found it

    @property
    def failed(self) -> bool:
        return self in _FAILED


_FAILED = frozenset(
    {Verdict.SICK, Verdict.HUNG, Verdict.DEAD, Verdict.OUT_OF_MEMORY, Verdict.START_FAILED}
)


@dataclass(frozen=True, slots=True)
class Worker:
    """CPU time of a worker process so far, all its threads together."""

    pid: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Canary:
    """One token asked for at `sent`; `answer` is None as long as there is none."""

    sent: float
    answer: Probe | None = None


def is_out(canary: Canary | None) -> bool:
    """Whether one was sent that nobody has answered yet."""
    return canary is not None and canary.answer is None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at an instance. What was not asked or not answered is None."""

    at: float
    invocation_id: str | None
    active_state: str
    sub_state: str = ""
    job: str | None = None
    result: str | None = None
    health: Probe | None = None
    counters: Counters | None = None
    workers: tuple[Worker, ...] | None = None
    canary: Canary | None = None

    @property
    def has_canary_out(self) -> bool:
        return is_out(self.canary)

    @property
    def has_requests(self) -> bool:
        return self.counters is not None and self.counters.requests > 0


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    reason: str  # one sentence


History = Sequence[Observation]


def decide(history: History, policy: Watch, now: float) -> Decision:
    """The verdict on the instance whose last run `history` ends with, at `now`."""
    if not history:
        return Decision(Verdict.LOADING, "it has not been looked at yet")
    last = history[-1]
    found = _of_unit(last)
    if found:
        return found
    return (
        _sick(history, policy, now)
        or _hung(history, policy, now)
        or Decision(*_well(history, policy))
    )


def remember(history: History, seen: Observation, policy: Watch) -> tuple[Observation, ...]:
    """`history` with `seen`: one run of the unit, and of it what later verdicts depend on."""
    same = [one for one in history if _is_same_run(one, seen)]
    kept = [*same, seen]
    enough = max(KEPT, policy.canary_seconds // policy.interval_seconds + 2)
    needed = min(_still_from(kept), _well_until(kept), len(kept) - enough)
    return tuple(kept[max(0, needed, len(kept) - _MOST) :])


def wants_canary(history: History, policy: Watch, now: float) -> bool:
    """Whether the instance has been idle for so long that one token should be asked for."""
    if not policy.canary_seconds or not history or _of_unit(history[-1]):
        return False
    last = history[-1]
    if last.has_requests or last.has_canary_out or last.health is None or not last.health.ok:
        return False
    moved = [i for i in range(1, len(history)) if _progressed(history[i - 1], history[i])]
    if last.canary is not None and now - last.canary.sent < policy.canary_seconds:
        return False
    return _passed(history, moved[-1] if moved else 0, policy, now) >= policy.canary_seconds


def _of_unit(last: Observation) -> Decision | None:
    """What the unit's own state says; None where it runs and nobody has asked for its end."""
    if last.active_state == "failed":
        if last.result == "oom-kill":
            return Decision(Verdict.OUT_OF_MEMORY, "the kernel killed it for lack of memory")
        return Decision(Verdict.DEAD, f"the unit failed (result {last.result})")
    if last.job in ("stop", "restart") or last.active_state in ("inactive", "deactivating"):
        return Decision(Verdict.STOPPED, f"the unit is {last.active_state}")
    if last.active_state != "active":
        return Decision(Verdict.LOADING, f"the unit is {last.active_state}")
    return None


def _sick(history: History, policy: Watch, now: float) -> Decision | None:
    """/health failed several times in a row, for long enough."""
    start = _well_until(history) + 1
    bad = [one for one in history[start:] if one.health is not None]
    passed = _passed(history, max(0, start - 1), policy, now)
    if len(bad) < SICK_PROBES or passed < policy.sick_seconds - policy.interval_seconds:
        return None
    reason = _fault(bad[-1])
    # Every thread of the API server may be busy with one huge prompt, and still the engine works.
    if _is_silence(bad[-1]) and _burnt_since(history, start):
        idle = _passed(history, _computed_until(history), policy, now)
        if idle < policy.hung_seconds - policy.interval_seconds and passed < policy.prefill_seconds:
            return Decision(Verdict.BUSY, f"it computes, but {reason}")
    return Decision(Verdict.SICK, f"{len(bad)} probes in a row failed: {reason}")


def _hung(history: History, policy: Watch, now: float) -> Decision | None:
    """There is work, no token comes, and no worker computes (or has computed for too long)."""
    last = history[-1]
    if not last.has_requests and not last.has_canary_out:
        return None
    still = _passed(history, _demand_from(history), policy, now)
    idle = _passed(history, _computed_until(history), policy, now)
    late = policy.interval_seconds  # the next look would be beyond the limit
    if still >= policy.prefill_seconds - late:
        return Decision(
            Verdict.HUNG, f"{_work(last)}, and no token has come for {still:.0f} seconds"
        )
    limit = policy.hung_seconds
    if not last.has_requests:  # a canary: idle time has passed before it
        limit = max(limit - policy.canary_seconds, SICK_PROBES * policy.interval_seconds)
    if last.workers is None or min(still, idle) < limit - late:
        return None
    return Decision(
        Verdict.HUNG,
        f"{_work(last)}, but for {min(still, idle):.0f} seconds no token has come and the workers "
        "have not computed",
    )


def _well(history: History, policy: Watch) -> tuple[Verdict, str]:
    last = history[-1]
    if last.health is not None and not last.health.ok:
        return Verdict.BUSY, f"one probe failed: {_fault(last)}"
    if last.has_requests or last.has_canary_out:
        return Verdict.BUSY, _work(last)
    return Verdict.HEALTHY, "it answers, and nothing waits"


def _fault(seen: Observation) -> str:
    """Why /health failed. 503 has one meaning only: the engine is dead."""
    reason = (seen.health.reason if seen.health else None) or "no answer"
    if reason.startswith("HTTP 503"):
        return "/health answers 503: the engine is dead"
    return reason.rstrip(": ")


def _work(last: Observation) -> str:
    if last.has_requests and last.counters:
        return f"{last.counters.running} requests run and {last.counters.waiting} wait"
    return "one token was asked for"


def _is_silence(seen: Observation) -> bool:
    """No answer at all, which a busy server gives too; 503 and a refusal it does not."""
    return (
        seen.health is not None
        and not seen.health.refused
        and not (seen.health.reason or "").startswith("HTTP ")
    )


def _well_until(history: History) -> int:
    """Index of the last good answer of /health; -1 where there is none."""
    good = (i for i in range(len(history) - 1, -1, -1) if _is_good(history[i]))
    return next(good, -1)


def _is_good(seen: Observation) -> bool:
    return seen.health is not None and seen.health.ok


def _still_from(history: History) -> int:
    """Index of the last observation after which it could have stood still."""
    for i in range(len(history) - 1, 0, -1):
        idle = not history[i].has_requests and not history[i].has_canary_out
        if (idle and history[i].counters is not None) or _progressed(history[i - 1], history[i]):
            return i
    return 0


def _demand_from(history: History) -> int:
    """The same for what waits now: a canary waits from when it was sent, whatever was before."""
    still = _still_from(history)
    if history[-1].has_requests:
        return still
    without = (i for i in range(len(history) - 1, -1, -1) if not history[i].has_canary_out)
    return max(still, next(without, 0))


def _progressed(before: Observation, after: Observation) -> bool:
    if before.counters and after.counters and before.counters.tokens != after.counters.tokens:
        return True
    if after.canary is None or after.canary.answer is None or after.canary == before.canary:
        return False
    return after.canary.answer.ok


def _is_same_run(one: Observation, other: Observation) -> bool:
    return (one.invocation_id, one.active_state) == (other.invocation_id, other.active_state)


def _computed_until(history: History) -> int:
    """Index of the last observation before which every worker computed."""
    steps = range(len(history) - 1, 0, -1)
    return next((i for i in steps if _burnt(history[i - 1], history[i])), 0)


def _burnt_since(history: History, start: int) -> bool:
    return _computed_until(history) >= max(start, 1)


def _burnt(before: Observation, after: Observation) -> bool:
    """Every worker used CPU time: one that spins on another that is stuck is not enough."""
    if not before.workers or not after.workers or after.at <= before.at:
        return False
    earlier = {worker.pid: worker.cpu_seconds for worker in before.workers}
    used = [w.cpu_seconds - earlier.get(w.pid, 0.0) for w in after.workers]
    return min(used) / (after.at - before.at) >= _BUSY_CORES


def _passed(history: History, since: int, policy: Watch, now: float) -> float:
    """Seconds from observation `since` to `now`; a step that took too long counts as one."""
    usual = float(policy.interval_seconds)
    times = [*(one.at for one in history[since:]), now]
    steps = (max(b - a, 0.0) for a, b in pairwise(times))
    late = max(_LATE * usual, _LATE_SECONDS)
    return sum(step if step <= late else usual for step in steps)
