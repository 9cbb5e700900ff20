"""A real sshd in the guest, on a port of its own, with root's account open to root's own key."""

from tests.guest.boot import Guest

PORT = 2222
FOLDER = "/run/test-ssh"  # keys and configuration
WAIT = f"for n in $(seq 100); do ss -Hltn 'sport = :{PORT}' | grep -q . && exit; sleep .1; done"
CONFIG = f"""\
Port {PORT}
ListenAddress 127.0.0.1
ListenAddress ::1
HostKey {FOLDER}/host
PidFile none
PasswordAuthentication yes
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin yes
StrictModes no
"""


def open_root(guest: Guest) -> None:
    """New keys of host and root, and sshd with them."""
    guest.sh(
        f"rm -rf /root/.ssh {FOLDER}; mkdir -p {FOLDER} /root/.ssh; chmod 700 /root/.ssh;"
        f"ssh-keygen -q -t ed25519 -N '' -f {FOLDER}/host;"
        "ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519;"
        "cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys"
    )
    start(guest)


def start(guest: Guest, prefix: str = "") -> None:
    """With the host key in FOLDER; one that runs is ended first."""
    guest.sh(f"systemctl stop test-sshd 2>/dev/null; mkdir -p /run/sshd {FOLDER}")
    guest.write(f"{FOLDER}/config", CONFIG)
    command = f"exec {prefix} /usr/sbin/sshd -D -e -f {FOLDER}/config"
    guest.run(["systemd-run", "-q", "--collect", "--unit=test-sshd", "sh", "-c", command])
    guest.sh(f"{WAIT}; exit 1")


def close(guest: Guest) -> None:
    guest.sh(f"systemctl stop test-sshd; rm -rf /root/.ssh {FOLDER}")
