"""Ports of an endpoint's instances: kept over re-plans, free and unreserved otherwise; pure."""

from collections.abc import Collection, Mapping, Sequence

from epyc_vllm_agent.plan.values import Hold, Refusal

FIRST_PORT = 8000
LAST_PORT = 65535


def choose(
    instances: Sequence[str],
    base: int | None,
    previous: Mapping[str, int],
    holds: Sequence[Hold],
    listening: Collection[int],
) -> dict[str, int] | Refusal:
    """A port for each instance name.

    `base` (None: any) is the first instance's port, the others follow it. `previous` holds what
    this endpoint's instances have now; `listening` includes those ports where they run.
    """
    taken = {hold.port: hold for hold in holds if hold.port is not None}
    chosen: dict[str, int] = {}
    for index, name in enumerate(instances):
        own = previous.get(name)
        if base is not None:
            port = base + index
            if port > LAST_PORT:
                return _beyond(base, len(instances))
            if port in taken:
                return _reserved(port, taken[port])
            if port in listening and port not in previous.values():
                return _busy(port)
        else:
            used = {*taken, *listening, *chosen.values(), *previous.values()}
            port = own if own and own not in taken else _next_free(used)
        chosen[name] = port
    return chosen


def _next_free(used: Collection[int]) -> int:
    return next(port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in used)


def _beyond(base: int, count: int) -> Refusal:
    return Refusal(
        "port-beyond",
        f"{count} instances from port {base} on need ports beyond {LAST_PORT}",
        "choose a lower one with --port, or leave it out to get free ones",
    )


def _reserved(port: int, hold: Hold) -> Refusal:
    return Refusal(
        "port-reserved",
        f"port {port} belongs to endpoint {hold.endpoint} (instance {hold.instance})",
        "choose another with --port, or leave it out to get a free one; where the file of "
        f"{hold.endpoint} has another port by now, `epyc-vllm apply --restart` moves both",
    )


def _busy(port: int) -> Refusal:
    return Refusal(
        "port-busy",
        f"port {port} is in use by another program on this host",
        f"see `ss -ltnp 'sport = :{port}'`; choose another with --port, or leave it out",
    )
