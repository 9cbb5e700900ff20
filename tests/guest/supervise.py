"""The process that keeps one guest running: mounts its root, starts systemd-nspawn, reboots it.

Run as `python3 -m tests.guest.supervise NAME` in a mount namespace of its own, so that the mounts
are gone with it however it ends. The guest outlives the command that started it.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.guest import cgroups
from tests.guest.machine import Machine, Settings
from tests.guest.outside import output

REBOOT = 133  # what systemd-nspawn --keep-unit exits with when the guest asks for a reboot

# A unified hierarchy on a hybrid machine; podman writes below /proc/sys and /sys, and its
# containers' system calls would be refused by nspawn's own filter.
ENVIRONMENT = {
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
    "SYSTEMD_SECCOMP": "0",
}


def command(machine: Machine, settings: Settings) -> list[str]:
    return [
        "systemd-nspawn", "--quiet", "--boot", "--console=read-only",
        f"--directory={machine.root}", f"--machine={machine.name}", f"--hostname={machine.name}",
        "--register=no", "--keep-unit", "--link-journal=no", "--capability=all",
        "--private-network", "--resolv-conf=off", "--timezone=off",
        "--rlimit=NOFILE=1024:524288",  # systemd's own default, where allowed to raise it
        *(f"--bind-ro={bind}" for bind in settings.binds),
        f"--bind={machine.containers}:/var/lib/containers",  # podman has no overlay over an overlay
    ]  # fmt: skip


def mount_root(machine: Machine, settings: Settings) -> None:
    """An overlay over the unpacked tree, or a copy of it where the cache's file system has none."""
    upper, work = machine.folder / "upper", machine.folder / "work"
    options = f"lowerdir={machine.layer}:{settings.root},upperdir={upper},workdir={work}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(machine.root)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        for source in (Path(settings.root), machine.layer):
            output("cp", "-a", "--reflink=auto", f"{source}/.", machine.root)


def boot(machine: Machine, settings: Settings) -> int:
    """One boot of the guest, to its end; the exit code of systemd-nspawn."""
    cgroups.remove(machine.name, "machine")  # v2 takes no process where an earlier boot's lie
    with machine.console.open("ab") as console:
        nspawn = subprocess.Popen(
            command(machine, settings),
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            env={**os.environ, **ENVIRONMENT},
            preexec_fn=lambda: cgroups.join(machine.name, "machine"),
        )  # fmt: skip
        machine.nspawn_pid.write_text(str(nspawn.pid))
        return nspawn.wait()


def main(name: str) -> int:
    machine = Machine(name)
    settings = machine.settings()
    with machine.hold():
        cgroups.join(name, "supervisor")
        mount_root(machine, settings)
        while (code := boot(machine, settings)) == REBOOT:
            pass
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
