"""Joins the stages: survey of the host, facts of the model, plan, units. Changes nothing."""

import os
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from epyc_vllm_agent.changes.installed import Stored, read_stored
from epyc_vllm_agent.config import checks
from epyc_vllm_agent.config.config import Config, EndpointConfig, load
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.doors.hub import Hub, describe_directory
from epyc_vllm_agent.doors.hubcache import Cache
from epyc_vllm_agent.doors.probed import Probed
from epyc_vllm_agent.errors import ActionFailed, ConfigError, Refused
from epyc_vllm_agent.facts.catalog import Registry, shipped_registry
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import ModelFacts
from epyc_vllm_agent.launch import choose_runtime, in_container
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.endpoint import Shipped, had_of, plan_endpoint
from epyc_vllm_agent.plan.gates import GateTexts, served_name, stack_name
from epyc_vllm_agent.plan.placement import Load, needs_load
from epyc_vllm_agent.plan.platform import predict
from epyc_vllm_agent.plan.sizing import Figures
from epyc_vllm_agent.plan.stacks import Stacks
from epyc_vllm_agent.plan.throughput import switches
from epyc_vllm_agent.plan.values import EndpointPlan, Hold, Launch, Stack, holds_of
from epyc_vllm_agent.recipe import Recipe

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known before any endpoint is looked at. `far` is the box whose files these are,
    `foreign_ports` those that other programs are known to listen on, `leaving` those that each
    endpoint gives up in this run."""

    paths: Paths
    config: Config
    facts: HostFacts
    recipe: Recipe
    shipped: Shipped
    stored: Stored
    far: str | None = None
    # Ports of running instances of ours are listened on too: only where they were told apart.
    foreign_ports: frozenset[int] = frozenset()
    leaving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    # What was asked of runtimes, environments and models: the same for every endpoint of a run.
    asked: dict[Hashable, Any] = field(default_factory=dict, compare=False)

    @property
    def is_elsewhere(self) -> bool:
        """Another machine's files: nothing can be run or measured there."""
        return str(self.paths.root) != "/"

    @property
    def busy_ports(self) -> frozenset[int]:
        """What is listened on, and still will be when this run starts something."""
        left = {port for ports in self.leaving.values() for port in ports}
        return self.facts.listening_ports - (left - self.foreign_ports)

    def host_path(self, path: Path) -> str:
        """A path below the root as that host itself names it."""
        return "/" + str(path.relative_to(self.paths.root))


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an endpoint's plan is made of, beside the survey: asked for once, it does not change."""

    config: EndpointConfig
    model: ModelFacts
    model_path: str
    stack: Stack
    launch: Launch
    load: Load | None = None
    # What was found while asking that is to be told, and is in no plan.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A model's facts and where it lies; `warning` where the facts may be old."""

    model: ModelFacts
    path: str
    warning: str | None = None


def survey(paths: Paths, far: str | None = None) -> Survey:
    generations = Generations.from_json(read_data("generations.json"))
    facts = gather(paths, generations)
    recipe = Recipe.from_json(read_data("epyc.json"))
    return Survey(
        paths=paths,
        far=far,
        config=load(paths),
        facts=facts,
        recipe=recipe,
        stored=read_stored(paths),
        shipped=Shipped(
            figures=Figures.from_json(read_data("sizing.json")),
            gate_texts=GateTexts.from_json(read_data("gates.json")),
            routing=generations.routing(facts.cpu.generation),
            stacks=Stacks.from_json(read_data("stacks.json")),
            precisions=recipe.precisions,
            zentorch_precisions=recipe.zentorch_precisions,
        ),
    )


def hub(survey: Survey, registry: Callable[[], Registry] = shipped_registry) -> Hub:
    """The model hub as configured; HF_TOKEN of the caller wins over the token file."""
    cache = survey.paths.models
    is_plan_only = survey.is_elsewhere or os.geteuid() != 0
    if is_plan_only and not os.access(cache, os.W_OK):  # it describes in the user's own cache
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "epyc-vllm")
    return Hub(
        cache,
        endpoint=_endpoint(survey.config),
        token=_far_token(survey.config) if survey.far else _own_token(survey.config),
        registry=registry,
    )


def resolve(
    survey: Survey,
    config: EndpointConfig,
    new_image: bool = False,
    new_revision: bool = False,
    new_stack: bool = False,
) -> Resolved:
    """The model's facts, the stack that would serve it, and how busy the host is.

    `new_image`: an image is about to be brought for it. `new_revision`: the revision was asked for
    just now. `new_stack`: it is to have the stack that is pinned now.
    """
    revision = config.revision if new_revision else _revision(survey, config)
    # Asking a stack for the first time takes long: a model that is not there is told before.
    registry = lambda: _registry(serving(survey, config, new_image, new_stack)[0])  # noqa: E731
    found = describe(survey, config, revision, registry)
    probed, launch = serving(survey, config, new_image, new_stack)
    return Resolved(
        config,
        found.model,
        found.path,
        probed.stack,
        launch,
        _load(survey, config),
        (found.warning,) if found.warning else (),
    )


