"""How long the facts of the largest host take, and how much memory: `python -m tests.bench.detect`.

The host is built from a description in a temporary folder. Measured are whole processes, less one
that only starts the interpreter; the limits are 150 ms and 60 MB.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
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


@dataclass(frozen=True, slots=True)
class Cost:
    milliseconds: float
    peak_mb: float


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(LARGEST, Path(folder))
        cpus = str(LARGEST.sockets * LARGEST.cores_per_socket * LARGEST.threads)
        start = measure("-c", "pass")
        _say(f"{_described(LARGEST)}; median of {RUNS} runs")
        _say(f"interpreter start       {start.milliseconds:7.1f} ms {start.peak_mb:6.1f} MB")
        generations = str(DATA / "generations.json")
        _report("gather", measure("-c", GATHER, folder, generations, cpus), start)
        if find_spec("epyc_vllm_agent.__main__"):
            command = ("-m", "epyc_vllm_agent", "--sysroot", folder, "detect", "--json")
            _report("epyc-vllm detect --json", measure(*command), start)


def measure(*arguments: str) -> Cost:
    """The median run of the interpreter with these arguments."""
    costs = [_run((sys.executable, *arguments)) for _ in range(RUNS)]
    return Cost(
        statistics.median(cost.milliseconds for cost in costs),
        statistics.median(cost.peak_mb for cost in costs),
    )


def _run(command: Sequence[str]) -> Cost:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    # Linux counts a child's peak from before its exec: less than this process has is not seen.
    _, status, usage = os.wait4(process.pid, 0)
    milliseconds = (time.perf_counter() - began) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[1:3]} ended with {process.returncode}")
    return Cost(milliseconds, usage.ru_maxrss / 1024)


def _described(host: HostDescription) -> str:
    cores = f"{host.sockets} x {host.cores_per_socket} cores"
    return f"{cores}, {host.sockets * host.cores_per_socket * host.threads} CPUs"


def _report(name: str, cost: Cost, start: Cost) -> None:
    own = cost.milliseconds - start.milliseconds
    _say(f"{name:23} {own:7.1f} ms {cost.peak_mb:6.1f} MB  (beyond interpreter start; peak RSS)")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
