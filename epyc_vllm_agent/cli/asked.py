"""The endpoint that a command line asks for: its flags, and what is found for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.cli.context import say
from epyc_vllm_agent.config import layers, settings
from epyc_vllm_agent.config.request import Wanted, wanted
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Resolved, Survey

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


def resolve(
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
    for warning in resolved.warnings:
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
