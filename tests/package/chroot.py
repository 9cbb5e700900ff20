"""Commands in a Debian file system of the cache, which stays as it is; boots nothing."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.guest import cache
from tests.guest.outside import GuestError

# $1: a scratch folder, $2: the file system, then pairs of folders to bind up to "--".
_ENTER = """\
set -e
scratch=$1 tree=$2 root=$1/root
shift 2
mkdir "$root" "$scratch/upper" "$scratch/work"
if ! mount -t overlay overlay "$root" \\
    -o "lowerdir=$tree,upperdir=$scratch/upper,workdir=$scratch/work" 2>/dev/null; then
  cp -a --reflink=auto "$tree/." "$root"
fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp /etc/resolv.conf "$root/etc/resolv.conf"
while [ "$1" != -- ]; do
  mkdir -p "$root${2%:ro}"
  mount --bind "$1" "$root${2%:ro}"
  [ "$2" = "${2%:ro}" ] || mount -o remount,bind,ro "$root${2%:ro}"
  shift 2
done
shift
exec chroot "$root" "$@"
"""
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


def run(
    tree: Path,
    command: Sequence[str],
    binds: Mapping[Path, str],
    environment: Mapping[str, str] | None = None,
) -> str:
    """What `command` prints in a throw-away layer over `tree`; GuestError where it fails.

    `binds`: folders of the outer machine with their places in it, "PLACE:ro" where nothing may be
    written to them.
    """
    pairs = [str(word) for pair in binds.items() for word in pair]
    scratch = Path(tempfile.mkdtemp(prefix="chroot-", dir=cache.folder()))
    try:
        done = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--propagation=private"),
                *("sh", "-c", _ENTER, "sh", str(scratch), str(tree), *pairs, "--", *command),
            ],
            env=_ENVIRONMENT | dict(environment or {}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode != 0:
        raise GuestError(
            f"{' '.join(command)} exited with {done.returncode}:\n"
            f"{done.stdout[-6000:]}{done.stderr[-6000:]}"
        )
    return done.stdout + done.stderr
