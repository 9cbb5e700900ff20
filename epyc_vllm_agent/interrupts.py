"""Ctrl-C, SIGTERM and SIGHUP (a lost ssh session) as one interrupt, and where it must wait."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ECHO_SECONDS = 0.5  # timeout(1) and a lost terminal signal a process, and again its whole group


def unify() -> None:
    """Makes all of them raise KeyboardInterrupt, so that every one is undone in order.

    One that comes twice at once is one interrupt: the second would end what undoes the first.
    """
    last = -_ECHO_SECONDS

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _ECHO_SECONDS:
            raise KeyboardInterrupt

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, interrupt)


def ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Holds interrupts back: what is inside runs to its end, then they are raised.

    Calls into a foreign library need it (GLib prints and drops an exception that is raised inside
    one), and so does putting an earlier state back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
