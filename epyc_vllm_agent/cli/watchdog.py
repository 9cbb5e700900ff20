"""watchdog: the service that looks after running instances; not for people."""

import signal
import sys
import threading

import click

from epyc_vllm_agent.cli.context import Context, pass_context
from epyc_vllm_agent.doors.systemd import SYSTEM_BUS, DBusSystemd, require_running
from epyc_vllm_agent.watch.watchdog import Watchdog


@click.command(hidden=True)
@pass_context
def watchdog(context: Context) -> None:
    """Watch every running instance until told to stop; started by its unit."""
    require_running(context.paths)
    # httpx imports its own command line where it can, with rich and pygments: 5 MB for nothing.
    sys.modules["pygments"] = None  # type: ignore[assignment]
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    Watchdog(context.paths, lambda: DBusSystemd(SYSTEM_BUS)).run(stopping)
