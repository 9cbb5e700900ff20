"""The Debian 13 file system of the test host and what is laid over it; boots nothing."""

import platform
from collections.abc import Sequence
from pathlib import Path

from tests.guest import cache
from tests.guest.outside import output

SUITE = "trixie"
BASE = (
    *("systemd-sysv", "dbus", "kmod", "procps", "iproute2", "curl", "ca-certificates"),
    *("openssh-server", "openssh-client"),
    *("podman", "crun", "conmon", "netavark", "catatonit", "nftables"),
    *("docker.io", "docker-cli", "iptables"),  # its daemon is masked: tests/system/conftest.py
    "docker-registry",  # masked too: tests/system/test_registry.py
)
# What packaging/install asks for, so that it needs no network in here.
PROJECT = (
    *("python3-venv", "python3-click", "python3-jinja2", "python3-httpx", "python3-psutil"),
    *("python3-pydbus", "numactl", "g++", "libtcmalloc-minimal4t64", "libnuma1", "polkitd"),
)
LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")

# Units that have no business in a container, or that wake up and disturb a test.
MASKED = (
    *("systemd-modules-load.service", "dev-hugepages.mount", "fstrim.timer"),
    *("getty.target", "console-getty.service", "ssh.service", "ssh.socket"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("docker.service", "docker.socket", "containerd.service", "docker-registry.service"),
    *("netavark-dhcp-proxy.socket", "podman-auto-update.timer", "podman.socket"),
)

CPUINFO = "/etc/test-host/cpuinfo"
CPUINFO_UNIT = f"""\
[Unit]
Description=The /proc/cpuinfo of another machine
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mount --bind {CPUINFO} /proc/cpuinfo
"""
# Where the cpuset controller sits on a v1 hierarchy of the outer machine: see crun-cpuset-shim.
CPUSET_UNIT = """\
[Unit]
DefaultDependencies=no
Before=sysinit.target
[Mount]
What=cpuset
Where=/run/cpuset-v1
Type=cgroup
Options=cpuset
"""
# Containers have a /proc of their own: vLLM in them is to see the same machine.
CONTAINERS = f"""\
[containers]
volumes = ["{CPUINFO}:/proc/cpuinfo:ro"]
"""
WITH_SHIM = """\
[engine]
runtime = "crun-cpuset-shim"
[engine.runtimes]
crun-cpuset-shim = ["/usr/local/bin/crun-cpuset-shim"]
"""
SHIM = Path(__file__).with_name("crun-cpuset-shim")


def mirror() -> tuple[str, ...]:
    """The Debian mirror that this machine uses; none where it is not Debian: mmdebstrap's own."""
    system = platform.freedesktop_os_release()
    if system.get("ID") != "debian":
        return ()
    targets = output(
        "apt-get", "indextargets", "--format", "$(CODENAME) $(SUITE) $(RELEASE) $(REPO_URI)",
        "Created-By: Packages", "Component: main",
    )  # fmt: skip
    for line in targets.splitlines():
        *releases, address = line.split()
        if system.get("VERSION_CODENAME") in releases:
            return (address,)
    return ()


def debian(kind: str, packages: Sequence[str], left_out: Sequence[str] = LEFT_OUT) -> Path:
    """A minimal Debian 13 with `packages`, unpacked without files of `left_out`; never written to
    after its making."""

    def bootstrap(target: Path) -> None:
        output(
            "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}",
            # a mirror may be a dated snapshot
            '--aptopt=Acquire::Check-Valid-Until "false"',
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in left_out),
            SUITE, target, *mirror(),
        )  # fmt: skip

    return cache.part(kind, [SUITE, packages, left_out], bootstrap)


def tree() -> Path:
    """The file system of the test host."""
    return debian("root", (*BASE, *PROJECT))


def lay_over(target: Path, hostname: str, cpuset_v1: bool) -> None:
    """Writes the files that make the plain Debian a test host below `target`."""
    units = target / "etc/systemd/system"
    wanted = units / "sysinit.target.wants"
    wanted.mkdir(parents=True)
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    (units / "test-cpuinfo.service").write_text(CPUINFO_UNIT)
    (wanted / "test-cpuinfo.service").symlink_to("../test-cpuinfo.service")
    if cpuset_v1:
        mount = "run-cpuset\\x2dv1.mount"
        (units / mount).write_text(CPUSET_UNIT)
        (wanted / mount).symlink_to(f"../{mount}")
        _write(target / "usr/local/bin/crun-cpuset-shim", SHIM.read_text(), 0o755)
    containers = CONTAINERS + (WITH_SHIM if cpuset_v1 else "")
    _write(target / "etc/containers/containers.conf", containers)
    # mmdebstrap copies these from the machine that it runs on.
    _write(target / "etc/hostname", f"{hostname}\n")
    _write(target / "etc/resolv.conf", "")
    _write(target / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost\n")
    _write(target / "etc/machine-id", "")  # made at the first boot
    (target / "var/log/journal").mkdir(parents=True)  # a journal that outlives a reboot
    (target / "etc/test-host").mkdir()


def _write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
