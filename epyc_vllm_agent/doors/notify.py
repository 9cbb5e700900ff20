"""Messages to the service manager, as sd_notify(3) sends them; a no-op where there is none."""

import contextlib
import os
import socket


def notify(*assignments: str) -> None:
    """Sends "READY=1", "WATCHDOG=1", "STATUS=..." to the manager that started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),  # a manager that reloads: the next one arrives
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto("\n".join(assignments).encode(), address)
