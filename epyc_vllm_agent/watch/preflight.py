"""Before a server starts: is what its plan counted on still so? Looks, changes nothing."""

import os
from pathlib import Path

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.doors import containers
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Instance, Refusal


def preflight(plan: EndpointPlan, instance: Instance, facts: HostFacts) -> Refusal | None:
    """The first thing that has changed since the plan, None where all is as planned."""
    replan = _replan(plan)
    if instance.port in facts.listening_ports:
        return Refusal(
            "port-busy",
            f"port {instance.port} is in use by another program",
            f"see `ss -ltnp 'sport = :{instance.port}'` and stop it, or give the endpoint "
            "another port",
        )
    return moved(plan, instance, facts) or _memory(instance, facts, replan) or _files(plan, replan)


def moved(plan: EndpointPlan, instance: Instance, facts: HostFacts) -> Refusal | None:
    """What the instance is pinned to is gone, or elsewhere: None where it is as planned."""
    missing = set(instance.cpus) - set(facts.allowed_cpus)
    if missing:
        message = f"CPUs {cpulist.format(missing)} of the plan are not usable now"
        return Refusal("cpus-gone", message, _replan(plan))
    return _nodes(instance, facts, _replan(plan))


def _replan(plan: EndpointPlan) -> str:
    return f"run `epyc-vllm enable {plan.name}` to plan it anew"


def container_preflight(plan: EndpointPlan, instance: Instance) -> Refusal | None:
    """The same for what the container runtime has: the image, and the container's name free."""
    container = plan.launch.container
    if container is None:
        return None
    if containers.find(container.program, container.pinned or container.image) is None:
        return Refusal(
            "image-gone",
            f"the image {container.pinned or container.image} is not on this host any more",
            f"run `epyc-vllm enable {plan.name}`: it fetches the image again",
        )
    return foreign_container(container, instance)


def foreign_container(container: Container, instance: Instance) -> Refusal | None:
    """A container that has our name and is not ours: it would be replaced."""
    name = containers.container_name(instance.name)
    found = containers.container(container.program, name)
    if found is None or found.instance == instance.name:
        return None
    return Refusal(
        "container-foreign",
        f"there is a container {name} that epyc-vllm did not make",
        f"see `{container.runtime} ps --all`; rename or remove it, or give the endpoint another "
        "name",
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
    container = plan.launch.container
    program = container.program if container else f"{plan.launch.environment}/bin/vllm"
    for path in (f"{plan.model.path}/config.json", program, *template):
        if not Path(path).exists():
            return Refusal("file-gone", f"{path} is missing", replan)
        if not os.access(path, os.R_OK):
            return Refusal("file-unreadable", f"{path} cannot be read", replan)
    return None
