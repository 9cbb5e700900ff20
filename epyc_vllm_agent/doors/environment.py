"""The host runtime's Python environment: what is in it and which platform its vLLM chooses."""

import functools
import hashlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epyc_vllm_agent.doors import command, probed
from epyc_vllm_agent.doors.probed import INQUIRY, Probed
from epyc_vllm_agent.errors import ActionFailed, Refused

_PROBE_SECONDS = 300


def require(path: str) -> None:
    """Refuses where `path` is no Python environment with a vllm command."""
    for name in ("python", "vllm"):
        if not (Path(path) / "bin" / name).exists():
            raise Refused(
                "no-environment",
                f"{path} is no Python environment with vLLM ({path}/bin/{name} is missing)",
                "make one with packaging/make-environment, or name yours with --environment",
            )


def probe(path: str, name: str, user: str, cache: Path, remember: bool = True) -> Probed:
    """What the vLLM in the environment `path` says, asked as `user` and remembered in `cache`.

    `name` is the stack that the plan wants ("zentorch" or "stock"). Raises ActionFailed with the
    last line of what the environment said where vLLM cannot be imported.
    """
    require(path)
    file = cache / f"{_fingerprint(path)}.json"
    if known := probed.recall(file, name):
        return known
    answer = _ask(path, user)
    if remember:
        probed.remember(file, answer)
    return probed.read(answer, name)


def _ask(path: str, user: str) -> str:
    runnable = _runnable(user)
    # A look must not leave files: not in the environment, nor torch's cache folder in /tmp.
    with tempfile.TemporaryDirectory(prefix="epyc-vllm-probe-") as scratch:
        if runnable:
            shutil.chown(scratch, runnable, runnable)
        done = command.run(
            [f"{path}/bin/python", "-c", INQUIRY],
            timeout_seconds=_PROBE_SECONDS,
            environment={
                "HOME": scratch,
                "TMPDIR": scratch,
                "HF_HUB_OFFLINE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            user=runnable,
        )
    if answer := probed.answer_in(done.stdout):
        return answer
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    raise ActionFailed(
        "environment-broken",
        f"vLLM in {path} cannot be imported by user {user}: {said}",
        f"try `{path}/bin/python -c 'import vllm'` as that user",
    )


def _fingerprint(path: str) -> str:
    """Changes with what is installed in the environment and with the CPU that vLLM looks at."""
    parts = [path, INQUIRY]  # what is remembered of an older probe knows less
    for folder in sorted(Path(path).glob("lib/python3*/site-packages")):
        parts.append(f"{folder} {folder.stat().st_mtime_ns}")
    cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    wanted = ("vendor_id", "cpu family", "model", "flags")
    parts += [line for line in cpuinfo.splitlines() if line.startswith(wanted)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _runnable(user: str) -> str | None:
    """`user` where this process may become it, else None: ask as whoever we are."""
    return user if is_user(user) and os.geteuid() == 0 else None


_SYSTEM_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")


def preload(path: str, choices: Sequence[Sequence[str]], root: Path = Path("/")) -> tuple[str, ...]:
    """The first library found of each group of names, in the environment or on the system."""
    folders = [f"{path}/lib", *_SYSTEM_LIBRARIES]
    found = []
    for names in choices:
        at = [f"{folder}/{name}" for name in names for folder in folders]
        there = [library for library in at if (root / library.lstrip("/")).exists()]
        found += there[:1]
    return tuple(found)


def tool(name: str, root: Path = Path("/")) -> str | None:
    """The absolute path of a system program below `root`, None where it is not there."""
    if str(root) == "/":
        return _installed(name)
    at = (f"{folder}/{name}" for folder in _PROGRAMS)
    return next((path for path in at if (root / path.lstrip("/")).exists()), None)


@functools.cache
def _installed(name: str) -> str | None:
    return shutil.which(name, path=":".join(_PROGRAMS))


def looked_for(path: str, choices: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The files whose existence `require`, `preload` and `tool` look at, for a host far away."""
    names = [name for group in choices for name in group]
    libraries = [f"{folder}/{n}" for folder in (f"{path}/lib", *_SYSTEM_LIBRARIES) for n in names]
    programs = [f"{folder}/{name}" for folder in _PROGRAMS for name in ("numactl", "taskset")]
    environment = [f"{path}/bin/python", f"{path}/bin/vllm"]
    return tuple(name.lstrip("/") for name in (*libraries, *programs, *environment))


def readable(path: str, user: str) -> bool:
    """Whether `path` is a file that `user` may read; true where we cannot become that user."""
    runnable = _runnable(user)
    if runnable is None:
        return True
    test = ["test", "-f", path, "-a", "-r", path]
    return command.run(test, timeout_seconds=10, user=runnable).status == 0


def is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
