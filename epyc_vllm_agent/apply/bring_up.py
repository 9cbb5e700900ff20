"""From an endpoint that was asked for to one that answers: fetch, converge, verify."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.converge import Converged
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.apply.prepare import Fetching, fetch, require_ready
from epyc_vllm_agent.changes.changes import ChangeSet
from epyc_vllm_agent.changes.wanted import change_set
from epyc_vllm_agent.config.request import Wanted
from epyc_vllm_agent.doors.systemd import Systemd, Watcher
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch import readiness
from epyc_vllm_agent.watch.readiness import Verified


@dataclass(frozen=True, slots=True)
class BroughtUp:
    plan: EndpointPlan
    converged: Converged
    verified: tuple[Verified, ...]


def bring_up(
    paths: Paths,
    wanted: Wanted,
    resolved: Resolved,
    systemd: Systemd,
    fetching: Fetching,
    watch: Watcher,
) -> BroughtUp:
    """Fetches image and model, writes and starts the endpoint and proves that it answers.

    The plan is made again under the lock: what other runs changed since the summary counts.
    Raises Refused, ActionFailed (StartFailed with reports) or Locked.
    """
    verified: tuple[Verified, ...] = ()
    with locked(paths):
        survey = pipeline.survey(paths)
        plan = pipeline.make_plan(survey, resolved)
        require_startable(plan)
        plan = fetch(survey, resolved, plan, fetching)
        require_ready(survey, plan, systemd)
        changes = change_set(paths, plan, wanted)
        services = [service_name(instance.name) for instance in plan.instances]
        if fetching.new_stack:
            done, verified = _move(paths, plan, changes, services, systemd, watch)
        else:
            done = converge.enable(paths, changes, services, systemd, watch)
        converge.stand_by(systemd)
    return BroughtUp(plan, done, verified or readiness.verify_all(plan))


def _move(
    paths: Paths,
    plan: EndpointPlan,
    changes: ChangeSet,
    services: Sequence[str],
    systemd: Systemd,
    watch: Watcher,
) -> tuple[Converged, tuple[Verified, ...]]:
    """Restarts every instance on its new stack; where one does not verify the old one is back."""
    verified: list[Verified] = []

    def prove() -> None:
        verified.extend(readiness.verify_all(plan))
        require_verified(verified)

    if changes.files:
        changes = replace(changes, restart=tuple(services))
    done = converge.enable(paths, changes, services, systemd, watch, prove=prove)
    return done, tuple(verified)


def require_verified(verified: Sequence[Verified]) -> None:
    """Raises ActionFailed for the first instance that does not answer."""
    for item in verified:
        if not item.ok:
            last = item.phases[-1]
            raise ActionFailed(
                "verify-failed",
                f"{item.instance} runs, but failed in phase {last.phase}: {last.probe.reason}",
                f"see `journalctl -u epyc-vllm-{item.instance}`",
            )
