"""Which files of a repository vLLM loads, and how many bytes they become; opens none of them.

vLLM 0.32.0 takes what the index of safetensors lists, else *.safetensors, *.bin, *.pt of the top
folder (vllm/model_executor/model_loader/default_loader.py). It prefers consolidated*.safetensors
where they are present; they are copies of the same weights and are left out of a download.
"""

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.facts.hfconfig import LARGEST, parse_object
from epyc_vllm_agent.facts.model import RepoFile

SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
INDEXES = (SAFETENSORS_INDEX, BIN_INDEX)
HEADER_LIMIT = 100 << 20  # safetensors itself refuses longer headers
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: what lies in place of a file not pulled
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# https://docs.rs/safetensors/latest/safetensors/tensor/enum.Dtype.html
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<suffix>safetensors|bin)"
)
# What a server reads beside the weights: configs, tokenizers, templates, a model's own code.
_COMPANIONS = (
    "*.json",
    "*.jinja",
    "*.py",
    "*.txt",
    "*.model",
    "*.model.v*",
    "*.tiktoken",
    "*.bpe",
    "*.vocab",
    "additional_chat_templates/*.jinja",
)
_LEFT_OUT = ("*.index.json", "README*", "LICENSE*", "USE_POLICY*")
# With weights in Mistral's own format vLLM reads the config of that format too.
_MISTRAL_CONFIG = "params.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by its entry in a safetensors header."""

    name: str
    dtype: str  # as stored: "BF16", "F8_E4M3", "I32"
    elements: int
    stored_bytes: int

    @property
    def served_bytes(self) -> int:
        """Bytes in an unquantised model served as bfloat16: every float takes two."""
        return (
            self.elements * 2
            if self.dtype in ("F64", "F32", "F16", "BF16")
            else (self.stored_bytes)
        )


def choose_weight_files(
    files: Sequence[RepoFile], texts: Mapping[str, str], model: str, *, as_it_is: bool = False
) -> tuple[RepoFile, ...]:
    """The one set that vLLM loads; none for a repository without weights for it.

    Raises ActionFailed where only a part of a set is there. An index that names other files is
    left out of a download beside one file; in a directory, served `as_it_is`, vLLM stumbles on it.
    """
    top = {file.path: file for file in files if "/" not in file.path}
    gaps: list[str] = []  # a file that an index names and that is not there
    for index in INDEXES:
        listed = indexed_tensors(texts[index], index, model) if index in texts else {}
        shards = sorted(set(listed.values()))
        if shards and all(path in top for path in shards):
            return tuple(top[path] for path in shards)
        gaps += [path for path in shards if path not in top][:1]
    for suffix, single in ((".safetensors", "model.safetensors"), (".bin", "pytorch_model.bin")):
        if chosen := _set_with(top, suffix, single):
            missing = [path for path in gaps if path.endswith(suffix)]
            if missing and (as_it_is or len(chosen) > 1 or chosen[0].path != single):
                raise _incomplete(model, missing[0])
            return chosen
    return _set_with(top, ".pt", "consolidated.pt")


def _set_with(top: Mapping[str, RepoFile], suffix: str, single: str) -> tuple[RepoFile, ...]:
    candidates = sorted(path for path in top if path.endswith(suffix) and path not in _NOT_WEIGHTS)
    own = [path for path in candidates if not path.startswith(("consolidated", "adapter_"))]
    if single in own:
        own = [single]
    elif shards := [path for path in own if _SHARD.fullmatch(path)]:
        own = shards
    consolidated = [path for path in candidates if path.startswith("consolidated")]
    return tuple(top[path] for path in own or consolidated)


def needed_files(files: Iterable[RepoFile], weights: Sequence[RepoFile]) -> tuple[RepoFile, ...]:
    """The files that must lie in the snapshot for a server that has no network."""
    wanted = {file.path for file in weights}
    wanted.update(index for index in INDEXES if _indexes(index, weights))
    mistral = any(path.startswith("consolidated") for path in wanted)
    return tuple(
        file
        for file in files
        if file.path in wanted
        or (_is_companion(file.path) and (mistral or file.path != _MISTRAL_CONFIG))
    )


