"""The plan of one endpoint, composed from placement, sizing, ports and gates; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import EndpointKind, ModelFacts
from epyc_vllm_agent.plan import gates as gating
from epyc_vllm_agent.plan import ports
from epyc_vllm_agent.plan.placement import NodeCores, Placement, place
from epyc_vllm_agent.plan.sizing import Figures, Sized, size
from epyc_vllm_agent.plan.values import (
    EndpointPlan,
    Hold,
    Instance,
    Launch,
    Model,
    Rank,
    Refusal,
    Stack,
    hold_of,
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """What the plan takes from data/."""

    figures: Figures
    gate_texts: gating.GateTexts
    routing: Routing | None  # of this host's generation


def plan_endpoint(
    config: EndpointConfig,
    facts: HostFacts,
    model: ModelFacts,
    model_path: str,
    stack: Stack,
    launch: Launch,
    previous: EndpointPlan | None,
    holds: Sequence[Hold],
    shipped: Shipped,
) -> EndpointPlan:
    """The plan of `config`; what forbids its start is in `refusals`, never raised.

    `previous` is the endpoint's stored plan (its ports are kept), `holds` what others have.
    """
    placed = place(config, facts, holds, model.attention_heads, model.kv)
    names = [f"{config.name}-s{placement.socket}" for placement in placed.placements]
    chosen = ports.choose(names, config.port, _ports(previous), holds, facts.listening_ports)
    refusals = [*placed.refusals]
    if isinstance(chosen, Refusal):
        refusals.append(chosen)
        chosen = dict.fromkeys(names, config.port or ports.FIRST_PORT)
    instances: list[Instance] = []
    for name, placement in zip(names, placed.placements, strict=True):
        # Sockets may share a node (NPS0), so that its own instances count for each other.
        beside = [*holds, *(hold_of(config.name, instance) for instance in instances)]
        had = previous.instance(name) if previous else None
        running = had is not None and had.port in facts.listening_ports
        sized = size(config, facts, model, placement, beside, shipped.figures, running)
        keep = shipped.figures.kept_cores_per_rank
        made = _instance(name, placement, chosen[name], keep, sized)
        instances.append(_kept(made, config, model, previous))
        refusals += [sized.refusal] if sized.refusal and not instances[-1].fit.fits else []
    stack_fault = gating.stack_refusal(stack)
    refusals += [stack_fault] if stack_fault else []
    times = shipped.figures.times
    loading = (model.weight_bytes or 0) // times.start_bytes_per_second
    return EndpointPlan(
        name=config.name,
        config=config,
        hardware=hardware_line(facts),
        runtime="host",
        stack=stack,
        launch=launch,
        model=_model(config, model, model_path),
        instances=tuple(instances),
        start_timeout_seconds=config.start_timeout or times.start_base_seconds + loading,
        stop_timeout_seconds=times.stop_seconds,
        gates=gating.gates(
            config, facts.cpu, shipped.routing, model.custom_code, shipped.gate_texts
        ),
        warnings=(*placed.warnings, *_warnings(model, launch)),
        refusals=tuple(refusals),
        socket_reason=placed.reason,
    )


def _kept(
    planned: Instance, config: EndpointConfig, model: ModelFacts, previous: EndpointPlan | None
) -> Instance:
    """What the instance has already, where it was planned for the same and still fits.

    A re-plan must not restart an endpoint because a node's memory reads a little differently.
    """
    had = previous.instance(planned.name) if previous else None
    if previous is None or had is None or previous.config != config:
        return planned
    same_model = (previous.model.id, previous.model.revision) == (model.id, model.revision)
    fits = had.fit.fits and had.fit.required_bytes <= planned.fit.available_bytes
    resized = replace(had, kv_gib_per_rank=planned.kv_gib_per_rank, fit=planned.fit)
    return had if same_model and fits and resized == planned else planned


def hardware_line(facts: HostFacts) -> str:
    cpu = facts.cpu
    kind = f"EPYC {cpu.generation or 'of unknown generation'}" if cpu.is_amd_epyc else "no EPYC"
    zen = f" ({cpu.zen_arch})" if cpu.zen_arch else ""
    bf16 = "yes" if cpu.avx512_bf16 else "no"
    return (
        f"{kind}{zen}, {facts.physical_cores} cores on {len(facts.sockets)} socket(s), "
        f"AVX-512 BF16 {bf16}: {cpu.model_name or 'no model name'}"
    )


def _ports(previous: EndpointPlan | None) -> dict[str, int]:
    return {instance.name: instance.port for instance in previous.instances} if previous else {}


def _instance(name: str, placement: Placement, port: int, keep: int, sized: Sized) -> Instance:
    ranks = tuple(_rank(share, keep) for share in placement.by_node)
    cores = [core for share in placement.by_node for core in share.cores]
    pinned = {cpu for rank in ranks for cpu in rank.cpus}
    return Instance(
        name=name,
        socket=placement.socket,
        nodes=tuple(share.node for share in placement.by_node),
        cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        whole_nodes=placement.whole_nodes,
        kept_cpus=tuple(sorted(core.cpus[0] for core in cores if core.cpus[0] not in pinned)),
        ranks=ranks,
        port=port,
        kv_gib_per_rank=sized.kv_gib_per_rank,
        fit=sized.fit,
    )


def _rank(share: NodeCores, keep: int) -> Rank:
    """The first thread of each core but the last `keep`; a node of one core keeps none back."""
    count = max(len(share.cores) - keep, 1)
    return Rank(share.node, tuple(core.cpus[0] for core in share.cores[:count]))


def _model(config: EndpointConfig, model: ModelFacts, path: str) -> Model:
    """What is served; a chat template that the administrator gives makes it a chat model."""
    given = config.chat_template is not None
    return Model(
        id=model.id,
        revision=model.revision,
        path=path,
        kind=model.kind,
        primary_endpoint=EndpointKind.CHAT if given else model.primary_endpoint,
        supported_endpoints=tuple(EndpointKind) if given else model.supported_endpoints,
        chat_template=model.chat_template,
        weight_bytes=model.weight_bytes,
    )


def _warnings(model: ModelFacts, launch: Launch) -> list[str]:
    warnings = []
    if model.weight_bytes is None:
        warnings.append("the size of the model's weights is not known: the fit counts none")
    if model.kv is None:
        warnings.append("the model's KV cache cannot be computed from its config: not in the fit")
    if launch.numactl is None and launch.taskset is None:
        warnings.append("neither numactl nor taskset is there: the server runs unpinned")
    elif launch.numactl is None:
        warnings.append("numactl is missing: CPUs are pinned by taskset, memory is not bound")
    return warnings
