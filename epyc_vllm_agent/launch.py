"""Joins the runtimes' doors: which one an endpoint gets, the image it runs, the stack in it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.doors import cgroups, containers, docker, podman
from epyc_vllm_agent.doors.command import Line
from epyc_vllm_agent.doors.probed import Probed
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.runtime import DOCKER, HOST, PODMAN, Engine, Runtimes, choose
from epyc_vllm_agent.plan.upgrade import kept_image
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Refusal, Stack
from epyc_vllm_agent.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Chosen:
    """The runtime of an endpoint: `engine` and `image` are those of a container runtime."""

    reason: str
    image: str
    engine: Engine | None


def choose_runtime(
    recipe: Recipe,
    config: EndpointConfig,
    stack: str,
    previous: EndpointPlan | None,
    new_image: bool = False,
    new_stack: bool = False,
) -> Chosen:
    """Looks at what is here for an endpoint on `stack`. Raises Refused where nothing can run it.

    With a `new_stack` it gets the image that is pinned now, else that of its plan, `previous`.
    """
    kept = None if new_stack else kept_image(previous, stack)
    image = config.image or kept or recipe.images.of(stack).image
    there = look(recipe, config, image)
    if new_image:
        there = replace(there, images=frozenset((PODMAN, DOCKER)))
    choice = choose(config, there, previous)
    if isinstance(choice, Refusal):
        raise Refused(choice.code, choice.message, choice.hint)
    if new_image and choice.runtime == HOST:
        raise Refused(
            "no-container",
            f"an image archive is for a container runtime, but the endpoint gets {HOST}: "
            f"{choice.reason}",
            "leave --image-archive out, or say --runtime podman or docker",
        )
    return Chosen(choice.reason, image, there.engine(choice.runtime))


def in_container(
    paths: Paths,
    recipe: Recipe,
    chosen: Chosen,
    engine: Engine,
    stack: str,
    previous: EndpointPlan | None,
) -> tuple[Probed, Container]:
    """The stack in the image, and what runs it. An image that is not here yet has the stack that
    its recipe tells, not probed."""
    image, known = chosen.image, recipe.images.of(stack)
    here = _pinned_before(engine, image, previous) or _image(engine, image)
    container = Container(
        program=engine.program,
        version=engine.version or "",
        generator=engine.generator,
        image=image,
        pinned=here.pinned if here else None,
        serves=here.serves if here else image == known.image and known.serves,
        cpuset=cgroups.has_cpuset(paths),
    )
    if here:
        return containers.probe(engine.program, here, stack, paths.cache / "probes"), container
    vllm, zentorch = (known.vllm, known.zentorch) if image == known.image else (None, None)
    told = Stack(stack, vllm, zentorch, torch=None, platform=None, probed=False)
    return Probed(told, None), container


def look(recipe: Recipe, config: EndpointConfig, image: str) -> Runtimes:
    """The runtimes of this host; none is asked where the endpoint cannot use it."""
    if config.runtime == HOST or (config.runtime == "auto" and config.environment):
        return Runtimes(None, None, environment=True)
    engines = {
        PODMAN: podman.look() if config.runtime != DOCKER else None,
        DOCKER: docker.look() if config.runtime != PODMAN else None,
    }
    has = {name for name, engine in engines.items() if engine and _image(engine, image)}
    default = Path(recipe.environment.default_path)
    return Runtimes(
        podman=engines[PODMAN],
        docker=engines[DOCKER],
        environment=(default / "bin" / "vllm").exists(),
        images=frozenset(has),
    )


def fetch(container: Container, archive: str | None, tell: Line, anew: bool = False) -> None:
    """Brings the image of `container` here: from the archive, or where it is not here already.

    `anew`: its name may be another image's by now.
    """
    if archive is not None:
        containers.load(container.program, archive, container.image, tell)
    elif (
        anew or container.pinned is None or not containers.find(container.program, container.pinned)
    ):
        containers.pull(container.program, container.image, tell)


def _image(engine: Engine, reference: str) -> containers.Image | None:
    """Root's images; another user's runtime would look at images of its own."""
    if engine.fault is not None or os.geteuid() != 0:
        return None
    return containers.find(engine.program, reference)


def _pinned_before(
    engine: Engine, image: str, previous: EndpointPlan | None
) -> containers.Image | None:
    """The very image that the endpoint has: its tag may stand for another one by now."""
    old = previous.launch.container if previous else None
    if old is None or old.pinned is None or (old.program, old.image) != (engine.program, image):
        return None
    return _image(engine, old.pinned)
