"""What is refused before anything is sized: kinds, architectures, templates, context."""

import json
from dataclasses import replace
from typing import Any

import pytest

from epyc_vllm_agent.facts.checkpoint import read_checkpoint
from epyc_vllm_agent.facts.model import ChatTemplate, ModelKind, RepoFile, TemplateStatus
from epyc_vllm_agent.plan import support
from epyc_vllm_agent.plan.values import Refusal
from tests.hosts import HOSTS, facts_of
from tests.plans import CHAT, NO_CHAT, ZEN, endpoint, model_facts, plan

AMBIGUOUS = ChatTemplate(TemplateStatus.AMBIGUOUS, ("rag", "tool_use"), "tokenizer_config.json")
UNKNOWN = ChatTemplate(TemplateStatus.UNKNOWN, (), "tokenizer_config.json")


def refused(model: dict[str, Any] | None = None, **keys: Any) -> tuple[Refusal, ...]:
    return support.refusals(endpoint(**keys), model_facts(**(model or {})), ZEN)


def codes(model: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    return [refusal.code for refusal in refused(model, **keys)]


def test_a_text_model_is_served_with_a_template_or_without() -> None:
    for template in (CHAT, NO_CHAT, AMBIGUOUS, UNKNOWN):
        assert codes({"chat_template": template}) == []


@pytest.mark.parametrize(
    ("kind", "tag", "message"),
    [
        (
            ModelKind.EMBEDDING,
            "feature-extraction",
            "makes embeddings and generates no text (the hub tags it feature-extraction)",
        ),
        (ModelKind.RERANKER, None, "scores or ranks texts and generates none"),
        (ModelKind.SPEECH, None, "turns speech into text or text into speech"),
    ],
)
def test_models_that_generate_no_text(kind: ModelKind, tag: str | None, message: str) -> None:
    (refusal,) = refused({"kind": kind, "pipeline_tag": tag, "cpu_refusal": "of no interest"})
    assert refusal.code == "no-generation"
    assert refusal.message.startswith(f"Qwen/Qwen3-8B {message}")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            False,
            "vLLM 0.32.0 knows no architecture FooForCausalLM, which is what Qwen/Qwen3-8B is",
        ),
        (True, "vLLM lists FooForCausalLM, the architecture of Qwen/Qwen3-8B, but not for"),
    ],
)
def test_an_architecture_that_is_not_known(listed: bool, message: str) -> None:
    (refusal,) = refused(
        {"kind": ModelKind.UNKNOWN, "listed": listed, "architectures": ("FooForCausalLM",)}
    )
    assert refusal.code == "unsupported-model"
    assert refusal.message.startswith(message)


def test_another_vllm_may_know_what_the_shipped_registry_does_not() -> None:
    model = model_facts(kind=ModelKind.UNKNOWN, listed=False, architectures=("FooForCausalLM",))
    newer = replace(ZEN, vllm="0.40.1+cpu")
    assert support.refusals(endpoint(), model, newer) == ()
    (warning,) = support.warnings(model, newer)
    assert "whether vLLM 0.40.1+cpu serves FooForCausalLM shows when it loads" in warning
    assert support.warnings(model, ZEN) == support.warnings(model_facts(), newer) == []


def test_a_listed_model_that_the_cpu_will_not_run() -> None:
    (refusal,) = refused({"cpu_refusal": "its sparse attention is not supported on the CPU"})
    assert (refusal.code, refusal.message) == (
        "not-on-cpu",
        "vLLM cannot run Qwen/Qwen3-8B on a CPU: its sparse attention is not supported on the CPU",
    )


def test_a_model_that_the_cpu_runs_without_prefix_caching_alone() -> None:
    model = {"prefix_caching_refusal": "its layers fail"}
    (refusal,) = refused(model)
    assert refusal.code == "prefix-caching"
    assert refusal.message.endswith("of itself: its layers fail")
    assert refusal.hint == "turn it off: --vllm-arg=--no-enable-prefix-caching"
    for argument in ("--no-enable-prefix-caching", "--no_enable_prefix_caching"):
        assert codes(model, vllm_args=[argument]) == []
    assert codes({**model, "cpu_refusal": "it needs AMX"}) == ["not-on-cpu"]
    assert codes({**model, "kind": ModelKind.EMBEDDING}) == ["no-generation"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (NO_CHAT, "has no chat template"),
        (AMBIGUOUS, "has several chat templates (rag, tool_use) and none is the default"),
        (UNKNOWN, "has a chat template that could not be read"),
    ],
)
def test_a_multimodal_model_needs_a_template(template: ChatTemplate, message: str) -> None:
    model = {"kind": ModelKind.MULTIMODAL, "chat_template": template}
    (refusal,) = refused(model)
    assert refusal.code == "no-chat-template"
    assert message in refusal.message
    assert codes(model, chat_template="/etc/template.jinja") == []
    assert codes({"kind": ModelKind.MULTIMODAL, "chat_template": CHAT}) == []


def test_a_context_over_the_models_own() -> None:
    assert codes(max_model_len=40960) == []
    (refusal,) = refused(max_model_len=40961)
    assert (refusal.code, refusal.message, refusal.hint) == (
        "context-too-long",
        "max_model_len = 40961 is more than the 40960 tokens that Qwen/Qwen3-8B is made for",
        "ask for 40960 tokens or less (--max-model-len 40960)",
    )
    assert codes({"max_context_tokens": None}, max_model_len=1 << 30) == []


@pytest.mark.parametrize(
    "keys",
    [
        {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {"vllm_args": ["--hf-overrides", '{"rope_parameters": {"rope_type": "yarn"}}']},
        {"vllm_args": ["--hf_overrides.rope_scaling.factor=4"]},
    ],
)
def test_a_limit_that_the_administrator_lifts(keys: dict[str, Any]) -> None:
    assert codes(max_model_len=99999, **keys) == []


@pytest.mark.parametrize("value", ["0", " ", "no"])
def test_a_variable_that_lifts_nothing(value: str) -> None:
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": value}
    assert codes(max_model_len=99999, env=env) == ["context-too-long"]


def test_what_the_model_is_comes_before_what_the_host_has() -> None:
    """The first refusal is the one that a run ends with."""
    made = plan(
        facts_of(HOSTS["genoa-1s"]),
        endpoint(max_model_len=10_000_000, num_prompts=4000),
        model_facts(cpu_refusal="it needs AMX"),
    )
    assert [refusal.code for refusal in made.refusals] == [
        "not-on-cpu",
        "context-too-long",
        "does-not-fit",
    ]


@pytest.mark.parametrize(
    ("architecture", "code"),
    [("Qwen3ForCausalLM", None), ("BertModel", "no-generation"), ("Nobody", "unsupported-model")],
)
def test_from_config_to_refusal(architecture: str, code: str | None) -> None:
    config = {
        "architectures": [architecture],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    files = [RepoFile("config.json", 1), RepoFile("model.safetensors", 1000)]
    facts = read_checkpoint("a/b", None, files, {"config.json": json.dumps(config)})
    found = support.refusals(endpoint(), facts, ZEN)
    assert [refusal.code for refusal in found] == ([code] if code else [])
