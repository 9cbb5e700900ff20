"""The lock that lets one changing run at a time work on a host."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from epyc_vllm_agent.errors import ActionFailed, Locked
from epyc_vllm_agent.paths import Paths


@contextlib.contextmanager
def locked(paths: Paths, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds /run/epyc-vllm/lock; where another run has it, raises Locked, or waits if there is
    somebody to tell that to.

    flock(2): the kernel lets go of it when the holder dies, so none is ever stale.
    """
    path = paths.run / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ActionFailed(
            "lock-unusable", f"the lock {path} cannot be opened ({error.strerror})", None
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            message = f"another epyc-vllm run is changing this host (process {holder})"
            if wait is None:
                hint = "wait for it to end, then run this again"
                raise Locked("locked", message, hint) from error
            wait(f"waiting: {message}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
