"""A Debian kernel for the emulated host, with the RAM disk that finds its root; boots none."""

import io
import lzma
import shutil
from pathlib import Path

from tests.guest import cache, rootfs
from tests.guest.outside import GuestError, output

PACKAGES = ("linux-image-cloud-amd64", "busybox-static")

# The cloud kernel has its disk driver as a module, and udev is not in an initial RAM disk of ours.
INIT = """\
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
$B insmod /virtio_blk.ko
n=0
while [ ! -b /dev/vda ] && [ $n -lt 1200 ]; do $B usleep 50000; n=$((n+1)); done
$B mount -t ext4 -o rw,noatime /dev/vda /mnt || exec $B sh
exec $B switch_root /mnt /lib/systemd/systemd
"""


def folder() -> Path:
    """vmlinuz, initrd and modules/ (as below /usr/lib/modules)."""
    return cache.part("kernel", [rootfs.SUITE, PACKAGES, INIT, Path(__file__).read_text()], _make)


def _make(target: Path) -> None:
    target.mkdir()
    tree = target / "tree"
    output(
        "mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}",
        '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Install-Recommends "false"',
        rootfs.SUITE, tree, *rootfs.mirror(),
    )  # fmt: skip
    (kernel,) = (tree / "boot").glob("vmlinuz-*")
    shutil.copy2(kernel, target / "vmlinuz")
    shutil.copytree(tree / "usr/lib/modules", target / "modules", symlinks=True)
    (driver,) = (target / "modules").rglob("virtio_blk.ko*")
    found = driver.read_bytes()
    module = lzma.decompress(found) if driver.suffix == ".xz" else found
    busybox = next((tree / name for name in ("usr/bin/busybox", "bin/busybox")), None)
    if busybox is None:
        raise GuestError("busybox-static has no busybox")
    (target / "initrd").write_bytes(_archive(busybox.read_bytes(), module))
    shutil.rmtree(tree)


def _archive(busybox: bytes, module: bytes) -> bytes:
    """cpio in its "newc" form: docs.kernel.org/driver-api/early-userspace/buffer-format.html"""
    out = io.BytesIO()
    for name in ("bin", "dev", "proc", "sys", "mnt"):
        _entry(out, name, 0o40755, b"")
    _entry(out, "bin/busybox", 0o100755, busybox)
    _entry(out, "virtio_blk.ko", 0o100644, module)
    _entry(out, "init", 0o100755, INIT.encode())
    _entry(out, "TRAILER!!!", 0, b"")
    return out.getvalue()


def _entry(out: io.BytesIO, name: str, mode: int, content: bytes) -> None:
    encoded = name.encode() + b"\0"
    fields = (out.tell(), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    out.write(b"070701" + b"".join(b"%08x" % field for field in fields))
    for part in (encoded, content):
        out.write(part)
        out.write(bytes(-out.tell() % 4))
