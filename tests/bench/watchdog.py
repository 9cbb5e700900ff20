"""What the watchdog costs: CPU for each look, 64 instances every 5 seconds, memory, leaks.

    python -m tests.bench.watchdog            prints figures, podman's own health check beside them
    python -m tests.bench.watchdog --leak N   N cycles on a clock of its own; figures as JSON

The server is another process and answers as much text as vLLM's /metrics has. systemd is left out
but for its answers: one list of units each second is added by `list_units` in the booted host.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.doors.systemd import Listed, UnitState
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch.watchdog import Watchdog, in_thread
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan

INTERVAL = 5
FOLDED = 64  # instances of the large measurement
# /run is in memory too.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
GROUP = "/system.slice/x.service"

SERVER = r"""
import socket, sys, threading
metrics = "".join(
    f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{n}",model_name="m"}} {n}.0\n'
    for n in range(700)
) + "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} 0.0\n'
    for name in ("num_requests_running", "num_requests_waiting", "prompt_tokens_total",
                 "generation_tokens_total")
)
choice = '{"choices": [{"index": 0, "text": "", "message": {"content": ""}}]}'
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(listener.getsockname()[1], flush=True)
def serve(peer):
    try:
        while asked := peer.recv(65536):
            body = metrics if b"/metrics" in asked else choice if b"POST" in asked else ""
            text = body.encode()
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    except OSError:
        pass
    peer.close()
while True:
    serve(listener.accept()[0])
"""


class Units:
    """A systemd whose units all run."""

    def __init__(self, instances: int) -> None:
        names = [service_name(f"e{number}-s0") for number in range(instances)]
        self._listed = tuple(Listed(name, "active", "running", None) for name in names)

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        return self._listed

    def state(self, unit: str) -> UnitState:
        return UnitState(
            unit, "loaded", "active", "running", "", None, False, None, "1",
            result="success", control_group=GROUP,
        )  # fmt: skip

    def queue_stop(self, unit: str) -> None:
        raise AssertionError(f"{unit} was given up: the measurement is void")


@contextmanager
def serving() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def host(folder: Path, port: int, instances: int) -> Paths:
    paths = Paths(folder)
    paths.plans.mkdir(parents=True)
    first = plan(facts_of(HOSTS["genoa-1s"]), endpoint("e0"))
    for number in range(instances):
        made = replace(first.instances[0], name=f"e{number}-s0", port=port)
        text = encode_plan(_named(first, f"e{number}", made))
        (paths.plans / f"e{number}.json").write_text(text)
    # Processes are read as in life, from /proc of this machine.
    paths.proc.symlink_to("/proc")
    group = paths.at("/sys/fs/cgroup") / GROUP.lstrip("/")
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n1\n2\n")
    return paths


def _named(first: EndpointPlan, name: str, made: object) -> EndpointPlan:
    return replace(first, name=name, instances=(made,))  # type: ignore[arg-type]


class Measured:
    """A watchdog on a clock of its own; `cycle` is one interval of all its instances."""

    def __init__(
        self, paths: Paths, instances: int, spawn: Callable[[Callable[[], None]], None]
    ) -> None:
        self.now = 0.0
        self.probes = 0
        self._answered = threading.Semaphore(0)
        self._spawn = spawn
        self.watchdog = Watchdog(
            paths, lambda: Units(instances), lambda: self.now, self._count, lambda _: None
        )

    def _count(self, work: Callable[[], None]) -> None:
        self.probes += 1

        def counted() -> None:
            try:
                work()
            finally:
                self._answered.release()

        self._spawn(counted)

    def cycle(self) -> None:
        for _ in range(INTERVAL):
            before = self.probes
            self.watchdog.step()
            for _ in range(self.probes - before):
                self._answered.acquire()
            self.now += 1


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def leak(cycles: int) -> dict[str, int]:
    with serving() as port, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        measured = Measured(host(Path(folder), port, 1), 1, lambda work: work())
        for _ in range(1000):  # caches fill, the allocator's arenas grow to their size
            measured.cycle()
        before, open_before, began = resident(), descriptors(), measured.probes
        for _ in range(cycles):
            measured.cycle()
        return {
            "cycles": cycles,
            "probes": measured.probes - began,
            "grown_bytes": resident() - before,
            "descriptors_before": open_before,
            "descriptors": descriptors(),
        }


def cost(instances: int, cycles: int) -> tuple[float, int]:
    """CPU seconds for each look, and the memory of the process."""
    with serving() as port, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        measured = Measured(host(Path(folder), port, instances), instances, in_thread)
        measured.cycle()
        before, began = time.process_time(), measured.probes
        for _ in range(cycles):
            measured.cycle()
        used = time.process_time() - before
        return used / (measured.probes - began), resident()


def podman_check() -> float | None:
    """CPU seconds of one `podman healthcheck run`; None where podman or any image is missing."""
    podman = shutil.which("podman")
    if podman is None or os.geteuid() != 0:
        return None
    images = _said(podman, "image", "ls", "--quiet").split()
    if not images:
        return None
    name = "epyc-vllm-bench"
    _said(podman, "run", "--detach", "--replace", "--network=none", f"--name={name}",
          "--health-cmd=true", "--health-interval=disable", images[0], "sleep", "600")  # fmt: skip
    try:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(10):
            _said(podman, "healthcheck", "run", name)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        _said(podman, "rm", "--force", "--time=0", name)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 10


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", type=int)
    options = parser.parse_args()
    if options.leak:
        sys.stdout.write(json.dumps(leak(options.leak)) + "\n")
        return
    each, memory = cost(FOLDED, 20)
    share = each * FOLDED / INTERVAL
    lines = [
        f"one look (health, metrics, CPU time, verdict): {each * 1e3:.2f} ms CPU",
        f"{FOLDED} instances every {INTERVAL} s: {share * 100:.2f} % of a core, "
        f"{memory / 2**20:.0f} MiB of memory",
    ]
    podman = podman_check()
    lines.append(
        f"one `podman healthcheck run`: {podman * 1e3:.0f} ms CPU"
        if podman
        else "one `podman healthcheck run`: not measured (no podman with an image here)"
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
