"""Before an endpoint is written: what it needs is fetched, and nothing known stands against it."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from epyc_vllm_agent import launch, pipeline
from epyc_vllm_agent.doors import environment, podman
from epyc_vllm_agent.doors.command import Line
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.facts.model import ModelFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved, Survey
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.plan.upgrade import may_move
from epyc_vllm_agent.plan.values import Container, EndpointPlan
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch import preflight, readiness

Progress = Callable[[int, int], None]

_COMPILED_BYTES = 64 * 2**20  # what a start of vLLM 0.32.0 compiles is less


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the model's and the image's fetching are told, and a file that has the image already.

    `new_stack`: the endpoint moves to the stack that is pinned now.
    """

    model: Progress
    image: Line
    archive: str | None = None
    new_stack: bool = False


def fetch(
    survey: Survey, resolved: Resolved, plan: EndpointPlan, fetching: Fetching
) -> EndpointPlan:
    """Image and model are here then, and the plan is made of what the image has.

    Raises Refused or ActionFailed.
    """
    if plan.launch.container:
        plan = _with_image(survey, resolved, plan.launch.container, fetching)
    _fetch(survey, resolved.model, fetching.model)
    _require_readable(survey, plan)
    _require_cache(survey.paths)
    return plan


def require_ready(survey: Survey, plan: EndpointPlan, systemd: Systemd) -> None:
    """Raises Refused or ActionFailed for what a start would fail of; asks, and changes nothing."""
    readiness.api_key(plan)  # without a key in its file no step of the unit could run
    _require_carried(plan)
    _require_free_ports(survey, plan, systemd)


def _with_image(
    survey: Survey, resolved: Resolved, container: Container, fetching: Fetching
) -> EndpointPlan:
    """The plan with the image here and its stack probed: only now its gates are known for sure."""
    anew = fetching.new_stack and _may_have_moved(survey, resolved.config.name, container.image)
    launch.fetch(container, fetching.archive, fetching.image, anew)
    survey.asked.clear()  # there may be an image more
    new_image = fetching.archive is not None
    resolved = pipeline.resolve_with_image(survey, resolved, new_image, fetching.new_stack)
    plan = pipeline.make_plan(survey, resolved)
    require_startable(plan)
    return plan


def _may_have_moved(survey: Survey, name: str, image: str) -> bool:
    """Whether the image that the endpoint has is asked for again, by a tag that moves."""
    old = survey.stored.plans.get(name)
    had = old.launch.container.image if old and old.launch.container else None
    return had == image and may_move(image, survey.recipe)


def _require_carried(plan: EndpointPlan) -> None:
    """What the container runtime would say no to, before anything is stopped or written."""
    container = plan.launch.container
    if container is None:
        return
    for instance in plan.instances:
        fault = preflight.foreign_container(container, instance)
        if fault:
            raise Refused(fault.code, fault.message, fault.hint)
    if container.generator:
        quadlets = [unit for unit in render(plan) if unit.name.endswith(".container")]
        podman.require_accepted(container.generator, quadlets)


def _require_free_ports(survey: Survey, plan: EndpointPlan, systemd: Systemd) -> None:
    """A port that a stopped instance keeps may have been taken meanwhile."""
    for instance in plan.instances:
        is_taken = instance.port in survey.busy_ports
        if is_taken and systemd.state(service_name(instance.name)).main_pid is None:
            raise Refused(
                "port-busy",
                f"port {instance.port} of {instance.name} is in use by another program",
                f"see `ss -ltnp 'sport = :{instance.port}'`; stop it, or choose another with "
                "--port",
            )


def _fetch(survey: Survey, model: ModelFacts, progress: Progress) -> None:
    if model.revision is not None:  # a directory is used in place
        pipeline.hub(survey).fetch(model.id, model.revision, model.files, progress)


def _require_cache(paths: Paths) -> None:
    """The unit could not make its folder on a read-only disk, nor vLLM compile on a full one."""
    try:
        paths.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=paths.cache):
            free = shutil.disk_usage(paths.cache).free
    except OSError as error:
        raise ActionFailed(
            "cache-unwritable",
            f"the compile caches cannot be written below {paths.cache} ({error.strerror})",
            "make that file system writable, or mount another one there",
        ) from error
    if free < _COMPILED_BYTES:
        raise Refused(
            "cache-full",
            f"the compile caches below {paths.cache} have {free // 2**20} MiB left, "
            f"{_COMPILED_BYTES // 2**20} MiB are needed",
            "make room on that file system",
        )


def _require_readable(survey: Survey, plan: EndpointPlan) -> None:
    """vLLM runs as its own user: what root can read may be closed to it."""
    if plan.launch.environment is None:  # in a container it is root
        return
    if not environment.is_user(plan.launch.user):
        raise Refused(
            "no-user",
            f"there is no user {plan.launch.user} on this host, as whom vLLM is to run",
            "correct user in /etc/epyc-vllm/epyc-vllm.toml, or run systemd-sysusers",
        )
    template = [plan.config.chat_template] if plan.config.chat_template else []
    model = f"{plan.model.path}/config.json"
    for path in (model, f"{plan.launch.environment}/bin/vllm", *template):
        if not pipeline.readable(survey, path, plan.launch.user):
            raise Refused(
                "not-readable",
                f"{path} is no file that user {plan.launch.user}, as whom vLLM runs, can read",
                f"give it read access: `sudo -u {plan.launch.user} cat {path}` must work",
            )
