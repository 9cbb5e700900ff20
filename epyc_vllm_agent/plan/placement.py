"""Which cores of which sockets an endpoint's instances get; pure, knows nothing of memory sizes.

Whole sockets by default; `cores` divides one. A core is given whole: all its threads that the
cpuset allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.host import Core, HostFacts, Socket
from epyc_vllm_agent.facts.model import KvLayout
from epyc_vllm_agent.plan.values import Hold, Refusal


@dataclass(frozen=True, slots=True)
class NodeCores:
    node: int
    cores: tuple[Core, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores of one socket for one instance, by node; one rank runs on each node listed."""

    socket: int
    by_node: tuple[NodeCores, ...]
    whole_nodes: bool


@dataclass(frozen=True, slots=True)
class Placed:
    placements: tuple[Placement, ...]
    reason: str
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def place(
    config: EndpointConfig,
    facts: HostFacts,
    holds: Sequence[Hold],
    heads: int | None,
    kv: KvLayout | None,
) -> Placed:
    """The placements of `config` on `facts` beside what other endpoints hold.

    `heads` and `kv` (None: not known) decide whether a socket of several nodes can be served by
    one rank per node (tensor parallel divides the heads).
    """
    sockets, reason, refusals = _choose_sockets(config, facts, holds)
    placements: list[Placement] = []
    warnings: list[str] = []
    for socket in sockets:
        found = _place_on(config, facts, socket, holds)
        if isinstance(found, Refusal):
            refusals.append(found)
            continue
        narrowed, warning = _divide(found, heads, kv)
        placements.append(narrowed)
        warnings += [warning] if warning else []
    return Placed(tuple(placements), reason, tuple(warnings), tuple(refusals))


def _choose_sockets(
    config: EndpointConfig, facts: HostFacts, holds: Sequence[Hold]
) -> tuple[list[Socket], str, list[Refusal]]:
    usable = [socket for socket in facts.sockets if _cores_by_node(facts, socket)]
    if config.sockets == "all":
        return usable, "every socket serves", _none_usable(usable)
    if isinstance(config.sockets, str):  # "auto"
        held = {hold.socket for hold in holds}
        ordered = sorted(usable, key=lambda socket: socket.id in held)
        found = {socket.id: _place_on(config, facts, socket, holds) for socket in ordered}
        roomy = [s for s in ordered if isinstance(found[s.id], Placement)]
        free = {socket.id for socket in usable} - held
        reason = "no other endpoint holds it" if free else "every socket is held by other endpoints"
        return (roomy or ordered)[:1], reason, _none_usable(usable)
    chosen = [socket for socket in usable if socket.id in config.sockets]
    missing = sorted(set(config.sockets) - {socket.id for socket in chosen})
    refusals = [
        Refusal(
            "no-such-socket",
            f"socket {number} has no usable CPUs with memory on this host",
            "this host has socket " + cpulist.format(socket.id for socket in usable),
        )
        for number in missing
    ]
    return chosen, "chosen by the administrator", refusals


def _none_usable(usable: Sequence[Socket]) -> list[Refusal]:
    if usable:
        return []
    hint = "look at `epyc-vllm detect`: sockets, nodes and their memory"
    return [Refusal("no-socket", "no socket of this host has usable CPUs with memory", hint)]


def _cores_by_node(facts: HostFacts, socket: Socket) -> tuple[NodeCores, ...]:
    """The usable cores of a socket by node: allowed by the cpuset, on a node that has memory."""
    allowed = set(facts.allowed_cpus)
    found = []
    for node_id in socket.nodes:
        shares = (
            replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in allowed))
            for core in socket.cores
            if core.node == node_id
        )
        cores = tuple(core for core in shares if core.cpus)
        if cores and node_id in facts.allowed_nodes and facts.node(node_id).memory_bytes != 0:
            found.append(NodeCores(node_id, cores))
    return tuple(found)


