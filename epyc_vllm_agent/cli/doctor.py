"""doctor: is this host fit to serve, and what has to be done about it once?"""

import click

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.cli.context import Context, json_option, pass_context
from epyc_vllm_agent.cli.host import host_option, looking
from epyc_vllm_agent.config import settings
from epyc_vllm_agent.doctor import look
from epyc_vllm_agent.doctor.diagnose import Diagnosis, diagnose
from epyc_vllm_agent.doctor.finding import Severity
from epyc_vllm_agent.errors import AgentError, ExitCode
from epyc_vllm_agent.report import answer
from epyc_vllm_agent.report import doctor as report


class Findings(AgentError):
    """The answer is there, and holds errors."""

    exit_code = ExitCode.FINDINGS


@click.command()
@host_option
@click.option("--environment", help="Python environment to look at; the host's default by itself.")
@click.option("--image", help="Container image to look for; that of the CPU's stack by itself.")
@click.option("--accept", multiple=True, type=click.Choice(settings.GATES), help="A gate's name.")
@json_option
@pass_context
def doctor(
    context: Context,
    box: str | None,
    environment: str | None,
    image: str | None,
    accept: tuple[str, ...],
    as_json: bool,
) -> None:
    """Judge this host: CPU, runtimes, stack, model cache, systemd. Changes nothing."""
    with looking(context, box, look.FILES, look.PRESENT) as paths:
        survey = pipeline.survey(paths, box)
        by_default = dict(survey.config.defaults).get("accept", ())
        seen = look.look(survey, (*accept, *by_default), environment, image)
    found = diagnose(seen)
    click.echo(answer.dump(report.plain(seen, found)) if as_json else report.text(seen, found))
    _require_ready(found)


def _require_ready(found: Diagnosis) -> None:
    errors = found.of(Severity.ERROR)
    if errors:
        raise Findings(
            "doctor-errors",
            f"doctor found {len(errors)} error(s): " + ", ".join(error.code for error in errors),
            "each is in the answer, with what to do about it",
        )
