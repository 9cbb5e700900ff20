"""status, verify, show: what is installed, whether it answers, how to reach it."""

from collections.abc import Callable

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes import installed
from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.errors import ActionFailed, AgentError, ConfigError
from epyc_vllm_agent.plan.upgrade import available
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.report import handover, plain, state
from epyc_vllm_agent.watch import drift
from epyc_vllm_agent.watch.drift import Drift
from epyc_vllm_agent.watch.readiness import verify_all


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@pass_context
def status(context: Context, names: tuple[str, ...], as_json: bool) -> None:
    """List endpoints and instances: unit, health, port, socket and since when."""
    systemd = context.systemd()
    recipe = Recipe.from_json(read_data("epyc.json"))
    drifted = _drift(context, systemd)
    found = [
        state.observe(plan, systemd, available(plan, recipe), drifted(plan))
        if isinstance(plan, EndpointPlan)
        else state.unknown(name, plan.message, systemd)
        for name in names or installed.names(context.paths)
        for plan in [_plan(context, name)]
    ]
    missing = [item.problem for item in found if item.name not in installed.names(context.paths)]
    if missing:
        raise ConfigError("no-such-endpoint", "; ".join(map(str, missing)))
    if as_json:
        click.echo(plain.dump({"endpoints": [plain.value(item) for item in found]}))
    else:
        click.echo(state.text(found))


def _drift(context: Context, systemd: Systemd) -> Callable[[EndpointPlan], tuple[Drift, ...]]:
    """How an endpoint differs from what it should be; nothing where the configuration is broken."""
    try:
        survey = pipeline.survey(context.paths)
    except AgentError as error:
        say(f"epyc-vllm: {error.message}")
        return lambda _plan: ()
    made = installed.all_made(context.paths)
    units = {unit.name: unit for unit in systemd.list_units("epyc-vllm-*")}

    def of(plan: EndpointPlan) -> tuple[Drift, ...]:
        of_plan = drift.drift(
            plan,
            made[plan.name],
            survey.config,
            survey.facts,
            lambda service: service in units and units[service].runs,
        )
        return (*of_plan, *drift.pending(context.paths, plan, made[plan.name], systemd))

    return of


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@pass_context
def verify(context: Context, names: tuple[str, ...], as_json: bool) -> None:
    """Prove that running endpoints answer: health, model listed, one completion."""
    plans = _plans(context, names)
    results = [item for plan in plans for item in verify_all(plan)]
    if as_json:
        click.echo(plain.dump({"instances": [plain.verified(item) for item in results]}))
    else:
        for item in results:
            click.echo(state.verified(item))
    failed = [item.instance for item in results if not item.ok]
    if failed:
        raise ActionFailed(
            "verify-failed",
            "does not answer: " + ", ".join(failed),
            "see `epyc-vllm status` and `journalctl -u 'epyc-vllm-*'`",
        )


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@pass_context
def show(context: Context, names: tuple[str, ...], as_json: bool) -> None:
    """Print the hand-over of endpoints again: addresses and examples."""
    plans = _plans(context, names)
    if as_json:
        values = [
            {
                "endpoint": plan.name,
                "connections": [plain.value(item) for item in handover.connections(plan)],
            }
            for plan in plans
        ]
        click.echo(plain.dump({"endpoints": values}))
    else:
        click.echo("\n\n".join(handover.handover(plan) for plan in plans) or "no endpoints")


def _plans(context: Context, names: tuple[str, ...]) -> tuple[EndpointPlan, ...]:
    """The plans of `names`, or all that can be read: a broken one must not hide the others."""
    plans = []
    for name in names or installed.names(context.paths):
        found = _plan(context, name)
        if isinstance(found, EndpointPlan):
            plans.append(found)
        elif names:
            raise found
        else:
            say(f"epyc-vllm: {found.message}")
    return tuple(plans)


def _plan(context: Context, name: str) -> EndpointPlan | AgentError:
    known = installed.names(context.paths)
    if name not in known:
        return ConfigError(
            "no-such-endpoint",
            f"there is no endpoint {name}",
            f"endpoints here: {', '.join(known) or 'none'}",
        )
    try:
        plan = installed.stored_plan(context.paths, name)
    except ActionFailed as error:
        return error
    return plan or ActionFailed(
        "not-enabled",
        f"endpoint {name} has a file or units but no stored plan",
        f"`epyc-vllm enable {name}` makes it, `epyc-vllm disable {name}` clears it away",
    )
