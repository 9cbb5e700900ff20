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
    per_node: bool = False  # one of the instances that its socket's nodes have each

    def name(self, endpoint: str) -> str:
        """The instance's name, unique among those of all endpoints."""
        node = f"n{self.by_node[0].node}" if self.per_node else ""
        return f"{endpoint}-s{self.socket}{node}"


@dataclass(frozen=True, slots=True)
class Placed:
    placements: tuple[Placement, ...]
    reason: str
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    busy: str | None = None  # one of `warnings`


@dataclass(frozen=True, slots=True)
class Had:
    """The sockets and CPUs of the endpoint's stored plan, with the reason and the warning it has
    for the sockets: a plan made again must say the same, whoever came or went meanwhile."""

    sockets: tuple[int, ...] = ()
    cpus: frozenset[int] = frozenset()
    reason: str = "the endpoint's plan has it already"
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How busy sockets were in a sample, and from where on one counts as busy."""

    percent_by_socket: tuple[tuple[int, float], ...]
    busy_percent: float

    def of(self, socket: int) -> float | None:
        return next(
            (percent for number, percent in self.percent_by_socket if number == socket), None
        )

    def is_busy(self, socket: int) -> bool:
        percent = self.of(socket)
        return percent is not None and percent >= self.busy_percent


def place(
    config: EndpointConfig,
    facts: HostFacts,
    holds: Sequence[Hold],
    heads: int | None,
    kv: KvLayout | None,
    load: Load | None = None,
    had: Had = Had(),
) -> Placed:
    """The placements of `config` on `facts` beside what other endpoints hold.

    `load` matters to `sockets = "auto"` only. What `had` tells is kept where it is still free.
    `heads` and `kv` (None: not known) decide whether a socket of several nodes can be served by
    one rank per node (tensor parallel divides the heads); see `_divide` for where not.
    """
    kept = _kept(config, facts, holds, had)
    sockets, reason, refusals = _choose_sockets(config, facts, holds, load, had)
    busy = _busy(sockets[0], load) if config.sockets == "auto" and sockets and load else None
    if kept:
        sockets, reason, refusals, busy = [kept], had.reason, [], had.warning
    placements: list[Placement] = []
    warnings: list[str] = [busy] if busy else []
    for socket in sockets:
        found = _place_on(config, facts, socket, holds, had)
        if isinstance(found, Refusal):
            refusals.append(found)
            continue
        divided, warning = _divide(config, facts, found, _divisible(found, heads, kv))
        placements += divided
        warnings += [warning] if warning else []
    return Placed(tuple(placements), reason, tuple(warnings), tuple(refusals), busy)


def needs_load(config: EndpointConfig, facts: HostFacts, holds: Sequence[Hold], had: Had) -> bool:
    """Whether the choice of a socket asks how busy they are."""
    if config.sockets != "auto" or _kept(config, facts, holds, had):
        return False
    return len(_usable(facts)) > 1


def _usable(facts: HostFacts) -> list[Socket]:
    return [socket for socket in facts.sockets if _cores_by_node(facts, socket)]


def _choose_sockets(
    config: EndpointConfig,
    facts: HostFacts,
    holds: Sequence[Hold],
    load: Load | None,
    had: Had,
) -> tuple[list[Socket], str, list[Refusal]]:
    usable = _usable(facts)
    if config.sockets == "all":
        return usable, "every socket serves", _none_usable(usable)
    if isinstance(config.sockets, str):  # "auto"
        chosen, reason = _automatic(config, facts, holds, usable, load, had)
        return chosen, reason, _none_usable(usable)
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


def _kept(
    config: EndpointConfig, facts: HostFacts, holds: Sequence[Hold], had: Had
) -> Socket | None:
    """The socket of the stored plan, where the endpoint still has room on it: its own load would
    drive it away from itself otherwise."""
    if config.sockets != "auto":
        return None
    for socket in _usable(facts):
        if socket.id in had.sockets and isinstance(
            _place_on(config, facts, socket, holds, had), Placement
        ):
            return socket
    return None


def _automatic(
    config: EndpointConfig,
    facts: HostFacts,
    holds: Sequence[Hold],
    usable: Sequence[Socket],
    load: Load | None,
    had: Had,
) -> tuple[list[Socket], str]:
    """The recipe's step 5, after reservations: an idle server shows no load. Sockets that others
    hold come last, then busy ones, of which the least busy is first."""
    held = {hold.socket for hold in holds}

    def rank(socket: Socket) -> tuple[bool, float, int]:
        busy = load is not None and load.is_busy(socket.id)
        percent = load.of(socket.id) if load and busy else None
        return socket.id in held, percent or 0.0, socket.id

    ordered = sorted(usable, key=rank)
    found = {socket.id: _place_on(config, facts, socket, holds, had) for socket in ordered}
    roomy = [s for s in ordered if isinstance(found[s.id], Placement)]
    chosen = (roomy or ordered)[:1]
    free = {socket.id for socket in usable} - held
    reason = "every socket is held by other endpoints"
    if free:
        reason = "no other endpoint holds it"
        if chosen and chosen[0].id in held:
            reason = "the sockets that nobody holds have no room for it"
    return chosen, f"{reason}{_shares(usable, load)}"


def _shares(usable: Sequence[Socket], load: Load | None) -> str:
    if load is None:
        return ""
    known = [(socket.id, load.of(socket.id)) for socket in usable]
    shares = [f"socket {number} {share:.0f} %" for number, share in known if share is not None]
    return f"; busy: {', '.join(shares)}" if shares else ""


def _busy(socket: Socket, load: Load) -> str | None:
    if not load.is_busy(socket.id):
        return None
    return (
        f"socket {socket.id} is {load.of(socket.id):.0f} % busy with other work, and no better one "
        "is free: the endpoint will be slower (--socket N chooses another)"
    )


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
            core
            if allowed.issuperset(core.cpus)
            else replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in allowed))
            for core in socket.cores
            if core.node == node_id
        )
        cores = tuple(core for core in shares if core.cpus)
        if cores and node_id in facts.allowed_nodes and facts.node(node_id).memory_bytes != 0:
            found.append(NodeCores(node_id, cores))
    return tuple(found)


def _place_on(
    config: EndpointConfig, facts: HostFacts, socket: Socket, holds: Sequence[Hold], had: Had
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
    ordered = _had_first(free, had)
    if config.placement == "node":
        share = _take_on_each(ordered, config.cores)
    else:
        share = _take(ordered, config.cores)
    if share is None:
        return _too_few(config, config.cores, socket, total, free, here)
    share = tuple(sorted(map(_in_order, share), key=lambda one: one.node))
    return Placement(socket.id, share, _are_whole(facts, share))


def _had_first(free: Sequence[NodeCores], had: Had) -> list[NodeCores]:
    """The same with what the endpoint has already in front: nodes, and cores of each."""

    def is_new(core: Core) -> bool:
        return not had.cpus & set(core.cpus)

    nodes = [NodeCores(node.node, tuple(sorted(node.cores, key=is_new))) for node in free]
    return sorted(nodes, key=lambda node: all(map(is_new, node.cores)))


def _in_order(share: NodeCores) -> NodeCores:
    return NodeCores(share.node, tuple(sorted(share.cores, key=lambda core: core.cpus)))


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


def _take_on_each(free: Sequence[NodeCores], cores: int) -> tuple[NodeCores, ...] | None:
    """`cores` cores of each node that has so many."""
    roomy = [NodeCores(n.node, n.cores[:cores]) for n in free if len(n.cores) >= cores]
    return tuple(roomy) or None


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
    config: EndpointConfig,
    cores: int,
    socket: Socket,
    total: int,
    free: Sequence[NodeCores],
    holds: Sequence[Hold],
) -> Refusal:
    left = sum(len(node.cores) for node in free)
    if left >= cores and len(free) > 1:
        on_nodes = ", ".join(f"{len(node.cores)} on node {node.node}" for node in free)
        if config.placement == "node":
            return Refusal(
                "cores-uneven",
                f"no node of socket {socket.id} has {cores} free cores ({on_nodes})",
                'ask for fewer with --cores N, or for one instance with placement = "socket"',
            )
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
    config: EndpointConfig, facts: HostFacts, found: Placement, divisible: bool
) -> tuple[tuple[Placement, ...], str | None]:
    """What of a socket's cores becomes one instance.

    By itself one instance with a rank on each node, or one on each node where ranks cannot divide
    the model; of a share (`cores`), which is asked for as one instance, then only one node.
    """
    on_each = config.placement == "node" or (
        config.placement == "auto" and not divisible and config.cores is None
    )
    socket = facts.socket(found.socket)
    if on_each and socket and len(socket.nodes) > 1:
        return tuple(_narrowed(facts, found, share, per_node=True) for share in found.by_node), None
    if divisible:
        return (found,), None
    best = max(found.by_node, key=lambda node: len(node.cores))
    lost = sum(len(node.cores) for node in found.by_node) - len(best.cores)
    warning = (
        f"the model's heads cannot be divided over the {len(found.by_node)} nodes of socket "
        f"{found.socket}: only node {best.node} is used, {lost} cores and the memory of the other "
        'nodes are not (placement = "node" starts an instance on each)'
    )
    return (_narrowed(facts, found, best),), warning


def _narrowed(
    facts: HostFacts, found: Placement, share: NodeCores, per_node: bool = False
) -> Placement:
    return Placement(found.socket, (share,), _are_whole(facts, (share,)), per_node)


def _divisible(found: Placement, heads: int | None, kv: KvLayout | None) -> bool:
    ranks = len(found.by_node)
    if ranks == 1:
        return True
    if heads is None or heads % ranks:
        return False
    kv_heads = [layer.heads for layer in kv.layers if layer.heads] if kv else []
    return all(count % ranks == 0 or ranks % count == 0 for count in kv_heads)
