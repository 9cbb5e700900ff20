"""Several files changed as one: staged beside their places, renamed, and put back on failure."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from epyc_vllm_agent.changes.changes import FileChange
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.files import stage, sync_folder, write_atomically
from epyc_vllm_agent.interrupts import deferred
from epyc_vllm_agent.paths import Paths


def write_failed(error: OSError) -> ActionFailed:
    return ActionFailed(
        "write-failed",
        f"{error.filename2 or error.filename or 'a file'} cannot be written ({error.strerror})",
        "nothing was changed; make room or mend the file system, then run it again",
    )


class Transaction:
    """Writes `changes` below `paths`.

    `prepare` stages every text (written and synced), so that a full disk changes nothing; `commit`
    renames them into place; `undo` puts the old texts back. A process killed in between leaves a
    state that the next run completes, and staged files that `files.sweep` removes.
    """

    def __init__(self, paths: Paths, changes: Sequence[FileChange]) -> None:
        self._paths = paths
        self._changes = tuple(changes)
        self._staged: dict[str, Path] = {}
        self._done: list[FileChange] = []

    def prepare(self) -> None:
        """Raises Refused where a file to be made is there and not ours, else as `commit` does."""
        for change in self._changes:
            path = self._paths.at(change.path)
            if change.old is None and (path.exists() or path.is_symlink()):
                raise Refused(
                    "not-ours",
                    f"{path} is there and was not written by epyc-vllm",
                    "move it away, or choose another name with --name",
                )
        with self._all_or_nothing():
            for change in self._changes:
                path = self._place_of(change)
                if change.new is not None:
                    self._staged[change.path] = stage(path, change.new)
                elif path.exists() and not os.access(path.parent, os.W_OK):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def commit(self) -> None:
        """Raises ActionFailed, with everything as it was, where a file cannot be written."""
        if not self._staged:
            self.prepare()
        with self._all_or_nothing():
            for change in self._changes:
                self._place(change)

    def undo(self) -> None:
        """Puts back what `commit` changed, newest first, and drops what is only prepared.

        Raises ActionFailed that names what could not be put back.
        """
        failed = []
        with deferred():
            while self._staged:
                self._staged.popitem()[1].unlink(missing_ok=True)
            while self._done:
                change = self._done.pop()
                try:
                    self._put_back(change)
                except OSError as error:
                    failed.append(f"{change.path} ({error.strerror})")
        if failed:
            raise ActionFailed(
                "undo-failed",
                "the earlier state could not be put back: " + ", ".join(failed),
                "mend the file system, then run the command again",
            )

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            with deferred():  # a file is either in its place and known to be, or neither
                yield
        except OSError as error:
            self.undo()
            raise write_failed(error) from error
        except BaseException:
            self.undo()
            raise

    def _place_of(self, change: FileChange) -> Path:
        """Where a changed file lies: a link to it, which an administrator made, stays a link."""
        path = self._paths.at(change.path)
        return path.resolve() if change.new is not None and path.is_symlink() else path

    def _put_back(self, change: FileChange) -> None:
        path = self._place_of(change)
        if change.old is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, change.old)

    def _place(self, change: FileChange) -> None:
        path = self._place_of(change)
        if change.new is None:
            path.unlink(missing_ok=True)
        else:
            self._staged[change.path].replace(path)
            del self._staged[change.path]
        self._done.append(change)
        sync_folder(path.parent)
