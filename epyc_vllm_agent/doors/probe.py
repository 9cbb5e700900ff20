"""HTTP probes of a running server: the only importer of httpx. One request each, no waiting."""

import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent.facts.model import EndpointKind

Judge = Callable[[dict[str, Any]], str | None]

_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of one request: `reason` is None where it is as it should be."""

    ok: bool
    refused: bool  # nobody listens there (yet)
    seconds: float
    reason: str | None


def base_url(address: str, port: int) -> str:
    """The URL a client on this host uses: loopback where the server listens on all addresses."""
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return f"http://[{ip}]:{port}" if ip.version == 6 else f"http://{ip}:{port}"


def health(url: str, timeout_seconds: float = 10.0) -> Probe:
    """GET /health. vLLM answers 503 only when its engine is dead, never while it loads."""
    return _judged("GET", f"{url}/health", None, None, timeout_seconds, None)


def listed(url: str, model: str, key: str | None, timeout_seconds: float = 30.0) -> Probe:
    """GET /v1/models must name `model`."""

    def judge(answer: dict[str, Any]) -> str | None:
        names = [entry.get("id") for entry in _tables(answer.get("data"))]
        return None if model in names else f"/v1/models lists {names}, not {model!r}"

    return _judged("GET", f"{url}/v1/models", None, key, timeout_seconds, judge)


def completion(
    url: str, model: str, kind: EndpointKind, key: str | None, timeout_seconds: float = 180.0
) -> Probe:
    """One small deterministic completion. Its text may be empty: choices[0] decides."""
    body: dict[str, Any] = {"model": model, "max_tokens": 16, "temperature": 0}
    if kind is EndpointKind.CHAT:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
    else:
        path, body["prompt"] = "/v1/completions", "Hello, world"
    return _judged("POST", url + path, body, key, timeout_seconds, lambda a: _choice(a, kind))


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


def _judged(
    method: str,
    url: str,
    body: Mapping[str, Any] | None,
    key: str | None,
    timeout_seconds: float,
    judge: Judge | None,
) -> Probe:
    import httpx

    began = time.monotonic()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds))
    refused, reason = False, None
    try:
        # trust_env: a proxy set for the hub must not be asked for this host's own endpoint.
        with httpx.Client(timeout=timeout, trust_env=False) as client:
            answer = client.request(method, url, json=body, headers=headers)
        reason = _reason(answer, judge)
    except httpx.ConnectError:
        refused, reason = True, f"nothing listens at {url}"
    except httpx.HTTPError as error:
        reason = f"{url} did not answer: {type(error).__name__} {error}".rstrip()
    return Probe(reason is None, refused, time.monotonic() - began, reason)


def _reason(answer: Any, judge: Judge | None) -> str | None:
    if answer.status_code != 200:
        return f"HTTP {answer.status_code}: {_short(answer.text)}"
    if judge is None:
        return None
    try:
        value = answer.json()
    except (ValueError, RecursionError):  # the latter: brackets without end
        return f"the answer is not JSON: {_short(answer.text)}"
    if not isinstance(value, dict):
        return f"the answer is not a JSON object: {_short(answer.text)}"
    return judge(value)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 300 else text[:297] + "..."
