"""The configuration of a host: epyc-vllm.toml and endpoints.d, read whole; writes nothing.

All errors of all files are collected. A broken endpoint file does not touch the good ones: it is
in `Config.errors`, and only a run about that endpoint (or all of them) has to stop for it.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epyc_vllm_agent.config import settings
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths

NAME_PATTERN = r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint as its file and the host's defaults describe it."""

    name: str
    model: str
    revision: str | None
    served_model_name: str | None
    runtime: str
    environment: str | None
    image: str | None
    model_dir: str | None
    throughput: bool
    sockets: str | tuple[int, ...]
    cores: int | None
    placement: str
    kv_gib: int | None
    port: int | None
    address: str
    max_model_len: int
    num_prompts: int
    dtype: str
    chat_template: str | None
    vllm_args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    api_key_file: str | None
    accept: tuple[str, ...]
    start_timeout: int | None

    @property
    def client_name(self) -> str:
        """The model's name as clients send it."""
        return self.served_model_name or self.model


@dataclass(frozen=True, slots=True)
class Watch:
    """How the watchdog judges: [watch]."""

    interval_seconds: int = 5
    dead_seconds: int = 2
    sick_seconds: int = 30
    hung_seconds: int = 120
    prefill_seconds: int = 1800
    canary_seconds: int = 60
    on_failure: tuple[str, ...] = ()
    on_failure_timeout: int = 60


@dataclass(frozen=True, slots=True)
class Config:
    endpoints: tuple[EndpointConfig, ...]
    errors: tuple[str, ...]
    defaults: tuple[tuple[str, Any], ...] = ()  # [defaults], checked
    hub_endpoint: str | None = None
    hub_token_file: str | None = None
    user: str = "_epyc-vllm"
    watch: Watch = Watch()

    def endpoint(self, name: str) -> EndpointConfig | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.name == name), None)

    def require_valid(self) -> None:
        if self.errors:
            raise ConfigError("config-invalid", "; ".join(self.errors), "correct the files named")


def load(paths: Paths) -> Config:
    """The configuration below `paths`. Missing files mean defaults.

    Raises ConfigError where epyc-vllm.toml itself is wrong: everything depends on it.
    """
    errors: list[str] = []
    host = _read_toml(paths.config_file, errors) if paths.config_file.exists() else {}
    where = str(paths.config_file)
    hub = _checked(where + " [hub]", _table(host, "hub", where, errors), settings.HUB, errors)
    known = [setting for setting in settings.ENDPOINT if setting.host_wide]
    defaults = _given(where + " [defaults]", _table(host, "defaults", where, errors), known, errors)
    watch = _watch(where + " [watch]", _table(host, "watch", where, errors), errors)
    tables = ("hub", "defaults", "watch")
    top = {key: value for key, value in host.items() if key not in tables}
    values = _checked(where, top, settings.HOST, errors)
    Config((), tuple(errors)).require_valid()
    return Config(
        endpoints=_load_endpoints(paths, defaults, errors),
        errors=tuple(errors),
        defaults=tuple(sorted(defaults.items())),
        hub_endpoint=hub["endpoint"],
        hub_token_file=hub["token_file"],
        user=values["user"],
        watch=watch,
    )


def parse_endpoint(
    name: str, values: Mapping[str, Any], defaults: Mapping[str, Any], where: str
) -> EndpointConfig:
    """The endpoint that the keys of its file describe; raises ConfigError with every fault."""
    errors: list[str] = []
    if not is_name(name):
        errors.append(f"{where}: {_name_fault(name)}")
    found = _given(where, values, settings.ENDPOINT, errors)
    if "model" not in found and not errors:
        errors.append(f"{where}: model is missing")
    everything: dict[str, Any] = {setting.key: setting.default for setting in settings.ENDPOINT}
    everything |= dict(defaults) | found
    errors += [f"{where}: {fault}" for fault in _combination_faults(everything)]
    if errors:
        raise ConfigError("config-invalid", "; ".join(errors), "correct the values named")
    return EndpointConfig(name=name, **everything)


def is_name(name: str) -> bool:
    """Whether an endpoint may be called so: the name is part of paths and of unit names."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def require_name(name: str) -> None:
    """Raises ConfigError where no endpoint can be called so."""
    if not is_name(name):
        raise ConfigError("bad-name", _name_fault(name), "correct the name")


def _name_fault(name: str) -> str:
    return (
        f"the endpoint's name {name!r} must be lower-case letters, digits and dashes, "
        "48 characters at most"
    )


def read_endpoint_values(path: Path) -> dict[str, Any]:
    """The raw keys of an endpoint's file; raises ConfigError where it is not TOML."""
    errors: list[str] = []
    values = _read_toml(path, errors)
    Config((), tuple(errors)).require_valid()
    return values