def _place_on(
    config: EndpointConfig, facts: HostFacts, socket: Socket, holds: Sequence[Hold]
) -> Placement | Refusal:
    nodes = _cores_by_node(facts, socket)
    total = sum(len(node.cores) for node in nodes)
    here = [hold for hold in holds if hold.socket == socket.id]
    if config.cores is None:
        if here:
            return _held(socket, total, here)
        return Placement(socket.id, nodes, _are_whole(facts, nodes))
    taken = {cpu for hold in here for cpu in hold.cpus}
    free = [NodeCores(n.node, tuple(c for c in n.cores if not taken & set(c.cpus))) for n in nodes]
    share = _take(free, config.cores)
    if share is None:
        return _too_few(config.cores, socket, total, free, here)
    return Placement(socket.id, share, _are_whole(facts, share))


def _are_whole(facts: HostFacts, shares: Sequence[NodeCores]) -> bool:
    """Whether `shares` have every CPU of their nodes; sockets may share one (NPS0)."""
    return all(
        {cpu for core in share.cores for cpu in core.cpus} == set(facts.node(share.node).cpus)
        for share in shares
    )


def _take(free: Sequence[NodeCores], cores: int) -> tuple[NodeCores, ...] | None:
    """`cores` cores on as few nodes as possible, the same number on each."""
    for count in range(1, len(free) + 1):
        if cores % count:
            continue
        each = cores // count
        roomy = [node for node in free if len(node.cores) >= each][:count]
        if len(roomy) == count:
            return tuple(NodeCores(node.node, node.cores[:each]) for node in roomy)
    return None


def _holders(holds: Sequence[Hold]) -> str:
    return ", ".join(
        f"endpoint {hold.endpoint} (instance {hold.instance}, CPUs {cpulist.format(hold.cpus)})"
        for hold in holds
    )


def _held(socket: Socket, total: int, holds: Sequence[Hold]) -> Refusal:
    return Refusal(
        "socket-held",
        f"socket {socket.id} is held by {_holders(holds)}",
        f"give each a share of its {total} cores with --cores N, choose another socket with "
        "--socket N, or disable the other endpoint",
    )


def _too_few(
    cores: int, socket: Socket, total: int, free: Sequence[NodeCores], holds: Sequence[Hold]
) -> Refusal:
    left = sum(len(node.cores) for node in free)
    if left >= cores:
        on_nodes = ", ".join(f"{len(node.cores)} on node {node.node}" for node in free)
        return Refusal(
            "cores-uneven",
            f"{cores} cannot be divided evenly over the free cores of socket {socket.id} "
            f"({on_nodes})",
            "each node of an instance gets the same number: ask for another with --cores N",
        )
    held = f", the others are held by {_holders(holds)}" if holds else ""
    return Refusal(
        "cores-held",
        f"socket {socket.id} has {left} of {total} cores free{held}; {cores} are asked for",
        "ask for fewer with --cores N, choose another socket, or give the holder fewer cores",
    )


def _divide(
    placement: Placement, heads: int | None, kv: KvLayout | None
) -> tuple[Placement, str | None]:
    """A rank on each node where the model's heads allow it, else one node and a warning."""
    ranks = len(placement.by_node)
    if ranks == 1 or _divisible(ranks, heads, kv):
        return placement, None
    best = max(placement.by_node, key=lambda node: len(node.cores))
    lost = sum(len(node.cores) for node in placement.by_node) - len(best.cores)
    warning = (
        f"the model's heads cannot be divided over the {ranks} nodes of socket {placement.socket}: "
        f"only node {best.node} is used, {lost} cores stay idle"
    )
    return Placement(placement.socket, (best,), placement.whole_nodes), warning


def _divisible(ranks: int, heads: int | None, kv: KvLayout | None) -> bool:
    if heads is None or heads % ranks:
        return False
    kv_heads = [layer.heads for layer in kv.layers if layer.heads] if kv else []
    return all(count % ranks == 0 or ranks % count == 0 for count in kv_heads)
