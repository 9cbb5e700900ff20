"""Another host's files over the system's ssh client: streamed, unpacked here; installs nothing
there.

The far side runs one line of POSIX sh: `grep ""` prints the files of each pattern with their names,
a thousand in one process. tar would not do: files of /proc have no size, those of /sys a wrong one.
"""

import ipaddress
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.doors.command import Finished
from epyc_vllm_agent.errors import ActionFailed, ConfigError
from epyc_vllm_agent.paths import Paths

_CONNECT_SECONDS = 10
_TOTAL_SECONDS = 120
_BEGIN, _PRESENT, _END = "epyc-vllm-begin", "epyc-vllm-present", "epyc-vllm-end"
# What every host that can be judged has.
_NEEDED = "proc/cpuinfo"

# Before a user's ssh_config: nothing is asked, run or forwarded. What it says of names, keys, jump
# hosts and known hosts holds.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_SECONDS),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Target:
    """`[user@]box[:port]`; what is None is ssh's own to choose."""

    user: str | None
    box: str
    port: int | None

    def __str__(self) -> str:
        box = f"[{self.box}]" if ":" in self.box else self.box
        user = f"{self.user}@" if self.user else ""
        return f"{user}{box}" + (f":{self.port}" if self.port else "")


def parse(text: str) -> Target:
    """The target that a user wrote; IPv6 addresses stand bare, or in brackets before a port.

    Raises ConfigError for what ssh could take for an option or a command.
    """
    user, at, rest = text.rpartition("@")  # a user may hold an "@" itself (user@realm@box)
    box, port = _box_and_port(rest)
    fault = _user_fault(user) if at else None
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?", box) and not _is_ipv6(box):
        fault = f"{box!r} is no host name and no address"
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        fault = f"{port!r} is no port"
    if fault:
        raise ConfigError("bad-host", f"--host {text!r}: {fault}", "write it as [user@]box[:port]")
    return Target(user if at else None, box, int(port) if port else None)


def _box_and_port(text: str) -> tuple[str, str | None]:
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", text, re.DOTALL)
    if bracketed:
        return bracketed[1], bracketed[2]
    if text.count(":") == 1:
        box, _, port = text.partition(":")
        return box, port
    return text, None


def _is_ipv6(box: str) -> bool:
    try:
        return isinstance(ipaddress.ip_address(box), ipaddress.IPv6Address) and bool(
            re.fullmatch(r"[0-9A-Za-z:.%_-]+", box)
        )
    except ValueError:
        return False


def _user_fault(user: str) -> str | None:
    """ssh refuses shell characters itself; the rest may be odd (CORP\\user, user@realm)."""
    if not user:
        return "the user before the @ is empty"
    if user.startswith("-"):
        return f"the user {user!r} begins with a dash"
    if not re.fullmatch(r"[\w.@+\\$-]+", user):
        return f"{user!r} is no user name"
    return None


@contextmanager
def files_of(
    target: Target, patterns: Sequence[str], present: Sequence[str] = ()
) -> Iterator[Paths]:
    """The files of `patterns` (relative, as shells match) from `target`, below a folder of their
    own for as long as the context; `present` are files of which only the existence counts.

    Raises ActionFailed where the host cannot be reached, or does not answer as a Linux host.
    """
    done = _ask(target, patterns, present)
    if done.status == 255:
        raise _unreachable(target, done.stderr)
    found = read(done.stdout, patterns, present)
    if found is None:
        raise _no_answer(target, done)
    if _NEEDED not in found:
        raise ActionFailed(
            "ssh-file-missing",
            f"{target} shows no /{_NEEDED}: its hardware cannot be told",
            "is it a Linux host, and may that user read it?",
        )
    with tempfile.TemporaryDirectory(prefix="epyc-vllm-host-") as folder:
        unpack(found, Path(folder))
        yield Paths(Path(folder))


def _ask(target: Target, patterns: Sequence[str], present: Sequence[str]) -> Finished:
    agent = {"SSH_AUTH_SOCK": os.environ["SSH_AUTH_SOCK"]} if "SSH_AUTH_SOCK" in os.environ else {}
    try:
        policy = _policy(target, agent)
        return command.run(
            [*arguments(target, policy), script(patterns, present)],
            timeout_seconds=_TOTAL_SECONDS,
            environment=agent,
        )
    except ActionFailed as error:
        if error.code == "command-timeout":
            raise ActionFailed(
                "ssh-timeout",
                f"{target} did not send its files within {_TOTAL_SECONDS} seconds",
                f"try `ssh {target.box} true`: does its shell wait for something?",
            ) from error
        raise ActionFailed(
            "no-ssh", "there is no ssh client on this machine", "apt-get install openssh-client"
        ) from error


def _policy(target: Target, agent: Mapping[str, str]) -> str:
    """accept-new, or yes where the user's own configuration is that strict."""
    asked = command.run(
        ["ssh", "-G", *_where(target)], timeout_seconds=_CONNECT_SECONDS, environment=agent
    )
    strict = re.search(r"^stricthostkeychecking (yes|true)$", asked.stdout, re.MULTILINE)
    return "yes" if strict else "accept-new"


