"""What is to be served: from the command line, the environment and the model's files; no sockets.

The refusals have the words and the order of vllm 0.32.0, as its log shows them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class LoadError(Exception):
    """vLLM would exit with code 1, and this is what its log ends with."""


@dataclass(frozen=True, slots=True)
class Command:
    """The part of `vllm serve` that is looked at; all else is accepted and kept in the record."""

    model: str
    host: str
    port: int
    name: str
    max_model_len: int | None
    chat_template: str | None
    ranks: int
    api_key: str | None


@dataclass(frozen=True, slots=True)
class Served:
    """A model as clients see it."""

    name: str
    root: str
    max_model_len: int
    chat: bool
    api_key: str | None


def parse(words: Sequence[str], environ: Mapping[str, str]) -> Command:
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--chat-template")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--api-key", default=environ.get("VLLM_API_KEY"))
    known, _ = parser.parse_known_args(words)
    return Command(
        model=known.model,
        host=known.host,
        port=known.port,
        name=known.served_model_name or known.model,
        max_model_len=known.max_model_len,
        chat_template=known.chat_template,
        ranks=known.tensor_parallel_size,
        api_key=known.api_key,
    )


def load(command: Command, environ: Mapping[str, str]) -> Served:
    folder = Path(command.model)
    if not folder.is_dir():
        raise LoadError(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            f"'namespace/repo_name': '{command.model}'. Use `repo_type` argument if needed."
        )
    if not (folder / "config.json").is_file():
        raise LoadError(
            "  Value error, Invalid repository ID or local directory specified: "
            f"'{command.model}'.\nPlease verify the following requirements:"
        )
    longest = _longest(json.loads((folder / "config.json").read_text()))
    wanted = command.max_model_len or longest
    if wanted > longest:
        raise LoadError(
            f"  Value error, User-specified max_model_len ({wanted}) is greater than the derived "
            f"max_model_len (max_position_embeddings={longest}.0 or model_max_length=None in "
            "model's config.json)."
        )
    _check_kv_space(environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
    chat = command.chat_template is not None or _has_template(folder)
    return Served(command.name, command.model, wanted, chat, command.api_key)


def _longest(config: dict[str, object]) -> int:
    value = config.get("max_position_embeddings")
    return value if isinstance(value, int) else 2048


def _check_kv_space(text: str) -> None:
    try:
        gib = int(text)
    except ValueError as error:
        raise LoadError(f"  Value error, {error}") from error
    if gib == 0:
        raise LoadError("ValueError: No available memory for the cache blocks.")


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return "chat_template" in json.loads((folder / "tokenizer_config.json").read_text())
    except FileNotFoundError:
        return False


def rank_cpus(bind: str | None, ranks: int) -> tuple[tuple[int, ...] | None, ...]:
    """The CPUs of each rank by VLLM_CPU_OMP_THREADS_BIND; None: not bound."""
    if bind in (None, "auto", "nobind"):
        return (None,) * ranks
    groups = [_cpus(group) for group in bind.split("|")]
    if len(groups) < ranks:
        raise LoadError(f"AssertionError: {len(groups)} CPU lists for {ranks} ranks")
    return tuple(groups[:ranks])


def _cpus(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers += range(int(first), int(last if dash else first) + 1)
    return tuple(numbers)
