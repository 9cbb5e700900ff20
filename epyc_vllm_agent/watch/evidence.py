"""What was seen of an instance before its end, and how it gets from the watchdog into the report.

The watchdog runs without privileges and can write no report. It leaves what it saw last, and its
verdict, in /run/epyc-vllm/watchdog; the unit's last step runs as root, reads it and writes the one
report. A file that somebody else put there makes at most a wrong report: it is only read.
"""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent import __version__
from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.facts import processes
from epyc_vllm_agent.facts.host import NumaNode
from epyc_vllm_agent.facts.memory import read_nodes
from epyc_vllm_agent.facts.processes import Process
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.watch.decide import KEPT, Decision, Observation, Verdict, Worker

_MOST_BYTES = 1 << 20
_FEW = 3  # looks: written anew at each one, and the last may not have been answered any more


@dataclass(frozen=True, slots=True)
class Seen:
    """What the watchdog saw last of one run; `observations` are timed in seconds before `time`."""

    invocation_id: str
    time: float  # seconds since the epoch
    verdict: Verdict
    reason: str
    observations: tuple[Observation, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeMemory:
    node: int
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a report holds beside the log: gathered before and at the end of the run."""

    seen: Seen | None
    oom_kills: int | None
    nodes: tuple[NodeMemory, ...]
    agent: str  # version of this program


def seen_of(
    invocation_id: str,
    wall: float,
    now: float,
    decision: Decision,
    history: Sequence[Observation],
    found: Sequence[Process] = (),
) -> Seen:
    """The last of `history` for a file: few while all is well, a minute of them otherwise."""
    last = history[-(KEPT if decision.verdict.failed else _FEW) :]
    looks = tuple(replace(look, at=round(look.at - now, 1)) for look in last)
    return Seen(invocation_id, wall, decision.verdict, decision.reason, looks, tuple(found))


def leave(paths: Paths, instance: str, seen: Seen) -> None:
    """Raises OSError where it cannot be written."""
    # Replaced whole, but not synced: it lies in memory, and it is written at every look.
    new = paths.watchdog / f".{instance}.new"
    paths.watchdog.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(to_plain(seen)), encoding="utf-8")
    new.replace(paths.watchdog / f"{instance}.json")


def keep(paths: Paths, instances: Collection[str]) -> None:
    """Removes what was left of any other instance, by an earlier run of the watchdog too."""
    wanted = {f"{instance}.json" for instance in instances}
    for path in paths.watchdog.glob("*"):
        if path.name not in wanted:
            path.unlink(missing_ok=True)


def left(paths: Paths, instance: str, invocation_id: str) -> Seen | None:
    """What the watchdog left of that run; None where it left nothing that can be read."""
    try:
        descriptor = os.open(paths.watchdog / f"{instance}.json", os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            seen = from_plain(Seen, json.loads(file.read(_MOST_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None
    return seen if seen.invocation_id == invocation_id else None


def gather(paths: Paths, seen: Seen | None) -> Evidence:
    """The evidence that a step of the unit can still see of it."""
    group = processes.own_service(paths)
    return Evidence(
        seen=seen,
        oom_kills=processes.oom_kills(paths, group) if group else None,
        nodes=tuple(map(_memory_of, read_nodes(paths, ()))),
        agent=__version__,
    )


def _memory_of(node: NumaNode) -> NodeMemory:
    return NodeMemory(node.id, node.memory_bytes, node.free_bytes)


def workers_of(found: Sequence[Process]) -> tuple[Worker, ...] | None:
    """CPU time of vLLM's workers, by the names that vLLM gives its processes (one for each rank).

    None where there is none to be seen: the unit's processes are in another control group.
    """
    for name in ("VLLM::Worker", "VLLM::EngineCor"):
        same = tuple(Worker(p.pid, p.cpu_seconds) for p in found if p.name.startswith(name))
        if same:
            return same
    return None
