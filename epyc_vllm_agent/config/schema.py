"""The settings table as JSON schemas, for editors and whatever else writes the files; pure.

A schema is never stricter than the program; what only the program can tell (values that do not go
together, paths with "..") it lets pass. https://json-schema.org/draft/2020-12
"""

from collections.abc import Sequence
from typing import Any

from epyc_vllm_agent.config import settings
from epyc_vllm_agent.config.settings import Setting

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FILES = {
    "endpoint.schema.json": "an endpoint's file, /etc/epyc-vllm/endpoints.d/NAME.toml",
    "epyc-vllm.schema.json": "/etc/epyc-vllm/epyc-vllm.toml",
}


def endpoint() -> dict[str, Any]:
    """Of an endpoint's file. `model` may stand in a drop-in, so that none is required."""
    return _file("endpoint.schema.json", _table(settings.ENDPOINT))


def host() -> dict[str, Any]:
    """Of epyc-vllm.toml."""
    table = _table(settings.HOST)
    tables = {name: _table(known) for name, known in settings.TABLES.items()}
    return _file("epyc-vllm.schema.json", table | {"properties": table["properties"] | tables})


def _file(name: str, table: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DRAFT, "title": f"epyc-vllm: {FILES[name]}", **table}


def _table(known: Sequence[Setting]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {setting.key: _key(setting) for setting in known},
        "additionalProperties": False,
    }


def _key(setting: Setting) -> dict[str, Any]:
    values = {"description": f"{setting.help}; {setting.check.words}", **setting.check.schema}
    default = _plain(setting)
    return values if default is None else {**values, "default": default}


def _plain(setting: Setting) -> object:
    if not isinstance(setting.default, tuple):
        return setting.default
    return {} if setting.check.schema.get("type") == "object" else list(setting.default)
