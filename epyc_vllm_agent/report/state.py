"""The state of endpoints and instances, as a table or values."""

from collections.abc import Sequence
from dataclasses import dataclass

from epyc_vllm_agent.doors import probe
from epyc_vllm_agent.doors.systemd import Systemd, UnitState
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.report.text import grid, when
from epyc_vllm_agent.units.names import ALL_TARGET, service_name, target_name
from epyc_vllm_agent.watch import placement
from epyc_vllm_agent.watch.drift import Drift
from epyc_vllm_agent.watch.readiness import Verified, url_of

_HEALTH_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class InstanceState:
    """`health` is "healthy", a reason, or "-" where the unit does not run."""

    name: str
    unit: str
    state: str  # active, activating, failed, inactive
    result: str | None
    health: str
    port: int
    socket: int
    since: float | None
    placement: str | None = None  # how it differs from the plan; None: as planned


@dataclass(frozen=True, slots=True)
class EndpointState:
    name: str
    model: str
    target: str
    at_boot: bool
    instances: tuple[InstanceState, ...]
    problem: str | None = None  # why nothing more is known of it
    upgrade: str | None = None  # the image, or version of vLLM, that is pinned by now
    drift: tuple[Drift, ...] = ()  # how it differs from its plan and its file


def unknown(name: str, problem: str, systemd: Systemd) -> EndpointState:
    """An endpoint of which something is installed, but no plan that can be read."""
    target = systemd.state(target_name(name))
    return EndpointState(name, "-", target.name, _at_boot(target, systemd), (), problem)


def _at_boot(target: UnitState, systemd: Systemd) -> bool:
    return target.enabled == "enabled" and systemd.state(ALL_TARGET).enabled == "enabled"


def observe(
    plan: EndpointPlan,
    systemd: Systemd,
    upgrade: str | None = None,
    drift: Sequence[Drift] = (),
) -> EndpointState:
    """`upgrade`: what it could move to."""
    target = systemd.state(target_name(plan.name))
    return EndpointState(
        name=plan.name,
        model=plan.model.id,
        target=target.name,
        at_boot=_at_boot(target, systemd),
        instances=tuple(_instance(plan, instance, systemd) for instance in plan.instances),
        upgrade=upgrade,
        drift=tuple(drift),
    )


def _instance(plan: EndpointPlan, instance: Instance, systemd: Systemd) -> InstanceState:
    unit = systemd.state(service_name(instance.name))
    health = "-"
    if unit.active_state in ("active", "activating"):
        found = probe.health(url_of(plan, instance), _HEALTH_SECONDS)
        loading = unit.active_state == "activating" and found.refused
        health = "healthy" if found.ok else "loading" if loading else str(found.reason)
    return InstanceState(
        name=instance.name,
        unit=unit.name,
        state=unit.active_state,
        result=unit.result,
        health=health,
        port=instance.port,
        socket=instance.socket,
        since=unit.since,
        placement=placement.difference(plan, instance, systemd),
    )


def text(endpoints: Sequence[EndpointState]) -> str:
    if not endpoints:
        return "no endpoints; `epyc-vllm enable MODEL` makes one"
    rows = [
        (
            endpoint.name,
            instance.name,
            instance.state,
            instance.health,
            str(instance.port),
            str(instance.socket),
            "yes" if endpoint.at_boot else "no",
            when(instance.since),
        )
        for endpoint in endpoints
        for instance in endpoint.instances
    ]
    header = ("ENDPOINT", "INSTANCE", "STATE", "HEALTH", "PORT", "SOCKET", "BOOT", "SINCE")
    rows += [
        (endpoint.name, "-", "unknown", "-", "-", "-", "yes" if endpoint.at_boot else "no", "-")
        for endpoint in endpoints
        if endpoint.problem
    ]
    problems = [f"problem  {item.name}: {item.problem}" for item in endpoints if item.problem]
    warnings = [
        f"warning  {instance.placement}"
        for endpoint in endpoints
        for instance in endpoint.instances
        if instance.placement
    ]
    upgrades = [
        f"upgrade  {item.name}: {item.upgrade} is pinned now, see `epyc-vllm upgrade`"
        for item in endpoints
        if item.upgrade
    ]
    drifts = [
        f"drift    {item.endpoint}: {item.message} ({item.hint})"
        for endpoint in endpoints
        for item in endpoint.drift
    ]
    return "\n".join([grid(header, rows), *problems, *warnings, *drifts, *upgrades])


def verified(item: Verified) -> str:
    lines = []
    for result in item.phases:
        outcome = "ok" if result.probe.ok else f"FAILED: {result.probe.reason}"
        lines.append(
            f"{item.instance}  {result.phase:<10}  {result.probe.seconds:.2f} s  {outcome}"
        )
    return "\n".join(lines)
