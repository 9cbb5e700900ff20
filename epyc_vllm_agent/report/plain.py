"""Results as JSON values with a schema version; the names others rely on are fixed here."""

from typing import Any

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.report.answer import SCHEMA, dump
from epyc_vllm_agent.units.names import UnitFile
from epyc_vllm_agent.watch.readiness import Verified

__all__ = ["SCHEMA", "dump", "plan", "value", "verified"]


def plan(value: EndpointPlan, units: tuple[UnitFile, ...]) -> dict[str, Any]:
    model = to_plain(value.model)
    return {
        "endpoint": value.name,
        "hardware": value.hardware,
        "runtime": value.runtime,
        "stack": value.stack.name,
        "versions": {k: v for k, v in to_plain(value.stack).items() if k != "name"},
        "prediction": to_plain(value.prediction),
        "precision": value.config.dtype,
        "max_model_len": value.config.max_model_len,
        "num_prompts": value.config.num_prompts,
        "model": model,
        "sockets": value.socket_reason,
        "instances": [_instance(instance) for instance in value.instances],
        "gates": [{"name": gate.name, "accepted": gate.accepted} for gate in value.gates],
        "warnings": list(value.warnings),
        "refusals": to_plain(value.refusals),
        "units": to_plain(units),
    }


def _instance(value: Instance) -> dict[str, Any]:
    return {
        "name": value.name,
        "socket": value.socket,
        "cpus": cpulist.format(value.cpus),
        "nodes": list(value.nodes),
        "ranks": [{"node": rank.node, "cpus": cpulist.format(rank.cpus)} for rank in value.ranks],
        "kept_cpus": cpulist.format(value.kept_cpus),
        "threads_bind": value.threads_bind,
        "port": value.port,
        "kv_gib_per_rank": value.kv_gib_per_rank,
        "fit": to_plain(value.fit),
    }


def value(item: Any) -> Any:
    """A result that is a frozen dataclass, as it is."""
    return to_plain(item)


def verified(item: Verified) -> dict[str, Any]:
    return {"instance": item.instance, "ok": item.ok, "phases": to_plain(item.phases)}
