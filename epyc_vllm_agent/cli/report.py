"""report: why an endpoint failed."""

import click

from epyc_vllm_agent.cli.context import Context, json_option, pass_context
from epyc_vllm_agent.errors import ConfigError, Refused
from epyc_vllm_agent.report import failure as text
from epyc_vllm_agent.report import plain
from epyc_vllm_agent.watch import failure
from epyc_vllm_agent.watch.failure import FailureReport


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="A line for each report.")
@json_option
@pass_context
def report(context: Context, name: str | None, listed: bool, as_json: bool) -> None:
    """Show the newest failure report, of all or of the endpoint or instance NAME."""
    found = _stored(context, name)
    shown = found if listed else found[:1]
    if as_json:
        click.echo(plain.dump({"reports": [plain.value(item) for item in shown]}))
    elif not found:
        click.echo(f"no failure of {name} is reported" if name else "no failure is reported")
    elif listed:
        click.echo(text.listing(found))
    else:
        click.echo(text.text(found[0], earlier=len(found) - 1))


def _stored(context: Context, name: str | None) -> tuple[FailureReport, ...]:
    try:
        found = failure.stored(context.paths, name)
    except PermissionError:
        raise Refused(
            "not-root", "the reports hold logs and are root's to read", "run it with sudo"
        ) from None
    if name and not found and not _is_known(context, name):
        raise ConfigError(
            "no-such-endpoint",
            f"there is no endpoint or instance {name!r}, and no report of one",
            "see `epyc-vllm status` and `epyc-vllm report --list`",
        )
    return found


def _is_known(context: Context, name: str) -> bool:
    """By the plans' files alone: a report must be readable beside a plan that is not."""
    plans = {path.stem for path in context.paths.plans.glob("*.json")}
    return name in plans or name.rpartition("-s")[0] in plans
