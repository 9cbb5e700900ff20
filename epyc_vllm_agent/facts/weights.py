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

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.(safetensors|bin)")
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
    files: Sequence[RepoFile], texts: Mapping[str, str], model: str
) -> tuple[RepoFile, ...]:
    """The one set that vLLM loads; none for a repository without weights for it."""
    top = {file.path: file for file in files if "/" not in file.path}
    for index in INDEXES:
        listed = indexed_tensors(texts[index], index, model) if index in texts else {}
        shards = sorted(set(listed.values()))
        if shards and all(path in top for path in shards):
            return tuple(top[path] for path in shards)
    for suffix, single in ((".safetensors", "model.safetensors"), (".bin", "pytorch_model.bin")):
        if chosen := _set_with(top, suffix, single):
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


def header_length(first_bytes: bytes) -> int:
    """Length of a safetensors header by the eight bytes before it."""
    if len(first_bytes) < 8:
        raise _broken("it is shorter than its header's length")
    (length,) = struct.unpack("<Q", first_bytes[:8])
    if not 0 < length <= HEADER_LIMIT:
        raise _broken(f"its header claims {length} bytes")
    return int(length)


def parse_tensors(header: bytes) -> tuple[Tensor, ...]:
    """The tensors of a safetensors header (without its eight bytes of length)."""
    try:
        entries = json.loads(header)
        return tuple(
            _tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken("its header is not what safetensors writes") from error


def _tensor(name: str, entry: Mapping[str, object]) -> Tensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(name)
    elements = 1
    for dimension in shape:
        elements *= int(dimension)
    first, last = (int(offset) for offset in offsets)
    if not (0 <= elements <= LARGEST and 0 <= first <= last):
        raise ValueError(name)
    return Tensor(name, dtype, elements, last - first)


def _broken(what: str) -> ActionFailed:
    return ActionFailed(
        "broken-weights",
        f"a safetensors file cannot be used: {what}",
        "download the model again, or report it to its publisher",
    )
