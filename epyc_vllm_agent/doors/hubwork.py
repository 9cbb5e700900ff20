"""Threads around a library that may block for minutes; knows nothing of hubs and models.

All threads are daemons: one that hangs in a name look-up must not keep the program from ending.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

TICK_SECONDS = 0.25
_T = TypeVar("_T")


class Meter:
    """Bytes of a download, counted by several threads."""

    def __init__(self, done: int, total: int) -> None:
        self._lock = threading.Lock()
        self._done = done
        self._moved = time.monotonic()
        self.total = total

    def add(self, count: float) -> None:
        with self._lock:
            self._done += int(count)
            self._moved = time.monotonic()

    @property
    def done(self) -> int:
        return max(0, min(self._done, self.total))

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._moved


def bar_class(meter: Meter) -> Any:
    """What huggingface_hub takes for tqdm: it calls update() and expects the rest to be there."""

    class Bar:
        def __init__(self, *_arguments: object, **_options: object) -> None:
            self.n = 0

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_error: object) -> None:
            return None

        def update(self, count: float | None = 1) -> None:
            meter.add(count or 0)

        def __getattr__(self, _name: str) -> Callable[..., None]:
            return lambda *_arguments, **_options: None

    return Bar


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """The result of `call`, which is left behind in its thread when it takes longer.

    Timeouts of the HTTP client bound a read and a connect, neither a name look-up nor an answer
    that comes drop by drop. Raises TimeoutError.
    """
    box: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            box.put((call(), None))
        except BaseException as error:
            box.put((None, error))

    _start(run)
    try:
        result, error = box.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where call() returned it


def run_all(calls: Sequence[Callable[[], object]], streams: int, tick: Callable[[], None]) -> None:
    """Make all calls, `streams` at a time, and meanwhile call `tick` here.

    The first error ends it, of a call or of `tick`; no further call is then begun.
    """
    waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    for call in calls:
        waiting.put(call)
    results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    for _ in range(streams):
        _start(lambda: _work(waiting, results, stop))
    left = len(calls)
    try:
        while left:
            try:
                error = results.get(timeout=TICK_SECONDS)
            except queue.Empty:
                tick()
                continue
            if error is not None:
                raise error
            left -= 1
    finally:
        stop.set()


def _work(
    waiting: "queue.SimpleQueue[Callable[[], object]]",
    results: "queue.SimpleQueue[BaseException | None]",
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        try:
            call = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            call()
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)


def _start(run: Callable[[], object]) -> None:
    threading.Thread(target=run, daemon=True).start()
