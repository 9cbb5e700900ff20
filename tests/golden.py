"""Sets of unit files kept whole below tests/units: compared, or written anew after a change.

EPYC_VLLM_WRITE_UNITS=1 writes them; `git diff` shows what the change is.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from epyc_vllm_agent.units.names import UnitFile

FOLDER = Path(__file__).parent / "units"


def require_same(name: str, units: Sequence[UnitFile]) -> None:
    """Raises AssertionError where the set differs in any file, or has one more or less."""
    folder = FOLDER / name
    found = {unit.name: unit.text for unit in units}
    if os.environ.get("EPYC_VLLM_WRITE_UNITS"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for file, text in found.items():
            (folder / file).write_text(text)
    assert found == {path.name: path.read_text() for path in folder.iterdir()}
