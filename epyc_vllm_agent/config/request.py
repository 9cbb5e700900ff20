"""What a command line asks of an endpoint, merged with its file; writes nothing."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent.config import toml_text
from epyc_vllm_agent.config.config import (
    Config,
    EndpointConfig,
    is_name,
    parse_endpoint,
    read_endpoint_values,
    require_name,
)
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths


@dataclass(frozen=True, slots=True)
class Wanted:
    """An endpoint as asked for, and the text its file should have."""

    config: EndpointConfig
    file_text: str


def wanted(
    paths: Paths, config: Config, what: str, name: str | None, flags: Mapping[str, Any]
) -> Wanted:
    """The endpoint for `what`: a model (hub id or directory) or the name of an endpoint file.

    `flags` are keys of the endpoint's file; they win over it, everything else in it stays.
    Raises ConfigError where the result is not valid or the name serves another model.
    """
    if what.startswith("/"):
        what = os.path.normpath(what)
    known = name is None and is_name(what) and (paths.endpoints / f"{what}.toml").is_file()
    if name is None:
        name = what if known else slug(what)
    require_name(name)
    path = paths.endpoints / f"{name}.toml"
    defaults = dict(config.defaults)
    if not path.is_file():
        values = {"model": what, **flags}
        made = parse_endpoint(name, values, defaults, f"endpoint {name}")
        return Wanted(made, toml_text.compose(values, "An endpoint of epyc-vllm."))
    old = read_endpoint_values(path)
    if not known and old.get("model") != what:
        raise ConfigError(
            "name-taken",
            f"endpoint {name} serves {old.get('model')!r}, not {what!r} ({path})",
            "choose another name with --name, or disable that endpoint first",
        )
    changed = {key: value for key, value in flags.items() if old.get(key) != value}
    made = parse_endpoint(name, old | changed, defaults, str(path))
    text = path.read_text(encoding="utf-8")
    return Wanted(made, toml_text.edit(text, changed) if changed else text)


def slug(model: str) -> str:
    """An endpoint's name from its model: "Qwen/Qwen3-8B" gives "qwen3-8b"."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    found = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-")
    if not found:
        raise ConfigError(
            "no-name", f"no endpoint name can be made of {model!r}", "give one with --name"
        )
    return found
