"""The guest's own cgroups on the outer machine: joined, frozen, killed, removed; runs nothing.

A guest's processes are all below one folder in each hierarchy, whatever becomes of the process
that started them, so a leftover of a killed run can be found and ended. Handled: cgroup v2 alone,
and v1 controllers with a v2 hierarchy beside them ("hybrid"). Under a systemd that runs the outer
machine the folder is that of a service with Delegate=yes (see boot), elsewhere one at the root.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
HOST_SYSTEMD = Path("/run/systemd/system")
CPUSET_V1 = ROOT / "cpuset"


def hierarchies() -> tuple[Path, ...]:
    """Mount points of the hierarchies that systemd-nspawn or the guest write to."""
    if (ROOT / "cgroup.controllers").exists():
        return (ROOT,)
    return tuple(path for path in (ROOT / "unified", ROOT / "systemd", CPUSET_V1) if path.is_dir())


def has_cpuset_v1() -> bool:
    return CPUSET_V1 in hierarchies()


def unit(name: str) -> str:
    """The service of the outer systemd that holds the guest, and the name of its folder."""
    return f"epyc-vllm-guest-{name}"


def folders(name: str) -> tuple[Path, ...]:
    if HOST_SYSTEMD.is_dir():
        return (ROOT / "system.slice" / f"{unit(name)}.service",)
    return tuple(hierarchy / unit(name) for hierarchy in hierarchies())


def join(name: str, part: str) -> None:
    """Puts the calling process into `part` of the guest's folders, made where missing."""
    for folder in folders(name):
        for path in (folder, folder / part):
            path.mkdir(exist_ok=True)
            _prepare(path)
        (folder / part / "cgroup.procs").write_text(str(os.getpid()))


def _prepare(path: Path) -> None:
    """v1 cpusets take no process before they have CPUs; v2 hands controllers down when told."""
    if path.is_relative_to(CPUSET_V1):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (path / name).write_text((path.parent / name).read_text())
    elif not (path / "tasks").exists():
        with suppress(OSError):  # refused where the parent has processes: the guest has to do
            available = (path.parent / "cgroup.controllers").read_text().split()
            (path.parent / "cgroup.subtree_control").write_text(
                " ".join(f"+{controller}" for controller in available)
            )


def processes(name: str) -> tuple[int, ...]:
    found: set[int] = set()
    for folder in folders(name):
        for path in _below(folder):
            with suppress(OSError):
                found.update(map(int, (path / "cgroup.procs").read_text().split()))
    return tuple(found)


def kill(name: str, patience_s: float = 20) -> None:
    deadline = time.monotonic() + patience_s
    while (left := processes(name)) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def freeze(name: str, frozen: bool) -> None:
    """Halts all of the guest's processes, or lets them go on (cgroup v2's freezer)."""
    (file,) = (found for folder in folders(name) if (found := folder / "cgroup.freeze").exists())
    file.write_text(f"{frozen:d}")


def remove(name: str, part: str = "") -> None:
    """Removes the guest's folders, or one part of them; the processes are gone already."""
    for folder in folders(name):
        for path in _below(folder / part):
            with suppress(OSError):  # gone, or still being left: the next run takes it
                path.rmdir()


def _below(folder: Path) -> Iterator[Path]:
    """A folder of cgroupfs and all below it, the deepest first."""
    for path, _, _ in os.walk(folder, topdown=False):
        yield Path(path)
