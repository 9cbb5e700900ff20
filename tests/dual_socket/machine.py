"""Boots the emulated host and waits for its end; knows nothing of what runs in it."""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.dual_socket import disk, kernel, topology
from tests.dual_socket.disk import Case
from tests.guest.outside import GuestError, output, say

LIMIT_SECONDS = 45 * 60  # 3 to 6 minutes where nothing else runs
PROGRAM = "qemu-system-x86_64"

_APPEND = (
    "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr tsc=reliable audit=0 selinux=0 "
    "apparmor=0 systemd.show_status=0"
)


def require() -> None:
    """Installs QEMU and what makes its disks, where they are missing."""
    wanted = {PROGRAM: "qemu-system-x86", "mke2fs": "e2fsprogs", "mmdebstrap": "mmdebstrap"}
    missing = [package for program, package in wanted.items() if not shutil.which(program)]
    if missing:
        say(f"installing {', '.join(missing)}")
        output("apt-get", "update", "-qq")
        output(
            "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing,
            DEBIAN_FRONTEND="noninteractive",
        )  # fmt: skip


def observations(case: Case) -> list[dict[str, Any]]:
    """What the host told of itself, one value for each boot. Raises GuestError where it did not
    end by itself."""
    image = disk.folder(case) / "root.img"
    second = disk.vllm() if case.with_vllm else None
    with tempfile.TemporaryDirectory(dir=image.parents[1], prefix="dual-socket-") as folder:
        root, console, told = (Path(folder, name) for name in ("root.img", "console", "told"))
        output("cp", "--sparse=always", "--reflink=auto", image, root)
        began = time.monotonic()
        fault = _boot(case.topology, root, second, console, told)
        say(f"the emulated host ran for {time.monotonic() - began:.0f} s")
        lines = told.read_text(errors="replace").splitlines() if told.exists() else []
        values = [json.loads(line) for line in lines if line.startswith("{")]
        if fault or not values:
            tail = console.read_text(errors="replace")[-6000:] if console.exists() else ""
            raise GuestError(f"{fault or 'the emulated host told nothing'}:\n{tail}")
        for value in values:
            say(f"boot {value['boot']}: ended at, took, command")
            for step in value["steps"]:
                say(step)
            for key in ("enable_failed", "log"):
                if value.get(key):
                    say(value[key])
        return values


def _boot(
    wanted: topology.Topology, root: Path, second: Path | None, console: Path, told: Path
) -> str | None:
    """Until it powers itself off; what went wrong, if anything."""
    parts = kernel.folder()
    command = [
        PROGRAM, "-M", "q35,hpet=off", "-accel", "tcg,thread=multi,tb-size=1024",
        "-nodefaults", "-no-user-config", "-display", "none", "-cpu", "EPYC-Milan",
        "-serial", f"file:{console}", "-serial", f"file:{told}",
        "-kernel", str(parts / "vmlinuz"), "-initrd", str(parts / "initrd"), "-append", _APPEND,
        "-drive", f"file={root},if=none,id=d0,format=raw,cache=unsafe",
        "-device", "virtio-blk-pci,drive=d0", "-device", "virtio-rng-pci",
        *topology.arguments(wanted),
    ]  # fmt: skip
    if second:
        command += [
            "-drive", f"file={second},if=none,id=d1,format=raw,readonly=on",
            "-device", "virtio-blk-pci,drive=d1",
        ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"the emulated host did not end within {LIMIT_SECONDS} s"
    return f"QEMU failed: {done.stderr[-2000:]}" if done.returncode != 0 else None
