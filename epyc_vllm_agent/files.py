"""Files written whole or not at all: staged beside their place, synced, renamed."""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

_STAGED = ".epyc-vllm-staged-"


def write_atomically(path: Path, text: str) -> None:
    """Replaces one file; raises OSError with the old text still in place."""
    staged = stage(path, text)
    try:
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise


def stage(path: Path, text: str) -> Path:
    """Writes `text` to a new hidden file in the folder of `path` (made where missing), synced.

    Raises OSError that names `path`, and leaves nothing, where it cannot be written.
    """
    staged = path.parent / f"{_STAGED}{secrets.token_hex(8)}"
    try:
        content = text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(0o644)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    return staged


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folders: Iterable[Path]) -> None:
    """Removes staged files that a killed run left behind."""
    for folder in folders:
        for path in folder.glob(_STAGED + "*"):
            path.unlink(missing_ok=True)
