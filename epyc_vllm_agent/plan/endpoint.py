"""The plan of one endpoint, composed from placement, sizing, ports and gates; pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import EndpointKind, ModelFacts
from epyc_vllm_agent.plan import carriage, ports, support
from epyc_vllm_agent.plan import gates as gating
from epyc_vllm_agent.plan.placement import Had, Load, NodeCores, Placed, Placement, place
from epyc_vllm_agent.plan.platform import predict
from epyc_vllm_agent.plan.sizing import Figures, Sized, size
from epyc_vllm_agent.plan.stacks import Stacks
from epyc_vllm_agent.plan.values import (
    EndpointPlan,
    Gate,
    Hold,
    Instance,
    Launch,
    Model,
    Prediction,
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
    stacks: Stacks
    precisions: tuple[str, ...]
    zentorch_precisions: tuple[str, ...]


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
    load: Load | None = None,
    foreign_ports: Collection[int] = (),
    busy_ports: Collection[int] | None = None,
) -> EndpointPlan:
    """The plan of `config`; what forbids its start is in `refusals`, never raised.

    `previous` is the endpoint's stored plan (its ports and its socket are kept), `holds` what
    others have, `load` how busy the sockets are (None: not looked at), `foreign_ports` those of
    `listening_ports` that are known to be other programs', `busy_ports` those that will still be
    listened on when this one starts (None: all of them).
    """
    had = had_of(previous)
    placed = place(config, facts, holds, model.attention_heads, model.kv, load, had)
    names = [placement.name(config.name) for placement in placed.placements]
    kept = {name: port for name, port in _ports(previous).items() if port not in foreign_ports}
    chosen = ports.choose(names, config.port, kept, holds, _busy(facts, busy_ports))
    refusals = [*support.refusals(config, model, stack), *placed.refusals]
    if isinstance(chosen, Refusal):
        refusals.append(chosen)
        chosen = dict.fromkeys(names, config.port or ports.FIRST_PORT)
    fitted = _fitted(config, facts, model, stack, placed, chosen, previous, holds, shipped)
    refusals += fitted.refusals
    prediction = predict(facts.cpu, stack, shipped.stacks.platforms)
    refusals += carriage.refusals(config, model_path, launch)
    if launch.is_here:  # else the stack is judged once it is
        refusals += _stack_refusals(config, facts, stack, launch, prediction, shipped)
    times = shipped.figures.times
    loading = (model.weight_bytes or 0) // times.start_bytes_per_second
    return EndpointPlan(
        name=config.name,
        config=config,
        hardware=hardware_line(facts),
        runtime=launch.runtime,
        stack=stack,
        launch=launch,
        model=_model(config, model, model_path),
        instances=fitted.instances,
        start_timeout_seconds=config.start_timeout or times.start_base_seconds + loading,
        stop_timeout_seconds=times.stop_seconds,
        gates=_gates(config, facts, stack, model, shipped),
        warnings=(
            *placed.warnings,
            *fitted.warnings,
            *_warnings(config, model, stack, launch, shipped),
        ),
        refusals=tuple(refusals),
        socket_reason=placed.reason,
        socket_warning=placed.busy,
        prediction=prediction,
    )


@dataclass(frozen=True, slots=True)
class _Fitted:
    instances: tuple[Instance, ...]
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...]


def _fitted(
    config: EndpointConfig,
    facts: HostFacts,
    model: ModelFacts,
    stack: Stack,
    placed: Placed,
    chosen: dict[str, int],
    previous: EndpointPlan | None,
    holds: Sequence[Hold],
    shipped: Shipped,
) -> _Fitted:
    """The instances with their memory. An instance on each node is our own choice, so that nodes
    without room for one are left out where another of their socket has it."""
    instances: list[Instance] = []
    refusals: dict[str, Refusal] = {}
    for placement in placed.placements:
        name = placement.name(config.name)
        # Sockets may share a node (NPS0), so that its own instances count for each other.
        beside = [*holds, *(hold_of(config.name, instance) for instance in instances)]
        running = _is_running(name, previous, facts)
        sized = size(config, facts, model, placement, beside, shipped.figures, stack.name, running)
        keep = shipped.figures.kept_cores_per_rank
        made = _instance(name, placement, chosen[name], keep, sized)
        instances.append(_kept(made, config, model, previous))
        if sized.refusal and not instances[-1].fit.fits:
            refusals[name] = sized.refusal
    optional = config.placement == "auto"
    with_room = {instance.socket for instance in instances if instance.fit.fits}
    left_out = {
        placement.name(config.name)
        for placement in placed.placements
        if optional and placement.per_node and placement.socket in with_room
    } & refusals.keys()
    return _Fitted(
        tuple(instance for instance in instances if instance.name not in left_out),
        tuple(refusal for name, refusal in refusals.items() if name not in left_out),
        tuple(f"no instance {name}: {refusals[name].message}" for name in sorted(left_out)),
    )


def had_of(previous: EndpointPlan | None) -> Had:
    """What the stored plan says of sockets; why it took them only where it was left the choice."""
    if previous is None:
        return Had()
    sockets = tuple(instance.socket for instance in previous.instances)
    cpus = frozenset(cpu for instance in previous.instances for cpu in instance.cpus)
    if previous.config.sockets != "auto":
        return Had(sockets, cpus)
    return Had(sockets, cpus, previous.socket_reason, previous.socket_warning)


def _is_running(instance: str, previous: EndpointPlan | None, facts: HostFacts) -> bool:
    had = previous.instance(instance) if previous else None
    return had is not None and had.port in facts.listening_ports


def _gates(
    config: EndpointConfig, facts: HostFacts, stack: Stack, model: ModelFacts, shipped: Shipped
) -> tuple[Gate, ...]:
    routing, stacks, texts = shipped.routing, shipped.stacks, shipped.gate_texts
    return gating.gates(config, facts.cpu, routing, stack, stacks, model.custom_code, texts)


def _variables(config: EndpointConfig, launch: Launch) -> tuple[tuple[str, str], ...]:
    """What the server gets: the administrator's own win over the switches."""
    return tuple(dict((*launch.switches, *config.env)).items())


