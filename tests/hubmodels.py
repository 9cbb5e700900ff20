"""A folder of real models' configs with vLLM's own figures, read as the hub would tell them.

models/ORG__NAME/{config.json,facts.json} are the models, kv.json holds what vLLM 0.32.0's CPU
backend computes for them (KVCacheSpec of the model built without weights, from the config alone).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epyc_vllm_agent.facts.checkpoint import read_checkpoint
from epyc_vllm_agent.facts.model import ModelFacts, RepoFile
from tests.hubserver import read_repository

# max_num_batched_tokens that the figures were computed with; Whisper's encoder has its own budget.
BATCHED_TOKENS = 4096
WHISPER, WHISPER_TOKENS = "openai/whisper-large-v3", 2048


def folders(root: Path) -> list[Path]:
    return sorted(Path(root, "models").iterdir())


def recorded(folder: Path) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


def figures(root: Path) -> Mapping[str, Any]:
    """By model id; what vLLM said is in "vllm_check"."""
    found: Mapping[str, Any] = json.loads((root / "kv.json").read_text())["models"]
    return found


def read(folder: Path) -> ModelFacts:
    repository = read_repository(folder, ())
    texts = {
        path: content.source.read_text()
        for path, content in repository.files.items()
        if content.source is not None
    }
    files = [RepoFile(path, content.size) for path, content in repository.files.items()]
    if not any(file.path.endswith(".safetensors") for file in files):
        files.append(RepoFile("model.safetensors", None))
    return read_checkpoint(repository.id, "main", files, texts, repository.pipeline_tag)


def batched_tokens(model: str) -> int:
    return WHISPER_TOKENS if model == WHISPER else BATCHED_TOKENS
