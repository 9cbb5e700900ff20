"""How long the facts of the largest host take, and how much memory: `python -m tests.bench.detect`.

The host is built from a description in a temporary folder. Measured are whole processes, less one
that only starts the interpreter; the limits are 150 ms and 60 MB.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import DATA, HOSTS, HostDescription, build

RUNS = 15
LARGEST = HOSTS["venice-2s-largest"]
GATHER = """
import sys
from pathlib import Path
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.paths import Paths
facts = gather(Paths(Path(sys.argv[1])), Generations.from_json(Path(sys.argv[2]).read_text()))
assert facts.logical_cpus == int(sys.argv[3])
"""


# Linux counts a child's peak from before its exec, so that wait4(2) tells the parent's own: each
# process reads its peak itself, at its end (VmHWM, proc_pid_status(5)).
PEAK = """
import atexit, os, sys
def tell():
    lines = open("/proc/self/status").read().splitlines()
    os.write(2, next(line for line in lines if line.startswith("VmHWM")).split()[1].encode())
atexit.register(tell)
code, sys.argv = sys.argv[1], ["-c", *sys.argv[2:]]
exec(compile(code, "bench", "exec"))
"""
COMMAND = "from epyc_vllm_agent.cli import main; main()"
LIMIT_MS, LIMIT_MB = 150, 60


@dataclass(frozen=True, slots=True)
class Cost:
    milliseconds: float  # that passed
    own_milliseconds: float  # of CPU time: what the process itself took, however busy the machine
    peak_mb: float


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(LARGEST, Path(folder))
        cpus = str(LARGEST.sockets * LARGEST.cores_per_socket * LARGEST.threads)
        start = measure("pass")
        _say(f"{_described(LARGEST)}; median of {RUNS} runs")
        _say(f"{'':23} {'passed':>10} {'own CPU time':>14} {'peak RSS':>10}")
        _report("interpreter start", start)
        generations = str(DATA / "generations.json")
        _report("gather", _beyond(measure(GATHER, folder, generations, cpus), start))
        command = (COMMAND, "--sysroot", folder, "detect", "--json")
        detect = _beyond(measure(*command), start)
        _report("epyc-vllm detect --json", detect)
        fine = detect.own_milliseconds < LIMIT_MS and detect.peak_mb < LIMIT_MB
        _say(f"limits {LIMIT_MS} ms of its own and {LIMIT_MB} MB: {'kept' if fine else 'EXCEEDED'}")


def _beyond(cost: Cost, start: Cost) -> Cost:
    """Times beyond the start of the interpreter."""
    return Cost(
        cost.milliseconds - start.milliseconds,
        cost.own_milliseconds - start.own_milliseconds,
        cost.peak_mb,
    )


def measure(code: str, *arguments: str) -> Cost:
    """The median run of the interpreter with this code and arguments."""
    timed = [_run((sys.executable, "-c", code, *arguments)) for _ in range(RUNS)]
    peaks = [_run((sys.executable, "-c", PEAK, code, *arguments)).peak_mb for _ in range(3)]
    return Cost(
        statistics.median(cost.milliseconds for cost in timed),
        statistics.median(cost.own_milliseconds for cost in timed),
        max(peaks),
    )


def _run(command: Sequence[str]) -> Cost:
    began, before = time.perf_counter(), _children_seconds()
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    milliseconds = (time.perf_counter() - began) * 1000
    if done.returncode:
        raise SystemExit(f"{command[1:3]} ended with {done.returncode}: {done.stderr}")
    own = (_children_seconds() - before) * 1000
    return Cost(milliseconds, own, int(done.stderr or 0) / 1024)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _described(host: HostDescription) -> str:
    cores = f"{host.sockets} x {host.cores_per_socket} cores"
    return f"{cores}, {host.sockets * host.cores_per_socket * host.threads} CPUs"


def _report(name: str, cost: Cost) -> None:
    times = f"{cost.milliseconds:7.1f} ms {cost.own_milliseconds:11.1f} ms"
    _say(f"{name:23} {times} {cost.peak_mb:7.1f} MB")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
