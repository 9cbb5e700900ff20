"""apply: the host made as its files say."""

from collections.abc import Callable
from contextlib import ExitStack

import click

from epyc_vllm_agent.apply import apply as whole
from epyc_vllm_agent.apply.apply import Applied
from epyc_vllm_agent.apply.intents import Options
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.apply.prepare import Fetching
from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.cli.progress import Download, ImageFetch, Starting
from epyc_vllm_agent.config import config, layers
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import AgentError, ExitCode
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.report import apply as report
from epyc_vllm_agent.report import plain


class NotConverged(AgentError):
    """The answer is there; not everything is as the files say."""

    def __init__(self, exit_code: ExitCode, applied: tuple[Applied, ...]) -> None:
        failed = [one.endpoint for one in applied if one.error]
        changes = [one.endpoint for one in applied if one.is_change]
        said = "could not be applied" if failed else "differ from their files"
        super().__init__("not-converged", f"{said}: {', '.join(failed or changes)}")
        self.exit_code = exit_code
        self.details = "\n".join(e.details for one in applied if (e := one.error) and e.details)


@click.command()
@click.option("--check", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--diff", is_flag=True, help="Show what changes in which file.")
@click.option("--restart", is_flag=True, help="Restart running instances whose unit changed.")
@click.option("--no-start", is_flag=True, help="Write new endpoints, and do not start them.")
@click.option("--no-wait", is_flag=True, help="End with 4 where another run has the lock.")
@click.option("--automatic", is_flag=True, help="As epyc-vllm-apply.service runs it.")
@json_option
@pass_context
def apply(
    context: Context,
    check: bool,
    diff: bool,
    restart: bool,
    no_start: bool,
    no_wait: bool,
    automatic: bool,
    as_json: bool,
) -> None:
    """Make the host as its endpoint files say: create, change, remove.

    A running instance whose unit changed runs on until its next start, unless --restart or its
    on_change says otherwise. What somebody stopped stays stopped.
    """
    if restart and no_start:
        raise click.UsageError("--restart and --no-start exclude each other")
    systemd = context.changing_systemd()
    options = Options(restart=restart, start=not no_start)
    if automatic:
        applied = automatically(context.paths, systemd, options)
    elif check:
        applied = whole.check(context.paths, systemd, options)
    else:
        applied = _run(context.paths, systemd, options, None if no_wait else say)
    if as_json:
        click.echo(plain.dump(report.plain(applied, check, diff)))
    else:
        click.echo((report.diff(applied) if diff else "") + report.text(applied, check))
    code = whole.worst(applied, check)
    if code is not ExitCode.DONE:
        raise NotConverged(code, applied)


def automatically(paths: Paths, systemd: Systemd, options: Options) -> tuple[Applied, ...]:
    """Again where files changed meanwhile: systemd starts no second run beside this one.

    `enable` and `disable` change files too: their runs are waited for, and what they left nothing
    to do for takes no lock, so that the next of them finds it free.
    """
    while True:
        if not config.load(paths).auto_apply:
            say("auto_apply is off in epyc-vllm.toml: nothing is applied by itself")
            return ()
        before = layers.stamp(paths)
        with locked(paths, say):
            pass
        applied = whole.check(paths, systemd, options)
        if any(one.is_change for one in applied):
            applied = _run(paths, systemd, options, say)
        if layers.stamp(paths) == before:
            return applied
        say(report.text(applied, is_check=False))


def _run(
    paths: Paths, systemd: Systemd, options: Options, wait: Callable[[str], None] | None
) -> tuple[Applied, ...]:
    with ExitStack() as lines:

        def telling(model: str, image: str) -> Fetching:
            download = lines.enter_context(Download(model))
            fetch = lines.enter_context(ImageFetch(image))
            return Fetching(download.update, fetch.tell)

        starting = lines.enter_context(Starting())
        return whole.apply(paths, systemd, options, telling, starting.update, wait)
