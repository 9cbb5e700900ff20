"""The command line of the test host: python3 -m tests.guest [--name NAME] VERB."""

import argparse
import os
import sys
import time

from tests.guest import cache, parts, project
from tests.guest.boot import Guest
from tests.guest.cpuinfo import PROCESSORS
from tests.guest.outside import GuestError, install_prerequisites, say

VERBS = {
    "build": "make every part that is not in the cache",
    "up": "boot a fresh guest (builds first); one that is up stays",
    "install": "install this checkout in it, as packaging/install does",
    "run": "run a command in it: `run COMMAND...`, with its exit code",
    "shell": "open a root shell in it",
    "reboot": "systemctl reboot, and wait until it is up again",
    "down": "end it and remove what it wrote",
}


def _build() -> None:
    install_prerequisites()
    parts.binds()


def _up(name: str, processor: str) -> None:
    guest = Guest(name)
    if guest.running:
        say(f"{name} is up already")
        return
    _build()
    started = time.monotonic()
    Guest(name, parts.binds()).up(processor)
    say(f"{name} is up after {time.monotonic() - started:.1f} s")


def _arguments() -> argparse.Namespace:
    verbs = "\n".join(f"  {verb:8} {help_text}" for verb, help_text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.guest",
        description=f"A throw-away Debian 13 host for tests.\n\n{verbs}",
        epilog=f"{cache.VARIABLE}: where its parts are kept.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default="epyc-vllm", help="which guest (default: %(default)s)")
    parser.add_argument(
        "--processor", default="genoa", choices=PROCESSORS, help="whose /proc/cpuinfo `up` shows"
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def _do(options: argparse.Namespace) -> int:
    guest = Guest(options.name)
    match options.verb:
        case "build":
            _build()
        case "up":
            _up(options.name, options.processor)
        case "install":
            project.install(guest)
        case "run":
            words = options.command
            return guest.call(words[1:] if words[:1] == ["--"] else words)
        case "shell":
            return guest.shell()
        case "reboot":
            guest.reboot()
        case "down":
            guest.down()
    return 0


def main() -> int:
    if os.geteuid() != 0:
        say("root is needed")
        return 1
    try:
        return _do(_arguments())
    except GuestError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
