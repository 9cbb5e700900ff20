"""The processes of a unit and what the kernel counts about them; reads /proc and cgroupfs only.

Files: cgroup.procs and memory.events of the unit's control group
(https://docs.kernel.org/admin-guide/cgroup-v2.html) and /proc/PID/stat (proc_pid_stat(5)).
"""

import os
import re
from dataclasses import dataclass

from epyc_vllm_agent.facts.files import parse_number, read_text
from epyc_vllm_agent.paths import Paths

# Where systemd's own hierarchy is: cgroup v2 alone, v2 beside v1 controllers, v1 alone.
_HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
_LINKS_OF_A_LEAF = 2  # its name and its own "."; some file systems count none (1)
_TICKS, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str
    state: str  # R, S, D, T (stopped), Z, ... as the kernel has it
    cpu_seconds: float  # of all its threads
    rss_bytes: int


def processes(paths: Paths, control_group: str) -> tuple[Process, ...]:
    """The processes of a control group ("/system.slice/x.service") and of those below it."""
    folder = _folder(paths, control_group)
    groups = _groups(folder) if folder else []
    lists = [read_text(f"{group}/cgroup.procs") or "" for group in groups]
    proc = str(paths.proc)
    pids = [pid for text in lists for pid in text.split()]
    return tuple(found for pid in pids if (found := _process(proc, pid)))


def oom_kills(paths: Paths, control_group: str) -> int | None:
    """How many of the group's processes the kernel killed for lack of memory, if it counts."""
    folder = _folder(paths, control_group)
    text = read_text(f"{folder}/memory.events") if folder else None
    found = re.search(r"^oom_kill (\d+)$", text or "", re.MULTILINE)
    return int(found[1]) if found else None


def own_service(paths: Paths) -> str | None:
    """The control group of the service that this process is a part of."""
    group = group_of(paths, "self") or ""
    found = re.match(r".*?\.service(?=/|$)", group)
    return found[0] if found else None


def group_of(paths: Paths, pid: int | str) -> str | None:
    """The control group of a process, in systemd's hierarchy."""
    text = read_text(paths.proc / str(pid) / "cgroup") or ""
    found = dict(re.findall(r"^\d+:([^:]*):(/.*)$", text, re.MULTILINE))
    return found.get("name=systemd") or found.get("")


def _folder(paths: Paths, control_group: str) -> str | None:
    group = control_group.lstrip("/")
    folders = (f"{paths.at(root)}/{group}" for root in _HIERARCHIES)
    return next((folder for folder in folders if os.path.isdir(folder)), None)  # noqa: PTH112


def _groups(folder: str) -> list[str]:
    """A group's folder and those below it, but for what vanishes meanwhile, as a container's do.

    The links to a folder tell whether any is below it. Most have none, and to go through the files
    of one takes as long as a probe.
    """
    try:
        is_alone = os.stat(folder).st_nlink == _LINKS_OF_A_LEAF  # noqa: PTH116
    except OSError:
        return []
    return [folder] if is_alone else [group for group, _, _ in os.walk(folder)]


def _process(proc: str, pid: str) -> Process | None:
    """None where it is gone."""
    text = read_text(f"{proc}/{pid}/stat")
    before, _, after = (text or "").rpartition(")")
    fields = after.split()
    if len(fields) < 22:
        return None
    user, system, pages = (parse_number(fields[i]) or 0 for i in (11, 12, 21))
    return Process(
        pid=int(pid),
        name=before.partition("(")[2],
        state=fields[0],
        cpu_seconds=(user + system) / _TICKS,
        rss_bytes=pages * _PAGE_BYTES,
    )
