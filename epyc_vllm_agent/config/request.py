"""What a command line asks of an endpoint, merged with its file; writes nothing."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent.config import layers, toml_text
from epyc_vllm_agent.config.config import (
    Config,
    EndpointConfig,
    is_name,
    parse_endpoint,
    read_endpoint,
    require_name,
)
from epyc_vllm_agent.config.layers import Origin, Source
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths


@dataclass(frozen=True, slots=True)
class Wanted:
    """An endpoint as asked for, and the text its file in /etc should have; None: as it is."""

    config: EndpointConfig
    file_text: str | None


def wanted(
    paths: Paths, config: Config, what: str, name: str | None, flags: Mapping[str, Any]
) -> Wanted:
    """The endpoint for `what`: a model (hub id or directory) or the name of an endpoint file.

    `flags` are keys of the endpoint's file; they win over it, everything else in it stays.
    Raises ConfigError where the result is not valid or the name serves another model.
    """
    if what.startswith("/"):
        what = os.path.normpath(what)
    known = name is None and is_name(what) and layers.base(paths, what) is not None
    if name is None:
        name = what if known else slug(what)
    require_name(name)
    _require_not_masked(paths, name)
    defaults = dict(config.defaults)
    found = read_endpoint(paths, name)
    if not found.sources:
        return _made(paths, name, {"model": what, **flags}, defaults)
    old = layers.merged(source.values or {} for source in found.sources)
    if not known and old.get("model") != what:
        raise ConfigError(
            "name-taken",
            f"endpoint {name} serves {old.get('model')!r}, not {what!r} ({found.place('model')})",
            "choose another name with --name, or disable that endpoint first",
        )
    changed = {key: value for key, value in flags.items() if old.get(key) != value}
    _require_settable(found.sources[1:], changed)
    made = parse_endpoint(name, old | changed, defaults, found)
    file = found.sources[0]
    is_ours = file.path == str(paths.endpoints / f"{name}.toml")
    if not changed:
        return Wanted(made, file.text if is_ours else None)
    return Wanted(made, toml_text.edit(file.text, changed))


def _made(
    paths: Paths, name: str, values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Wanted:
    """A new file; drop-ins may be there already."""
    drop_ins = [layers.read(path) for path in layers.drop_ins(paths, name)]
    _require_settable(drop_ins, values)
    everything = layers.merged([values, *(source.values or {} for source in drop_ins)])
    origin = Origin((Source(f"endpoint {name}", "", values), *drop_ins))
    made = parse_endpoint(name, everything, defaults, origin)
    return Wanted(made, toml_text.compose(values, "An endpoint of epyc-vllm."))


def _require_settable(drop_ins: Sequence[Source], changed: Mapping[str, Any]) -> None:
    """A flag that a drop-in goes over would be written and have no effect."""
    for source in drop_ins:
        values = source.values or {}
        for key in changed.keys() & values.keys():
            if values[key] != changed[key]:
                raise ConfigError(
                    "drop-in-goes-over",
                    f"{source.place(key)} sets {key}, and goes over the endpoint's own file",
                    "change it there",
                )


def _require_not_masked(paths: Paths, name: str) -> None:
    if layers.is_masked(paths, name):
        raise ConfigError(
            "masked",
            f"endpoint {name} is masked by {paths.endpoints / name}.toml, which is empty",
            "remove that file, then run this again",
        )


def slug(model: str) -> str:
    """An endpoint's name from its model: "Qwen/Qwen3-8B" gives "qwen3-8b"."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    found = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-")
    if not found:
        raise ConfigError(
            "no-name", f"no endpoint name can be made of {model!r}", "give one with --name"
        )
    return found
