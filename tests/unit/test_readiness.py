"""When an instance answers, and the phase in which one does not."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.watch.readiness import api_key, url_of, verify, verify_all, wait
from tests.hosts import HOSTS, facts_of
from tests.httpserver import Server
from tests.plans import CHAT, NO_CHAT, endpoint, model_facts, plan

ALIVE = os.getpid()
GONE = 2**22 + 1  # beyond any pid_max


def planned(port: int, chat: bool = True, **keys: Any) -> EndpointPlan:
    config = endpoint(served_model_name="m", sockets=[0], port=port, start_timeout=10, **keys)
    model = model_facts(chat_template=CHAT if chat else NO_CHAT)
    return plan(facts_of(HOSTS["genoa-1s"]), config, model)


def waited(made: EndpointPlan, pid: int = ALIVE) -> tuple[str, str | None, list[str]]:
    begun: list[str] = []
    result = wait(made, made.instances[0], pid, begun.append)
    return result.phase, result.probe.reason, begun


@pytest.mark.parametrize(
    ("chat", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")]
)
def test_an_instance_that_answers(server: Server, chat: bool, path: str) -> None:
    server.serve_model("m")
    made = planned(server.port, chat)
    assert waited(made) == ("completion", None, ["health", "health", "models", "completion"])
    assert server.asked[-1][1] == path
    found = verify(made, made.instances[0])
    assert found.ok
    assert [result.phase for result in found.phases] == ["health", "models", "completion"]


@pytest.mark.parametrize(
    ("path", "body", "status", "phase", "reason"),
    [
        ("/v1/models", {"data": [{"id": "other"}]}, 200, "models", "lists ['other'], not 'm'"),
        ("/v1/chat/completions", {"error": {"message": "boom"}}, 200, "completion", "boom"),
        ("/v1/chat/completions", "template", 400, "completion", "HTTP 400: template"),
    ],
)
def test_a_server_that_is_up_but_does_not_answer(
    server: Server, path: str, body: object, status: int, phase: str, reason: str
) -> None:
    server.serve_model("m")
    server.answer(path, body, status)
    made = planned(server.port)
    failed, said, begun = waited(made)
    assert (failed, begun[-1]) == (phase, phase)
    assert reason in str(said)
    (verified,) = verify_all(made)
    assert not verified.ok
    assert verified.phases[-1].phase == phase


def test_a_server_that_comes_up_in_time(server: Server) -> None:
    """While it loads it answers nothing good, and is neither dead nor late."""
    server.answer("/health", "loading", 500)
    thread = threading.Timer(0.2, server.serve_model, ["m"])
    thread.start()
    assert waited(planned(server.port))[:2] == ("completion", None)
    thread.join()


def test_a_server_that_exits_while_loading(free_port: int) -> None:
    began = time.monotonic()
    phase, reason, begun = waited(planned(free_port), GONE)
    assert (phase, reason, begun) == ("health", "the server exited while loading", ["health"])
    assert time.monotonic() - began < 5


def test_an_engine_that_is_dead(server: Server) -> None:
    server.answer("/health", "", 503)
    phase, reason, _ = waited(planned(server.port))
    assert (phase, reason) == ("health", "the engine is dead (/health answers 503)")


def test_a_number_that_looks_like_a_dead_engine(server: Server) -> None:
    """Only the status tells: 503 may as well stand in a text or be part of a port."""
    server.answer("/health", "503 requests waiting", 500)
    made = replace(planned(server.port), start_timeout_seconds=1)
    assert "not healthy within 1 s: HTTP 500: 503 requests" in str(waited(made)[1])


def test_a_server_that_is_not_healthy_in_time(free_port: int) -> None:
    made = replace(planned(free_port), start_timeout_seconds=0)
    phase, reason, _ = waited(made)
    assert (phase, str(reason).startswith("not healthy within 0 s: nothing listens")) == (
        "health",
        True,
    )


def test_verify_of_what_does_not_run(free_port: int) -> None:
    made = planned(free_port)
    found = verify(made, made.instances[0])
    assert ([r.phase for r in found.phases], found.phases[0].probe.refused) == (["health"], True)


def test_the_key_is_sent(server: Server, tmp_path: Path) -> None:
    server.serve_model("m")
    server.key = "k3y"
    key = tmp_path / "key"
    key.write_text("VLLM_API_KEY=k3y\n")
    assert waited(planned(server.port, api_key_file=str(key)))[:2] == ("completion", None)
    key.write_text("VLLM_API_KEY=other\n")
    assert waited(planned(server.port, api_key_file=str(key)))[0] == "models"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("VLLM_API_KEY=abc", "abc"),
        ("# note\n\n VLLM_API_KEY = x\nVLLM_API_KEY='q=1'\nOTHER=y\n", "q=1"),
        ('VLLM_API_KEY="abc"\r\n', "abc"),
        ("VLLM_API_KEY=first\nVLLM_API_KEY=last\n", "last"),
    ],
)
def test_the_key_in_its_file(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    assert api_key(planned(8000, api_key_file=str(path))) == key


def test_without_a_key_file() -> None:
    assert api_key(planned(8000)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc\n",
        b"VLLM_API_KEY=\n",
        b"VLLM_API_KEY=''\n",
        b"VLLM_API_KEY=a\nVLLM_API_KEY=\n",
        b"XVLLM_API_KEY=abc\n",
        b"#VLLM_API_KEY=abc\n",
        b"VLLM_API_KEY=a b\n",
        b"VLLM_API_KEY=gr\xc3\xb6\xc3\x9fe\n",
        b"VLLM_API_KEY=\xff\n",
        b"VLLM_API_KEY=a\\b\n",
    ],
)
def test_a_file_without_a_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ActionFailed) as caught:
        api_key(planned(8000, api_key_file=str(path)))
    assert caught.value.code == "key-missing"


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match="cannot be read"):
        api_key(planned(8000, api_key_file=str(tmp_path / "absent")))


def test_the_url_of_an_instance() -> None:
    made = planned(8123, address="::")
    assert url_of(made, made.instances[0]) == "http://[::1]:8123"
