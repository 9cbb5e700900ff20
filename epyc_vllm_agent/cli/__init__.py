"""The command line: click commands, and the one place where an error becomes an exit code."""

import os
import sys
from pathlib import Path

import click

from epyc_vllm_agent import __version__
from epyc_vllm_agent.apply.converge import StartFailed
from epyc_vllm_agent.cli import endpoint, host, observe, unit
from epyc_vllm_agent.cli.context import Context
from epyc_vllm_agent.errors import AgentError, ExitCode
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.report import text


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="epyc-vllm")
@click.option(
    "--sysroot",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    help="Read the host's facts and files below this folder.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def group(context: click.Context, sysroot: Path, debug: bool) -> None:
    """vLLM endpoints as services of an AMD EPYC host."""
    context.obj = Context(Paths(sysroot.resolve()), debug)


group.add_command(host.detect)
group.add_command(endpoint.plan)
group.add_command(endpoint.enable)
group.add_command(endpoint.disable)
group.add_command(observe.status)
group.add_command(observe.verify)
group.add_command(observe.show)
group.add_command(unit.unit)


def main() -> None:
    """Runs the command and exits with one of `ExitCode`."""
    # Files that vLLM's own user has to read are made here: a stricter umask would hide them.
    os.umask(0o022)
    try:
        group.main(standalone_mode=False)
        code = ExitCode.DONE
    except AgentError as error:
        if "--debug" in sys.argv:
            raise
        code = _explain(error)
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = ExitCode.INTERRUPTED
    sys.exit(code)


def _explain(error: AgentError) -> ExitCode:
    """The error as a sysadmin reads it: logs first, the cause as the last thing on the screen."""
    if isinstance(error, StartFailed):
        for report in error.reports:
            click.echo(text.failure(report), err=True)
    click.echo(f"epyc-vllm: {error.message}", err=True)
    if error.hint:
        click.echo(f"  {error.hint}", err=True)
    if isinstance(error, StartFailed):
        click.echo(f"  {error.outcome}", err=True)
    return error.exit_code
