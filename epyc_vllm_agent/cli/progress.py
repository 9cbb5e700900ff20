"""Progress of long work on stderr: a rewritten line on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

import click

from epyc_vllm_agent.doors.systemd import UnitState

_WIDTH = 200  # of a line that another program wrote
_PLAIN_SECONDS = 15.0  # between lines where there is no terminal


class _Line:
    """One line that is rewritten, or now and then a new one."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = 0.0
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._terminal and self._shown:
            click.echo("", err=True)

    def show(self, line: str, now: bool = False) -> None:
        moment = time.monotonic()
        if self._terminal:
            click.echo(f"\r{line:<{len(self._shown)}}", nl=False, err=True)
            self._shown = line
        elif line != self._shown and (now or moment - self._last >= _PLAIN_SECONDS):
            self._last, self._shown = moment, line
            click.echo(line, err=True)


class Download(_Line):
    """Bytes of a model that have arrived."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def update(self, done_bytes: int, total_bytes: int) -> None:
        share = 100 * done_bytes // total_bytes if total_bytes else 100
        line = f"fetching {self._model}: {share} % of {total_bytes / 1e6:.0f} MB"
        self.show(line, now=done_bytes >= total_bytes)


class ImageFetch(_Line):
    """What a container runtime says while it fetches or loads an image."""

    def __init__(self, image: str) -> None:
        super().__init__()
        self._image = image

    def tell(self, line: str) -> None:
        self.show(f"fetching {self._image}: {line}"[:_WIDTH])


class Starting(_Line):
    """Seconds that a start job has taken."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def update(self, state: UnitState) -> None:
        waited = time.monotonic() - self._began
        self.show(f"starting {state.name}: {waited:.0f} s")
