"""How the stand-in misbehaves, and when: read from a file and the environment; acts on nothing.

The file, CONTROL, is JSON: keys are those of Behaviour, and "ports" may hold the same for one
port ({"ports": {"8001": {"completion": "hang"}}}). It is read anew for each request, so a fault
can begin and end while the server runs. STANDIN_<KEY> in the environment wins over it.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL = Path("/run/vllm-standin.json")
PREFIX = "STANDIN_"


@dataclass(frozen=True, slots=True)
class Behaviour:
    load_seconds: float = 0.3  # until the port listens; large: never
    fail_loading: int | None = None  # exit code, at the end of loading
    message: str = ""  # the last words before such an end
    exit: int | None = None  # exit code of an unasked end while serving
    health: str = "ok"  # ok, 503, hang
    models: str = "ok"  # ok, missing
    completion: str = "ok"  # ok, error (in a 200), 500, no-choices, hang, exit (code 0)
    sigterm: str = "lost"  # while loading it is lost, as vLLM's; "ignored": ever; "ends": never
    orphans: bool = False  # engine and worker outlive any end of the server
    running: int = 0  # requests that /metrics counts beside the real ones
    tokens_per_second: float = 0.0  # that /metrics counts beside the real ones
    burn: bool = False  # the workers compute
    token_seconds: float = 0.02  # between two tokens of a stream
    death_seconds: float = 5.0  # from the engine's death to the server's exit with code 0


def read(port: int, environ: Mapping[str, str], file: Path = CONTROL) -> Behaviour:
    stored = _stored(file)
    for_port = stored.pop("ports", {}).get(str(port), {})
    return Behaviour(**{**stored, **for_port, **_from_environment(environ)})


def _stored(file: Path) -> dict[str, Any]:
    """It is written in place, so a reader may come in the middle of it."""
    for _ in range(100):
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            time.sleep(0.02)
            continue
        return found
    raise ValueError(f"{file} is not JSON")


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in dataclasses.fields(Behaviour):
        text = environ.get(PREFIX + field.name.upper())
        if text is not None:
            found[field.name] = _value(text)
    return found


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
