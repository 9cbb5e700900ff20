"""Several files changed as one: staged beside their places, renamed, and put back on failure."""

from collections.abc import Sequence
from pathlib import Path

from epyc_vllm_agent.changes.changes import FileChange
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.files import stage, sync_folder
from epyc_vllm_agent.paths import Paths


class Transaction:
    """Writes `changes` below `paths`.

    `commit` stages every text (written and synced) before the first rename, so that a full disk
    changes nothing. `undo` puts the old texts back. A process killed in between leaves a state
    that the next run completes, and staged files that `files.sweep` removes.
    """

    def __init__(self, paths: Paths, changes: Sequence[FileChange]) -> None:
        self._paths = paths
        self._changes = tuple(changes)
        self._done: list[FileChange] = []

    def commit(self) -> None:
        """Raises ActionFailed, with everything as it was, where a file cannot be written."""
        staged: dict[str, Path] = {}
        try:
            for change in self._changes:
                if change.new is not None:
                    staged[change.path] = stage(self._paths.at(change.path), change.new)
            for change in self._changes:
                self._place(change, staged)
        except OSError as error:
            for path in staged.values():
                path.unlink(missing_ok=True)
            self.undo()
            raise ActionFailed(
                "write-failed",
                f"{error.filename or 'a file'} cannot be written ({error.strerror})",
                "nothing was changed; make room or mend the file system, then run it again",
            ) from error

    def undo(self) -> None:
        """Puts back what `commit` changed, newest first."""
        while self._done:
            change = self._done.pop()
            path = self._paths.at(change.path)
            if change.old is None:
                path.unlink(missing_ok=True)
            else:
                stage(path, change.old).replace(path)

    def _place(self, change: FileChange, staged: dict[str, Path]) -> None:
        path = self._paths.at(change.path)
        if change.new is None:
            path.unlink(missing_ok=True)
        else:
            staged[change.path].replace(path)
            del staged[change.path]
        self._done.append(change)
        sync_folder(path.parent)
