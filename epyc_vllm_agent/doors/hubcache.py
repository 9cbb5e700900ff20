"""The model cache on disk, in huggingface_hub's layout; talks to no network.

models--ORG--NAME/{refs,blobs,snapshots}: refs hold commits, snapshots hold links into blobs.
Beside them lies epyc-vllm/COMMIT.json, what the hub said of that commit, so that a model can be
described again without it.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from epyc_vllm_agent.errors import ActionFailed, ConfigError, Refused
from epyc_vllm_agent.facts.checkpoint import TEXT_FILES
from epyc_vllm_agent.facts.model import RepoFile
from epyc_vllm_agent.facts.weights import Tensor, header_length, parse_tensors

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


def is_inside(path: str) -> bool:
    """Whether a path that a hub names stays inside its repository."""
    parts = path.split("/")
    return bool(path) and "\\" not in path and "\0" not in path and not {"", ".", ".."} & {*parts}


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
            return Repository(
                commit,
                tuple(RepoFile(*file) for file in noted["files"]),
                noted["pipeline_tag"],
                tuple(Tensor(*tensor) for tensor in noted["tensors"]),
            )
        except (ValueError, KeyError, TypeError):
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
    """The files of a model directory, without hidden ones."""
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            found.append(RepoFile(str(inside), path.stat().st_size))
    return tuple(found)


def _header(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as stream:
        length = header_length(stream.read(8))
        tensors = parse_tensors(stream.read(length))
    if 8 + length + sum(tensor.stored_bytes for tensor in tensors) > path.stat().st_size:
        raise ActionFailed(
            "broken-weights",
            f"{path} is shorter than its header says",
            "download the model again",
        )
    return tensors


def _has(path: Path, size: int | None) -> bool:
    try:
        return size is None or path.stat().st_size == size
    except OSError:
        return False


def _read_text(path: Path) -> str | None:
    try:
        if path.stat().st_size > TEXT_LIMIT_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
