"""plan: what enable would do."""

from typing import Any

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes.wanted import change_set
from epyc_vllm_agent.cli.asked import endpoint_options, resolve
from epyc_vllm_agent.cli.context import Context, json_option, pass_context
from epyc_vllm_agent.cli.host import host_option, looking
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.report import plain, text
from epyc_vllm_agent.units.render import render


@click.command()
@endpoint_options
@host_option
@json_option
@pass_context
def plan(
    context: Context, /, what: str | None, box: str | None, as_json: bool, **flags: Any
) -> None:
    """Show what enable would do with MODEL; changes nothing."""
    present = _looked_for(flags["environment"]) if box else ()
    with looking(context, box, present=present) as paths:
        survey, asked, resolved = resolve(paths, what, flags, far=box)
        made = pipeline.make_plan(survey, resolved)
        changes = change_set(paths, made, asked)
    units = render(made)
    if as_json:
        click.echo(plain.dump(plain.plan(made, units)))
    else:
        files = [f"--- {unit.path}\n{unit.text}" for unit in units]
        state = "no changes" if not changes.files else "would be written by enable"
        click.echo("\n".join([text.summary(made), f"units    {state}", "", *files]).rstrip())
    require_startable(made)


def _looked_for(path: str | None) -> tuple[str, ...]:
    recipe = Recipe.from_json(read_data("epyc.json")).environment
    return environment.looked_for(path or recipe.default_path, recipe.preload)