def _stack_refusals(
    config: EndpointConfig,
    facts: HostFacts,
    stack: Stack,
    launch: Launch,
    prediction: Prediction | None,
    shipped: Shipped,
) -> list[Refusal]:
    found = [*gating.stack_refusals(stack, facts.cpu, prediction, shipped.stacks.platforms)]
    precision = gating.precision_refusal(
        config.dtype, stack, shipped.precisions, shipped.zentorch_precisions
    )
    found += [precision] if precision else []
    bad = shipped.stacks.bad(stack, _variables(config, launch))
    return found + [Refusal(b.code, b.message, b.hint) for b in bad if b.severity == "error"]


def _of_stack(config: EndpointConfig, stack: Stack, launch: Launch, shipped: Shipped) -> list[str]:
    bad = shipped.stacks.bad(stack, _variables(config, launch))
    warnings = [f"{known.message}; {known.hint}" for known in bad if known.severity != "error"]
    if not stack.probed and stack.vllm:
        zentorch = f" with zentorch {stack.zentorch}" if stack.zentorch else ""
        warnings.append(
            f"vLLM itself was not asked yet: {stack.vllm}{zentorch} is assumed, and its platform "
            "predicted"
        )
    return warnings


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


def _busy(facts: HostFacts, ports: Collection[int] | None) -> Collection[int]:
    return facts.listening_ports if ports is None else ports


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


def _warnings(
    config: EndpointConfig, model: ModelFacts, stack: Stack, launch: Launch, shipped: Shipped
) -> list[str]:
    warnings = [*carriage.warnings(config, launch)]
    warnings += _of_stack(config, stack, launch, shipped) if launch.is_here else []
    warnings += support.warnings(model, stack)
    if unguarded := gating.key_warning(config, shipped.stacks.api_key):
        warnings.append(unguarded)
    if model.weight_bytes is None:
        warnings.append("the size of the model's weights is not known: the fit counts none")
    if model.kv is None:
        warnings.append("the model's KV cache cannot be computed from its config: not in the fit")
    return warnings
