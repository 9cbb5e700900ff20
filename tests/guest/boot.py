"""`Guest`: the test host as tests see it - booted, rebooted, reached; builds none of its parts."""

import contextlib
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.guest import cgroups, cpuinfo, rootfs
from tests.guest.environment import REPOSITORY
from tests.guest.machine import Machine, Settings, all_machines, is_orphan
from tests.guest.outside import GuestError

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
BOOT_TIMEOUT_S = 300.0


class Guest:
    """A test host by name; `up` makes a fresh one, and several may run side by side."""

    def __init__(
        self,
        name: str = "epyc-vllm",
        binds: Mapping[Path, Path] | None = None,
        tree: Callable[[], Path] = rootfs.tree,
    ) -> None:
        """`binds`: folders of the outer machine, each with its place in the guest (read-only).
        `tree`: makes the file system that it boots from."""
        self.name = name
        self.binds = dict(binds or {})
        self._tree = tree
        self._machine = Machine(name)

    @property
    def running(self) -> bool:
        return self._machine.held()

    def up(self, processor: str = "genoa", owner: int | None = None) -> None:
        """Boots a fresh guest; one of the same name is ended first. Lives as long as `owner`."""
        tree = self._tree()
        self.down()
        binds = tuple(f"{outside}:{inside}" for outside, inside in self.binds.items())
        self._machine.create(Settings(str(tree), binds, owner))
        rootfs.lay_over(self._machine.layer, self.name, cgroups.has_cpuset_v1())
        text = cpuinfo.render(processor)
        (self._machine.layer / rootfs.CPUINFO.lstrip("/")).write_text(text)
        self._start_supervisor()
        self._await("boot", self._is_up)

    def down(self) -> None:
        """Ends the guest as a power cut does and removes every trace of it."""
        if cgroups.HOST_SYSTEMD.is_dir():
            unit = f"{cgroups.unit(self.name)}.service"
            subprocess.run(
                ["systemctl", "kill", "--signal=KILL", unit], check=False, capture_output=True
            )
        cgroups.kill(self.name)
        cgroups.remove(self.name)
        self._machine.remove()

    def reboot(self) -> None:
        before = self._boot_id()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may go down with the answer
            self._enter(["systemctl", "reboot"])
        self._await("reboot", lambda: self._boot_id() not in (None, before) and self._is_up())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Halted meanwhile as a virtual machine is halted: nothing in it runs or answers."""
        cgroups.freeze(self.name, True)
        try:
            yield
        finally:
            cgroups.freeze(self.name, False)

    def run(
        self,
        command: Sequence[str],
        *,
        check: bool = True,
        stdin: str | None = None,
        timeout: float = 120,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        properties: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside as a unit of its own: right cgroup, output and exit code as is."""
        unit = f"outside-{secrets.token_hex(4)}"
        words = self._transient(unit, command, environment or {}, user, properties)
        try:
            result = subprocess.run(
                words, env=ENVIRONMENT, capture_output=True, text=True, check=False,
                timeout=timeout, **_input(stdin),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self._enter(["systemctl", "kill", "--signal=KILL", unit])
            raise
        if check and result.returncode != 0:
            raise GuestError(
                f"{shlex.join(command)} exited with {result.returncode} in {self.name}:\n"
                f"{result.stdout[-2000:]}{result.stderr[-4000:]}"
            )
        return result

    def popen(
        self,
        command: Sequence[str],
        *,
        unit: str | None = None,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        properties: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """The same, left running; `systemctl stop UNIT` inside ends it."""
        unit = unit or f"outside-{secrets.token_hex(4)}"
        words = self._transient(unit, command, environment or {}, user, properties)
        return subprocess.Popen(
            words, env=ENVIRONMENT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, command: Sequence[str]) -> int:
        """The same with this process's own input and output; the exit code."""
        words = self._transient(f"outside-{secrets.token_hex(4)}", command, {}, None, ())
        return subprocess.run(words, env=ENVIRONMENT, check=False).returncode

    def sh(self, script: str, *, check: bool = True, timeout: float = 120) -> str:
        """What a shell script prints inside."""
        command = ["/bin/bash", "-c", script]
        return self.run(command, check=check, timeout=timeout).stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file in place (same inode), with the folders above it."""
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        result = self._enter(["sh", "-c", script, "sh", path, f"{mode:o}"], stdin=text)
        if result.returncode != 0:
            raise GuestError(f"{path} cannot be written in {self.name}: {result.stderr.strip()}")

    def read(self, path: str) -> str:
        result = self._enter(["cat", path])
        if result.returncode != 0:
            raise GuestError(f"{path} cannot be read in {self.name}: {result.stderr.strip()}")
        return result.stdout

    def copy(self, outside: Path, inside: str) -> None:
        """Copies a file of the outer machine, with its mode."""
        with outside.open("rb") as source:
            command = ["sh", "-c", 'cat > "$1" && chmod "$2" "$1"', "sh", inside]
            mode = f"{outside.stat().st_mode & 0o777:o}"
            subprocess.run(
                self._inside([*command, mode]), env=ENVIRONMENT, stdin=source, check=True
            )

    def cpuinfo(self, kind: str) -> None:
        """Makes the guest another machine from now on, reboots included: genoa, milan, intel."""
        self.write(rootfs.CPUINFO, cpuinfo.render(kind))

    def shell(self) -> int:
        command = ["systemd-run", "--pty", "--wait", "--quiet", "--collect", "/bin/bash", "-l"]
        return subprocess.run(self._inside(command), env=ENVIRONMENT, check=False).returncode

    def _transient(
        self,
        unit: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        user: str | None,
        properties: Sequence[str],
    ) -> list[str]:
        return self._inside([
            "systemd-run", "--wait", "--pipe", "--quiet", "--collect", "--service-type=exec",
            "--expand-environment=no", f"--unit={unit}",
            *(f"--uid={user}" for user in filter(None, [user])),
            *(("--setenv=HOME=/root", "--property=WorkingDirectory=/root") if not user else ()),
            *(f"--setenv={name}={value}" for name, value in environment.items()),
            *(f"--property={line}" for line in properties),
            "--", *command,
        ])  # fmt: skip

    def _inside(self, command: Sequence[str]) -> list[str]:
        leader = self._machine.leader()
        if leader is None:
            raise GuestError(f"the guest {self.name} is not running")
        nsenter = shutil.which("nsenter") or "nsenter"
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return [nsenter, f"--target={leader}", *namespaces, "--", *command]

    def _enter(
        self, command: Sequence[str], stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the guest's namespaces, outside its units; never raises on failure."""
        return subprocess.run(
            self._inside(command), env=ENVIRONMENT, capture_output=True, text=True, check=False,
            timeout=timeout, **_input(stdin),
        )  # fmt: skip

    def _start_supervisor(self) -> None:
        words = ["unshare", "--mount", "--propagation=private", sys.executable]
        words += ["-m", "tests.guest.supervise", self.name]
        if cgroups.HOST_SYSTEMD.is_dir():
            cache = f"--setenv=EPYC_VLLM_TEST_CACHE={self._machine.folder.parents[1]}"
            words = [
                "systemd-run", "--quiet", "--collect", f"--unit={cgroups.unit(self.name)}",
                "--property=Delegate=yes", f"--working-directory={REPOSITORY}", cache, *words,
            ]  # fmt: skip
        with self._machine.console.open("ab") as console:
            subprocess.Popen(
                words, cwd=REPOSITORY, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip

    def _await(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if reached():
                    return
            except (GuestError, subprocess.TimeoutExpired):
                pass  # not running yet, or between two boots, whose namespaces may hang
            time.sleep(0.1)
        tail = self._machine.console.read_text(errors="replace")[-3000:]
        raise GuestError(f"the guest {self.name} did not {what}; its console says:\n{tail}")

    def _is_up(self) -> bool:
        """Services run. Not is-system-running, which says "starting" while any endpoint loads."""
        state = self._enter(["systemctl", "is-active", "multi-user.target"]).stdout.strip()
        return state == "active"

    def _boot_id(self) -> str | None:
        try:
            return (
                self._enter(["cat", "/proc/sys/kernel/random/boot_id"], timeout=20).stdout.strip()
                or None
            )
        except GuestError:
            return None


def sweep() -> None:
    """Ends the guests of runs that were killed."""
    for machine in all_machines():
        if is_orphan(machine):
            Guest(machine.name).down()


def _input(text: str | None) -> dict[str, str] | dict[str, int]:
    return {"input": text} if text is not None else {"stdin": subprocess.DEVNULL}
