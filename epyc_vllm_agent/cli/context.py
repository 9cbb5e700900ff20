"""What every command gets: where the host's files are, and how it speaks."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from epyc_vllm_agent import interrupts
from epyc_vllm_agent.doors.systemd import DBusSystemd, Systemd, require_running
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.paths import Paths

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Context:
    paths: Paths
    debug: bool

    def systemd(self) -> Systemd:
        """The running systemd; raises Refused where there is none."""
        require_running(self.paths)
        return DBusSystemd()

    def changing_systemd(self) -> Systemd:
        """The same for a command that changes the host: as root, and on this host itself."""
        if str(self.paths.root) != "/":
            raise Refused(
                "sysroot-read-only",
                "--sysroot reads another host's files: nothing can be changed there",
                "leave --sysroot out",
            )
        require_running(self.paths)
        if os.geteuid() != 0:
            raise Refused(
                "not-root",
                "this changes the host's services and needs root",
                "run it with sudo",
            )
        interrupts.unify()
        return DBusSystemd()


def say(message: str) -> None:
    """Talk goes to stderr: stdout holds the answer alone."""
    click.echo(message, err=True)


json_option = click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
pass_context = click.make_pass_decorator(Context)
