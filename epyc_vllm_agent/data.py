"""The facts shipped as JSON in data/; knows where they lie, not what they mean.

In a checkout that is `data/` beside the package; installed it is share/epyc-vllm below the prefix
(/usr/share/epyc-vllm for the Debian package).
"""

import sys
from functools import cache
from pathlib import Path

from epyc_vllm_agent.errors import ActionFailed

_CHECKOUT = Path(__file__).parents[1] / "data"
_INSTALLED = Path(sys.prefix) / "share" / "epyc-vllm"


@cache
def read_data(name: str) -> str:
    """The text of a shipped data file, for example "epyc.json"."""
    folder = _CHECKOUT if (_CHECKOUT / "epyc.json").is_file() else _INSTALLED
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ActionFailed(
            "data-missing",
            f"the data file {folder / name} cannot be read ({error.strerror})",
            "reinstall epyc-vllm: its shared files are incomplete",
        ) from error
