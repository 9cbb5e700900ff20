"""Which file system a path lies on, from the text of mountinfo; touches none of them.

https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
"""

import re
from pathlib import PurePosixPath


def filesystem_of(mountinfo: str, path: str) -> str | None:
    """The type of the mount that `path` (real, without links) is on; None where none is listed."""
    best, found = -1, None
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        place = PurePosixPath(_unescaped(fields[4]))
        depth = len(place.parts)
        # Of two at the same place the later one is on top.
        if depth >= best and (str(place) == path or place in PurePosixPath(path).parents):
            best, found = depth, after.split(" ", 1)[0]
    return found


def _unescaped(text: str) -> str:
    """Blanks and backslashes are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
