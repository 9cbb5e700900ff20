"""From an endpoint that was asked for to one that answers: fetch, converge, verify."""

from collections.abc import Callable
from dataclasses import dataclass

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.converge import Converged
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.changes.changes import ChangeSet, to_enable
from epyc_vllm_agent.changes.installed import installed
from epyc_vllm_agent.config.request import Wanted
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.doors.systemd import Systemd, Watcher
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.facts.model import ModelFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch import readiness
from epyc_vllm_agent.watch.readiness import Verified

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BroughtUp:
    plan: EndpointPlan
    converged: Converged
    verified: tuple[Verified, ...]


def change_set(paths: Paths, plan: EndpointPlan, wanted: Wanted) -> ChangeSet:
    return to_enable(plan, wanted.file_text, render(plan), installed(paths, plan.name))


def require_startable(plan: EndpointPlan) -> None:
    """Raises Refused for the first refusal, or for every gate that is not accepted."""
    if plan.refusals:
        first = plan.refusals[0]
        raise Refused(first.code, first.message, first.hint)
    closed = [gate for gate in plan.gates if not gate.accepted]
    if closed:
        raise Refused(
            "gate-closed",
            "; ".join(f"{gate.name}: {gate.text}" for gate in closed),
            "accept by name: " + " ".join(f"--accept {gate.name}" for gate in closed),
        )


def bring_up(
    paths: Paths,
    wanted: Wanted,
    resolved: Resolved,
    systemd: Systemd,
    fetched: Progress,
    watch: Watcher,
) -> BroughtUp:
    """Fetches the model, writes and starts the endpoint and proves that it answers.

    The plan is made again under the lock: what other runs changed since the summary counts.
    Raises Refused, ActionFailed (StartFailed with reports) or Locked.
    """
    with locked(paths):
        survey = pipeline.survey(paths)
        plan = pipeline.make_plan(survey, resolved)
        require_startable(plan)
        _fetch(survey, resolved.model, fetched)
        _require_readable(plan)
        readiness.api_key(plan)  # without a key in its file no step of the unit could run
        changes = change_set(paths, plan, wanted)
        services = [service_name(instance.name) for instance in plan.instances]
        done = converge.enable(paths, changes, services, systemd, watch)
    return BroughtUp(plan, done, readiness.verify_all(plan))


def _fetch(survey: pipeline.Survey, model: ModelFacts, progress: Progress) -> None:
    if model.revision is not None:  # a directory is used in place
        pipeline.hub(survey).fetch(model.id, model.revision, model.files, progress)


def _require_readable(plan: EndpointPlan) -> None:
    """vLLM runs as its own user: what root can read may be closed to it."""
    for path in (plan.model.path, f"{plan.launch.environment}/bin/vllm"):
        if not environment.readable(path, plan.launch.user):
            raise Refused(
                "not-readable",
                f"{path} cannot be read by user {plan.launch.user}, as whom vLLM runs",
                f"give it read access: `sudo -u {plan.launch.user} ls {path}` must work",
            )
