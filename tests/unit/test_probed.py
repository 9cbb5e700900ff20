"""What a vLLM is asked and what becomes of its answer: the table, its memory, the stand-in."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import inquiry, probed
from epyc_vllm_agent.facts.catalog import SHIPPED_VLLM, parse_registry, shipped_registry
from epyc_vllm_agent.plan.stacks import release
from tests.plans import STACKS, ZEN

# What vLLM 0.32.0 itself answers is compared in tests/system/test_platform.py.
TABLE = json.loads(read_data("registry-vllm-0.32.0.json"))
STACK = {**to_plain(ZEN), "name": "nothing of its own"}


def answer(**changes: Any) -> str:
    return json.dumps({"stack": STACK, "registry": TABLE, "registry_error": None, **changes})


def test_the_answer_is_found_among_what_vllm_says() -> None:
    output = f"INFO 12-01 hello\n{inquiry.PROBE_MARK}{answer()}\nbye\n"
    assert probed.answer_in(output) == answer()
    assert probed.answer_in("INFO 12-01 hello\n") is None


def test_an_answer_as_values() -> None:
    found = probed.read(answer(), ZEN.name)
    assert found == probed.Probed(ZEN, parse_registry(TABLE))
    assert probed.read(answer(registry=None), ZEN.name).registry is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", answer(stack=None), answer(stack={}), answer(registry=[1])),
        *(answer(registry={"vllm": "1"}), answer(registry=TABLE | {"categories": []})),
        json.dumps(STACK),  # as earlier versions remembered it
    ],
)
def test_what_is_no_answer_is_not_recalled(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        probed.read(text, ZEN.name)
    file = tmp_path / "probe.json"
    file.write_text(text)
    assert probed.recall(file, ZEN.name) is None


def test_an_answer_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "probes/one.json"
    assert probed.recall(file, ZEN.name) is None
    probed.remember(file, answer())
    assert probed.recall(file, ZEN.name) == probed.read(answer(), ZEN.name)
    probed.remember(file / "below-a-file", answer())  # cannot be, and is no error


def test_each_validated_vllm_has_a_table() -> None:
    for stack in STACKS.validated:
        assert shipped_registry(f"{stack.vllm}+cpu").vllm == stack.vllm
    assert {release(name) for name in SHIPPED_VLLM} == {release(s.vllm) for s in STACKS.validated}
    for other in (None, "", "0.99.1"):
        assert shipped_registry(other).vllm == SHIPPED_VLLM[0]


def test_categories_of_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as vLLM has them: an architecture, then the module and class that serve it."""
    package = tmp_path / "models_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hearing.py").write_text(
        "raise RuntimeError('never run')\n"
        "class Asr:\n    supports_transcription_only: bool = True\n"
        "class Chat:\n    supports_transcription_only = False\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    hearing = "models_of_a_test.hearing"
    tables = SimpleNamespace(
        _TEXT_GENERATION_MODELS={"LlamaForCausalLM": ("a.llama", "LlamaForCausalLM")},
        _MULTIMODAL_MODELS={"Hears": (hearing, "Asr"), "Talks": (hearing, "Chat")},
        _EMBEDDING_MODELS={"LlamaForCausalLM": ("a.llama", "LlamaForCausalLM")},
        _TRANSFORMERS_SUPPORTED_MODELS={"Emu": ("t", "TransformersMultiModalForCausalLM")},
        _TRANSFORMERS_BACKEND_MODELS={
            "Plain": ("t", "TransformersForCausalLM"),
            "Vectors": ("t", "TransformersEmbeddingModel"),
            "Sorts": ("t", "TransformersForSequenceClassification"),
        },
    )
    assert inquiry.categories(tables) == {
        "text_generation": ["LlamaForCausalLM", "Plain"],
        "multimodal": ["Emu", "Hears", "Talks"],
        "embedding": ["LlamaForCausalLM", "Vectors"],
        "classification": ["Sorts"],
        "draft": [],
        "transcription": ["Hears"],
    }


def test_a_registry_of_another_make_is_no_empty_table() -> None:
    with pytest.raises(LookupError, match="no table of generating models"):
        inquiry.categories(SimpleNamespace())
