"""The processes below the API server: an engine and a worker per rank, bound as vLLM binds them.

They do nothing but exist: with their names, CPUs and a file in /dev/shm, to be looked at, stopped,
killed or left behind. Forked before any thread is started.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Cpus = tuple[int, ...] | None


def name(text: str) -> None:
    Path("/proc/self/comm").write_text(text)


def start_engine(ranks: Sequence[Cpus], burns: Callable[[], bool] = lambda: False) -> int:
    """Forks the engine, which forks the workers; its process id. `burns`: shall they compute?"""
    engine = os.fork()
    if engine:
        return engine
    _as_child("VLLM::EngineCore")
    workers = [_start_worker(cpus, burns) for cpus in ranks]
    os.wait()  # the engine does not outlive a worker
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    os._exit(0)


def _start_worker(cpus: Cpus, burns: Callable[[], bool]) -> int:
    worker = os.fork()
    if worker:
        return worker
    _as_child("VLLM::Worker")
    for cpu in cpus or ():
        threading.Thread(target=_hold, args=(cpu,), daemon=True).start()
    if cpus:
        _bind(cpus)
    with suppress(OSError):
        Path(f"/dev/shm/psm_{secrets.token_hex(4)}").write_bytes(bytes(1 << 20))  # noqa: S108
    while True:
        _compute(0.25 if burns() else 0.0)
        time.sleep(0.25)


def _compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _as_child(title: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name(title)


def _hold(cpu: int) -> None:
    """An OpenMP thread: one per listed CPU, on that CPU alone."""
    _bind((cpu,))
    while True:
        time.sleep(3600)


def _bind(cpus: Sequence[int]) -> None:
    with suppress(OSError):  # of CPUs that are not there vLLM says nothing either
        os.sched_setaffinity(0, cpus)


def ended(engine: int) -> bool:
    try:
        return os.waitpid(engine, os.WNOHANG)[0] == engine
    except ChildProcessError:
        return True


def end(engine: int) -> None:
    """Ends the engine with its workers."""
    children = Path(f"/proc/{engine}/task/{engine}/children")
    workers = children.read_text().split() if children.exists() else []
    for process in (engine, *map(int, workers)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(engine, 0)
