"""Joins the stages: survey of the host, facts of the model, plan, units. Changes nothing."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.changes.installed import stored_plan, stored_plans
from epyc_vllm_agent.config.config import Config, EndpointConfig, load
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.doors.hub import Hub, describe_directory
from epyc_vllm_agent.doors.hubcache import Cache
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import ModelFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.endpoint import Shipped, plan_endpoint
from epyc_vllm_agent.plan.gates import GateTexts, stack_name
from epyc_vllm_agent.plan.sizing import Figures
from epyc_vllm_agent.plan.values import EndpointPlan, Launch, Stack, holds_of
from epyc_vllm_agent.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known before any endpoint is looked at."""

    paths: Paths
    config: Config
    facts: HostFacts
    recipe: Recipe
    shipped: Shipped


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an endpoint's plan is made of, beside the survey: asked for once, it does not change."""

    config: EndpointConfig
    model: ModelFacts
    model_path: str
    stack: Stack
    launch: Launch


def survey(paths: Paths) -> Survey:
    generations = Generations.from_json(read_data("generations.json"))
    facts = gather(paths, generations)
    return Survey(
        paths=paths,
        config=load(paths),
        facts=facts,
        recipe=Recipe.from_json(read_data("epyc.json")),
        shipped=Shipped(
            figures=Figures.from_json(read_data("sizing.json")),
            gate_texts=GateTexts.from_json(read_data("gates.json")),
            routing=generations.routing(facts.cpu.generation),
        ),
    )


def hub(survey: Survey) -> Hub:
    """The model hub as configured; HF_TOKEN of the caller wins over the token file."""
    return Hub(
        survey.paths.models,
        endpoint=os.environ.get("HF_ENDPOINT") or survey.config.hub_endpoint,
        token=os.environ.get("HF_TOKEN") or _token(survey.config.hub_token_file),
    )


def resolve(survey: Survey, config: EndpointConfig) -> Resolved:
    """The model's facts and the stack that would serve it."""
    if config.model.startswith("/"):
        model, path = describe_directory(Path(config.model)), config.model
    else:
        model = hub(survey).describe(config.model, config.revision)
        path = str(Cache(survey.paths.models).snapshot(config.model, model.revision or "main"))
    where = config.environment or survey.recipe.environment.default_path
    user = survey.config.user
    stack = environment.probe(
        where, stack_name(survey.facts.cpu), user, survey.paths.cache / "probes"
    )
    launch = Launch(
        environment=where,
        # Without NUMA in the kernel numactl refuses to start anything.
        numactl=environment.tool("numactl") if survey.facts.numa_known else None,
        taskset=environment.tool("taskset"),
        preload=environment.preload(where, survey.recipe.environment.preload),
        user=user,
        agent=str(Path(sys.prefix) / "bin" / "epyc-vllm"),
    )
    return Resolved(config, model, path, stack, launch)


def make_plan(survey: Survey, resolved: Resolved) -> EndpointPlan:
    """The endpoint's plan beside the stored plans of the others."""
    name = resolved.config.name
    others = stored_plans(survey.paths, but=[name])
    try:
        previous = stored_plan(survey.paths, name)
    except ActionFailed:  # it is about to be written anew
        previous = None
    return plan_endpoint(
        resolved.config,
        survey.facts,
        resolved.model,
        resolved.model_path,
        resolved.stack,
        resolved.launch,
        previous,
        [hold for plan in others for hold in holds_of(plan)],
        survey.shipped,
    )


def plans_of(paths: Paths, names: Sequence[str]) -> tuple[EndpointPlan, ...]:
    """The stored plans of `names`; all of them where none is named."""
    plans = stored_plans(paths)
    return tuple(plan for plan in plans if not names or plan.name in names)


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except OSError as error:
        raise ActionFailed(
            "token-unreadable",
            f"the hub token file {path} cannot be read ({error.strerror})",
            "run this as root, or correct token_file in /etc/epyc-vllm/epyc-vllm.toml",
        ) from error