def resolve_with_image(
    survey: Survey, resolved: Resolved, new_image: bool, new_stack: bool
) -> Resolved:
    """The same once its image is here: only now it is known what the vLLM in it serves."""
    config, known = resolved.config, resolved.model.revision
    probed, launch = serving(survey, config, new_image, new_stack)
    found = describe(survey, config, known, lambda: _registry(probed))
    return replace(resolved, model=found.model, stack=probed.stack, launch=launch)


def describe(
    survey: Survey, config: EndpointConfig, revision: str | None, registry: Callable[[], Registry]
) -> Described:
    """The model, judged by what the vLLM that will run lists."""
    directory = config.model_dir or (config.model if config.model.startswith("/") else None)
    by = _seat(survey, config)  # whose registry it is
    if directory is None:
        model, warning = _once(
            survey,
            ("model", config.model, revision, by),
            lambda: _from_hub(survey, config.model, revision, registry),
        )
        snapshot = Cache(survey.paths.models).snapshot(config.model, model.revision or "main")
        return Described(model, survey.host_path(snapshot), warning)
    if survey.far:
        raise Refused(
            "directory-elsewhere",
            f"{directory} is a directory on {survey.far}: it cannot be read from here",
            f"run the plan on {survey.far} itself, or name a model of the hub",
        )
    found = _once(
        survey,
        ("directory", directory, by),
        lambda: describe_directory(Path(directory), registry),
    )
    return Described(replace(found, id=config.model), directory)


def _from_hub(
    survey: Survey, model: str, revision: str | None, registry: Callable[[], Registry]
) -> tuple[ModelFacts, str | None]:
    """The model's facts, and a warning where they are those of an earlier time."""
    asked = hub(survey, registry)
    found = asked.describe(model, revision)
    if asked.fallback is None:
        return found, None
    why = asked.fallback.message
    return found, f"{why}: {model} is taken as it was when the hub was last asked"


def _registry(probed: Probed) -> Registry:
    return probed.registry or shipped_registry(probed.stack.vllm)


def _once(survey: Survey, key: Hashable, ask: Callable[[], T]) -> T:
    """The answer of `ask`, which is asked once in a run: it takes programs, files or the hub."""
    if key not in survey.asked:
        survey.asked[key] = ask()
    found: T = survey.asked[key]
    return found


def readable(survey: Survey, path: str, user: str) -> bool:
    """Whether that user can read the file."""
    asked = ("readable", path, user)
    return _once(survey, asked, lambda: environment.readable(path, user))


def serving(
    survey: Survey, config: EndpointConfig, new_image: bool = False, new_stack: bool = False
) -> tuple[Probed, Launch]:
    """The runtime that the endpoint gets: the stack in it and what starts it.

    An image that the endpoint's stored plan has is kept, unless a `new_image` was just brought or
    the `new_stack` is asked for; the latter stays in the plan's runtime.
    """
    asked = (_seat(survey, config), config.throughput, new_image, new_stack)
    return _once(survey, asked, lambda: _serving(survey, config, new_image, new_stack))


def _seat(survey: Survey, config: EndpointConfig) -> Hashable:
    """All of an endpoint that decides what serves it: the same for many of them."""
    previous = _previous(survey, config.name)
    had = previous and (previous.launch, previous.config.image, previous.stack.name)
    return config.runtime, config.environment, config.image, had


def _serving(
    survey: Survey, config: EndpointConfig, new_image: bool, new_stack: bool
) -> tuple[Probed, Launch]:
    recipe, cpu = survey.recipe, survey.facts.cpu
    where = config.environment or recipe.environment.default_path
    if survey.far:  # which runtimes it has is not asked
        return ask_environment(survey, where), _launch(survey, where)
    wanted = stack_name(cpu)
    forgotten = new_image and not new_stack
    previous = None if forgotten else _previous(survey, config.name)
    chosen = choose_runtime(recipe, config, wanted, previous, new_image, new_stack)
    if chosen.engine is None:
        probed, launch = ask_environment(survey, where), _launch(survey, where)
    else:
        before = None if new_stack else previous
        probed, container = in_container(
            survey.paths, recipe, chosen, chosen.engine, wanted, before
        )
        launch = Launch(None, None, None, (), "root", _agent(), container)
        if probed.stack.probed:
            probed = _named(survey, probed)
    extra = switches(probed.stack, recipe.throughput) if config.throughput else ()
    return probed, replace(launch, switches=extra, reason=chosen.reason)


def ask_environment(survey: Survey, where: str, remember: bool = True) -> Probed:
    """What the vLLM in the environment `where` says; of another machine as far as it can be told
    here."""
    wanted = stack_name(survey.facts.cpu)
    if survey.far:
        return Probed(_predicted(survey, assumed(survey.shipped.stacks, wanted)), None)
    probes = survey.paths.cache / "probes"
    probed = environment.probe(where, wanted, survey.config.user, probes, remember)
    if survey.is_elsewhere:  # what vLLM chose here says nothing of the CPU there
        return replace(probed, stack=_predicted(survey, probed.stack))
    return _named(survey, probed)


