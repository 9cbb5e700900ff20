"""HTTP probes of a running server: the only importer of httpx. One request each, no waiting."""

import contextlib
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from epyc_vllm_agent.facts.model import EndpointKind

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx import HTTPTransport as Client
    from httpx import Request

Judge = Callable[[dict[str, Any]], str | None]

_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of one request: `reason` is None where it is as it should be."""

    ok: bool
    refused: bool  # nobody listens there (yet)
    seconds: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class Counters:
    """What /metrics of a server says, summed over its engines."""

    running: int
    waiting: int
    prompt_tokens: int
    generation_tokens: int

    @property
    def requests(self) -> int:
        return self.running + self.waiting

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generation_tokens


def open_client() -> "Client":
    """What the probes of one look are asked with, on one connection.

    It is httpx's transport alone: its Client adds cookies, redirects and a proxy from the
    environment, which must not be asked for this host's own endpoints, at twice the CPU time.
    Not one for all instances and all looks: its pool goes through every connection at every
    question (half of the watchdog's CPU time at 64 instances), and a server closes an idle one
    (uvicorn: after 5 seconds) at just the time when the next look would use it.
    """
    import httpx

    return httpx.HTTPTransport(trust_env=False, verify=_unused_tls())


@cache
def _unused_tls() -> "SSLContext":
    """Of clients that ask plain http only. httpx would make one for each, at a probe's CPU time."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


def _ask(client: "Client", request: "Request") -> _Answer:
    """One answer, read whole; raises httpx.HTTPError."""
    answer = client.handle_request(request)
    try:  # as it came: httpx's own reading undoes encodings that were not asked for
        return _Answer(answer.status_code, b"".join(cast("Iterable[bytes]", answer.stream)))
    finally:
        answer.close()


@lru_cache(maxsize=256)
def _get(url: str, timeout_seconds: float, last: bool = True) -> "Request":
    """A question without body and key: the same each time, and making it costs CPU time."""
    return _request("GET", url, timeout_seconds, last=last)


def _request(
    method: str,
    url: str,
    timeout_seconds: float,
    body: Mapping[str, Any] | None = None,
    key: str | None = None,
    last: bool = True,
) -> "Request":
    """`last`: of its connection."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {"Connection": "close"} if last else {}
    timeout = httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds))
    more = {"timeout": timeout.as_dict()}
    return httpx.Request(method, url, json=body, headers=headers, extensions=more)


@lru_cache(maxsize=256)
def base_url(address: str, port: int) -> str:
    """The URL a client on this host uses: loopback where the server listens on all addresses."""
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return f"http://[{ip}]:{port}" if ip.version == 6 else f"http://{ip}:{port}"


def health(url: str, timeout_seconds: float = 10.0, client: "Client | None" = None) -> Probe:
    """GET /health. vLLM answers 503 only when its engine is dead, never while it loads."""
    request = _get(f"{url}/health", timeout_seconds, last=client is None)
    return _judged(request, None, client)


def counters(url: str, client: "Client", timeout_seconds: float = 5.0) -> Counters | None:
    """GET /metrics; None where it is not answered, or does not tell (--disable-log-stats)."""
    import httpx

    try:
        answer = _ask(client, _get(f"{url}/metrics", timeout_seconds))
    except httpx.HTTPError:
        return None
    return _counters(answer.content) if answer.status == 200 else None


# The line break stands for "^", which would be tried at each of 60,000 characters.
_METRIC = re.compile(
    rb"\nvllm:(num_requests_running|num_requests_waiting|prompt_tokens_total|generation_tokens_total)"
    rb"(?:\{.*\})? (\S+)"
)


def _counters(text: bytes) -> Counters | None:
    sums: dict[bytes, int] = {}
    for name, value in _METRIC.findall(b"\n" + text):
        try:
            sums[name] = sums.get(name, 0) + int(float(value))
        except (ValueError, OverflowError):  # NaN, +Inf, or no number at all
            return None
    if not {b"num_requests_running", b"generation_tokens_total"} <= sums.keys():
        return None
    return Counters(
        running=sums[b"num_requests_running"],
        waiting=sums.get(b"num_requests_waiting", 0),
        prompt_tokens=sums.get(b"prompt_tokens_total", 0),
        generation_tokens=sums[b"generation_tokens_total"],
    )


def listed(url: str, model: str, key: str | None, timeout_seconds: float = 30.0) -> Probe:
    """GET /v1/models must name `model`."""

    def judge(answer: dict[str, Any]) -> str | None:
        names = [entry.get("id") for entry in _tables(answer.get("data"))]
        return None if model in names else f"/v1/models lists {names}, not {model!r}"

    return _judged(_request("GET", f"{url}/v1/models", timeout_seconds, key=key), judge)


def completion(
    url: str,
    model: str,
    kind: EndpointKind,
    key: str | None,
    timeout_seconds: float = 180.0,
    max_tokens: int = 16,
) -> Probe:
    """One small deterministic completion. Its text may be empty: choices[0] decides."""
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    if kind is EndpointKind.CHAT:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
    else:
        path, body["prompt"] = "/v1/completions", "Hello, world"

    def judge(answer: dict[str, Any]) -> str | None:
        return _choice(answer, kind)

    request = _request("POST", url + path, timeout_seconds, body, key)
    return _judged(request, judge)


def _choice(answer: dict[str, Any], kind: EndpointKind) -> str | None:
    if answer.get("error"):
        return f"the answer is an error: {_short(answer['error'])}"
    part, shape = ("message", dict) if kind is EndpointKind.CHAT else ("text", str)
    choices = _tables(answer.get("choices"))
    if not choices or not isinstance(choices[0].get(part), shape):
        return f"the answer has no choices[0].{part}: {_short(answer)}"
    return None


def _tables(value: object) -> list[dict[str, Any]]:
    """The JSON objects of a list; nothing where it is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _judged(request: "Request", judge: Judge | None, client: "Client | None" = None) -> Probe:
    import httpx

    began = time.monotonic()
    refused, reason = False, None
    try:
        with contextlib.nullcontext(client) if client else open_client() as asking:
            answer = _ask(asking, request)
        reason = _reason(answer, judge)
    except httpx.ConnectError:
        refused, reason = True, f"nothing listens at {request.url}"
    except httpx.HTTPError as error:
        reason = f"{request.url} did not answer: {type(error).__name__} {error}".rstrip()
    return Probe(reason is None, refused, time.monotonic() - began, reason)


def _reason(answer: _Answer, judge: Judge | None) -> str | None:
    if answer.status != 200:
        return f"HTTP {answer.status}: {_short(answer.text)}"
    if judge is None:
        return None
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError):  # the latter: brackets without end
        return f"the answer is not JSON: {_short(answer.text)}"
    if not isinstance(value, dict):
        return f"the answer is not a JSON object: {_short(answer.text)}"
    return judge(value)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 300 else text[:297] + "..."
