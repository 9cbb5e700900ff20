"""detect: what this host is."""

import click

from epyc_vllm_agent.cli.context import Context, json_option, pass_context
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.report import host, plain


@click.command()
@json_option
@pass_context
def detect(context: Context, as_json: bool) -> None:
    """Show the CPU, its sockets, NUMA nodes and memory."""
    generations = Generations.from_json(read_data("generations.json"))
    facts = gather(context.paths, generations)
    if as_json:
        click.echo(plain.dump(host.plain(facts, generations.routing(facts.cpu.generation))))
    else:
        click.echo(host.text(facts))
