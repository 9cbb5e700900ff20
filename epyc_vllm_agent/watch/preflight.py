"""Before a server starts: is what its plan counted on still so? Looks, changes nothing."""

import os
from pathlib import Path

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.plan.values import EndpointPlan, Instance, Refusal


def preflight(plan: EndpointPlan, instance: Instance, facts: HostFacts) -> Refusal | None:
    """The first thing that has changed since the plan, None where all is as planned."""
    replan = f"run `epyc-vllm enable {plan.name}` to plan it anew"
    missing = set(instance.cpus) - set(facts.allowed_cpus)
    if instance.port in facts.listening_ports:
        return Refusal(
            "port-busy",
            f"port {instance.port} is in use by another program",
            f"see `ss -ltnp 'sport = :{instance.port}'` and stop it, or give the endpoint "
            "another port",
        )
    if missing:
        return Refusal(
            "cpus-gone", f"CPUs {cpulist.format(missing)} of the plan are not usable now", replan
        )
    return (
        _nodes(instance, facts, replan) or _memory(instance, facts, replan) or _files(plan, replan)
    )


def _nodes(instance: Instance, facts: HostFacts, replan: str) -> Refusal | None:
    node_of = {cpu: node.id for node in facts.nodes for cpu in node.cpus}
    for rank in instance.ranks:
        moved = [cpu for cpu in rank.cpus if node_of.get(cpu) != rank.node]
        if moved:
            return Refusal(
                "topology-changed",
                f"CPUs {cpulist.format(moved)} are no longer on NUMA node {rank.node}",
                replan,
            )
    return None


def _memory(instance: Instance, facts: HostFacts, replan: str) -> Refusal | None:
    each = instance.fit.required_bytes // len(instance.ranks)
    for rank in instance.ranks:
        free = facts.node(rank.node).free_bytes
        if free is not None and free < each:
            return Refusal(
                "memory-gone",
                f"node {rank.node} has {free / 2**30:.1f} GiB free, {each / 2**30:.1f} GiB are "
                "needed",
                f"stop what holds its memory, or {replan}",
            )
    return None


def _files(plan: EndpointPlan, replan: str) -> Refusal | None:
    template = [plan.config.chat_template] if plan.config.chat_template else []
    model, vllm = f"{plan.model.path}/config.json", f"{plan.launch.environment}/bin/vllm"
    for path in (model, vllm, *template):
        if not Path(path).exists():
            return Refusal("file-gone", f"{path} is missing", replan)
        if not os.access(path, os.R_OK):
            return Refusal("file-unreadable", f"{path} cannot be read", replan)
    return None
