"""The model cache on disk, in huggingface_hub's layout; talks to no network.

models--ORG--NAME/{refs,blobs,snapshots}: refs hold commits, snapshots hold links into blobs.
Beside them lies epyc-vllm/COMMIT.json, what the hub said of that commit, so that a model can be
described again without it.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from epyc_vllm_agent.config import checks
from epyc_vllm_agent.errors import ActionFailed, ConfigError, Refused
from epyc_vllm_agent.facts.checkpoint import CONFIG, TEXT_FILES
from epyc_vllm_agent.facts.model import RepoFile
from epyc_vllm_agent.facts.weights import (
    LFS_POINTER,
    Tensor,
    header_length,
    not_pulled,
    parse_tensors,
)

MAIN = "main"
TEXT_LIMIT_BYTES = 64 << 20  # an index of a thousand shards has a few MiB
HEADERS_READ = 16  # of so many weight files at most: beyond, index and sizes tell enough
STALE_SECONDS = 3600
SPARE_BYTES = 1 << 30  # left free for the rest of the system

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_MODEL_ID = re.compile(f"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,254}")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Repository:
    """A commit of a repository as the hub lists it."""

    commit: str
    files: tuple[RepoFile, ...]
    pipeline_tag: str | None
    tensors: tuple[Tensor, ...] = ()  # of a model in one file, by its header


def repository_of(
    commit: object, files: Iterable[Sequence[object]], tag: object, tensors: Iterable[Any] = ()
) -> Repository:
    """What a hub, or the note of its answer, says; raises ValueError for what none would say."""
    listed = tuple(RepoFile(_inside(path), _size(size)) for path, size in files)
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise ValueError(f"{commit!r} is no commit")
    named = tag if isinstance(tag, str) and tag.isprintable() and len(tag) < 100 else None
    counted = tuple(Tensor(*tensor) for tensor in tensors)
    if not all(
        isinstance(one.name, str)
        and isinstance(one.dtype, str)
        and _size(one.elements) is not None
        and _size(one.stored_bytes) is not None
        for one in counted
    ):
        raise ValueError("a tensor without a size")
    return Repository(commit, listed, named, counted)


def _size(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 1 << 50):
        return value
    raise ValueError(f"{value!r} is no size")


def _inside(path: object) -> str:
    """`path` if it stays inside the repository, as a hub has to name it."""
    found = checks.text(path)  # names of pictures have all kinds of blanks
    if "\\" in found or {"", ".", ".."} & {*found.split("/")}:
        raise ValueError(f"{path!r} is no file of a repository")
    return found


def check_model_id(model: str) -> str:
    """`model` if it is organisation/name as the hub allows it."""
    if not _MODEL_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ConfigError(
            "bad-model-id",
            f"{model!r} is not a model id",
            "model ids have the form organisation/name; a directory begins with / or ./",
        )
    return model


def check_revision(revision: str) -> str:
    if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise ConfigError(
            "bad-revision", f"{revision!r} is not a revision", "give a branch, a tag or a commit"
        )
    return revision


@dataclass(frozen=True, slots=True)
class Cache:
    root: Path

    def folder(self, model: str) -> Path:
        return self.root / ("models--" + model.replace("/", "--"))

    def snapshot(self, model: str, commit: str) -> Path:
        return self.folder(model) / "snapshots" / commit

    def commit(self, model: str, revision: str | None) -> str | None:
        """The commit that `revision` was when it was last looked up."""
        revision = revision or MAIN
        if COMMIT.fullmatch(revision):
            return revision
        text = _read_text(self.folder(model) / "refs" / revision)
        return text.strip() if text and COMMIT.fullmatch(text.strip()) else None

    def repository(self, model: str, commit: str) -> Repository | None:
        text = _read_text(self.folder(model) / "epyc-vllm" / f"{commit}.json")
        if text is None:
            return None
        try:
            noted = json.loads(text)
            return repository_of(commit, noted["files"], noted["pipeline_tag"], noted["tensors"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def note(self, model: str, revision: str | None, repository: Repository) -> None:
        """Keep what the hub said, and which commit `revision` is."""
        noted = {
            "pipeline_tag": repository.pipeline_tag,
            "files": [astuple(file) for file in repository.files],
            "tensors": [astuple(tensor) for tensor in repository.tensors],
        }
        folder = self.folder(model)
        _write(folder / "epyc-vllm" / f"{repository.commit}.json", json.dumps(noted))
        if not COMMIT.fullmatch(revision or MAIN):
            _write(folder / "refs" / (revision or MAIN), repository.commit)

    def missing(self, model: str, commit: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """Those of `files` that are not in the snapshot with their full size."""
        snapshot = self.snapshot(model, commit)
        return [file for file in files if not _has(snapshot / file.path, file.size_bytes)]

    def discard(self, model: str, commit: str, files: Iterable[RepoFile]) -> None:
        """Remove files of a wrong size, which huggingface_hub would take for good."""
        for file in files:
            link = self.snapshot(model, commit) / file.path
            if link.is_symlink():
                link.resolve().unlink(missing_ok=True)
            link.unlink(missing_ok=True)

    def sweep(self, model: str) -> None:
        """Remove what interrupted downloads left: huggingface_hub never takes it up again."""
        for path in (self.folder(model) / "blobs").glob("*.incomplete"):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)


def check_room(root: Path, model: str, needed_bytes: int) -> None:
    """Refuse a download that the disk below `root` cannot take."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise ActionFailed(
            "cache-unwritable",
            f"the model cache {root} cannot be used ({error.strerror})",
            "run as root, or give the cache to the user who runs this",
        ) from error
    if needed_bytes + SPARE_BYTES > free:
        raise Refused(
            "disk-full",
            f"{model} needs {_gib(needed_bytes)} GiB more and {_gib(SPARE_BYTES)} GiB to spare,"
            f" {root} has {_gib(free)} GiB free",
            "make room, or put the model cache on a larger disk",
        )


