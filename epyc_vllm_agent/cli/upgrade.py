"""upgrade: an endpoint moves to the stack that is pinned now, and back where it does not serve."""

from pathlib import Path
from typing import Any

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes import installed
from epyc_vllm_agent.changes.wanted import change_set
from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.cli.endpoint import answer, confirm, launch
from epyc_vllm_agent.config import settings
from epyc_vllm_agent.config.request import wanted
from epyc_vllm_agent.errors import ConfigError, Refused
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.plan.stacks import release
from epyc_vllm_agent.plan.upgrade import available
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.report import text

_MAKE = "/usr/libexec/epyc-vllm/make-environment (packaging/make-environment of a checkout)"


@click.command()
@click.argument("name")
@click.option("--image", help="Another image than the pinned one: registry/name:tag.")
@click.option("--image-archive", help="File of `podman save` or `docker save` with the image.")
@click.option("--environment", help="Another Python environment that has vLLM.")
@click.option("--accept", multiple=True, type=click.Choice(settings.GATES), help="A gate's name.")
@click.option("--yes", is_flag=True, help="Restart without asking; accepts no gate.")
@json_option
@pass_context
def upgrade(
    context: Context,
    /,
    name: str,
    image_archive: str | None,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Move the endpoint NAME to the image that is pinned now, and back where it does not answer.

    The image is fetched and asked what is in it while the endpoint still runs. Then its instances
    are restarted, one completion is asked of each, and where one fails the earlier image serves
    again.
    """
    systemd = context.changing_systemd()
    old = _plan(context, name)
    survey = pipeline.survey(context.paths)
    given = {key: _listed(value) for key, value in flags.items() if value not in (None, ())}
    asked = wanted(context.paths, survey.config, name, None, given)
    archive = str(Path(image_archive).resolve()) if image_archive else None
    resolved = pipeline.resolve(survey, asked.config, archive is not None, new_stack=True)
    made = pipeline.make_plan(survey, resolved)
    _require_made(made, survey.recipe)
    say(text.summary(made))
    say(f"upgrade  {text.stack(old)} -> {text.stack(made)}")
    require_startable(made)
    if change_set(context.paths, made, asked).files or archive:
        confirm(yes)
    done = launch(context, systemd, asked, resolved, made, archive, new_stack=True)
    if done.converged.is_nothing:
        say(f"no changes: endpoint {name} has what is pinned")
    click.echo(answer(done, as_json))


def _plan(context: Context, name: str) -> EndpointPlan:
    plan = installed.stored_plan(context.paths, name) if name in _known(context) else None
    if plan is None:
        raise ConfigError(
            "no-such-endpoint",
            f"there is no enabled endpoint {name!r}",
            f"endpoints here: {', '.join(_known(context)) or 'none'}",
        )
    return plan


def _known(context: Context) -> tuple[str, ...]:
    return installed.names(context.paths)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _require_made(made: EndpointPlan, recipe: Recipe) -> None:
    """An environment is not ours to change: its administrator makes the next one beside it."""
    where, pinned = made.launch.environment, available(made, recipe)
    if where is None or pinned is None:
        return
    number = ".".join(map(str, release(pinned)))
    raise Refused(
        "no-new-environment",
        f"{where} has vLLM {made.stack.vllm}, and {pinned} is pinned now",
        f"make one beside it with {_MAKE} {where}-{number}, then "
        f"`epyc-vllm upgrade {made.name} --environment {where}-{number}`",
    )
