"""plan, enable, disable: an endpoint from a model to a service, and back."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply.bring_up import BroughtUp, bring_up, change_set, require_verified
from epyc_vllm_agent.apply.prepare import Fetching, require_startable
from epyc_vllm_agent.apply.take_down import take_down
from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.cli.host import host_option, looking
from epyc_vllm_agent.cli.progress import Download, ImageFetch, Starting
from epyc_vllm_agent.config import layers, settings
from epyc_vllm_agent.config.request import Wanted, wanted
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved, Survey
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.report import handover, plain, text
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch import placement

F = TypeVar("F", bound=Callable[..., Any])


def endpoint_options(command: F) -> F:
    """The flags that set keys of the endpoint's file; each is named as its key."""
    flags = [
        click.argument("what", metavar="[MODEL]", required=False),
        click.option("--name", help="The endpoint's name; made of the model's by itself."),
        click.option("--revision", help="Branch, tag or commit of the hub model."),
        click.option("--served-model-name", help="The name that clients send."),
        click.option("--runtime", type=click.Choice(settings.RUNTIMES)),
        click.option("--environment", help="Python environment that has vLLM."),
        click.option("--image", help="Container image with vLLM: registry/name:tag."),
        click.option("--model-dir", help="Directory with the model's files, used in place."),
        click.option("--throughput/--no-throughput", default=None, help="All speed switches."),
        click.option("--sockets", help='"all", "auto" or socket numbers: 0,1.'),
        click.option("--socket", type=int, help="One socket; the same as --sockets N."),
        click.option("--cores", type=int, help="Physical cores for each instance."),
        click.option("--placement", type=click.Choice(settings.PLACEMENTS)),
        click.option("--kv-gib", type=int, help="KV cache in GiB per rank."),
        click.option("--port", type=int, help="Port of the first instance."),
        click.option("--address", help="Address to listen on; 127.0.0.1 by itself."),
        click.option("--max-model-len", type=int, help="Longest prompt plus answer, in tokens."),
        click.option("--num-prompts", type=int, help="Requests of that length at once."),
        click.option("--dtype", type=click.Choice(settings.DTYPES)),
        click.option("--chat-template", help="Chat template file for a model that has none."),
        click.option("--api-key-file", help="Root-only file with VLLM_API_KEY=..."),
        click.option("--vllm-arg", "vllm_args", multiple=True, help="Argument of `vllm serve`."),
        click.option("--accept", multiple=True, type=click.Choice(settings.GATES)),
        click.option("--start-timeout", type=int, help="Seconds to answer."),
        click.option(
            "--on-change",
            type=click.Choice((settings.NEXT_START, settings.RESTART)),
            help="When `apply` restarts a running instance whose unit changed.",
        ),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


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
        survey, asked, resolved = _resolve(paths, what, flags, far=box)
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
    survey, asked, resolved = _resolve(context.paths, what, flags, new_image=archive is not None)
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


def _resolve(
    paths: Paths,
    what: str | None,
    flags: dict[str, Any],
    far: str | None = None,
    new_image: bool = False,
) -> tuple[Survey, Wanted, Resolved]:
    survey = pipeline.survey(paths, far)
    name = flags.pop("name")
    model = _what(paths, what, name) or survey.recipe.default_model
    if model.startswith("."):  # a directory, as the shell's user names it
        model = str(Path(model).resolve())
    if (flags["model_dir"] or "").startswith("."):
        flags["model_dir"] = str(Path(flags["model_dir"]).resolve())
    asked = wanted(paths, survey.config, model, None if model == name else name, _keys(flags))
    new_revision = flags["revision"] is not None
    resolved = pipeline.resolve(survey, asked.config, new_image, new_revision)
    for warning in survey.warnings:
        say(f"warning  {warning}")
    return survey, asked, resolved


def _what(paths: Paths, what: str | None, name: str | None) -> str | None:
    """The model or endpoint that is meant; None for the default model.

    An empty argument is a variable that was not set, and --name alone means an endpoint by name.
    """
    if what == "":
        raise click.UsageError("MODEL is empty; leave it out for the default model")
    known = what is None and name and layers.base(paths, name)
    return name if known else what


def _keys(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as keys of the endpoint's file."""
    given: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flags.items()
        if value not in (None, ())
    }
    if {"socket", "sockets"} <= given.keys():
        raise click.UsageError("--socket and --sockets say the same: give one of them")
    if "socket" in given:
        given["sockets"] = [given.pop("socket")]
    elif given.get("sockets", "all") not in ("all", "auto"):
        given["sockets"] = _socket_numbers(str(given["sockets"]))
    return given


def _socket_numbers(value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(
            f'{value!r} is not "all", "auto" or socket numbers such as 0,1', param_hint="--sockets"
        ) from None


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
