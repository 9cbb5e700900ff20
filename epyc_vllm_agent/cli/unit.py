"""unit, withdraw: the steps that systemd's units and the package call; not for people."""

import os
from pathlib import Path

import click

from epyc_vllm_agent.apply.take_down import withdraw as withdraw_all
from epyc_vllm_agent.cli.context import Context, pass_context, say
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.watch import unit_steps


@click.group(hidden=True)
def unit() -> None:
    """Steps of an instance's unit, called by systemd."""


@unit.command()
@click.argument("instance")
@pass_context
def preflight(context: Context, instance: str) -> None:
    """Before the server starts: is everything as planned?"""
    unit_steps.preflight(context.paths, instance, _variable("INVOCATION_ID"))


@unit.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def serve(command: tuple[str, ...]) -> None:
    """Become the server, with the API key in its environment."""
    unit_steps.serve(Path(_variable("CREDENTIALS_DIRECTORY")), command)


@unit.command()
@click.argument("instance")
@pass_context
def ready(context: Context, instance: str) -> None:
    """Wait until the server has answered a completion."""
    main_pid = int(_variable("MAINPID"))
    unit_steps.ready(context.paths, instance, _variable("INVOCATION_ID"), main_pid)
    say(f"{instance} answers")


@unit.command()
@click.argument("instance")
@pass_context
def stopping(context: Context, instance: str) -> None:
    """When the server is to stop: note that it was asked for."""
    invocation_id = _variable("INVOCATION_ID")
    unit_steps.stopping(context.paths, instance, invocation_id, os.environ.get("MAINPID"))


@unit.command()
@click.argument("instance")
@pass_context
def stopped(context: Context, instance: str) -> None:
    """After the server ended: was that asked for?"""
    for name in ("INVOCATION_ID", "SERVICE_RESULT"):
        _variable(name)
    report = unit_steps.stopped(context.paths, instance, os.environ)
    if report:
        raise ActionFailed(
            report.cause_code,
            f"{instance} failed in phase {report.phase}: {report.cause}",
            report.hint,
        )


@click.command(hidden=True)
@pass_context
def withdraw(context: Context) -> None:
    """Stop every endpoint and remove its units; files, plans and weights stay."""
    for path in withdraw_all(context.paths, context.changing_systemd()):
        click.echo(f"removed {path}")


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise click.UsageError(f"{name} is not set: this is for systemd to call") from None
