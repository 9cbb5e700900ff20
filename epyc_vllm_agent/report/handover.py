"""The hand-over of an endpoint (the recipe's step 8): connection table and examples; pure."""

import json
import shlex
from dataclasses import dataclass

from epyc_vllm_agent.doors.probe import base_url
from epyc_vllm_agent.facts.model import EndpointKind
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.report.text import route, table
from epyc_vllm_agent.units.names import service_name, target_name

_KEY = "$VLLM_API_KEY"


@dataclass(frozen=True, slots=True)
class Connection:
    """How a client reaches one instance."""

    instance: str
    base_url: str
    served_model: str
    endpoint: str
    port: int
    socket: int
    curl: str
    python: str


def connections(plan: EndpointPlan) -> tuple[Connection, ...]:
    return tuple(_connection(plan, instance) for instance in plan.instances)


def handover(plan: EndpointPlan) -> str:
    """Everything a user needs to call the endpoint, as text."""
    parts = []
    for instance, connection in zip(plan.instances, connections(plan), strict=True):
        parts.append(table(_rows(plan, instance, connection)))
    last = connections(plan)[0]
    parts.append("Try it:\n\n" + last.curl)
    parts.append("OpenAI's Python client:\n\n" + last.python)
    parts.append(_ADVICE)
    return "\n\n".join(parts)


def _rows(plan: EndpointPlan, instance: Instance, connection: Connection) -> list[tuple[str, str]]:
    chat = plan.model.primary_endpoint is EndpointKind.CHAT
    why = "a chat template is present" if chat else "no chat template: raw prompts"
    return [
        ("Base URL", connection.base_url),
        ("Served model", connection.served_model),
        ("Endpoint", connection.endpoint),
        ("Why", why),
        ("Runtime / port", f"{plan.runtime} / {instance.port}"),
        (
            "Sizing",
            f"threads on CPUs {instance.threads_bind}, KV {instance.kv_gib_per_rank} GiB per rank, "
            f"--max-model-len {plan.config.max_model_len}, socket {instance.socket}",
        ),
        ("Unit", f"{service_name(instance.name)} (part of {target_name(plan.name)})"),
        ("Stop", f"systemctl stop {target_name(plan.name)}"),
        ("Log", f"journalctl -u {service_name(instance.name)}"),
    ]


def _connection(plan: EndpointPlan, instance: Instance) -> Connection:
    kind = plan.model.primary_endpoint
    url = base_url(plan.config.address, instance.port)
    name = plan.config.client_name
    return Connection(
        instance=instance.name,
        base_url=f"{url}/v1",
        served_model=name,
        endpoint=route(kind),
        port=instance.port,
        socket=instance.socket,
        curl=_curl(url, name, kind, plan.config.api_key_file is not None),
        python=_python(url, kind, plan.config.api_key_file is not None),
    )


def _curl(url: str, model: str, kind: EndpointKind, with_key: bool) -> str:
    body: dict[str, object] = {"model": model}
    if kind is EndpointKind.CHAT:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    else:
        body["prompt"] = "Hello, world"
    body |= {"max_tokens": 128, "temperature": 0.7}
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    key = f' -H "Authorization: Bearer {_KEY}"' if with_key else ""
    where = shlex.quote(url + route(kind))  # an IPv6 address has brackets
    return f"curl -s {where} -H 'Content-Type: application/json'{key} -d {text}"


def _python(url: str, kind: EndpointKind, with_key: bool) -> str:
    key = 'os.environ["VLLM_API_KEY"]' if with_key else '"EMPTY"'
    lines = ["import os"] if with_key else []
    lines += [
        "from openai import OpenAI",
        "",
        f'client = OpenAI(base_url="{url}/v1", api_key={key})',
        "model = client.models.list().data[0].id",
    ]
    if kind is EndpointKind.CHAT:
        lines += [
            "answer = client.chat.completions.create(",
            '    model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=128)',
            "print(answer.choices[0].message.content)",
        ]
    else:
        lines += [
            "answer = client.completions.create(",
            '    model=model, prompt="Hello, world", max_tokens=128)',
            "print(answer.choices[0].text)",
        ]
    return "\n".join(lines)


_ADVICE = """\
max_tokens caps the answer; prompt and answer together must stay within --max-model-len.
temperature 0 is deterministic; tune top_p or temperature, not both. "stream": true streams.
The model's generation_config.json may set sampling defaults: give values to be sure."""
