"""The OpenAI server's answers as values: statuses, texts and names as vllm 0.32.0 gives them."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import VERSION
from .control import Behaviour
from .serving import Served

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a "
    "chat template if the tokenizer does not define one."
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str = ""
    content_type: str = "application/json"
    ends_server: bool = False  # instead of being sent
    events: tuple[str, ...] = ()  # instead of a body: a stream, a token each


@dataclass(slots=True)
class Counters:
    """What /metrics counts; shared by the threads that answer."""

    running: int = 0
    succeeded: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        with self.lock:
            self.running += 1

    def token(self) -> None:
        with self.lock:
            self.generated_tokens += 1

    def end(self, prompt: int = 0, generated: int = 0) -> None:
        with self.lock:
            self.running -= 1
            self.succeeded += 1 if generated else 0
            self.prompt_tokens += prompt
            self.generated_tokens += generated


def _json(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value))


def _error(status: int, kind: str, message: str, parameter: str | None = None) -> Answer:
    error = {"message": message, "type": kind, "param": parameter, "code": status}
    return _json({"error": error}, status)


def get(path: str, served: Served, behaviour: Behaviour, counters: Counters) -> Answer:
    match path:
        case "/health" | "/ping":
            return Answer(503 if behaviour.health == "503" else 200)
        case "/version":
            return _json({"version": VERSION})
        case "/v1/models":
            return _models(served, behaviour)
        case "/metrics":
            text = _metrics(served, behaviour, counters)
            return Answer(200, text, "text/plain; version=1.0.0; charset=utf-8")
        case _:
            return _json({"detail": "Not Found"}, 404)


def refused(path: str, authorization: str | None, served: Served) -> Answer | None:
    """A missing or wrong key: only below /v1."""
    if served.api_key is None or not path.startswith("/v1"):
        return None
    if authorization == f"Bearer {served.api_key}":
        return None
    return _json({"error": "Unauthorized"}, 401)


def _models(served: Served, behaviour: Behaviour) -> Answer:
    model = {
        "id": served.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": served.root,
        "parent": None,
        "max_model_len": served.max_model_len,
    }
    return _json({"object": "list", "data": [model] if behaviour.models == "ok" else []})


def post(
    path: str, text: bytes, served: Served, behaviour: Behaviour, counters: Counters
) -> Answer:
    if path not in ("/v1/completions", "/v1/chat/completions"):
        return _json({"detail": "Not Found"}, 404)
    try:
        body = json.loads(text)
    except ValueError:
        return _error(400, "Bad Request", "1 validation error: JSON decode error", "body.0")
    chat = path == "/v1/chat/completions"
    return _bad_request(body, chat, served) or _complete(body, chat, served, behaviour, counters)


def _bad_request(body: Mapping[str, object], chat: bool, served: Served) -> Answer | None:
    model = body.get("model", served.name)
    if model != served.name:
        message = f"The model `{model}` does not exist. Valid aliases: {served.name}."
        return _error(404, "NotFoundError", message, "model")
    if chat and not served.chat:
        return _error(400, "BadRequestError", NO_TEMPLATE)
    if not chat and not body.get("prompt"):
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        return _error(400, "BadRequestError", f"{message} (parameter=prompt)", "prompt")
    wanted = body.get("max_tokens")
    if isinstance(wanted, int) and wanted > served.max_model_len:
        message = (
            f"max_tokens={wanted} cannot be greater than max_model_len={served.max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={wanted})"
        )
        return _error(400, "BadRequestError", message, "max_tokens")
    return None


def _complete(
    body: Mapping[str, object],
    chat: bool,
    served: Served,
    behaviour: Behaviour,
    counters: Counters,
) -> Answer:
    match behaviour.completion:
        case "error":
            return Answer(200, _error(500, "InternalServerError", "the engine is ill").body)
        case "500":
            return _error(500, "InternalServerError", "EngineCore encountered an issue.")
        case "exit":
            return Answer(200, ends_server=True)
    wanted = body.get("max_tokens")
    if body.get("stream"):
        return _stream(served.name, chat, wanted if isinstance(wanted, int) else 16)
    generated = min(wanted if isinstance(wanted, int) else 16, 64)
    prompt = len(json.dumps(body.get("messages" if chat else "prompt")).split())
    counters.begin()
    counters.end(prompt, generated)
    answer = _completion(served.name, chat, " la" * generated, prompt, generated)
    if behaviour.completion == "no-choices":
        answer["choices"] = []
    return _json(answer)


def _stream(name: str, chat: bool, tokens: int) -> Answer:
    """The tokens are numbered, so that a client can tell whether one is missing."""
    events = []
    for number in range(tokens):
        word = f" {number}"
        choice = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word})}
        chunk = {"id": "cmpl-standin", "created": int(time.time()), "model": name}
        events.append(json.dumps(chunk | {"choices": [choice]}))
    return Answer(200, content_type="text/event-stream", events=(*events, "[DONE]"))


def _completion(name: str, chat: bool, text: str, prompt: int, generated: int) -> dict[str, object]:
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": "chatcmpl-standin" if chat else "cmpl-standin",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": name,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        },
    }


def _metrics(served: Served, behaviour: Behaviour, counters: Counters) -> str:
    extra = int(behaviour.tokens_per_second * time.monotonic())
    labels = f'engine="0",model_name="{served.name}"'
    reasons = {"stop": 0, "length": counters.succeeded, "abort": 0, "error": 0}
    values = {
        f"vllm:num_requests_running{{{labels}}}": counters.running + behaviour.running,
        f"vllm:num_requests_waiting{{{labels}}}": 0,
        f"vllm:kv_cache_usage_perc{{{labels}}}": 0,
        f"vllm:num_preemptions_total{{{labels}}}": 0,
        f"vllm:prompt_tokens_total{{{labels}}}": counters.prompt_tokens,
        f"vllm:generation_tokens_total{{{labels}}}": counters.generated_tokens + extra,
        **{
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",'
            f'model_name="{served.name}"}}': count
            for reason, count in reasons.items()
        },
        f"vllm:time_to_first_token_seconds_count{{{labels}}}": counters.succeeded,
        f"vllm:time_to_first_token_seconds_sum{{{labels}}}": 0.01 * counters.succeeded,
        f"vllm:e2e_request_latency_seconds_count{{{labels}}}": counters.succeeded,
        f"vllm:e2e_request_latency_seconds_sum{{{labels}}}": 0.02 * counters.succeeded,
        'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="8192"}': 1,
    }
    return "".join(f"{name} {float(value)}\n" for name, value in values.items())