def _load_endpoints(
    paths: Paths, defaults: Mapping[str, Any], errors: list[str]
) -> tuple[EndpointConfig, ...]:
    found = []
    files = sorted(paths.endpoints.glob("*.toml")) if paths.endpoints.is_dir() else []
    for path in files:
        try:
            values = read_endpoint_values(path)
            found.append(parse_endpoint(path.stem, values, defaults, str(path)))
        except ConfigError as error:
            errors.append(error.message)
    return tuple(found)


def _read_toml(path: Path, errors: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        errors.append(f"{path}: not valid TOML: {error}")
    except OSError as error:
        errors.append(f"{path}: cannot be read ({error.strerror})")
    return {}


def _table(host: Mapping[str, Any], key: str, where: str, errors: list[str]) -> Mapping[str, Any]:
    value = host.get(key, {})
    if isinstance(value, dict):
        return value
    errors.append(f"{where}: {key} must be a table")
    return {}


def _given(
    where: str,
    values: Mapping[str, Any],
    known: Sequence[settings.Setting],
    errors: list[str],
) -> dict[str, Any]:
    """The keys that are there, checked; faults are added to `errors`."""
    table = {setting.key: setting for setting in known}
    found = {}
    for key, value in values.items():
        if key not in table:
            near = difflib.get_close_matches(key, table, n=1)
            errors.append(
                f"{where}: unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "")
            )
            continue
        try:
            found[key] = table[key].check(value)
        except ValueError as error:
            errors.append(f"{where}: {key} {error}")
    return found


def _checked(
    where: str, values: Mapping[str, Any], known: Sequence[settings.Setting], errors: list[str]
) -> dict[str, Any]:
    defaults = {setting.key: setting.default for setting in known}
    return defaults | _given(where, values, known, errors)


def _watch(where: str, values: Mapping[str, Any], errors: list[str]) -> Watch:
    found = Watch(**_checked(where, values, settings.WATCH, errors))
    least = 3 * found.interval_seconds
    if found.sick_seconds < least:
        errors.append(f"{where}: sick_seconds must be three intervals ({least}) or more")
    if found.hung_seconds <= max(found.canary_seconds, least):
        errors.append(
            f"{where}: hung_seconds must be more than canary_seconds and than three intervals"
        )
    if found.prefill_seconds < found.hung_seconds:
        errors.append(f"{where}: prefill_seconds must not be less than hung_seconds")
    return found


def _combination_faults(values: Mapping[str, Any]) -> list[str]:
    faults = []
    try:
        ipaddress.ip_address(values["address"])
    except ValueError:
        faults.append(f"address {values['address']!r} is not an IP address")
    if values["runtime"] == "auto" and values["environment"] and values["image"]:
        faults.append(
            "environment is for the host runtime and image for containers: give one of them, or "
            "say which runtime is meant"
        )
    if values["model_dir"] and values["revision"]:
        faults.append("revision has no meaning for model_dir, which is used as it is")
    options = (argument.split("=", 1)[0] for argument in values["vllm_args"])
    reserved = sorted({option for option in options if _is_managed(option)})
    if reserved:
        faults.append(
            f"vllm_args must not hold {', '.join(reserved)}: the plan sets that; use the key for it"
        )
    clash = sorted({name for name, _ in values["env"]} & MANAGED_VARIABLES)
    if clash:
        faults.append(f"env must not set {', '.join(clash)}: the plan sets that")
    return faults


def _is_managed(option: str) -> bool:
    """vLLM's parser takes "_" for "-", and argparse any beginning that is unique."""
    name = option.replace("_", "-")
    if len(name) > 2 and name.startswith("--"):
        return any(managed.startswith(name) for managed in MANAGED_ARGUMENTS)
    return name in MANAGED_ARGUMENTS


# What the plan itself decides: a second value would make the unit disagree with the plan, with the
# probes (where and how the server listens) or with a gate.
MANAGED_ARGUMENTS = frozenset(
    {"--model", "--served-model-name", "--dtype", "--chat-template", "--max-model-len",
     "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size",
     "-dp", "--device", "--kv-cache-memory-bytes", "--trust-remote-code", "--config", "--headless",
     "--host", "--port", "--uds", "--root-path", "--ssl-keyfile", "--ssl-certfile", "--api-key"}
)  # fmt: skip
MANAGED_VARIABLES = frozenset(
    {"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CACHE_ROOT", "HF_HUB_OFFLINE",
     "HOME", "LD_PRELOAD", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY"}
)  # fmt: skip
