"""What a run has begun and not ended: a file that outlives it, so that the next one finishes."""

import json
from collections.abc import Iterable, Mapping

from epyc_vllm_agent.files import sync_folder, write_atomically
from epyc_vllm_agent.paths import Paths


def read(paths: Paths) -> dict[str, tuple[str, ...]]:
    """The endpoints that a killed run was at work on, with the services that it was to bring up."""
    try:
        found = json.loads(paths.begun.read_text(encoding="utf-8"))
        return {str(name): tuple(map(str, up)) for name, up in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):  # none, or one that nobody wrote
        return {}


def begin(paths: Paths, endpoints: Mapping[str, tuple[str, ...]]) -> None:
    """Raises OSError where it cannot be written."""
    _write(paths, read(paths) | dict(endpoints))


def end(paths: Paths, endpoints: Iterable[str]) -> None:
    ended = set(endpoints)
    before = read(paths)
    left = {name: up for name, up in before.items() if name not in ended}
    if left != before:
        _write(paths, left)


def _write(paths: Paths, endpoints: Mapping[str, tuple[str, ...]]) -> None:
    if endpoints:
        write_atomically(paths.begun, json.dumps(endpoints) + "\n")
    elif paths.begun.exists():
        paths.begun.unlink()
        sync_folder(paths.begun.parent)
