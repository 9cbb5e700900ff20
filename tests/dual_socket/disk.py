"""The disks of an emulated host: the test host's file system with the project, and real vLLM."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.dual_socket import kernel
from tests.dual_socket.topology import Topology, cpuinfo_of
from tests.guest import cache, environment, image, models, parts, project, rootfs
from tests.guest.environment import REPOSITORY
from tests.guest.outside import output

INSIDE = Path(__file__).with_name("inside.py")
SCRIPT, ASKED = "/usr/local/lib/dual-socket.py", "/etc/dual-socket.json"


@dataclass(frozen=True, slots=True)
class Case:
    """An emulated host and what is enabled on it at the first of its `boots`."""

    topology: Topology
    enable: tuple[str, ...]  # the words behind `epyc-vllm enable`
    processor: str = "genoa"
    boots: int = 2
    with_vllm: bool = False  # the environment without zentorch: emulation has no AVX-512

    @property
    def name(self) -> str:
        return f"{self.topology.name}{'-vllm' if self.with_vllm else ''}"

    @property
    def asked(self) -> str:
        """What inside.py reads."""
        return json.dumps({"enable": self.enable, "boots": self.boots})


# What a boot would wait for or start in vain: seconds each, where every instruction is emulated.
MASKED = (
    *("serial-getty@ttyS0.service", "serial-getty@ttyS1.service", "systemd-networkd.service"),
    *("systemd-networkd.socket", "systemd-timesyncd.service", "systemd-logind.service"),
    *("netavark-dhcp-proxy.service", "netavark-firewalld-reload.service", "nftables.service"),
    *("podman-auto-update.service", "podman-clean-transient.service", "podman-restart.service"),
    *(
        "podman.service",
        "modprobe@.service",
        "systemd-update-utmp.service",
        "sys-kernel-debug.mount",
    ),
    "epyc-vllm-apply.path",  # it would look for changes in vain after enable's own
    *("sys-kernel-tracing.mount", "systemd-pcrextend.socket", "systemd-sysext.socket"),
)
UNIT = f"""\
[Unit]
Description=What the test asks of this host
After=multi-user.target
[Service]
Type=exec
ExecStart=/usr/bin/python3 {SCRIPT}
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
TimeoutStopSec=600
[Install]
WantedBy=multi-user.target
"""
# Ten times the usual: emulation is slow.
PATIENCE = """\
[Manager]
DefaultTimeoutStartSec=900s
DefaultTimeoutStopSec=150s
DefaultDeviceTimeoutSec=900s
"""
# Where the second disk has the environment and its Python, and where they have to be.
VLLM = "/srv/vllm"
# No fstab: this host has no udev to announce the disk, which a mount unit would wait for.
VLLM_MOUNTS = f"""\
[Service]
ExecStartPre=mount --mkdir --options ro /dev/vdb {VLLM}
ExecStartPre=mount --mkdir --bind {VLLM}/environment {environment.STOCK}
ExecStartPre=mount --mkdir --bind {VLLM}/python {environment.PYTHON}
"""
LEFT_OUT = ("usr/lib/llvm*", "usr/sbin/dockerd", "var/cache/apt")
COMPILER = ("usr/lib/gcc", "usr/libexec/gcc")  # vLLM needs it, "eager" too


def folder(case: Case) -> Path:
    """Holds root.img, made anew when anything that is in it has changed."""
    inputs = [
        str(rootfs.tree()), str(kernel.folder()), str(project.wheel()), str(image.archives()),
        str(models.folder()), str(project.wheelhouse()), _cpuinfo(case), case.asked, UNIT, MASKED,
        PATIENCE, VLLM_MOUNTS if case.with_vllm else "",
        INSIDE.read_text(), Path(__file__).read_text(), Path(rootfs.__file__).read_text(),
    ]  # fmt: skip
    kind = f"disk-{case.name}"
    made = cache.part(kind, inputs, lambda target: _make(target, case))
    _drop_others(kind, made)
    return made


def vllm() -> Path:
    """The image of the second disk, read-only: vLLM without zentorch, and its Python."""
    parts_of_it = {"environment": environment.stock(), "python": environment.python()}

    def make(target: Path) -> None:
        tree = target / "tree"
        tree.mkdir(parents=True)
        for name, part in parts_of_it.items():
            output("cp", "-al", part, tree / name)
        _file_system(tree, target / "vllm.img", gib=8)

    return cache.part("disk-of-vllm", [str(part) for part in parts_of_it.values()], make) / (
        "vllm.img"
    )


def _cpuinfo(case: Case) -> str:
    return cpuinfo_of(case.topology, case.processor)


def _drop_others(kind: str, kept: Path) -> None:
    """Each is some GB, and every change of the project makes another."""
    for path in kept.parent.glob(f"{kind}-*"):
        if path.name.partition(".")[0] != kept.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _file_system(tree: Path, image_file: Path, gib: int) -> None:
    """ext4 with what is in `tree`, which goes."""
    with image_file.open("wb") as file:
        file.truncate(gib * 2**30)
    output("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, "-F", image_file)
    shutil.rmtree(tree)


def _make(target: Path, case: Case) -> None:
    root = target / "root"
    target.mkdir()
    output("cp", "-a", "--reflink=auto", rootfs.tree(), root)
    for pattern in (*LEFT_OUT, *(() if case.with_vllm else COMPILER)):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    layer = target / "layer"
    rootfs.lay_over(layer, "dual-socket", cpuset_v1=False)
    (layer / rootfs.CPUINFO.lstrip("/")).write_text(_cpuinfo(case))
    output("cp", "-a", "--remove-destination", f"{layer}/.", root)
    _install(root)
    _prepare(root, case)
    _file_system(root, target / "root.img", gib=6)


def _install(root: Path) -> None:
    """packaging/install at this machine's own speed, in a chroot that looks booted to it."""
    shutil.copytree(project.wheelhouse(), root / "srv/wheelhouse")
    wheel = project.wheel()
    shutil.copy2(wheel, root / "root")
    shutil.copy2(REPOSITORY / "packaging/install", root / "root/install")
    (root / "run/systemd/system").mkdir(parents=True)
    output(
        # systemd's own commands look at /proc; the mount is gone with its namespace
        "unshare", "--mount", "--propagation=private", "sh", "-c",
        'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"',
        root, "env", "SYSTEMD_OFFLINE=1", "PIP_NO_INDEX=1", f"PIP_FIND_LINKS={project.WHEELHOUSE}",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
        "bash", "/root/install", f"/root/{wheel.name}",
    )  # fmt: skip
    shutil.rmtree(root / "srv/wheelhouse")
    shutil.rmtree(root / "run/systemd")
    output("chroot", root, "/opt/epyc-vllm/bin/python", "-m", "compileall", "-q", "/opt/epyc-vllm")


def _prepare(root: Path, case: Case) -> None:
    shutil.copytree(kernel.folder() / "modules", root / "usr/lib/modules", symlinks=True)
    for version in (root / "usr/lib/modules").iterdir():
        output("chroot", root, "depmod", version.name)
    _write(root / "etc/modules-load.d/overlay.conf", "overlay\n")
    shutil.copytree(models.folder(), root / parts.MODELS.relative_to("/"))
    images = root / parts.IMAGES.relative_to("/")
    images.mkdir()
    shutil.copy2(image.archives() / "standin.tar", images)
    shutil.copy2(INSIDE, root / SCRIPT.lstrip("/"))
    _write(root / ASKED.lstrip("/"), case.asked)
    units = root / "etc/systemd/system"
    (units / "systemd-modules-load.service").unlink()  # masked for the host without a kernel
    for name in MASKED:
        link = units / name
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    _write(units / "dual-socket.service", UNIT)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "dual-socket.service").symlink_to("../dual-socket.service")
    _write(root / "etc/systemd/system.conf.d/patience.conf", PATIENCE)
    _write(root / "etc/fstab", "")
    if case.with_vllm:
        _write(units / "dual-socket.service.d/vllm.conf", VLLM_MOUNTS)
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
