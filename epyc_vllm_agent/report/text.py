"""Tables and summaries as plain text; formats, decides nothing."""

import datetime
from collections.abc import Sequence

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.model import EndpointKind
from epyc_vllm_agent.plan.values import EndpointPlan, Gate, Instance, Prediction, Refusal
from epyc_vllm_agent.sizes import gib

_ROUTES = {
    EndpointKind.CHAT: "/v1/chat/completions",
    EndpointKind.COMPLETIONS: "/v1/completions",
}


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns, the first padded."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; no rule lines, as ps(1) prints."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def route(kind: EndpointKind) -> str:
    return _ROUTES[kind]


def summary(plan: EndpointPlan) -> str:
    """The recipe's summary before a launch (step 6), with gates, warnings and refusals."""
    rows = [
        ("Endpoint", plan.name),
        ("Model / kind", f"{plan.model.id} -- {plan.model.kind}, {_answers(plan)}"),
        ("Revision", plan.model.revision or "a directory, used in place"),
        ("Backend", _backend(plan)),
        *((("Platform", _platform(plan.prediction)),) if plan.prediction else ()),
        ("Path", _path(plan)),
        ("Precision", plan.config.dtype),
        ("Context", f"{plan.config.max_model_len} tokens x {plan.config.num_prompts} at once"),
        *((f"Fit {instance.name}", _fit(instance)) for instance in plan.instances),
        *((f"CPUs {instance.name}", _cpus(instance)) for instance in plan.instances),
        ("Sockets", plan.socket_reason),
        ("Hardware", plan.hardware),
        ("Port", ", ".join(f"{i.name} {plan.config.address}:{i.port}" for i in plan.instances)),
    ]
    parts = [table(rows)]
    parts += [f"gate     {_gate(gate)}" for gate in plan.gates]
    parts += [f"warning  {warning}" for warning in plan.warnings]
    parts += [f"refused  {_refusal(refusal)}" for refusal in plan.refusals]
    return "\n".join(parts)


def _answers(plan: EndpointPlan) -> str:
    reason = {
        "present": "chat template present",
        "absent": "no chat template",
        "ambiguous": "several chat templates: " + ", ".join(plan.model.chat_template.names),
        "unknown": "chat template not known",
    }[plan.model.chat_template.status]
    if plan.config.chat_template:
        reason = "chat template given"
    return f"{route(plan.model.primary_endpoint)} ({reason})"


def _backend(plan: EndpointPlan) -> str:
    stack = plan.stack
    if stack.vllm is None:
        return f"{stack.name}, of a version that the image will tell"
    if stack.name == "zentorch":
        return f"zentorch {stack.zentorch} on vLLM {stack.vllm} ({stack.platform})"
    return f"stock vLLM {stack.vllm} on the CPU, no zentorch: unaccelerated ({stack.platform})"


def stack(plan: EndpointPlan) -> str:
    """The software that serves, and where it comes from."""
    container = plan.launch.container
    where = (container.pinned or container.image) if container else plan.launch.environment
    return f"{_backend(plan)} in {where}"


def found(plan: EndpointPlan) -> str:
    """What a fetched image turned out to have in it."""
    container = plan.launch.container
    return f"found    {_backend(plan)} in {container.pinned if container else plan.runtime}"


def _platform(prediction: Prediction) -> str:
    return f"{prediction.platform or prediction.kind} predicted: {prediction.why}"


def _path(plan: EndpointPlan) -> str:
    container, reason = plan.launch.container, plan.launch.reason
    if container is None:
        how = f"{plan.launch.environment} under {_pinning(plan)}"
    else:
        kind = "quadlet" if container.generator else "a plain service"
        how = f"{kind} of {container.program} {container.version}, image {container.image}"
        digest = (container.pinned or "").rpartition("@")[2]
        how += f" ({digest[:19]})" if container.pinned else " (not here yet)"
    return f"{plan.runtime}: {how}" + (f"; {reason}" if reason else "")


def _pinning(plan: EndpointPlan) -> str:
    if plan.launch.numactl:
        return "numactl"
    return "taskset (memory not bound)" if plan.launch.taskset else "nothing (unpinned)"


def _fit(instance: Instance) -> str:
    fit = instance.fit
    verdict = "fits" if fit.fits else "does not fit"
    nodes = cpulist.format(instance.nodes)
    tokens = f" for {fit.kv_capacity_tokens} tokens" if fit.kv_capacity_tokens else ""
    return (
        f"{verdict}: {gib(fit.required_bytes)} of {gib(fit.available_bytes)} on node {nodes} "
        f"(weights {gib(fit.weight_bytes)}, KV {instance.kv_gib_per_rank} GiB per rank{tokens})"
    )


def _cpus(instance: Instance) -> str:
    kept = cpulist.format(instance.kept_cpus) or "none"
    return (
        f"socket {instance.socket}, threads on {instance.threads_bind}, "
        f"kept for the server {kept}, "
        f"memory on node {cpulist.format(instance.nodes)}"
    )


def _gate(gate: Gate) -> str:
    if gate.accepted:
        return f"{gate.name}: {gate.text} (accepted)"
    return f"{gate.name}: {gate.text}; accept it with --accept {gate.name}"


def _refusal(refusal: Refusal) -> str:
    return f"{refusal.message}; {refusal.hint}"


def when(seconds: float | None) -> str:
    """A moment in local time, as journalctl's short-iso without the zone."""
    if seconds is None:
        return "-"
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