def read_texts(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """The texts of the TEXT_FILES among `paths` that lie in `folder`."""
    wanted = frozenset(paths)
    found = {path: _read_text(folder / path) for path in TEXT_FILES if path in wanted}
    return {path: text for path, text in found.items() if text is not None}


def read_tensors(folder: Path, weights: Sequence[RepoFile]) -> tuple[Tensor, ...]:
    """The tensors of all weight files; none where a file is missing, no safetensors, or many."""
    paths = [folder / file.path for file in weights]
    if len(paths) > HEADERS_READ or any(path.suffix != ".safetensors" for path in paths):
        return ()
    if not all(path.is_file() for path in paths):
        return ()
    return tuple(tensor for path in paths for tensor in _header(path))


def directory_files(folder: Path) -> tuple[RepoFile, ...]:
    """The files of a model directory, without hidden ones; none where it is no model's.

    Raises OSError where the folder cannot be read, or a link in it leads nowhere.
    """
    names = [path.name for path in folder.iterdir()]
    if CONFIG not in names:  # it may be a whole file system
        return ()
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        if path.is_file():
            found.append(RepoFile(str(inside), path.stat().st_size))
        elif path.is_symlink() and path.parent == folder:
            path.stat()  # of a snapshot that was copied without its blobs
    return tuple(found)


def require_pulled(folder: Path, weights: Iterable[RepoFile]) -> None:
    """Raises ActionFailed for a file that git-lfs has left its pointer of."""
    for file in weights:
        with (folder / file.path).open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise not_pulled(str(folder / file.path))


def _header(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as stream:
        length = header_length(stream.read(8), str(path))
        tensors = parse_tensors(stream.read(length), str(path))
    if 8 + length + sum(tensor.stored_bytes for tensor in tensors) != path.stat().st_size:
        raise ActionFailed(
            "broken-weights",
            f"{path} is not as long as its header says",
            "download the model again",
        )
    return tensors


def _has(path: Path, size: int | None) -> bool:
    try:
        return size is None or path.stat().st_size == size
    except OSError:
        return False


def _read_text(path: Path) -> str | None:
    """The text, None where there is no such file; raises OSError for one that cannot be read."""
    try:
        if path.stat().st_size > TEXT_LIMIT_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
