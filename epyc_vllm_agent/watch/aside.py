"""Work beside the watchdog's loop: a server that does not answer holds up its own probe alone."""

import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Work = Callable[[], None]

# Far more than a server takes that is well, far less than the loop has for a step.
_MOMENT_SECONDS = 0.05


class Aside:
    """Runs work on threads that are kept, and that hold up no end of the process.

    One after another, while each ends in a moment: threads that run together hold each other up,
    at twice the CPU time. What takes longer goes on beside the others.
    """

    def __init__(self, moment_seconds: float = _MOMENT_SECONDS) -> None:
        self._moment_seconds = moment_seconds
        self._todo: SimpleQueue[Work] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def __call__(self, work: Work) -> None:
        """Starts it; waits a moment for its end where nothing else runs."""
        while not self._ended.empty():
            self._take_end(0)
        is_alone = not self._busy
        if self._busy == self._threads:
            threading.Thread(target=self._serve, daemon=True).start()
            self._threads += 1
        self._busy += 1
        self._todo.put(work)
        if is_alone:
            self._take_end(self._moment_seconds)

    def _take_end(self, seconds: float) -> None:
        try:
            self._ended.get(timeout=seconds)
        except Empty:
            return
        self._busy -= 1

    def _serve(self) -> None:
        while True:
            work = self._todo.get()
            try:
                work()
            except Exception:  # as of a thread of its own: told, and nothing else ends
                sys.excepthook(*sys.exc_info())
            finally:
                self._ended.put(None)
                del work  # it holds what was looked at, and the next may be long in coming
