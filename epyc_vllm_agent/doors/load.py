"""How busy sockets are: the only importer of psutil. Samples, judges nothing."""

import time
from collections.abc import Sequence

from epyc_vllm_agent.facts.host import Socket

Times = Sequence[tuple[float, float]]  # of each CPU: all its time, and what of it was idle


def busy_percent(sockets: Sequence[Socket], seconds: float) -> tuple[tuple[int, float], ...]:
    """The busy share of each socket over `seconds`; none where counters cannot be told apart."""
    before = _times()
    time.sleep(seconds)
    return shares(sockets, before, _times())


def shares(sockets: Sequence[Socket], before: Times, after: Times) -> tuple[tuple[int, float], ...]:
    """The counters stand in the order of the online CPUs, without their numbers."""
    online = sorted(cpu for s in sockets for core in s.cores for cpu in core.cpus)
    if not len(before) == len(after) == len(online):
        return ()  # a CPU came or went, or a container shows fewer than there are
    spent = {
        cpu: (now[0] - then[0], now[1] - then[1])
        for cpu, then, now in zip(online, before, after, strict=True)
    }
    found = []
    for socket in sockets:
        mine = [spent[cpu] for core in socket.cores for cpu in core.cpus]
        total, idle = sum(t for t, _ in mine), sum(i for _, i in mine)
        if total > 0:
            found.append((socket.id, min(max(100 * (1 - idle / total), 0.0), 100.0)))
    return tuple(found)


def _times() -> Times:
    import psutil  # here: no verb but a plan with a choice of sockets needs it

    # guest time is part of user time, as in the kernel's own counters (proc_stat(5)).
    return [
        (
            sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0),
            t.idle + getattr(t, "iowait", 0.0),
        )
        for t in psutil.cpu_times(percpu=True)
    ]
