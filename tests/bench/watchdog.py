"""What the watchdog costs: CPU for each look, 64 instances every 5 seconds, memory, leaks.

    python -m tests.bench.watchdog            one look, in this process
    python -m tests.bench.watchdog --guest    as root: the service itself with 64 units in a booted
                                              host, and podman's own health check beside it
    python -m tests.bench.watchdog --leak N   N cycles on a clock of its own; figures as JSON

The server is another process and answers as much text as vLLM's /metrics has.
"""

import argparse
import json
import os
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
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch.aside import Aside
from epyc_vllm_agent.watch.watchdog import Watchdog
from tests.guest import image, parts, project
from tests.guest.boot import Guest
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan

INTERVAL = 5
FOLDED = 64  # instances of the large measurement
PROBES = 2  # of a look: /health and /metrics
PROBE_MS, CORE_PERCENT, MEMORY_MIB = 1.0, 2.0, 50.0  # the most that it may cost
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
port = int(sys.argv[1]) if sys.argv[1:] else 0
listener = socket.create_server(("127.0.0.1", port), backlog=1024)
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
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""


class Units:
    """A systemd whose units all run."""

    def __init__(self, instances: int) -> None:
        names = [service_name(f"e{number}-s0") for number in range(instances)]
        self._listed = tuple(Listed(name, "loaded", "active", "running", None) for name in names)

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
    for name, text in plans(port, instances).items():
        (paths.plans / name).write_text(text)
    # Processes are read as in life, from /proc of this machine.
    paths.proc.symlink_to("/proc")
    group = paths.at("/sys/fs/cgroup") / GROUP.lstrip("/")
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n1\n2\n")
    return paths


def plans(port: int, instances: int) -> dict[str, str]:
    """Plan files of that many endpoints, all on one port: name and text."""
    first = plan(facts_of(HOSTS["genoa-1s"]), endpoint("e0"))
    made = {}
    for number in range(instances):
        instance = replace(first.instances[0], name=f"e{number}-s0", port=port)
        named = replace(first, name=f"e{number}", instances=(instance,))
        made[f"{named.name}.json"] = encode_plan(named)
    return made


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
        measured = Measured(host(Path(folder), port, 1), 1, Aside())
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


def cost(instances: int, cycles: int) -> float:
    """CPU seconds for each look."""
    with serving() as port, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        measured = Measured(host(Path(folder), port, instances), instances, Aside())
        measured.cycle()
        before, began = time.process_time(), measured.probes
        for _ in range(cycles):
            measured.cycle()
        return (time.process_time() - before) / (measured.probes - began)


class Booted:
    """The service itself in a booted host: real units, D-Bus, and a server for all of them."""

    PORT = 8000
    UNIT = "epyc-vllm-watchdog.service"
    SECONDS = 120
    CHECKS = 20

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        project.install(guest)

    def watch(self, instances: int) -> tuple[float, int]:
        """Share of a core that the watchdog takes, and its memory in bytes."""
        self.guest.write("/root/server.py", SERVER)
        self.guest.sh(f"systemd-run -q -u bench-server python3 /root/server.py {self.PORT}")
        # A server has its engine and a worker.
        service = "[Service]\nExecStart=/bin/sh -c 'sleep infinity & sleep infinity & wait'\n"
        for name, text in plans(self.PORT, instances).items():
            self.guest.write(f"/var/lib/epyc-vllm/plans/{name}", text)
            unit = service_name(f"{name.removesuffix('.json')}-s0")
            self.guest.write(f"/run/systemd/system/{unit}", service)
        self.guest.sh("systemctl daemon-reload")
        names = " ".join(service_name(f"e{number}-s0") for number in range(instances))
        self.guest.sh(f"systemctl start {names}")
        pid = self.guest.sh(f"systemctl show -P MainPID {self.UNIT}").strip()
        wanted = f"{instances} of {instances} instances run"
        while wanted not in self.guest.sh(f"systemctl show -P StatusText {self.UNIT}"):
            time.sleep(1)
        time.sleep(2 * INTERVAL)
        before, began = self._cpu_seconds(pid), time.monotonic()
        time.sleep(self.SECONDS)
        share = (self._cpu_seconds(pid) - before) / (time.monotonic() - began)
        status = self.guest.read(f"/proc/{pid}/status")
        (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
        return share, int(kib) << 10

    def _cpu_seconds(self, pid: str) -> float:
        fields = self.guest.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def podman_check(self) -> float:
        """CPU seconds of one `podman healthcheck run` and what it waits for."""
        archive = f"{parts.IMAGES}/standin.tar"
        script = (
            f"podman load -q -i {archive} >&2; podman run -d --name=bench --network=none "
            f"--health-cmd=true --health-interval=disable {image.NAME} sleep 3600 >&2; "
            f"time for n in $(seq {self.CHECKS}); do podman healthcheck run bench; done; "
            "podman rm --force --time 0 bench >/dev/null"  # else the unit fails: it does not end
        )
        command = ["bash", "-ec", f"TIMEFORMAT='%U %S'; {script}"]
        done = self.guest.run(command, timeout=300)
        user, system = done.stderr.splitlines()[-1].split()
        return (float(user) + float(system)) / self.CHECKS


def booted(late: list[str]) -> Iterator[str]:
    """Lines to print; adds to `late` what is over its limit."""
    guest = Guest(f"bench-watchdog-{os.getpid()}", parts.binds())
    try:
        guest.up(owner=os.getpid())
        bench = Booted(guest)
        share, memory = bench.watch(FOLDED)
        look = share * INTERVAL / FOLDED
        late += ["of the service, the share of a core"] if share * 100 > CORE_PERCENT else []
        late += ["of the service, a probe"] if look * 1e3 / PROBES > PROBE_MS else []
        late += ["memory"] if memory / 2**20 > MEMORY_MIB else []
        yield (
            f"the service, {FOLDED} instances every {INTERVAL} s: {share * 100:.2f} % of a core, "
            f"{look * 1e3:.2f} ms CPU a look of {PROBES} probes, {memory / 2**20:.1f} MiB of memory"
        )
        check = bench.podman_check()
        yield (
            f"`podman healthcheck run` on the same host: {check * 1e3:.0f} ms CPU, "
            f"{check / look:.0f} looks"
        )
    finally:
        guest.down()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", type=int)
    parser.add_argument("--guest", action="store_true")
    options = parser.parse_args()
    if options.leak:
        sys.stdout.write(json.dumps(leak(options.leak)) + "\n")
        return
    each = cost(FOLDED, 20)
    say(f"one look ({PROBES} probes, CPU time of the workers, verdict): {each * 1e3:.2f} ms CPU")
    late = ["a probe"] if each * 1e3 / PROBES > PROBE_MS else []
    for line in booted(late) if options.guest else ():
        say(line)
    if late:
        raise SystemExit(f"over the limit: {', '.join(late)}")


if __name__ == "__main__":
    main()
