"""data/epyc.json as a frozen value: what the EPYC recipe pins."""

import json
from dataclasses import dataclass

from epyc_vllm_agent.codec import from_plain


@dataclass(frozen=True, slots=True)
class EnvironmentRecipe:
    default_path: str
    vllm_version: str
    preload: tuple[tuple[str, ...], ...]  # groups of library names, the first found of each


@dataclass(frozen=True, slots=True)
class Recipe:
    default_model: str
    environment: EnvironmentRecipe

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        return from_plain(cls, json.loads(text))
