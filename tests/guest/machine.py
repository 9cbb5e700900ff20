"""One guest's folder in the cache and what is written there; starts and ends nothing."""

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tests.guest import cache


@dataclass(frozen=True, slots=True)
class Settings:
    """What a guest boots from; kept in its folder, since its supervisor is another process."""

    root: str  # the unpacked file system
    binds: tuple[str, ...]  # "outside:inside", folders of the outer machine readable in the guest
    owner: int | None  # the process whose end makes the guest a leftover; None: it stays


@dataclass(frozen=True, slots=True)
class Machine:
    name: str

    @property
    def folder(self) -> Path:
        return cache.folder() / "machines" / self.name

    @property
    def layer(self) -> Path:
        """What is laid over the file system before the guest's own writes."""
        return self.folder / "layer"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def containers(self) -> Path:
        return self.folder / "containers"

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    @property
    def nspawn_pid(self) -> Path:
        return self.folder / "nspawn.pid"

    def settings(self) -> Settings:
        stored = json.loads((self.folder / "settings.json").read_text())
        return Settings(stored["root"], tuple(stored["binds"]), stored["owner"])

    def create(self, settings: Settings) -> None:
        """Makes the folder, whole at once: others may be looking for leftovers."""
        new = self.folder.with_name(f".{self.name}")
        shutil.rmtree(new, ignore_errors=True)
        for name in ("layer", "root", "upper", "work", "containers"):
            (new / name).mkdir(parents=True)
        new.chmod(0o700)
        (new / "settings.json").write_text(json.dumps(asdict(settings)))
        new.rename(self.folder)

    def hold(self) -> IO[str]:
        """Held by the supervisor as long as it runs: how others see that the guest is up."""
        file = (self.folder / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def held(self) -> bool:
        try:
            with (self.folder / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def leader(self) -> int | None:
        """The guest's PID 1 as the outer machine numbers it; None while there is none."""
        try:
            pid = int(self.nspawn_pid.read_text())
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return next((int(child) for child in children if _is_init(int(child))), None)
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_init(pid: int) -> bool:
    """Whether a process is number 1 in a PID namespace of its own."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[2:] == ["1"]
    return False


def all_machines() -> tuple[Machine, ...]:
    folder = cache.folder() / "machines"
    names = (path.name for path in folder.glob("*")) if folder.is_dir() else ()
    return tuple(Machine(name) for name in names if not name.startswith("."))


def is_orphan(machine: Machine) -> bool:
    """Whether the process that wanted this guest is gone."""
    try:
        owner = machine.settings().owner
    except (OSError, ValueError, KeyError):
        return not machine.held()
    return owner is not None and not _alive(owner)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
