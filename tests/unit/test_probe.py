"""Probes against a real HTTP server on loopback: what counts as an answer and what does not."""

import json
import socket
import threading
from typing import Any

import pytest

from epyc_vllm_agent.doors.probe import (
    Counters,
    base_url,
    completion,
    counters,
    health,
    listed,
    open_client,
)
from epyc_vllm_agent.facts.model import EndpointKind
from tests.httpserver import Server

CHAT, COMPLETIONS = EndpointKind.CHAT, EndpointKind.COMPLETIONS


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("10.1.2.3", "http://10.1.2.3:8000"),
        ("fe80:0:0::1", "http://[fe80::1]:8000"),
    ],
)
def test_where_a_client_of_this_host_asks(address: str, url: str) -> None:
    assert base_url(address, 8000) == url


def test_a_healthy_server(server: Server) -> None:
    server.serve_model("m")
    for probe in (
        health(server.url),
        listed(server.url, "m", None),
        completion(server.url, "m", CHAT, None),
        completion(server.url, "m", COMPLETIONS, None),
    ):
        assert (probe.ok, probe.reason, probe.refused) == (True, None, False)
        assert 0 < probe.seconds < 10


def test_a_look_has_one_connection_and_the_next_look_another(server: Server) -> None:
    server.answer("/health", "")
    server.answer(
        "/metrics", 'vllm:num_requests_running 1\nvllm:generation_tokens_total{a="}"} 2\n'
    )
    for _ in range(2):
        with open_client() as client:
            assert health(server.url, client=client).ok
            assert counters(server.url, client) == Counters(1, 0, 0, 2)
    first, second, third, fourth = server.peers
    assert first == second != third == fourth


def test_nobody_listens(free_port: int) -> None:
    probe = health(f"http://127.0.0.1:{free_port}")
    assert (probe.ok, probe.refused) == (False, True)
    assert probe.reason == f"nothing listens at http://127.0.0.1:{free_port}/health"


@pytest.mark.parametrize("status", [503, 500, 404, 204, 302])
def test_a_status_that_is_not_200(server: Server, status: int) -> None:
    server.answer("/health", "" if status == 204 else "engine \n dead", status)
    probe = health(server.url)
    assert (probe.ok, probe.refused) == (False, False)
    assert str(probe.reason).startswith(f"HTTP {status}: ")
    assert "\n" not in str(probe.reason)


def test_a_server_that_hangs(server: Server) -> None:
    server.serve_model("m")
    server.delay_seconds = 0.5
    probe = health(server.url, timeout_seconds=0.1)
    assert (probe.ok, probe.refused) == (False, False)
    assert "did not answer: ReadTimeout" in str(probe.reason)


def test_what_is_asked(server: Server) -> None:
    server.serve_model("m")
    name = "größe \"m\" 'x'"
    completion(server.url, name, CHAT, None)
    completion(server.url, name, COMPLETIONS, "k3y")
    first, second = ((path, json.loads(body)) for _, path, _, body in server.asked)
    assert (first[0], second[0]) == ("/v1/chat/completions", "/v1/completions")
    assert first[1] == {
        "model": name,
        "max_tokens": 16,
        "temperature": 0,
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert (second[1]["model"], second[1]["prompt"]) == (name, "Hello, world")
    assert "Authorization" not in server.asked[0][2]
    assert server.asked[1][2]["Authorization"] == "Bearer k3y"


def test_a_proxy_is_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.serve_model("m")
    assert health(server.url).ok


def test_a_key_that_is_wrong(server: Server) -> None:
    server.serve_model("m")
    server.key = "right"
    assert listed(server.url, "m", "right").ok
    assert str(listed(server.url, "m", "wrong").reason).startswith("HTTP 401")


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"id": "other"}]},
        {"data": []},
        {"data": None},
        {"data": {"id": "m"}},
        {"data": ["m"]},
        {"data": [{"id": ["m"]}]},
        {"id": "m"},
        {},
        [],
        ["m"],
        "m",
        "",
        "null",
        "<html>",
        "\udcff",
        "[" * 3000,
    ],
)
def test_a_list_without_the_model(server: Server, body: Any) -> None:
    server.answer("/v1/models", body)
    probe = listed(server.url, "m", None)
    assert (probe.ok, probe.refused) == (False, False)
    assert len(str(probe.reason)) < 600


@pytest.mark.parametrize("kind", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "boom", "code": 500}, "choices": [{"text": "", "message": {}}]},
        {"error": "boom"},
        {"object": "error", "message": "boom"},
        {"choices": []},
        {"choices": None},
        {"choices": {}},
        {"choices": {"0": {"text": "", "message": {}}}},
        {"choices": "text message"},
        {"choices": [None]},
        {"choices": [1]},
        {"choices": ["text", "message"]},
        {"choices": [[]]},
        {"choices": [{}]},
        {"choices": [{"text": None, "message": None}]},
        {"choices": [{"text": 3, "message": 3}]},
        {},
        [],
        [{"choices": [{"text": "", "message": {}}]}],
        "null",
        "true",
        "",
        "not JSON",
    ],
)
def test_an_answer_that_is_none(server: Server, kind: EndpointKind, body: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        server.answer(path, body)
    probe = completion(server.url, "m", kind, None)
    assert (probe.ok, probe.refused) == (False, False)
    assert probe.reason
    if isinstance(body, dict) and "error" in body:
        assert "boom" in probe.reason


@pytest.mark.parametrize(
    ("kind", "choice"),
    [
        (CHAT, {"message": {"content": ""}, "finish_reason": "length"}),
        (CHAT, {"message": {"content": None, "reasoning_content": "hm"}}),
        (COMPLETIONS, {"text": "", "finish_reason": "length"}),
    ],
)
def test_an_empty_text_is_an_answer(
    server: Server, kind: EndpointKind, choice: dict[str, Any]
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        server.answer(path, {"choices": [choice], "error": None})
    assert completion(server.url, "m", kind, None).ok


def test_a_long_answer_is_cut(server: Server) -> None:
    server.answer("/health", "x" * 100_000, 500)
    assert len(str(health(server.url).reason)) < 400


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_peer_that_does_not_speak_http(sent: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        peer.recv(4096)
        peer.sendall(sent)
        peer.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    probe = health(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=5)
    thread.join(5)
    listener.close()
    assert (probe.ok, probe.refused) == (False, False)
    assert "did not answer" in str(probe.reason)
