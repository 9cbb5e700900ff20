"""An endpoint's API key, lent to the watchdog for its canary while the instance runs.

The key's own file is root's alone and the watchdog is not root. The copy lies in memory (/run), in
a folder that systemd-tmpfiles makes for root and the watchdog's group; without it nothing is lent.
"""

import contextlib
import os

from epyc_vllm_agent.paths import Paths


def lend(paths: Paths, instance: str, key: str | None) -> None:
    """Does nothing without a key; a folder that is missing or full costs the canary, no more."""
    take_back(paths, instance)
    if key is None:
        return
    with contextlib.suppress(OSError):
        group = paths.keys.stat().st_gid
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(paths.keys / instance, flags, 0o640)
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - of a descriptor
            os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, 0o640)
            file.write(key)


def borrow(paths: Paths, instance: str) -> str | None:
    try:
        return (paths.keys / instance).read_text(encoding="ascii") or None
    except (OSError, UnicodeDecodeError):
        return None


def take_back(paths: Paths, instance: str) -> None:
    with contextlib.suppress(OSError):
        (paths.keys / instance).unlink(missing_ok=True)
