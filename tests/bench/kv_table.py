"""KV cache and weights side by side: `python -m tests.bench.kv_table FOLDER > docs/kv-table.md`.

FOLDER is as tests/hubmodels.py describes it. Compared are this project, the usual formula (2 x
layers x KV heads x head size x 2 bytes, times the tokens) and what vLLM itself computes.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.catalog import model_notes
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.kv import kv_bytes_per_token, kv_pool
from epyc_vllm_agent.facts.kv_layout import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYER_COUNT
from epyc_vllm_agent.facts.model import KvLayout
from tests.hubmodels import batched_tokens, figures, folders, read, recorded

CONTEXTS = (4096, 32768)
MIB, GB = 1 << 20, 1e9
# Weights that are further off than this are an exception.
TOLERANCE = 0.02
HEADER = """\
# KV cache and weights, side by side

Made by `python -m tests.bench.kv_table FOLDER`; not edited by hand. "vLLM" is what the CPU backend
of vLLM 0.32.0 computes for the model itself (bfloat16, one rank, {batched} batched tokens),
"formula" the usual 2 x layers x KV heads x head size x 2 bytes for each token. A request is one of
that many tokens, in MiB. vLLM allots whole blocks, bounds windows, keeps states of constant size
and pads them, which the formula does not know. vLLM's figures for a request are derived from its
concurrency and up to 0.001 % above the exact bytes. Weights are in GB (1e9) as loaded, not as
stored; "-": not to be had (vLLM computes no context beyond the model's own).

"""
COLUMNS = (
    "model",
    *("token B, ours", "formula", "vLLM"),
    *(f"{tokens}: {who}" for tokens in CONTEXTS for who in ("ours", "formula", "vLLM")),
    *("weights, ours", "vLLM"),
)


def main(root: Path) -> None:
    rows: list[tuple[str, ...]] = []
    remarks: list[str] = []
    known = figures(root)
    for folder in folders(root):
        model = recorded(folder)["repo_id"]
        row, remark = line(folder, model, known[model])
        rows += [row] if row else []
        remarks += [f"- {model}: {remark}"] if remark else []
    sys.stdout.write(HEADER.format(batched=batched_tokens("")))
    for cells in (COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 1)], *rows):
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.write("\n## Exceptions\n\n" + "\n".join(remarks) + "\n")


def line(
    folder: Path, model: str, entry: Mapping[str, Any]
) -> tuple[tuple[str, ...] | None, str | None]:
    """The row of a model and what has to be said of it."""
    vllm = entry["vllm_check"]
    try:
        facts = read(folder)
    except AgentError as error:
        return None, f"refused: {error.message}"
    token = formula(json.loads((folder / "config.json").read_text()), model)
    requests = vllm.get("vllm_request_bytes_at_max_model_len", {})
    cells = [model, *_per_token(facts.kv, token, vllm)]
    for tokens in CONTEXTS:
        ours = _request(facts.kv, tokens, model)
        theirs = requests.get(str(tokens), {}).get("bytes")
        usual = token * tokens if token is not None else None
        cells += [_mib(ours), _mib(usual), _mib(theirs)]
    theirs = vllm.get("vllm_param_bytes")
    cells += [_gb(facts.weight_bytes), _gb(theirs)]
    said = [f"not served: {facts.cpu_refusal}"] if facts.cpu_refusal else []
    if facts.prefix_caching_refusal:
        said.append(f"served without prefix caching alone: {facts.prefix_caching_refusal}")
    if facts.weight_bytes is None or theirs is None:
        said.append(f"vLLM has no figures: {_reason(entry)}")
    elif abs(facts.weight_bytes / theirs - 1) > TOLERANCE:
        said.append(f"weights {facts.weight_bytes / theirs - 1:+.1%}")
    return tuple(cells), "; ".join(said) or None


def formula(config: dict[str, object], model: str) -> int | None:
    """Bytes of a token by the usual formula; None where the config lacks its numbers."""
    language = HfConfig(model, config).language_model(model_notes().defaults)
    layers, heads = language.integer(*LAYER_COUNT), language.integer(*HEADS)
    if not layers or not heads:
        return None
    size = language.integer(*HEAD_DIM) or (language.integer(*HIDDEN) or 0) // heads
    return 2 * layers * (language.integer(*KV_HEADS) or heads) * size * 2


def _per_token(
    kv: KvLayout | None, usual: int | None, vllm: Mapping[str, Any]
) -> tuple[str, str, str]:
    theirs = None
    if vllm.get("vllm_growing") is not None:
        theirs = int(vllm["vllm_growing"] + vllm["vllm_windowed"])
    ours = kv_bytes_per_token(kv) if kv else None
    return _count(ours), _count(usual), _count(theirs)


def _request(kv: KvLayout | None, tokens: int, model: str) -> int | None:
    if kv is None:
        return None
    return kv_pool(kv, tokens, batched_tokens=batched_tokens(model)).request_bytes


def _reason(entry: Mapping[str, Any]) -> str:
    vllm = entry["vllm_check"]
    return str(vllm.get("note") or entry.get("note") or vllm["error"]).splitlines()[0]


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _mib(size: float | None) -> str:
    return "-" if size is None else f"{size / MIB:.1f}"


def _gb(size: float | None) -> str:
    return "-" if size is None else f"{size / GB:.2f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
