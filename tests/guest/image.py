"""A container image with the stand-in server, made of files of the test host; no runtime is needed.

The format is that of `docker save`, which podman loads too: one layer, its configuration and a
manifest.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.guest import cache, rootfs
from tests.guest.environment import REPOSITORY
from tests.guest.outside import output

NAME = "localhost/vllm-standin:1"
SERVES = "localhost/vllm-standin-serves:1"  # the same with `vllm serve` as its entrypoint
NEWER = "localhost/vllm-standin:2"
BROKEN = "localhost/vllm-standin:3"  # it loads, and then ends
STANDIN = "opt/vllm-standin"

_PROGRAMS = ("dash", "cat", "dirname", "readlink", "sleep", "env", "numactl", "python3.13")
_LINKS = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "usr/bin/sh": "dash",
    "usr/bin/python3": "python3.13",
    f"{STANDIN}/bin/python3": "python",
}
_LEFT_OUT = ("__pycache__", "idlelib", "test", "ensurepip", "lib2to3", "pydoc_data")


@dataclass(frozen=True, slots=True)
class Kind:
    """What an image says of itself."""

    name: str | None
    entrypoint: Sequence[str] = ()
    environ: Sequence[str] = ()


def archives() -> Path:
    """A folder with an archive for each kind, standin.tar for example."""
    files = {
        "standin.tar": Kind(NAME),
        "serves.tar": Kind(SERVES, ("vllm", "serve")),
        "nameless.tar": Kind(None),
        "newer.tar": Kind(NEWER, environ=("STANDIN_RELEASE=2",)),
        "broken.tar": Kind(BROKEN, environ=("STANDIN_FAIL_LOADING=1", "STANDIN_MESSAGE=broken")),
    }

    def make(target: Path) -> None:
        target.mkdir()
        layer = _layer(rootfs.tree())
        for name, kind in files.items():
            write(target / name, layer, kind)

    inputs = [str(rootfs.tree()), Path(__file__).read_text(), _standin_digest()]
    return cache.part("image", inputs, make)


def write(target: Path, layer: bytes, kind: Kind) -> None:
    """An archive of one layer."""
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [f"PATH=/{STANDIN}/bin:/usr/bin:/bin", *kind.environ],
            "Entrypoint": list(kind.entrypoint) or None,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "tests/guest/image.py"}],
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    tags = [kind.name] if kind.name else []
    manifest = [{"Config": name, "RepoTags": tags, "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, f"{digest}/layer.tar", layer)
        _add(archive, name, text)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(tree: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for file in sorted(_files(tree)):
            layer.add(tree / file, file, recursive=False, filter=_plain)
        for path in sorted((REPOSITORY / "tests/standin").rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                inside = f"{STANDIN}/{path.relative_to(REPOSITORY / 'tests/standin')}"
                layer.add(path, inside, recursive=False, filter=_plain)
        for link, target in _LINKS.items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            layer.addfile(entry)
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        layer.addfile(temporary)
    return buffer.getvalue()


def _files(tree: Path) -> Iterable[str]:
    """Programs, the libraries that they load, and Python's own modules."""
    programs = [f"usr/bin/{name}" for name in _PROGRAMS]
    modules = [
        str(path.relative_to(tree))
        for path in (tree / "usr/lib/python3.13").rglob("*")
        if path.is_file() and not set(path.parts) & set(_LEFT_OUT)
    ]
    loading = [*programs, *(name for name in modules if name.endswith(".so"))]
    return {*programs, *modules, *_libraries(tree, loading)}


def _libraries(tree: Path, binaries: Sequence[str]) -> set[str]:
    said = output("chroot", tree, "ldd", *(f"/{name}" for name in binaries))
    words = {word for word in said.split() if word.startswith("/") and not word.endswith(":")}
    found = set()
    for word in words:
        name = word.lstrip("/")
        name = name if name.startswith("usr/") else f"usr/{name}"
        found |= {name, str((tree / name).resolve().relative_to(tree))}
    return found


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same bytes from the same files: owner and time are no content."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _standin_digest() -> str:
    summary = hashlib.sha256()
    for path in sorted((REPOSITORY / "tests/standin").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            summary.update(str(path).encode() + path.read_bytes())
    return summary.hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
