"""Running another program: the only caller of subprocess. No shell, always a time limit."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from epyc_vllm_agent.errors import ActionFailed

Line = Callable[[str], None]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Finished:
    status: int
    stdout: str
    stderr: str


def run(
    arguments: Sequence[str],
    *,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> Finished:
    """Runs `arguments` in a clean environment (PATH, LANG and what is given) and waits.

    Raises ActionFailed where the program is missing, may not be run, or exceeds its time.
    """
    values = {"PATH": _PATH, "LANG": "C.UTF-8", **(environment or {})}
    try:
        done = subprocess.run(
            list(arguments),
            env=values,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, LookupError) as error:
        raise ActionFailed(
            "command-unusable", f"{arguments[0]} cannot be run ({error})", "is it installed?"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ActionFailed(
            "command-timeout",
            f"{arguments[0]} did not end within {timeout_seconds:.0f} seconds",
            "run it by hand to see what it waits for",
        ) from error
    return Finished(done.returncode, done.stdout, done.stderr)


def follow(arguments: Sequence[str], *, timeout_seconds: float, tell: Line) -> Finished:
    """Runs a program that takes its time, and tells each line that it writes, as it comes.

    stdout and stderr are one, in `stdout`. Raises ActionFailed as `run` does; the program is ended
    where this process is interrupted or the time is up.
    """
    try:
        process = subprocess.Popen(
            list(arguments),
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ActionFailed(
            "command-unusable", f"{arguments[0]} cannot be run ({error})", "is it installed?"
        ) from error
    up = threading.Timer(timeout_seconds, process.kill)
    up.start()
    lines = []
    try:
        for line in process.stdout or ():
            lines.append(line)
            tell(line.strip())
        status = process.wait()
    finally:
        expired = up.finished.is_set()
        up.cancel()
        process.kill()
        process.wait()
    if expired:
        raise ActionFailed(
            "command-timeout",
            f"{arguments[0]} did not end within {timeout_seconds:.0f} seconds",
            "run it by hand to see what it waits for",
        )
    return Finished(status, "".join(lines), "")


def become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Replaces this process by `command`, with `variables` added to its environment."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would keep that
    os.execve(command[0], list(command), {**os.environ, **variables})  # noqa: S606 - no shell
