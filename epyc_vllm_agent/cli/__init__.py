"""The command line: click commands, and the one place where an error becomes an exit code."""

import importlib
import os
import sys
from pathlib import Path

import click

from epyc_vllm_agent import __version__, interrupts
from epyc_vllm_agent.cli.context import Context
from epyc_vllm_agent.errors import ActionFailed, AgentError, ExitCode
from epyc_vllm_agent.paths import Paths

# Verb and the module of this folder that has it: `detect` need not import what `enable` needs.
_VERBS = {
    "detect": "host",
    "doctor": "doctor",
    "plan": "plan",
    "enable": "endpoint",
    "upgrade": "upgrade",
    "disable": "endpoint",
    "apply": "apply",
    "status": "observe",
    "verify": "observe",
    "show": "observe",
    "report": "report",
    "unit": "unit",
    "withdraw": "unit",
    "watchdog": "watchdog",
}


class _Verbs(click.Group):
    """The verbs, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"epyc_vllm_agent.cli.{_VERBS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
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


def main() -> None:
    """Runs the command and exits with one of `ExitCode`."""
    # Files that vLLM's own user has to read are made here: a stricter umask would hide them.
    os.umask(0o022)
    try:
        group.main(standalone_mode=False)
        sys.stdout.flush()
        code = ExitCode.DONE
    except (AgentError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        code = _explain(error if isinstance(error, AgentError) else _of_system(error))
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt) as error:
        notes = getattr(error, "__notes__", [])
        click.echo("; ".join(["interrupted", *notes]), err=True)
        code = ExitCode.INTERRUPTED
    interrupts.ignore()  # what is left is the interpreter's own end
    sys.exit(code)


def _of_system(error: OSError) -> AgentError:
    """What the operating system refused: a file not to be read, a full disk, a closed pipe."""
    if error.filename is None:  # the answer itself; a second try at exit would tell it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ActionFailed("output", f"the answer cannot be written ({error.strerror})")
    return ActionFailed(
        "system",
        f"{error.filename} cannot be used ({error.strerror})",
        "look at its rights, or run this with sudo; --debug shows where it happened",
    )


def _explain(error: AgentError) -> ExitCode:
    """The error as a sysadmin reads it: logs first, the cause as the last thing on the screen."""
    hint = f"  {error.hint}" if error.hint else None
    outcome = f"  {error.outcome}" if error.outcome else None
    for line in (error.details, f"epyc-vllm: {error.message}", hint, outcome):
        if line:
            click.echo(line, err=True)
    return error.exit_code
