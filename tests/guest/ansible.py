"""ansible-core for the guest's own Python, unpacked outside: the guest has no way to an index."""

from pathlib import Path

from tests.guest import cache, project
from tests.guest.outside import output

REQUIREMENT = "ansible-core>=2.18,<2.22"


def folder() -> Path:
    """A folder of Python modules, with the commands in bin/."""

    def make(target: Path) -> None:
        output(
            project.pip(), "-m", "pip", "install", "--quiet", f"--target={target}",
            *project.TARGET, REQUIREMENT,
        )  # fmt: skip

    return cache.part("ansible", [REQUIREMENT, project.TARGET], make)