def _named(survey: Survey, probed: Probed) -> Probed:
    """By the stack that will really serve, which may be another than was wanted."""
    rules = survey.shipped.stacks.platforms
    name = served_name(survey.facts.cpu, probed.stack, rules)
    return replace(probed, stack=replace(probed.stack, name=name))


def assumed(stacks: Stacks, name: str) -> Stack:
    """What packaging/make-environment makes: taken for the environment of a host not asked."""
    made = next(stack for stack in stacks.validated if stack.where == "environment")
    zentorch = made.zentorch if name == made.name else None
    return Stack(
        name, f"{made.vllm}+cpu", zentorch, None, None, zentorch_importable=zentorch is not None
    )


def _predicted(survey: Survey, stack: Stack) -> Stack:
    found = predict(survey.facts.cpu, stack, survey.shipped.stacks.platforms)
    platform = stack.platform if found is None or found.platform is None else found.platform
    return replace(stack, platform=platform, probed=False)


def _launch(survey: Survey, where: str) -> Launch:
    root = survey.paths.root if survey.far else Path("/")
    return Launch(
        environment=where,
        # Without NUMA in the kernel numactl refuses to start anything.
        numactl=environment.tool("numactl", root) if survey.facts.numa_known else None,
        taskset=environment.tool("taskset", root),
        preload=environment.preload(where, survey.recipe.environment.preload, root),
        user=survey.config.user,
        agent="/usr/bin/epyc-vllm" if survey.far else _agent(),
    )


def _agent() -> str:
    return str(Path(sys.prefix) / "bin" / "epyc-vllm")


def _load(survey: Survey, config: EndpointConfig) -> Load | None:
    """Sampled once, before anything is shown: a second sample could choose another socket than
    the one that was confirmed."""
    if survey.is_elsewhere:
        return None
    holds = _holds(survey, config.name)
    if not needs_load(config, survey.facts, holds, had_of(_previous(survey, config.name))):
        return None
    from epyc_vllm_agent.doors import load  # psutil: for this choice only

    rule = survey.recipe.load
    return Load(load.busy_percent(survey.facts.sockets, rule.sample_seconds), rule.busy_percent)


def _revision(survey: Survey, config: EndpointConfig) -> str | None:
    """The commit that the endpoint was planned with: a branch that moves on must not change what
    runs, and a commit in the cache asks no hub."""
    previous = _previous(survey, config.name)
    if previous is None or previous.config.model != config.model:
        return config.revision
    same = previous.config.revision == config.revision
    return (previous.model.revision if same else None) or config.revision


def _previous(survey: Survey, name: str) -> EndpointPlan | None:
    """Its stored plan; none as well where that cannot be read: it is about to be written anew."""
    return survey.stored.plans.get(name)


def _holds(survey: Survey, name: str) -> list[Hold]:
    held = (hold for plan in survey.stored.beside(name) for hold in holds_of(plan))
    return [
        replace(hold, port=None) if hold.port in survey.leaving.get(hold.endpoint, ()) else hold
        for hold in held
    ]


def make_plan(survey: Survey, resolved: Resolved) -> EndpointPlan:
    """The endpoint's plan beside the stored plans of the others."""
    name = resolved.config.name
    return plan_endpoint(
        resolved.config,
        survey.facts,
        resolved.model,
        resolved.model_path,
        resolved.stack,
        resolved.launch,
        _previous(survey, name),
        _holds(survey, name),
        survey.shipped,
        resolved.load,
        survey.foreign_ports,
        survey.busy_ports,
    )


def _endpoint(config: Config) -> str | None:
    """The hub's URL; None: the library's own."""
    named = os.environ.get("HF_ENDPOINT")
    value = named or config.hub_endpoint
    if value is None or checks.is_http_url(value):
        return value
    raise ConfigError(
        "bad-hub-endpoint",
        f"{value!r} in {'HF_ENDPOINT' if named else 'epyc-vllm.toml'} is no URL of a model hub",
        "give scheme, host and, where it is another one, the port: https://hub.example.org:8443",
    )


def _own_token(config: Config) -> str | None:
    return _given_token() or _token(config.hub_token_file)


def _given_token() -> str | None:
    return _as_token(os.environ.get("HF_TOKEN", ""), "HF_TOKEN")


def _as_token(text: str, where: str) -> str | None:
    """None for a blank one."""
    found = text.strip()
    if found.isascii() and found.isprintable() and " " not in found:
        return found or None
    raise ConfigError(
        "bad-token",
        f"the hub token in {where} has characters that no token has",
        "put the token there alone, as the hub shows it",
    )


def _far_token(config: Config) -> str | None:
    """Its token stays on the other host, and ours is not for a hub that its files name."""
    is_ours = "HF_ENDPOINT" in os.environ or config.hub_endpoint is None
    return _given_token() if is_ours else None


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return _as_token(Path(path).read_text(encoding="utf-8", errors="replace"), path)
    except OSError as error:
        raise ActionFailed(
            "token-unreadable",
            f"the hub token file {path} cannot be read ({error.strerror})",
            "run this as root, or correct token_file in /etc/epyc-vllm/epyc-vllm.toml",
        ) from error
