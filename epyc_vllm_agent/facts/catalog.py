"""What vLLM makes of architectures: the shipped tables as frozen values; decides nothing.

data/registry-vllm-VERSION.json is made by packaging/registry-table from an installed vLLM,
data/models.json holds what neither config.json nor that registry tells.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from epyc_vllm_agent.data import read_data

SHIPPED_VLLM = ("0.32.0", "0.25.1")  # a table for each version of data/stacks.json


@dataclass(frozen=True, slots=True)
class Registry:
    """The architectures that a version of vLLM lists, by category; they overlap."""

    vllm: str
    text_generation: frozenset[str]
    multimodal: frozenset[str]
    transcription: frozenset[str]
    embedding: frozenset[str]
    classification: frozenset[str]
    draft: frozenset[str]
    removed: Mapping[str, str]  # architecture: the last version that had it
    plugins: frozenset[str]  # served only with a plugin of their own
    model_types: frozenset[str]  # configured by transformers or vLLM: no code of the model's own
    quantizations: frozenset[str]  # names of quant_method that this version knows
    tied_by_default: frozenset[str]  # model types whose head is the embedding unless told

    def lists(self, architecture: str) -> bool:
        return any(
            architecture in names
            for names in (
                self.text_generation,
                self.multimodal,
                self.embedding,
                self.classification,
            )
        )


@dataclass(frozen=True, slots=True)
class QuantizationRefusal:
    reason: str
    experts_only: bool  # dense layers of the kind are served


@dataclass(frozen=True, slots=True)
class ModelNotes:
    """data/models.json: what is known of model types and architectures beside their config."""

    defaults: Mapping[str, Mapping[str, object]]  # by model_type, transformers' own
    cpu_refused: Mapping[str, str]  # architecture: reason
    cpu_refused_keys: Mapping[str, str]  # key whose presence in the config tells: reason
    prefix_caching_refused: str  # the reason for models that keep states of Mamba 2
    ungated_activations: frozenset[str]
    ungated_experts_refused: str  # the reason where experts have such an activation
    refused_quantizations: Mapping[str, QuantizationRefusal]  # by scheme, see `quantization`
    encoders: frozenset[str]  # model types that keep no KV cache
    latent: frozenset[str]  # model types whose latent attention vLLM caches as such (MLA)
    unloaded_prefixes: tuple[str, ...]  # of tensor names that vLLM skips everywhere
    extra_layer_prefixes: Mapping[str, str]  # model_type: prefix before a layer's number


def parse_registry(table: Mapping[str, Any]) -> Registry:
    """A table as packaging/registry-table prints it; also what a probed stack answers."""
    names = {name: frozenset(members) for name, members in table["categories"].items()}
    return Registry(
        vllm=table["vllm"],
        text_generation=names["text_generation"],
        multimodal=names["multimodal"],
        transcription=names["transcription"],
        embedding=names["embedding"],
        classification=names["classification"],
        draft=names["draft"],
        removed=table["removed"],
        plugins=frozenset(table["plugins"]),
        model_types=frozenset(table["model_types"]),
        quantizations=frozenset(table["quantizations"]),
        tied_by_default=frozenset(table["tied_by_default"]),
    )


def shipped_registry(vllm: str | None = None) -> Registry:
    """The table that stands in where a vLLM cannot be asked: its version's own, else the first."""
    public = (vllm or "").partition("+")[0]
    return _shipped(public if public in SHIPPED_VLLM else SHIPPED_VLLM[0])


@cache
def _shipped(vllm: str) -> Registry:
    return parse_registry(json.loads(read_data(f"registry-vllm-{vllm}.json")))


@cache
def model_notes() -> ModelNotes:
    table = json.loads(read_data("models.json"))
    return ModelNotes(
        defaults={name: entry["values"] for name, entry in table["defaults"].items()},
        cpu_refused=_reasons(table["cpu_refused"]["architectures"]),
        cpu_refused_keys=_reasons(table["cpu_refused"]["config_keys"]),
        prefix_caching_refused=table["cpu_refused"]["prefix_caching"]["reason"],
        ungated_activations=frozenset(table["cpu_refused"]["ungated_experts"]["activations"]),
        ungated_experts_refused=table["cpu_refused"]["ungated_experts"]["reason"],
        refused_quantizations={
            scheme: QuantizationRefusal(entry["reason"], entry["refused"] == "experts")
            for scheme, entry in table["cpu_refused"]["quantizations"].items()
        },
        encoders=frozenset(table["encoders"]["model_types"]),
        latent=frozenset(table["latent_attention"]["model_types"]),
        unloaded_prefixes=tuple(table["not_loaded"]["prefixes"]),
        extra_layer_prefixes=table["not_loaded"]["layers_beyond"],
    )


def _reasons(entries: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: entry["reason"] for name, entry in entries.items()}
