"""How an installed endpoint differs from its plan and its file; looks, and changes nothing.

`apply` sets each of these right, but for a file that is broken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.changes import running
from epyc_vllm_agent.changes.installed import Installed
from epyc_vllm_agent.config.config import Config
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import UnitFile, service_name
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch.preflight import moved


@dataclass(frozen=True, slots=True)
class Drift:
    endpoint: str
    code: str
    message: str
    hint: str = "epyc-vllm apply"


def drift(
    plan: EndpointPlan,
    made: Installed,
    config: Config,
    facts: HostFacts,
    runs: Callable[[str], bool] | None = None,
) -> tuple[Drift, ...]:
    """`runs` tells of a service whether it is at work; None: nobody could be asked."""
    found = [*_of_file(plan, config), *_of_units(plan, made), *_of_host(plan, facts)]
    if runs is not None:
        found += _of_ports(plan, facts, runs)
    return tuple(Drift(plan.name, *words) for words in found)


def pending(
    paths: Paths, plan: EndpointPlan, made: Installed, systemd: Systemd
) -> tuple[Drift, ...]:
    """The running instances that were started with another unit than there is now."""
    services = [unit for unit in made.units if not unit.name.endswith(".target")]
    hint = f"epyc-vllm apply --restart, or systemctl restart epyc-vllm-{plan.name}.target"
    return tuple(
        Drift(plan.name, "restart-pending", f"{unit.service} runs with an older unit", hint)
        for unit in services
        if systemd.state(unit.service).is_up and behind(paths, unit, systemd)
    )


def behind(paths: Paths, unit: UnitFile, systemd: Systemd) -> bool | None:
    """Whether the running service was started with another unit than `unit`; None: not known."""
    note = running.noted(paths, unit.service.removeprefix("epyc-vllm-").removesuffix(".service"))
    if note is None:
        return None
    invocation, digest = note
    if digest == unit.digest:
        return False
    return True if systemd.state(unit.service).invocation_id == invocation else None


_Words = tuple[str, str] | tuple[str, str, str]


def _of_file(plan: EndpointPlan, config: Config) -> Iterator[_Words]:
    faults = [fault.message for fault in config.faults if fault.endpoint == plan.name]
    for fault in faults:
        yield "file-broken", fault, "correct the file named"
    wanted = config.endpoint(plan.name)
    if wanted is None and not faults:
        yield "file-gone", "its file is gone or masked: apply takes it down"
    elif wanted is not None and wanted != plan.config:
        yield "file-changed", "its file says something else than what is installed"


def _of_units(plan: EndpointPlan, made: Installed) -> Iterator[_Words]:
    there = {unit.path: unit.text for unit in made.units}
    for unit in render(plan):
        if unit.path not in there:
            yield "unit-missing", f"{unit.path} is missing"
        elif there[unit.path] != unit.text:
            yield "unit-changed", f"{unit.path} is not as its plan makes it"


def _of_host(plan: EndpointPlan, facts: HostFacts) -> Iterator[_Words]:
    for instance in plan.instances:
        fault = moved(plan, instance, facts)
        if fault:
            yield fault.code, f"{instance.name}: {fault.message}"


def _of_ports(
    plan: EndpointPlan, facts: HostFacts, runs: Callable[[str], bool]
) -> Sequence[_Words]:
    return [
        ("port-taken", f"port {instance.port} of {instance.name} is in use by another program")
        for instance in plan.instances
        if instance.port in facts.listening_ports and not runs(service_name(instance.name))
    ]
