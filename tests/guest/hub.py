"""The stand-in model hub inside a guest, and the project told to use it; gone after a reboot."""

from tests.guest import cpuinfo, parts
from tests.guest.boot import Guest
from tests.guest.outside import GuestError

UNIT = "test-hub.service"
PORT = 9000
CONFIG = "/etc/epyc-vllm/epyc-vllm.toml"
CONFIG_TEXT = f'[hub]\nendpoint = "http://127.0.0.1:{PORT}"\n'
# zentorch asks the CPU itself for what its bfloat16 needs, not the guest's /proc/cpuinfo.
FLOAT32 = '[defaults]\ndtype = "float32"\n'


def start(guest: Guest) -> None:
    """Starts it if it is not running; returns when it answers."""
    guest.write(CONFIG, CONFIG_TEXT + ("" if cpuinfo.has_bfloat16() else FLOAT32))
    if running(guest):
        return
    guest.run([
        "systemd-run", "--quiet", "--collect", f"--unit={UNIT}",
        "/usr/bin/python3", str(parts.HUB_SERVER), str(parts.MODELS), "--port", str(PORT),
    ])  # fmt: skip
    answer = (
        f"for n in $(seq 50); do ss -Hltn 'sport = :{PORT}' | grep -q . && exit; sleep .1; done"
    )
    guest.sh(f"{answer}; exit 1")


def running(guest: Guest) -> bool:
    return guest.run(["systemctl", "--quiet", "is-active", UNIT], check=False).returncode == 0


def stop(guest: Guest) -> None:
    guest.run(["systemctl", "stop", UNIT])
    if running(guest):
        raise GuestError("the stand-in hub does not stop")
