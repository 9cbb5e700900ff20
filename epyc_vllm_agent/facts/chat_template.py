"""Whether a model brings a chat template, and where; renders none.

transformers looks into chat_template.jinja, additional_chat_templates/*.jinja, chat_template.json
(processors) and tokenizer_config.json, in that order, and vLLM takes what transformers finds. Only
beside weights in Mistral's own format does vLLM 0.32.0 use Mistral's tokenizer, which builds chat
prompts without a template (vllm/tokenizers/registry.py).
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.facts.hfconfig import parse_object
from epyc_vllm_agent.facts.model import ChatTemplate, TemplateStatus

JINJA = "chat_template.jinja"
PROCESSOR = "chat_template.json"
TOKENIZER = "tokenizer_config.json"
ADDITIONAL = "additional_chat_templates"
DEFAULT = "default"
_LONGEST_NAME = 100


def read_chat_template(model: str, paths: Iterable[str], texts: Mapping[str, str]) -> ChatTemplate:
    """The template by the repository's file list and the texts of the files that were read."""
    present = frozenset(paths)
    if tokenizer := _mistral_tokenizer(present):
        return ChatTemplate(TemplateStatus.PRESENT, source=tokenizer)
    if texts.get(JINJA, "not read").strip() and (JINJA in present or JINJA in texts):
        return ChatTemplate(TemplateStatus.PRESENT, _additional(present), JINJA)
    for path in (PROCESSOR, TOKENIZER):
        if path in present and path not in texts:
            return ChatTemplate(TemplateStatus.UNKNOWN, source=path)
        if path in texts and (found := _template_in(model, path, texts[path])):
            return found
    if names := _additional(present):
        return _named(names, ADDITIONAL)
    return ChatTemplate(TemplateStatus.ABSENT)


def _mistral_tokenizer(paths: frozenset[str]) -> str | None:
    if not any(fnmatchcase(path, "consolidated*.safetensors") for path in paths):
        return None
    own = ("tekken.json", "tokenizer.model.v*")
    found = (path for path in sorted(paths) if any(fnmatchcase(path, name) for name in own))
    return next(found, None)


def _additional(paths: frozenset[str]) -> tuple[str, ...]:
    folder = PurePosixPath(ADDITIONAL)
    return tuple(
        sorted(
            path.stem
            for path in map(PurePosixPath, paths)
            if path.parent == folder and path.suffix == ".jinja"
        )
    )


def _template_in(model: str, path: str, text: str) -> ChatTemplate | None:
    try:
        value = parse_object(text, path, model).get("chat_template")
    except ConfigError:
        return ChatTemplate(TemplateStatus.UNKNOWN, source=path)
    if isinstance(value, str) and value.strip():
        return ChatTemplate(TemplateStatus.PRESENT, source=path)
    if isinstance(value, dict):
        value = [{"name": name, "template": text} for name, text in value.items()]
    if isinstance(value, list):
        names = tuple(str(item["name"]) for item in value if _is_template(item))
        return _named(names, path) if names else None
    return None


def _is_template(item: object) -> bool:
    """Whether it is a named template with a text."""
    if not isinstance(item, dict):
        return False
    name, text = item.get("name"), item.get("template")
    named = isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME
    return named and isinstance(text, str) and bool(text.strip())


def _named(names: tuple[str, ...], source: str) -> ChatTemplate:
    status = TemplateStatus.PRESENT if DEFAULT in names else TemplateStatus.AMBIGUOUS
    return ChatTemplate(status, names, source)
