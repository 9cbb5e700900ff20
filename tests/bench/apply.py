"""How long `apply` takes for many endpoint files: `sudo python -m tests.bench.apply`.

Whole processes in the booted host, with its real systemd, on a described machine of 256 cores whose
units are the booted host's own. The servers are not started. Limits for 64 files: 5 s from nothing,
1 s with nothing to do, 1.5 s with one file changed; and each more file takes the same time.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from epyc_vllm_agent.apply import apply as whole
from epyc_vllm_agent.apply.apply import Action
from epyc_vllm_agent.apply.intents import Options
from epyc_vllm_agent.doors.systemd import DBusSystemd
from epyc_vllm_agent.paths import Paths
from tests.applying import Host, host, telling
from tests.hosts import HOSTS

if TYPE_CHECKING:
    from tests.guest.boot import Guest

COUNTS = (8, 16, 32, 64)
LIMITS = {"from nothing": 5.0, "nothing to do": 1.0, "one changed": 1.5}
# Time for each more file: linear, whatever it is, but for what a loaded machine adds.
STEEPEST, MARGIN_MS = 1.5, 5.0
ROOT = Path("/srv/bench")  # in the booted host
PYTHON = "/opt/epyc-vllm/bin/python"
MACHINE = replace(HOSTS["turin-2s-nps1"], cores_per_socket=128)


def main() -> None:
    """Boots the host, and measures there."""
    from tests.guest import parts, project
    from tests.guest.boot import Guest

    guest = Guest(f"bench-{os.getpid()}", parts.binds())
    guest.up(owner=os.getpid())
    try:
        project.install(guest)
        code = guest.call(prepared(guest))
    finally:
        guest.down()
    raise SystemExit(code)


def prepared(guest: "Guest") -> list[str]:
    """Brings what measures into the host; the command that does it there."""
    from tests.guest.environment import REPOSITORY

    guest.sh("systemctl disable --now --quiet epyc-vllm-apply.path")
    guest.sh("mkdir -p /srv/code/tests/bench /srv/code/data")
    for name in ("__init__", "applying", "fakes", "hosts", "plans", "bench/apply"):
        guest.copy(REPOSITORY / f"tests/{name}.py", f"/srv/code/tests/{name}.py")
    for path in (REPOSITORY / "data").glob("*.json"):
        guest.copy(path, f"/srv/code/data/{path.name}")
    return ["sh", "-c", f"cd /srv/code && {PYTHON} -m tests.bench.apply inside"]


def inside() -> None:
    times = {count: _measured(count) for count in COUNTS}
    for count, of_count in times.items():
        figures = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in of_count.items())
        _say(f"{count:3} files: {figures}")
    late: list[str] = []
    for name in LIMITS:
        each = [1000 * (times[64][name] - times[8][name]) / 56]
        each += [1000 * (times[16][name] - times[8][name]) / 8]
        _say(f"{name}: {each[0]:.1f} ms a file from 8 to 64, {each[1]:.1f} ms from 8 to 16")
        linear = STEEPEST * max(each[1], 0.0) + MARGIN_MS
        late += [f"growth of {name}"] if each[0] > linear else []
    late += [name for name, limit in LIMITS.items() if times[64][name] > limit]
    if late:
        raise SystemExit(f"over the limit: {', '.join(late)}")


def _measured(count: int) -> dict[str, float]:
    box = _host()
    for number in range(count):
        box.write(f"bench-{number:02}", sockets=[number % 2], cores=2)
    try:
        created = _seconds(Action.CREATE, count)
        nothing = min(_seconds(Action.CREATE, 0) for _ in range(3))
        box.write("bench-03", sockets=[1], cores=2, max_model_len=2048)
        changed = _seconds(Action.CHANGE, 1)
    finally:
        for path in box.paths.endpoints.glob("*.toml"):
            path.unlink()
        _seconds(Action.REMOVE, count)
    return dict(zip(LIMITS, (created, nothing, changed), strict=True))


def _host() -> Host:
    shutil.rmtree(ROOT, ignore_errors=True)
    box = host(ROOT, MACHINE)
    box.paths.units.parent.mkdir(parents=True)
    box.paths.units.symlink_to("/etc/systemd/system")
    return box


def _seconds(action: Action, count: int) -> float:
    """A process that applies, from its start to its end; `count` endpoints have that action."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.bench.apply", "once", action.value, str(count)]
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def once(action: Action, count: int) -> None:
    done = whole.apply(Paths(ROOT), DBusSystemd(), Options(start=False), telling)
    failed = [str(one.error) for one in done if one.error]
    if failed:
        raise SystemExit(failed[0])
    found = sum(one.action is action for one in done)
    if found != count:
        raise SystemExit(f"{found} of {len(done)} endpoints: {action.value}, not {count}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        inside()
    elif sys.argv[1:2] == ["once"]:
        once(Action(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
