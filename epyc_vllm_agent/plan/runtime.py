"""Which runtime an endpoint gets, from what is on the host; pure. Reasons: docs/runtimes.md."""

from dataclasses import dataclass

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.plan.values import EndpointPlan, Refusal

AUTO, PODMAN, DOCKER, HOST = "auto", "podman", "docker", "host"


@dataclass(frozen=True, slots=True)
class Engine:
    """A container runtime as its door found it. `fault` says why it cannot run services, and `fix`
    what is to be done once; both None where it can."""

    program: str
    version: str | None
    generator: str | None = None  # of quadlets; None where this podman has none
    fault: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Runtimes:
    """What could run vLLM on this host. `images` names the runtimes that have the image already."""

    podman: Engine | None
    docker: Engine | None
    environment: bool  # the recipe's Python environment is there
    images: frozenset[str] = frozenset()

    def engine(self, name: str) -> Engine | None:
        return {PODMAN: self.podman, DOCKER: self.docker}.get(name)


@dataclass(frozen=True, slots=True)
class Choice:
    runtime: str
    reason: str


def choose(
    config: EndpointConfig, runtimes: Runtimes, previous: EndpointPlan | None
) -> Choice | Refusal:
    """The runtime of `config`; `previous` is its stored plan, whose runtime "auto" keeps."""
    if config.runtime == HOST:
        return Choice(HOST, "chosen by the administrator")
    if config.runtime != AUTO:
        return _unusable(config.runtime, runtimes) or Choice(
            config.runtime, "chosen by the administrator"
        )
    if config.environment is not None:
        return Choice(HOST, f"the endpoint names the environment {config.environment}")
    return _automatic(config, runtimes, previous)


def _automatic(
    config: EndpointConfig, runtimes: Runtimes, previous: EndpointPlan | None
) -> Choice | Refusal:
    wants_image = config.image is not None
    quadlet = runtimes.podman is not None and runtimes.podman.generator is not None
    usable = {name for name in (PODMAN, DOCKER) if _unusable(name, runtimes) is None}
    if runtimes.environment and not wants_image:
        usable.add(HOST)
    if _may_stay(config, previous) and previous is not None and previous.runtime in usable:
        return Choice(previous.runtime, previous.launch.reason)  # a re-plan changes nothing
    if HOST in usable and not runtimes.images & usable:
        # Somebody made that environment; an image would have to be fetched first.
        return Choice(HOST, "its environment is there, and no image is")
    for name, reason in (
        (PODMAN if quadlet else None, "podman with quadlet is there"),
        (DOCKER, "docker answers, and there is no podman with quadlet"),
        (HOST, "no container runtime can be used"),
        (PODMAN, "podman is there, too old for quadlet"),
    ):
        if name in usable:
            return Choice(str(name), reason)
    return _none(runtimes)


def _may_stay(config: EndpointConfig, previous: EndpointPlan | None) -> bool:
    """Whether nothing was asked that could mean another runtime than before."""
    if previous is None:
        return False
    old = previous.config
    return (old.runtime, old.image, old.environment) == (
        config.runtime,
        config.image,
        config.environment,
    )


def _unusable(name: str, runtimes: Runtimes) -> Refusal | None:
    engine = runtimes.engine(name)
    if engine is None:
        return Refusal(
            "no-runtime",
            f"{name} is not installed on this host",
            f"install it once (apt-get install {'docker.io' if name == DOCKER else name}), or "
            "choose another with --runtime",
        )
    if engine.fault is not None:
        return Refusal("runtime-unusable", engine.fault, engine.fix or "choose another --runtime")
    return None


def _none(runtimes: Runtimes) -> Refusal:
    faults = [
        engine.fault for engine in (runtimes.podman, runtimes.docker) if engine and engine.fault
    ]
    fixes = [engine.fix for engine in (runtimes.podman, runtimes.docker) if engine and engine.fix]
    why = f" ({'; '.join(faults)})" if faults else ""
    return Refusal(
        "no-runtime",
        f"nothing here can run vLLM: no podman, no docker, no Python environment with vLLM{why}",
        fixes[0]
        if fixes
        else "install podman once (apt-get install podman), or make an environment with "
        "packaging/make-environment",
    )
