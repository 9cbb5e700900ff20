"""The journal of one run of a unit, through journalctl; reads only."""

import json

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.errors import ActionFailed


def tail(invocation_id: str, lines: int = 50) -> tuple[str, ...]:
    """The last lines that the unit's processes wrote in that invocation, oldest first.

    Empty where the journal cannot be read: a missing log must not hide the failure it is for.
    """
    try:
        command.run(["journalctl", "--sync"], timeout_seconds=20)
        done = command.run(
            [
                "journalctl",
                "--no-pager",
                "--output=json",
                "--all",
                f"--lines={lines}",
                f"_SYSTEMD_INVOCATION_ID={invocation_id}",
            ],
            timeout_seconds=30,
        )
    except ActionFailed:
        return ()
    return tuple(text for text in map(_message, done.stdout.splitlines()) if text)


def _message(line: str) -> str:
    """MESSAGE of one JSON entry: text, or a list of bytes where it is not clean UTF-8."""
    try:
        message = json.loads(line).get("MESSAGE") or ""
    except ValueError:
        return ""
    if isinstance(message, list):
        return bytes(message).decode("utf-8", "replace")
    return str(message)
