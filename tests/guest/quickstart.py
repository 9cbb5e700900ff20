"""The quickstart on a machine that is no EPYC host with systemd: the same inside a test host.

Prints each step and how long it took: build, boot, enable, chat, reboot, chat again.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.guest import hub, parts, project
from tests.guest.boot import Guest, sweep
from tests.guest.outside import GuestError, install_prerequisites

T = TypeVar("T")
NAME = "quickstart"
MODEL = "example/tiny-chat"
ENDPOINT = "tiny-chat"
UNIT = f"epyc-vllm-{ENDPOINT}-s0.service"


def step(title: str, action: Callable[[], T]) -> T:
    sys.stdout.write(f"==> {title}\n")
    sys.stdout.flush()
    began = time.monotonic()
    result = action()
    sys.stdout.write(f"    {time.monotonic() - began:.1f} s\n")
    sys.stdout.flush()
    return result


def chat(guest: Guest) -> str:
    """Runs the curl line that `epyc-vllm show` prints, as it stands, and returns the answer."""
    shown = json.loads(guest.run(["epyc-vllm", "show", "--json", ENDPOINT]).stdout)
    curl: str = shown["endpoints"][0]["connections"][0]["curl"]
    sys.stdout.write(f"    $ {curl}\n")
    answer = json.loads(guest.sh(curl, timeout=300))
    if "choices" not in answer:
        raise GuestError(f"no answer from the endpoint: {answer}")
    text = answer["choices"][0]["message"]["content"]
    sys.stdout.write(f"    answer ({answer['usage']['completion_tokens']} tokens): {text!r}\n")
    return str(text)


def platform(guest: Guest) -> str:
    """The platform that the environment's vLLM chose, as the plan's probe saw it."""
    plan = json.loads(guest.run(["epyc-vllm", "plan", "--json", ENDPOINT]).stdout)
    return str(plan["versions"]["platform"])


def comes_back(guest: Guest) -> None:
    """Waits for the boot to have started the endpoint by itself; nobody asks for it here."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        state = guest.run(["systemctl", "is-active", UNIT], check=False).stdout.strip()
        if state == "active":
            return
        if state == "failed":
            raise GuestError(guest.sh(f"journalctl -b -u {UNIT} -n 50 --no-pager", check=False))
        time.sleep(1)
    raise GuestError(f"{UNIT} did not come back within 15 minutes")


def parts_of_it() -> dict[Path, Path]:
    install_prerequisites()
    return parts.binds()


def prepare(guest: Guest) -> None:
    project.install(guest)
    hub.start(guest)


def enable(guest: Guest) -> None:
    sys.stdout.write(guest.run(["epyc-vllm", "enable", MODEL, "--yes"], timeout=1200).stdout)


def show(guest: Guest) -> None:
    """The whole of it: an answer from the Zen platform before and after a reboot."""
    step("boot it: systemd as PID 1, the cpuinfo of a Genoa", guest.up)
    step("install epyc-vllm, start a stand-in for the model hub", lambda: prepare(guest))
    step(f"epyc-vllm enable {MODEL} --yes", lambda: enable(guest))
    found = step("ask which platform serves", lambda: platform(guest))
    sys.stdout.write(f"    {found}\n")
    if "ZenCpuPlatform" not in found:
        raise GuestError(f"vLLM chose {found}, not the Zen platform")
    step("chat with it through the printed curl line", lambda: chat(guest))
    step("reboot the host", guest.reboot)
    step("wait for the endpoint to come back by itself", lambda: comes_back(guest))
    step("chat again", lambda: chat(guest))
    sys.stdout.write(guest.run(["epyc-vllm", "status"]).stdout)


def main() -> int:
    began = time.monotonic()
    guest = None
    try:
        sweep()
        guest = Guest(
            NAME, step("the test host's parts: Debian 13, vLLM, a tiny model", parts_of_it)
        )
        show(guest)
    except GuestError as error:
        sys.stderr.write(f"quickstart: {error}\n")
        return 1
    finally:
        if guest:
            guest.down()
    sys.stdout.write(f"done in {time.monotonic() - began:.0f} s; the host is gone again\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
