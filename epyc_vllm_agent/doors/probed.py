"""What a vLLM answered to inquiry.py, and the file that remembers it; asks nothing itself."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.codec import from_plain
from epyc_vllm_agent.facts.catalog import Registry, parse_registry
from epyc_vllm_agent.plan.values import Stack

# Handed to the other Python with -c: it need not have this program, nor a path to it.
INQUIRY = Path(__file__).with_name("inquiry.py").read_text(encoding="utf-8")
MARK = "epyc-vllm-probe "  # how the line with the answer begins


@dataclass(frozen=True, slots=True)
class Probed:
    """A stack and the architectures that its vLLM lists; None where it could not tell them."""

    stack: Stack
    registry: Registry | None


def answer_in(output: str) -> str | None:
    """The answer in what the other Python printed, None where it has not come so far."""
    lines = (line for line in output.splitlines() if line.startswith(MARK))
    return next((line.removeprefix(MARK) for line in lines), None)


def read(answer: str, name: str) -> Probed:
    """The answer as values; `name` is the stack that the plan wants, "zentorch" or "stock".

    Raises ValueError where it is not what inquiry.py prints.
    """
    try:
        said = json.loads(answer)
        table = said["registry"]
        stack = from_plain(Stack, said["stack"] | {"name": name})
        return Probed(stack, parse_registry(table) if table else None)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no answer of a probe: {error!r}") from error


def recall(file: Path, name: str) -> Probed | None:
    """What is remembered in `file`; None where nothing is, or not in this form."""
    try:
        return read(file.read_text(encoding="utf-8"), name)
    except (OSError, ValueError):
        return None


def remember(file: Path, answer: str) -> None:
    """Keeps an answer. An unprivileged `plan` may not, and asks again the next time."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(answer, encoding="utf-8")
