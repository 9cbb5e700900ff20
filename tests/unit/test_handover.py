"""The hand-over: what a user pastes must be right, whatever the model is called."""

import ast
import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config import checks
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.report.handover import connections, handover
from tests.hosts import HOSTS, facts_of
from tests.plans import CHAT, NO_CHAT, endpoint, model_facts, plan

FACTS = facts_of(HOSTS["genoa-2s-nps1"])


def planned(chat: bool = True, **keys: Any) -> EndpointPlan:
    return plan(FACTS, endpoint(**keys), model_facts(chat_template=CHAT if chat else NO_CHAT))


def curl(line: str) -> tuple[str, list[str], dict[str, Any]]:
    """URL, headers and body of a printed curl line, as a shell takes it apart."""
    program, silent, url, *rest = shlex.split(line)
    assert (program, silent) == ("curl", "-s")
    options = list(zip(rest[::2], rest[1::2], strict=True))
    headers = [value for option, value in options if option == "-H"]
    (body,) = [value for option, value in options if option == "-d"]
    return url, headers, json.loads(body)


def test_a_chat_model() -> None:
    first, second = connections(planned())
    url, headers, body = curl(first.curl)
    assert url == "http://127.0.0.1:8000/v1/chat/completions"
    assert headers == ["Content-Type: application/json"]
    assert body == {
        "model": "Qwen/Qwen3-8B",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 128,
        "temperature": 0.7,
    }
    assert first.base_url == "http://127.0.0.1:8000/v1"
    assert (second.base_url, second.socket) == ("http://127.0.0.1:8001/v1", 1)


def test_a_model_without_template() -> None:
    connection = connections(planned(chat=False))[0]
    url, _, body = curl(connection.curl)
    assert url == "http://127.0.0.1:8000/v1/completions"
    assert (body["prompt"], "messages" in body) == ("Hello, world", False)
    assert "completions.create" in connection.python
    assert "chat" not in connection.python


def test_with_a_key_the_shell_fills_it_in() -> None:
    made = planned(api_key_file="/etc/epyc-vllm/key", address="0.0.0.0")
    connection = connections(made)[0]
    assert '"Authorization: Bearer $VLLM_API_KEY"' in connection.curl  # double quotes: expanded
    assert 'os.environ["VLLM_API_KEY"]' in connection.python
    assert connection.base_url == "http://127.0.0.1:8000/v1"


def test_an_ipv6_address_is_quoted() -> None:
    connection = connections(planned(address="::1"))[0]
    assert "'http://[::1]:8000/v1/chat/completions'" in connection.curl


def is_name(value: str) -> bool:
    try:
        checks.name(value)
    except ValueError:
        return False
    return True


@given(st.text(min_size=1).filter(is_name) | st.text("a'\"\\$`!%é ", min_size=1))
def test_every_name_arrives_unchanged(name: str) -> None:
    made = planned(served_model_name=name)
    connection = connections(made)[0]
    assert connection.served_model == name
    assert curl(connection.curl)[2]["model"] == name


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("key", [None, "/etc/key"])
def test_the_client_example_is_python(chat: bool, key: str | None) -> None:
    keys = {"api_key_file": key} if key else {}
    text = connections(planned(chat, served_model_name='it\'s "x"', **keys))[0].python
    tree = ast.parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {"OpenAI", "client", "model", "answer"} <= names
    assert ("os" in names) == bool(key)


def test_the_text_holds_everything() -> None:
    made = planned()
    text = handover(made)
    for connection in connections(made):
        assert connection.base_url in text
    for part in (
        "systemctl stop epyc-vllm-qwen3-8b.target",
        "journalctl -u epyc-vllm-qwen3-8b-s1",
        "/v1/chat/completions",
        "a chat template is present",
        connections(made)[0].curl,
        connections(made)[0].python,
        "--max-model-len 4096",
    ):
        assert part in text
