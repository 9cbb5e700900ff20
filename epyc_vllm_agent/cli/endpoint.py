"""enable and disable: an endpoint from a model to a service, and back."""

import sys
from pathlib import Path
from typing import Any

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply.bring_up import BroughtUp, bring_up, require_verified
from epyc_vllm_agent.apply.prepare import Fetching
from epyc_vllm_agent.apply.take_down import take_down
from epyc_vllm_agent.changes.wanted import change_set
from epyc_vllm_agent.cli.asked import endpoint_options, resolve
from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.cli.progress import Download, ImageFetch, Starting
from epyc_vllm_agent.config.request import Wanted
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.pipeline import Resolved
from epyc_vllm_agent.plan.gates import require_startable
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.report import handover, plain, text
from epyc_vllm_agent.watch import placement


@click.command()
@endpoint_options
@click.option("--image-archive", help="File of `podman save` or `docker save` with the image.")
@click.option("--yes", is_flag=True, help="Launch without asking; accepts no gate.")
@json_option
@pass_context
def enable(
    context: Context,
    /,
    what: str | None,
    image_archive: str | None,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Bring MODEL up as a service on every socket and prove that it answers.

    MODEL is a hub id, a directory, or the name of an endpoint's file; without it, the recipe's
    default model.
    """
    systemd = context.changing_systemd()
    archive = str(Path(image_archive).resolve()) if image_archive else None
    survey, asked, resolved = resolve(context.paths, what, flags, new_image=archive is not None)
    made = pipeline.make_plan(survey, resolved)
    say(text.summary(made))
    require_startable(made)
    if not _is_up(context, made, asked):
        confirm(yes)
    done = launch(context, systemd, asked, resolved, made, archive)
    require_verified(done.verified)
    if done.converged.is_nothing:
        say(f"no changes: endpoint {done.plan.name} is up as planned")
    click.echo(answer(done, as_json))


def launch(
    context: Context,
    systemd: Systemd,
    asked: Wanted,
    resolved: Resolved,
    made: EndpointPlan,
    archive: str | None,
    new_stack: bool = False,
) -> BroughtUp:
    """Brings the endpoint up as in `made`, and tells what is going on meanwhile."""
    image = made.launch.container.image if made.launch.container else ""
    with (
        Download(resolved.model.id) as download,
        ImageFetch(image) as fetch,
        Starting() as starting,
    ):
        fetching = Fetching(download.update, fetch.tell, archive, new_stack)
        done = bring_up(context.paths, asked, resolved, systemd, fetching, starting.update)
    if not made.launch.is_here:
        say(text.found(done.plan))
    for warning in placement.differences(done.plan, systemd):
        say(f"warning  {warning}")
    return done


@click.command()
@click.argument("name")
@click.option("--purge", is_flag=True, help="Also delete the downloaded weights.")
@json_option
@pass_context
def disable(context: Context, name: str, purge: bool, as_json: bool) -> None:
    """Stop the endpoint NAME and remove what enable made."""
    done = take_down(context.paths, name, context.changing_systemd(), purge)
    if as_json:
        values = {"endpoint": name, "removed": list(done.removed), "kept": done.kept_weights}
        click.echo(plain.dump(values))
        return
    for path in done.removed:
        click.echo(f"removed {path}")
    if done.kept_weights:
        click.echo(f"kept    {done.kept_weights} (--purge deletes it)")


def _is_up(context: Context, made: EndpointPlan, asked: Wanted) -> bool:
    """Nothing to write means nothing to ask: what would be launched was confirmed before."""
    return not change_set(context.paths, made, asked).files


def confirm(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(
            "not-confirmed",
            "there is no terminal to confirm the launch on",
            "read the summary above, then run it again with --yes",
        )
    click.confirm("Launch it?", abort=True, err=True)


def answer(done: BroughtUp, as_json: bool) -> str:
    if not as_json:
        return handover.handover(done.plan)
    return plain.dump(
        {
            "endpoint": done.plan.name,
            "changed": not done.converged.is_nothing,
            "files": list(done.converged.changed),
            "started": list(done.converged.started),
            "connections": [plain.value(item) for item in handover.connections(done.plan)],
        }
    )
