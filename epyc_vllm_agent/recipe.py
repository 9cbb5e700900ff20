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
class LoadRule:
    """When a socket counts as busy, for `sockets = "auto"`."""

    busy_percent: float
    sample_seconds: float


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """A container image with a stack; versions are None where its tag moves."""

    image: str
    vllm: str | None
    zentorch: str | None
    serves: bool  # its entrypoint is `vllm serve`


@dataclass(frozen=True, slots=True)
class ImageRecipes:
    zentorch: ImageRecipe
    stock: ImageRecipe

    def of(self, stack: str) -> ImageRecipe:
        return self.zentorch if stack == "zentorch" else self.stock


@dataclass(frozen=True, slots=True)
class ThroughputRule:
    """The switches of `throughput = true`, and the name of prepacking by who reads it."""

    env: tuple[tuple[str, str], ...]
    prepack_in_tree: str
    prepack_plugin: str


@dataclass(frozen=True, slots=True)
class Recipe:
    default_model: str
    precisions: tuple[str, ...]
    zentorch_precisions: tuple[str, ...]
    load: LoadRule
    images: ImageRecipes
    throughput: ThroughputRule
    environment: EnvironmentRecipe

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        return from_plain(cls, json.loads(text))
