"""Where repositories keep their chat templates, and what transformers makes of them."""

import json

import pytest

from epyc_vllm_agent.facts.chat_template import read_chat_template
from epyc_vllm_agent.facts.model import TemplateStatus

PRESENT, ABSENT = TemplateStatus.PRESENT, TemplateStatus.ABSENT
AMBIGUOUS, UNKNOWN = TemplateStatus.AMBIGUOUS, TemplateStatus.UNKNOWN


def tokenizer(template: object) -> dict[str, str]:
    return {"tokenizer_config.json": json.dumps({"chat_template": template})}


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": "{{ messages }}"} for name in names]


@pytest.mark.parametrize(
    ("texts", "status", "names", "source"),
    [
        (tokenizer("{{ messages }}"), PRESENT, (), "tokenizer_config.json"),
        (tokenizer(named("default", "tool_use")), PRESENT, ("default", "tool_use"), None),
        (tokenizer(named("rag", "tool_use")), AMBIGUOUS, ("rag", "tool_use"), None),
        (tokenizer({"default": "x", "rag": "y"}), PRESENT, ("default", "rag"), None),
        (tokenizer(None), ABSENT, (), None),
        (tokenizer(""), ABSENT, (), None),
        (tokenizer([]), ABSENT, (), None),
        (tokenizer([{"template": "nameless"}]), ABSENT, (), None),
        (tokenizer([{"name": "default"}]), ABSENT, (), None),
        (tokenizer([{"name": "default", "template": " "}]), ABSENT, (), None),
        (tokenizer([{"name": "\x1b[2J", "template": "x"}]), ABSENT, (), None),
        (tokenizer({"default": ""}), ABSENT, (), None),
        ({"chat_template.jinja": "\n"}, ABSENT, (), None),
        ({"chat_template.jinja": "", **tokenizer("y")}, PRESENT, (), "tokenizer_config.json"),
        ({"tokenizer_config.json": "{}"}, ABSENT, (), None),
        ({"tokenizer_config.json": "{"}, UNKNOWN, (), "tokenizer_config.json"),
        ({"chat_template.json": '{"chat_template": "x"}'}, PRESENT, (), "chat_template.json"),
        ({"chat_template.jinja": "x"}, PRESENT, (), "chat_template.jinja"),
        ({"chat_template.jinja": "x", **tokenizer("y")}, PRESENT, (), "chat_template.jinja"),
        ({}, ABSENT, (), None),
    ],
)
def test_templates(
    texts: dict[str, str], status: TemplateStatus, names: tuple[str, ...], source: str | None
) -> None:
    found = read_chat_template("a/model", texts, texts)
    assert (found.status, found.names) == (status, names)
    if source is not None:
        assert found.source == source


def test_a_file_that_could_not_be_read_leaves_it_unknown() -> None:
    found = read_chat_template("a/model", ["config.json", "tokenizer_config.json"], {})
    assert (found.status, found.source) == (UNKNOWN, "tokenizer_config.json")


def test_additional_templates_alone_are_ambiguous() -> None:
    paths = ["additional_chat_templates/rag.jinja", "additional_chat_templates/tools/x.jinja"]
    found = read_chat_template("a/model", paths, {})
    assert (found.status, found.names) == (AMBIGUOUS, ("rag",))


def test_additional_templates_are_named_beside_the_default() -> None:
    paths = ["chat_template.jinja", "additional_chat_templates/rag.jinja"]
    found = read_chat_template("a/model", paths, {"chat_template.jinja": "x"})
    assert (found.status, found.names) == (PRESENT, ("rag",))


def test_mistrals_tokenizer_needs_no_template_beside_mistrals_weights() -> None:
    own = ["consolidated.safetensors", "tekken.json"]
    found = read_chat_template("a/model", own, {})
    assert (found.status, found.source) == (PRESENT, "tekken.json")
    assert read_chat_template("a/model", ["model.safetensors", "tekken.json"], {}).status is ABSENT
