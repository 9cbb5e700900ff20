"""What podman on this host is, and its quadlet generator's judgement of a file; writes no unit.

https://docs.podman.io/en/latest/markdown/podman-systemd.unit.5.html
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.doors.environment import tool
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.plan.runtime import Engine
from epyc_vllm_agent.units.names import UnitFile

GENERATORS = (
    "/usr/lib/systemd/system-generators/podman-system-generator",
    "/usr/local/lib/systemd/system-generators/podman-system-generator",
    "/usr/libexec/podman/quadlet",
)
_OLDEST = (3, 0)  # `podman run --log-driver=passthrough` and --cgroups=split as the service uses it


def look() -> Engine | None:
    """podman as the root of this host has it, None where it is not installed."""
    program = tool("podman")
    if program is None:
        return None
    done = command.run([program, "--version"], timeout_seconds=60)
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", done.stdout)
    if done.status != 0 or found is None:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Engine(
            program, None, fault=f"podman cannot be run: {said}", fix=f"mend `{program} --version`"
        )
    return Engine(program, found[1], _generator())


def _generator() -> str | None:
    return next((path for path in GENERATORS if Path(path).is_file()), None)


def require_accepted(generator: str, units: Sequence[UnitFile]) -> None:
    """Raises ActionFailed with the generator's own sentence where it refuses one of `units`.

    It reads a folder of its own, so that neither another's file nor an installed one counts. podman
    4.4 exits with 0 and only says what it ignores; that a service comes out decides.
    """
    with tempfile.TemporaryDirectory(prefix="epyc-vllm-quadlet-") as folder:
        for unit in units:
            Path(folder, unit.name).write_text(unit.text)
        done = command.run(
            [generator, "-dryrun"],
            timeout_seconds=60,
            environment={"QUADLET_UNIT_DIRS": folder},
        )
    made = set(re.findall(r"^---(\S+)---$", done.stdout, re.MULTILINE))
    missing = [unit.name for unit in units if unit.service not in made]
    if missing:
        raise ActionFailed(
            "quadlet-refused",
            f"podman's generator refuses {missing[0]}: {_sentence(done.stderr)}",
            "nothing was changed; look for what podman does not know in the endpoint's file",
        )


def _sentence(stderr: str) -> str:
    lines = [line.partition("]: ")[2] or line for line in stderr.strip().splitlines()]
    faults = [line for line in lines if not line.startswith("Loading source unit file")]
    text = (faults or ["it says nothing"])[-1]
    return re.sub(r"\S*/epyc-vllm-quadlet-[^/ ]+/", "", text)
