"""detect: what this host is, or another one over ssh."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from epyc_vllm_agent.cli.context import Context, json_option, pass_context, say
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.gather import FILES, gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.report import answer, host
from epyc_vllm_agent.report.host import Seat

# Imports of what not every call needs stand in the functions: `detect --json` of a large host has
# 150 ms, and each of these takes 10 or more.

CONFIGURATION = (
    "etc/epyc-vllm/epyc-vllm.toml",
    *(f"{layer}/epyc-vllm/endpoints.d/*.toml" for layer in ("etc", "usr/share")),
    *(f"{layer}/epyc-vllm/endpoints.d/*.toml.d/*.toml" for layer in ("etc", "usr/share")),
    "var/lib/epyc-vllm/plans/*.json",
)
host_option = click.option(
    "--host",
    "box",
    metavar="[USER@]BOX[:PORT]",
    help="Read another host's files over ssh; nothing is installed there.",
)


@contextmanager
def looking(
    context: Context, box: str | None, files: Sequence[str] = (), present: Sequence[str] = ()
) -> Iterator[Paths]:
    """Where to read from: here, or the files of `box` for as long as the context."""
    if box is None:
        yield context.paths
        return
    if str(context.paths.root) != "/":
        raise click.UsageError("--host and --sysroot each name another host: give one of them")
    from epyc_vllm_agent.doors import ssh

    wanted = (*FILES, *CONFIGURATION, *files)
    with ssh.files_of(ssh.parse(box), wanted, present) as paths:
        try:
            yield paths
        except AgentError as error:  # of a file that lies below a folder of ours for now
            error.message = f"{box}: {error.message.replace(str(paths.root), '')}"
            raise


@click.command()
@host_option
@json_option
@pass_context
def detect(context: Context, box: str | None, as_json: bool) -> None:
    """Show the CPU, its sockets, NUMA nodes and memory, and which instance sits where."""
    generations = Generations.from_json(read_data("generations.json"))
    with looking(context, box) as paths:
        facts, seats = gather(paths, generations), _seats(paths)
    if as_json:
        routing = generations.routing(facts.cpu.generation)
        click.echo(answer.dump(host.plain(facts, routing, seats)))
        return
    from epyc_vllm_agent.report import drawing

    click.echo(drawing.text(facts))
    if sys.stdout.isatty():
        click.echo("\n" + drawing.draw(facts, seats, shutil.get_terminal_size().columns))


def _seats(paths: Paths) -> list[Seat]:
    """Where the stored plans put instances; a plan that cannot be read is told and passed over."""
    try:
        names = sorted(path.stem for path in paths.plans.glob("*.json"))
    except OSError:
        names = []
    found = []
    for name in names:
        from epyc_vllm_agent.changes.installed import stored_plan

        try:
            plan = stored_plan(paths, name)
        except AgentError as error:
            say(f"epyc-vllm: {error.message}".replace(f"{paths.root}/var", "/var"))
            continue
        found += [
            Seat(name, i.name, i.socket, i.nodes, i.cpus, i.kept_cpus)
            for i in (plan.instances if plan else ())
        ]
    return found
