"""The state of endpoints and instances, as a table or values."""

from collections.abc import Sequence
from dataclasses import dataclass

from epyc_vllm_agent.doors import probe
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.report.text import grid, when
from epyc_vllm_agent.units.names import service_name, target_name
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


@dataclass(frozen=True, slots=True)
class EndpointState:
    name: str
    model: str
    target: str
    at_boot: bool
    instances: tuple[InstanceState, ...]


def observe(plan: EndpointPlan, systemd: Systemd) -> EndpointState:
    target = systemd.state(target_name(plan.name))
    return EndpointState(
        name=plan.name,
        model=plan.model.id,
        target=target.name,
        at_boot=target.enabled == "enabled",
        instances=tuple(_instance(plan, instance, systemd) for instance in plan.instances),
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
    return grid(header, rows)


def verified(item: Verified) -> str:
    lines = []
    for result in item.phases:
        outcome = "ok" if result.probe.ok else f"FAILED: {result.probe.reason}"
        lines.append(
            f"{item.instance}  {result.phase:<10}  {result.probe.seconds:.2f} s  {outcome}"
        )
    return "\n".join(lines)
