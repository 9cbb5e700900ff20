"""A run in a process of its own that is killed (SIGKILL) before its n-th effect on the host.

Every effect counts: a file opened for writing, renamed, removed or made below the root, as the
interpreter's audit events (PEP 578) tell, and every call of systemd that changes something, before
and after it. What systemd knows outlives the process in a file.
"""

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epyc_vllm_agent.changes import running
from epyc_vllm_agent.doors.systemd import Listed, UnitState, Watcher
from epyc_vllm_agent.paths import Paths
from tests.fakes import FakeSystemd

MUTABLE = ("etc", "usr", "var", "run")  # of the root; proc and sys stay as they are
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate"}


class Counter:
    def __init__(self, kill_at: int | None) -> None:
        self.count = 0
        self._kill_at = kill_at

    def tick(self) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, root: Path) -> None:
        below = f"{root}/"

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
            if (writes or event in _CHANGES) and str(arguments[0]).startswith(below):
                self.tick()

        sys.addaudithook(hook)


@dataclass
class StoredSystemd:
    """The fake systemd with its state in `file`: each change counts before and after it."""

    paths: Paths
    file: Path
    counter: Counter

    def __post_init__(self) -> None:
        self.fake = FakeSystemd(self.paths)
        if self.file.exists():
            units, enabled = pickle.loads(self.file.read_bytes())  # noqa: S301 - our own
            self.fake._units, self.fake.enabled = units, enabled
        self.fake.on_start = self._note

    def reload(self) -> None:
        self._change(self.fake.reload)

    def state(self, unit: str) -> UnitState:
        return self.fake.state(unit)

    def start(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._change(lambda: self.fake.start(unit, watch))
        return self.fake.state(unit)

    def queue_start(self, unit: str) -> None:
        self.counter.tick()
        self.fake.queue_start(unit)

    def wait(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._change(lambda: self.fake.wait(unit, watch))
        return self.fake.state(unit)

    def restart(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._change(lambda: self.fake.restart(unit, watch))
        return self.fake.state(unit)

    def stop(self, unit: str) -> UnitState:
        self._change(lambda: self.fake.stop(unit))
        return self.fake.state(unit)

    def enable(self, unit: str) -> bool:
        is_new = unit not in self.fake.enabled
        self._change(lambda: self.fake.enable(unit))
        return is_new

    def disable(self, unit: str) -> None:
        self._change(lambda: self.fake.disable(unit))

    def reset_failed(self, unit: str) -> None:
        self._change(lambda: self.fake.reset_failed(unit))

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        return self.fake.list_units(pattern)

    def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]:
        return self.fake.load_units(names)

    def _change(self, do: Callable[[], object]) -> None:
        self.counter.tick()
        do()
        self.file.write_bytes(pickle.dumps((self.fake._units, self.fake.enabled)))
        self.counter.tick()

    def _note(self, unit: str, invocation: str) -> None:
        """The unit's own step, which is another process: it counts for no effect of the run."""
        instance = unit.removeprefix("epyc-vllm-").removesuffix(".service")
        count, self.counter.count = self.counter.count, -(10**6)
        running.note(self.paths, instance, invocation)
        self.counter.count = count


def in_child(
    paths: Paths, file: Path, run: Callable[[StoredSystemd], object], kill_at: int | None = None
) -> int | None:
    """Runs it in a child; the number of effects, None where it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(paths, file, run, kill_at, writer)
    os.close(writer)
    told = os.read(reader, 64)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if status or not told:
        raise RuntimeError(f"the run in the child failed ({status})")
    return int(told)


def _run(
    paths: Paths, file: Path, run: Callable[[StoredSystemd], object], kill_at: int | None, told: int
) -> None:
    try:
        counter = Counter(kill_at)
        systemd = StoredSystemd(paths, file, counter)
        counter.watch(paths.root)
        run(systemd)
        os.write(told, str(counter.count).encode())
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)


def save(root: Path, copy: Path) -> None:
    for folder in MUTABLE:
        if (root / folder).is_dir():
            shutil.copytree(root / folder, copy / folder, symlinks=True)


def put_back(root: Path, copy: Path) -> None:
    for folder in MUTABLE:
        shutil.rmtree(root / folder, ignore_errors=True)
        if (copy / folder).is_dir():
            shutil.copytree(copy / folder, root / folder, symlinks=True)