def arguments(target: Target, policy: str) -> list[str]:
    """The ssh command up to what runs there."""
    options = {**_OPTIONS, "StrictHostKeyChecking": policy}
    return ["ssh", *(f"-o{name}={value}" for name, value in options.items()), *_where(target)]


def _where(target: Target) -> list[str]:
    user = ["-l", target.user] if target.user else []
    port = ["-p", str(target.port)] if target.port else []
    return [*user, *port, "--", target.box]


def script(patterns: Sequence[str], present: Sequence[str] = ()) -> str:
    """One line for any login shell; in it sh expands each pattern by itself, which keeps the
    arguments of each grep short."""
    wanted = " ".join(f"/{pattern}" for pattern in patterns)
    # Paths of the user's: what a shell could read otherwise is not looked for.
    looked = " ".join(f"/{path}" for path in present if re.fullmatch(r"[\w./+-]+", path, re.A))
    body = (
        f"LC_ALL=C; export LC_ALL; set -f; echo {_BEGIN}; "
        f'for p in {wanted}; do set +f; grep -s "" /dev/null $p; set -f; done; '
        f"echo {_PRESENT}; for p in {looked}; do [ -e $p ] && echo $p; done; echo {_END}"
    )
    return f"exec sh -c {shlex.quote(body)}"


def read(
    answer: str, patterns: Sequence[str], present: Sequence[str] = ()
) -> dict[str, str] | None:
    """The files in the answer by their paths below the root; None where it is not whole.

    Only what was asked for is taken: the far side is not trusted with paths of ours. What its
    shell says before (a banner of .bashrc) is passed over.
    """
    lines = iter(answer.split("\n"))
    if _BEGIN not in lines:
        return None
    asked = re.compile("|".join(_translate(pattern) for pattern in patterns))
    found: dict[str, list[str]] = {}
    for line in lines:
        if line == _PRESENT:
            break
        path, colon, text = line.partition(":")
        if colon and asked.fullmatch(path.lstrip("/")) and ".." not in path.split("/"):
            found.setdefault(path.lstrip("/"), []).append(text)
    there = list(lines)
    if _END not in there:
        return None
    files = {path: "\n".join(text) + "\n" for path, text in found.items()}
    marks = {line.lstrip("/") for line in there} & set(present)
    return {**dict.fromkeys(marks, ""), **files}


def _translate(pattern: str) -> str:
    """As a shell reads it: `*` stays inside a folder."""
    return re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\[0\-9\]", "[0-9]")


def unpack(files: Mapping[str, str], folder: Path) -> None:
    made: set[Path] = set()
    for name, text in files.items():
        path = folder / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        path.write_text(text, encoding="utf-8", errors="replace")


# What OpenSSH says on stderr; the first that matches: pattern, our code, its meaning, what to do.
_FAULTS: Iterable[tuple[str, str, str, str]] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed",
        "ssh-host-key-changed",
        "its host key is another than the known one",
        "make sure that it is the same machine, then `ssh-keygen -R` its old key",
    ),
    (
        "No .* host key is known|Host key verification failed",
        "ssh-host-key-unknown",
        "its host key is not known, and ssh is configured to ask for that",
        "connect once by hand to check and accept the key",
    ),
    (
        r"Permission denied|Too many authentication failures|no mutual signature",
        "ssh-denied",
        "it does not let this user in without asking for a password",
        "give it a key that needs no question: ssh-copy-id, or ssh-add an agent's",
    ),
    (
        "Could not resolve|Name or service not known|nodename nor servname",
        "ssh-unknown-host",
        "no such host is known",
        "correct the name, or give its address",
    ),
    (
        "timed out|Timeout, server|not responding",
        "ssh-timeout",
        f"it did not answer within {_CONNECT_SECONDS} seconds",
        "is it up, and does a firewall let ssh through?",
    ),
    (
        "Connection refused",
        "ssh-refused",
        "nothing listens there for ssh",
        "is sshd running, and on that port?",
    ),
)


def _unreachable(target: Target, stderr: str) -> ActionFailed:
    return classify(target, stderr) or ActionFailed(
        "ssh-failed",
        f"{target} cannot be read over ssh: {(stderr.strip().splitlines() or ['no reason'])[-1]}",
        f"try `ssh {target.box} true`",
    )


def classify(target: Target, stderr: str) -> ActionFailed | None:
    """The fault that ssh's own words tell, None for words not known."""
    for pattern, code, meaning, hint in _FAULTS:
        if re.search(pattern, stderr):
            return ActionFailed(code, f"{target} cannot be read over ssh: {meaning}", hint)
    return None


def _no_answer(target: Target, done: Finished) -> ActionFailed:
    said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
    return ActionFailed(
        "ssh-no-answer",
        f"{target} did not send its files; it said: {said[-1][:200]}",
        "the user's shell there must run `sh -c`: a forced command or a restricted shell does not",
    )
