"""How far the current run of an instance came: a small file in /run, read back for a report."""

import json
from dataclasses import dataclass, replace

from epyc_vllm_agent.codec import from_plain, to_plain
from epyc_vllm_agent.files import write_atomically
from epyc_vllm_agent.paths import Paths


@dataclass(frozen=True, slots=True)
class Mark:
    """`phase` is "preflight", "health", "models", "completion" or "serving"; `fault` tells, in
    one sentence, why it was the last one. `stop_asked`: systemd was told to stop it.
    `control_group`: of a server that is not in its unit's."""

    invocation_id: str
    phase: str
    fault: str | None = None
    hint: str | None = None
    stop_asked: bool = False
    control_group: str | None = None


def write(paths: Paths, instance: str, mark: Mark) -> None:
    write_atomically(paths.run / f"{instance}.json", json.dumps(to_plain(mark)))


def read(paths: Paths, instance: str, invocation_id: str) -> Mark | None:
    """The mark of that invocation; None where it left none."""
    try:
        text = (paths.run / f"{instance}.json").read_text(encoding="utf-8")
        mark = from_plain(Mark, json.loads(text))
    except (OSError, ValueError):
        return None
    return mark if mark.invocation_id == invocation_id else None


def ask_stop(paths: Paths, instance: str, invocation_id: str) -> None:
    """Notes that this invocation's end was asked for."""
    mark = read(paths, instance, invocation_id) or Mark(invocation_id, "start")
    write(paths, instance, replace(mark, stop_asked=True))
