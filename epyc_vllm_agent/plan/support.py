"""Whether vLLM on a CPU serves a model, and with the context asked for; pure, knows no memory.

What it knows of architectures is in ModelFacts (facts/kind.py); here it becomes refusals.
"""

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.model import ModelFacts, ModelKind, TemplateStatus
from epyc_vllm_agent.plan.stacks import release
from epyc_vllm_agent.plan.values import Refusal, Stack

_OTHER_KINDS = {
    ModelKind.EMBEDDING: "makes embeddings and generates no text",
    ModelKind.RERANKER: "scores or ranks texts and generates none",
    ModelKind.SPEECH: "turns speech into text or text into speech, which is no chat or completion",
}
_GENERATES = "choose a model that generates text: chat and completions are what an endpoint serves"
# vllm 0.32.0 config/model.py lets the first through, the options give the model another limit.
_LONGER_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_NO_PREFIX_CACHING = "--no-enable-prefix-caching"
_OTHER_LIMITS = ("--hf-overrides", "--rope-scaling", "--rope-theta", "--hf-config-path")


def refusals(config: EndpointConfig, model: ModelFacts, stack: Stack) -> tuple[Refusal, ...]:
    """Why vLLM will not serve `model` as `config` asks; the most telling reason first."""
    found = (
        _kind(model),
        None if _has_another_registry(model, stack) else _unlisted(model),
        _cpu(model) or _prefix_caching(config, model),
        _template(config, model),
        _context(config, model),
    )
    return tuple(refusal for refusal in found if refusal is not None)


def warnings(model: ModelFacts, stack: Stack) -> list[str]:
    if model.kind is not ModelKind.UNKNOWN or not _has_another_registry(model, stack):
        return []
    return [
        f"whether {_vllm(stack)} serves {', '.join(model.architectures)} shows when it loads: "
        f"its own registry is not to be had yet, and that of {model.registry_vllm} has none",
    ]


def _vllm(stack: Stack) -> str:
    return f"vLLM {stack.vllm}" if stack.vllm else "the vLLM of that image"


def _has_another_registry(model: ModelFacts, stack: Stack) -> bool:
    """The model was judged by a table that stands in for this vLLM's own, which was not asked."""
    return release(stack.vllm) != release(model.registry_vllm)


def longest_context(config: EndpointConfig, model: ModelFacts) -> int | None:
    """The model's own limit for max_model_len; None where there is none or it is lifted."""
    lifted = dict(config.env).get(_LONGER_ALLOWED, "0").strip().lower() in ("1", "true")
    options = _options(config)
    # As --hf-overrides.rope_scaling.factor, too.
    replaced = any(option.startswith(_OTHER_LIMITS) for option in options)
    return None if lifted or replaced else model.max_context_tokens


def caches_prefixes(config: EndpointConfig) -> bool:
    """As vLLM does of itself: the start of a prompt is kept for other requests."""
    return _NO_PREFIX_CACHING not in _options(config)


def _options(config: EndpointConfig) -> set[str]:
    return {argument.split("=", 1)[0].replace("_", "-") for argument in config.vllm_args}


def _kind(model: ModelFacts) -> Refusal | None:
    if (what := _OTHER_KINDS.get(model.kind)) is None:
        return None
    told = f" (the hub tags it {model.pipeline_tag})" if model.pipeline_tag else ""
    return Refusal("no-generation", f"{model.id} {what}{told}", _GENERATES)


def _unlisted(model: ModelFacts) -> Refusal | None:
    if model.kind is not ModelKind.UNKNOWN:
        return None
    names = ", ".join(model.architectures)
    if model.listed:
        return Refusal(
            "unsupported-model",
            f"vLLM lists {names}, the architecture of {model.id}, but not for generating text",
            _GENERATES,
        )
    return Refusal(
        "unsupported-model",
        f"vLLM {model.registry_vllm} knows no architecture {names}, which is what {model.id} is "
        "made of",
        "choose a model of an architecture that this vLLM lists, or a vLLM that lists this one",
    )


def _cpu(model: ModelFacts) -> Refusal | None:
    if model.cpu_refusal is None or model.kind in _OTHER_KINDS:
        return None
    return Refusal(
        "not-on-cpu",
        f"vLLM cannot run {model.id} on a CPU: {model.cpu_refusal}",
        "choose another model, or the same one with other weights",
    )


def _prefix_caching(config: EndpointConfig, model: ModelFacts) -> Refusal | None:
    reason = model.prefix_caching_refusal
    if reason is None or model.kind in _OTHER_KINDS or not caches_prefixes(config):
        return None
    return Refusal(
        "prefix-caching",
        f"vLLM cannot run {model.id} on a CPU with prefix caching, which it does of itself: "
        f"{reason}",
        f"turn it off: --vllm-arg={_NO_PREFIX_CACHING}",
    )


def _template(config: EndpointConfig, model: ModelFacts) -> Refusal | None:
    """Images and sound reach a model through chat messages only."""
    if model.kind is not ModelKind.MULTIMODAL or config.chat_template:
        return None
    status = model.chat_template.status
    if status is TemplateStatus.PRESENT:
        return None
    names = ", ".join(model.chat_template.names)
    what = {
        TemplateStatus.ABSENT: "has no chat template",
        TemplateStatus.AMBIGUOUS: f"has several chat templates ({names}) and none is the default",
        TemplateStatus.UNKNOWN: "has a chat template that could not be read",
    }[status]
    return Refusal(
        "no-chat-template",
        f"{model.id} {what}, and a multimodal model can be used through chat only",
        "give it one with --chat-template FILE",
    )


def _context(config: EndpointConfig, model: ModelFacts) -> Refusal | None:
    longest = longest_context(config, model)
    if longest is None or config.max_model_len <= longest or model.kind in _OTHER_KINDS:
        return None
    return Refusal(
        "context-too-long",
        f"max_model_len = {config.max_model_len} is more than the {longest} tokens that "
        f"{model.id} is made for",
        f"ask for {longest} tokens or less (--max-model-len {longest})",
    )
