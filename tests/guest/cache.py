"""The folder in which the parts of the test host are kept; knows no part's making.

A part lies under its kind and a digest of what it was made from, so that changed inputs make a
new one. Parts cannot be built elsewhere and moved (virtual environments name their own path), so
a mark written last tells a whole part from one whose making was cut short.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.guest.outside import say

VARIABLE = "EPYC_VLLM_TEST_CACHE"


def folder() -> Path:
    path = Path(os.environ.get(VARIABLE, "/var/tmp/epyc-vllm-tests"))  # noqa: S108 - see --help
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)  # the vLLM user of the guest reads the environment through it
    return path


@contextmanager
def lock(name: str) -> Iterator[None]:
    """One at a time, over processes; a second one waits."""
    with (folder() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(inputs: object) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:10]


def part(kind: str, inputs: object, make: Callable[[Path], None]) -> Path:
    """The whole part of this kind made from `inputs`; `make` fills a folder that is not there."""
    path = folder() / f"{kind}-{digest(inputs)}"
    mark = path.with_name(f"{path.name}.whole")
    with lock(kind):
        if not mark.exists():
            shutil.rmtree(path, ignore_errors=True)
            started = time.monotonic()
            say(f"making {path}")
            make(path)
            mark.touch()
            say(f"made {path.name} in {time.monotonic() - started:.0f} s")
    return path