def _indexes(index: str, weights: Sequence[RepoFile]) -> bool:
    suffix = ".safetensors" if index == SAFETENSORS_INDEX else ".bin"
    return len(weights) > 1 and weights[0].path.endswith(suffix)


def _is_companion(path: str) -> bool:
    if path.endswith(_WEIGHT_SUFFIXES) or any(fnmatchcase(path, skip) for skip in _LEFT_OUT):
        return False
    if "/" in path and not path.endswith(".py"):
        return fnmatchcase(path, "additional_chat_templates/*.jinja")
    return any(fnmatchcase(path, pattern) for pattern in _COMPANIONS)


def indexed_tensors(text: str, path: str, model: str) -> dict[str, str]:
    """Tensor names to file names, by an index."""
    weight_map = parse_object(text, path, model).get("weight_map")
    if not isinstance(weight_map, dict):
        return {}
    return {name: file for name, file in weight_map.items() if isinstance(file, str)}


def header_length(first_bytes: bytes, path: str) -> int:
    """Length of the header of the safetensors file `path` by the eight bytes before it."""
    if len(first_bytes) < 8:
        raise _broken(path, "it is shorter than its header's length")
    (length,) = struct.unpack("<Q", first_bytes[:8])
    if not 0 < length <= HEADER_LIMIT:
        raise _broken(path, f"its header claims {length} bytes")
    return int(length)


def parse_tensors(header: bytes, path: str) -> tuple[Tensor, ...]:
    """The tensors of a safetensors header (without its eight bytes of length)."""
    try:
        entries = json.loads(header)
        return tuple(
            tensor(name, entry["dtype"], entry["shape"], entry["data_offsets"])
            for name, entry in entries.items()
            if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(path, "its header is not what safetensors writes") from error


def tensor(name: object, dtype: object, shape: object, offsets: object) -> Tensor:
    """A tensor by what a header says of it; raises ValueError where that cannot be, or where
    shape, type and bytes do not go together."""
    if not isinstance(name, str) or not isinstance(dtype, str):
        raise ValueError(f"{name!r} is named or typed by no text")
    elements = 1
    for dimension in _counts(shape):
        elements *= dimension
        if elements > LARGEST:
            raise ValueError(f"{name} is larger than any tensor")
    first, last = _counts(offsets)
    bits = _BITS.get(dtype)
    if first > last or (bits and elements * bits != (last - first) * 8):
        raise ValueError(f"{name} does not have the bytes of its shape")
    return Tensor(name, dtype, elements, last - first)


def _counts(values: object) -> list[int]:
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"{values!r} is no list")
    if not all(type(value) is int and 0 <= value <= LARGEST for value in values):
        raise ValueError(f"{values!r} are no counts")
    return list(values)


def require_whole(paths: Sequence[RepoFile], model: str) -> None:
    """Raises ActionFailed for a set of weight files that is known to lack something: an empty
    file, or a shard of those that its own name counts."""
    for file in paths:
        if file.size_bytes == 0:
            raise _broken(f"{model}: {file.path}", "it is empty")
    shards: dict[tuple[str, str, str], set[int]] = {}
    for file in paths:
        if named := _SHARD.fullmatch(file.path):
            of_one = shards.setdefault((named["stem"], named["count"], named["suffix"]), set())
            of_one.add(int(named["number"]))
    for (stem, count, suffix), numbers in shards.items():
        missing = {*range(1, int(count) + 1)} - numbers
        if missing and 0 not in numbers:
            raise _incomplete(model, f"{stem}-{min(missing):05}-of-{count}.{suffix}")


def _incomplete(model: str, file: str) -> ActionFailed:
    return ActionFailed(
        "incomplete-weights",
        f"{model} has only some of its weight files: {file} is missing",
        "download the model again, whole",
    )


def not_pulled(path: str) -> ActionFailed:
    what = "it is a pointer of git-lfs and not the file itself"
    return _broken(path, what, "run `git lfs pull` in its folder, or download the model again")


def _broken(
    path: str, what: str, hint: str = "download the model again, or report it to its publisher"
) -> ActionFailed:
    return ActionFailed("broken-weights", f"the weight file {path} cannot be used: {what}", hint)
