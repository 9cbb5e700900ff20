"""How long `plan` takes and how often it asks the hub: `python -m tests.bench.plan`.

Whole processes on a described host, with a stand-in hub on loopback and a stack that was probed
before. A model counts as cached when its small files are: the limit for it is 400 ms and no call.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.doors.hub import Hub
from epyc_vllm_agent.paths import Paths
from tests.guest import models
from tests.hosts import HOSTS, build, facts_of
from tests.hubserver import HubServer
from tests.plans import ZEN, endpoint, plan

RUNS = 7
LIMIT_MS = 400
MODEL = "example/tiny-chat"
HOST = HOSTS["venice-2s-largest"]


@dataclass(frozen=True, slots=True)
class Bench:
    paths: Paths
    hub: HubServer
    venv: str

    def plan(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "epyc_vllm_agent", "--sysroot", str(self.paths.root)]
        command += ["plan", *arguments, "--environment", self.venv, "--runtime", "host", "--json"]
        surroundings = {
            **os.environ,
            "HF_ENDPOINT": self.hub.endpoint,
            # As installed: compiled once, whatever the caller's environment says.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(Path(self.venv).parent / "compiled"),
        }
        done = subprocess.run(
            command, capture_output=True, text=True, env=surroundings, check=False
        )
        if done.returncode not in (0, 3):
            raise SystemExit(done.stderr)

    def measure(self, name: str, *arguments: str) -> float:
        """Prints the median over some runs, with the calls of one; returns the milliseconds."""
        before = len(self.hub.log)
        walls: list[float] = []
        cpus: list[float] = []
        for _ in range(RUNS):
            began, used = time.perf_counter(), _cpu_seconds()
            self.plan(*arguments)
            walls.append(1000 * (time.perf_counter() - began))
            cpus.append(1000 * (_cpu_seconds() - used))
        calls = (len(self.hub.log) - before) / RUNS
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        _say(f"{name:28} {wall:6.0f} ms, {cpu:4.0f} ms of CPU, {calls:.0f} calls of the hub")
        return wall


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, HubServer(_repositories(Path(folder))) as hub:
        paths = build(HOST, Path(folder) / "host")
        bench = Bench(paths, hub, _environment(paths, Path(folder)))
        began = time.perf_counter()
        bench.plan(MODEL)
        _say(f"first time {(time.perf_counter() - began) * 1000:.0f} ms  {len(hub.log)} calls")
        facts = Hub(paths.models, endpoint=hub.endpoint).describe(MODEL)
        assert facts.revision
        bench.measure("a branch, looked up before", MODEL)
        cached = bench.measure("its commit", MODEL, "--revision", facts.revision)
        config = endpoint(
            "tiny-chat", model=MODEL, runtime="host", environment=bench.venv, accept=["not-epyc"]
        )
        stored = plan(facts_of(HOST), config, facts)
        paths.plans.mkdir(parents=True)
        (paths.plans / "tiny-chat.json").write_text(encode_plan(stored))
        _write_endpoint(paths, bench.venv)
        enabled = bench.measure("an enabled endpoint", "tiny-chat")
        late = [name for name, ms in (("commit", cached), ("enabled", enabled)) if ms > LIMIT_MS]
        if late:
            raise SystemExit(f"over {LIMIT_MS} ms: {', '.join(late)}")


def _repositories(folder: Path) -> Path:
    models.write(folder / "hub" / MODEL.replace("/", "__"), models.TEMPLATE)
    return folder / "hub"


def _environment(paths: Paths, folder: Path) -> str:
    """An environment whose stack is remembered: asking it imports vLLM, which takes seconds."""
    venv = folder / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "vllm"):
        (venv / "bin" / name).touch()
    remembered = paths.cache / "probes" / f"{environment._fingerprint(str(venv))}.json"
    remembered.parent.mkdir(parents=True)
    table = json.loads(read_data("registry-vllm-0.32.0.json"))
    remembered.write_text(json.dumps({"stack": to_plain(ZEN), "registry": table}))
    return str(venv)


def _write_endpoint(paths: Paths, venv: str) -> None:
    paths.endpoints.mkdir(parents=True, exist_ok=True)
    text = f'model = "{MODEL}"\nenvironment = "{venv}"\nruntime = "host"\naccept = ["not-epyc"]\n'
    (paths.endpoints / "tiny-chat.toml").write_text(text)


def _cpu_seconds() -> float:
    """Of all children so far; on a machine that does other things it tells more than the wall."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
