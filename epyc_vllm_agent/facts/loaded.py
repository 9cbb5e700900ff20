"""Bytes that the weights take once vLLM has loaded them; decides by names and sizes alone.

Bytes on disk are not bytes in memory: a tied head may be stored and is dropped, multi-token
prediction layers belong to speculative decoding, and float32 is served as bfloat16.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

from epyc_vllm_agent.facts.catalog import ModelNotes
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.kv_layout import LAYER_COUNT
from epyc_vllm_agent.facts.parameters import EXPERTS, ParameterCount, count_parameters
from epyc_vllm_agent.facts.quantization import quantization, quantization_section
from epyc_vllm_agent.facts.weights import Tensor

SERVED_BYTES = 2  # bfloat16
FP8_BLOCK_SCALE = 4 / (128 * 128)  # a float32 for every block of 128 x 128
_HEADS = ("lm_head.weight", "embed_out.weight")
_BUFFERS = ("rotary_emb.inv_freq", ".attn.masked_bias")
# How far a count from the config may be off before it explains nothing.
_EXPLAINED = 0.02


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known of the files, from the most to the least telling."""

    tensors: tuple[Tensor, ...] = ()  # of all files, by their headers
    names: tuple[str, ...] = ()  # of all tensors, by the index
    file_bytes: int | None = None  # of the chosen files


@dataclass(frozen=True, slots=True)
class Loaded:
    weight_bytes: int | None
    parameters: int | None
    expert_bytes: int = 0  # the part of weight_bytes that is in routed experts


def is_tied(outer: HfConfig, language: HfConfig, tied_by_default: frozenset[str]) -> bool:
    """Whether the output head is the embedding; the default differs by model type."""
    for config in (outer, language):
        if isinstance(value := config.values.get("tie_word_embeddings"), bool):
            return value
    return outer.model_type in tied_by_default or language.model_type in tied_by_default


def loaded_weights(
    outer: HfConfig, language: HfConfig, notes: ModelNotes, tied: bool, stored: Stored
) -> Loaded:
    count = count_parameters(language, tied)
    loaded = _loaded(outer, language, notes, tied, stored, count)
    if not language.integer(*EXPERTS) or loaded.weight_bytes is None:
        return loaded
    # Where they cannot be counted all of it, the safe side: experts are nearly all of a mixture.
    share = count.experts / count.loaded if count else 1.0
    return replace(loaded, expert_bytes=int(loaded.weight_bytes * share))


def _loaded(
    outer: HfConfig,
    language: HfConfig,
    notes: ModelNotes,
    tied: bool,
    stored: Stored,
    count: ParameterCount | None,
) -> Loaded:
    quantised = quantization(outer, language) is not None
    unloaded = _Unloaded(tied, language, notes)
    if stored.tensors:
        return _by_tensors(stored.tensors, unloaded, quantised)
    parameters = count.loaded if count else None
    if stored.file_bytes is None:
        share = _bytes_per_linear(outer, language)
        return Loaded(_by_count(count, share) if count and share else None, parameters)
    element = 4 if dtype(outer, language) == "float32" and not quantised else SERVED_BYTES
    kept = stored.file_bytes - _unloaded_bytes(stored, unloaded, count, element, quantised)
    if quantised:
        return Loaded(kept, parameters)
    return Loaded(kept * SERVED_BYTES // element, kept // element)


def dtype(outer: HfConfig, language: HfConfig) -> str | None:
    names = ("torch_dtype", "dtype")
    value = outer.text(*names) or language.text(*names)
    return value.removeprefix("torch.") if value else None


@dataclass(frozen=True, slots=True)
class _Unloaded:
    """Tensor names that vLLM skips."""

    tied: bool
    language: HfConfig
    notes: ModelNotes

    def head(self, names: Collection[str]) -> bool:
        return self.tied and any(name.endswith(_HEADS) for name in names)

    def beyond(self, name: str) -> bool:
        if name.startswith(self.notes.unloaded_prefixes):
            return True
        prefix = self.notes.extra_layer_prefixes.get(self.language.model_type)
        if prefix is None:
            return False
        if (number := re.match(re.escape(prefix) + r"(\d+)\.", name)) is None:
            return False
        return int(number[1]) >= (self.language.integer(*LAYER_COUNT) or 0)

    def skips(self, name: str) -> bool:
        tied_head = self.tied and name.endswith(_HEADS)
        return tied_head or name.endswith(_BUFFERS) or self.beyond(name)


def _by_tensors(tensors: Sequence[Tensor], unloaded: _Unloaded, quantised: bool) -> Loaded:
    kept = [tensor for tensor in tensors if not unloaded.skips(tensor.name)]
    size = sum(tensor.stored_bytes if quantised else tensor.served_bytes for tensor in kept)
    return Loaded(size, sum(tensor.elements for tensor in kept))


def _by_count(count: ParameterCount, bytes_per_linear: float) -> int:
    plain = count.loaded - count.linear
    return int(count.linear * bytes_per_linear) + plain * SERVED_BYTES


def _bytes_per_linear(outer: HfConfig, language: HfConfig) -> float | None:
    """Bytes of a parameter in a linear layer as stored; None for a scheme that is not known."""
    method = quantization(outer, language)
    if method is None:
        return float(SERVED_BYTES)
    section = quantization_section(outer, language)
    if method == "fp8":
        return 1 + FP8_BLOCK_SCALE
    bits = section.integer("bits", "w_bit") if section else None
    if method in ("gptq", "awq") and bits:
        group = section.number("group_size", "q_group_size") if section else None
        # -1 is one group for a whole row, whose scale weighs nothing.
        scales = (SERVED_BYTES + bits / 8) / group if group and group > 0 else 0.0
        return bits / 8 + scales
    return None


def _unloaded_bytes(
    stored: Stored,
    unloaded: _Unloaded,
    count: ParameterCount | None,
    element: int,
    quantised: bool,
) -> int:
    """Bytes in the files that are not loaded; 0, the safe side, where nothing is known of them."""
    if count is None:
        return 0
    head = count.head * element
    extra = int(count.extra * (1 if quantised else element))
    if stored.names:
        has_extra = any(unloaded.beyond(name) for name in stored.names)
        return unloaded.head(stored.names) * head + has_extra * extra
    if quantised or stored.file_bytes is None:
        return 0
    return _explanation(stored.file_bytes, count, head if count.tied else 0, extra, element)


def _explanation(
    file_bytes: int, count: ParameterCount, head: int, extra: int, element: int
) -> int:
    """Which of the parts that may be stored in vain make the file's size what it is."""
    expected = count.loaded * element
    parts = [first + second for first, second in product((0, head), (0, extra))]
    best = min(parts, key=lambda part: abs(file_bytes - part - expected))
    explained = abs(file_bytes - best - expected) <= _EXPLAINED * expected
    return best if explained else 0


def total_bytes(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
