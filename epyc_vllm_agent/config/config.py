"""The configuration of a host: epyc-vllm.toml and endpoints.d, read whole; writes nothing.

All faults of all files are collected. A broken endpoint file does not touch the good ones: it is
in `Config.faults`, and only what is about that endpoint has to stop for it.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent.config import layers, settings
from epyc_vllm_agent.config.layers import Origin, Source
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
    on_change: str = settings.NEXT_START

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
class Fault:
    """What is wrong with a file: `message` names file, line, key and rule."""

    endpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class Config:
    endpoints: tuple[EndpointConfig, ...]
    faults: tuple[Fault, ...]  # of the endpoints that are not in `endpoints` for them
    defaults: tuple[tuple[str, Any], ...] = ()  # [defaults], checked
    hub_endpoint: str | None = None
    hub_token_file: str | None = None
    user: str = "_epyc-vllm"
    auto_apply: bool = True
    watch: Watch = Watch()

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(fault.message for fault in self.faults)

    def endpoint(self, name: str) -> EndpointConfig | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.name == name), None)


def load(paths: Paths) -> Config:
    """The configuration below `paths`. Missing files mean defaults.

    Raises ConfigError, with the faults of all files, where epyc-vllm.toml itself is wrong:
    everything depends on it.
    """
    errors: list[str] = []
    source = _host_source(paths, errors)
    values = source.values or {}
    hub = _checked(source, _table(source, "hub", errors), settings.HUB, errors, "hub")
    known = [setting for setting in settings.ENDPOINT if setting.host_wide]
    defaults = _given(source, _table(source, "defaults", errors), known, errors, "defaults")
    watch = _watch(source, _table(source, "watch", errors), errors)
    top = {key: value for key, value in values.items() if key not in settings.TABLES}
    host = _checked(source, top, settings.HOST, errors)
    endpoints, faults = _load_endpoints(paths, defaults)
    _require(errors and [*errors, *(fault.message for fault in faults)])
    return Config(
        endpoints=endpoints,
        faults=faults,
        defaults=tuple(sorted(defaults.items())),
        hub_endpoint=hub["endpoint"],
        hub_token_file=hub["token_file"],
        user=host["user"],
        auto_apply=host["auto_apply"],
        watch=watch,
    )


def parse_endpoint(
    name: str, values: Mapping[str, Any], defaults: Mapping[str, Any], origin: Origin
) -> EndpointConfig:
    """The endpoint that the keys of its files describe; raises ConfigError with every fault."""
    errors: list[str] = []
    if not is_name(name):
        errors.append(f"{origin.sources[0].path}: {_name_fault(name)}")
    found = _given(origin, values, settings.ENDPOINT, errors)
    if "model" not in found and not errors:
        errors.append(f"{origin.sources[0].path}: model is missing")
    everything: dict[str, Any] = {setting.key: setting.default for setting in settings.ENDPOINT}
    everything |= dict(defaults) | found
    errors += [f"{origin.place(key)}: {fault}" for key, fault in _combination_faults(everything)]
    _require(errors)
    return EndpointConfig(name=name, **everything)


def _require(errors: Sequence[str]) -> None:
    if errors:
        raise ConfigError("config-invalid", "; ".join(errors), "correct the files named")


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


def read_endpoint(paths: Paths, name: str) -> Origin:
    """What the endpoint is made of, its file first; none where it has no file, or a masked one.

    Raises ConfigError, with every fault, where one of the files is not TOML.
    """
    base = layers.base(paths, name)
    sources, errors = [], []
    for path in (base, *layers.drop_ins(paths, name)) if base else ():
        try:
            sources.append(layers.read(path))
        except ConfigError as error:
            errors.append(error.message)
    _require(errors)
    return Origin(tuple(sources))


def _load_endpoints(
    paths: Paths, defaults: Mapping[str, Any]
) -> tuple[tuple[EndpointConfig, ...], tuple[Fault, ...]]:
    found: dict[str, tuple[EndpointConfig, Origin]] = {}
    faults = []
    for name in layers.names(paths):
        try:
            origin = read_endpoint(paths, name)
            if not origin.sources:  # it went away just now
                continue
            found[name] = (_of_files(name, origin, defaults), origin)
        except ConfigError as error:
            faults.append(Fault(name, error.message))
    faults += _shared_ports(found)
    broken = {fault.endpoint for fault in faults}
    endpoints = [config for name, (config, _) in found.items() if name not in broken]
    return tuple(endpoints), tuple(faults)


def _of_files(name: str, origin: Origin, defaults: Mapping[str, Any]) -> EndpointConfig:
    """Each file by itself first, so that a fault is told of the file that has it."""
    errors: list[str] = []
    for source in origin.sources:
        _given(source, source.values or {}, settings.ENDPOINT, errors)
    _require(errors)
    values = layers.merged(source.values or {} for source in origin.sources)
    return parse_endpoint(name, values, defaults, origin)


def _shared_ports(found: Mapping[str, tuple[EndpointConfig, Origin]]) -> Iterator[Fault]:
    """Which of them was meant nobody knows: all wait until it is said, and run on as they do."""
    of_port: dict[int, list[str]] = {}
    for name, (config, _) in found.items():
        if config.port is not None:
            of_port.setdefault(config.port, []).append(name)
    for port, names in of_port.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(found[other][1].place("port") for other in names if other != name)
            place = found[name][1].place("port")
            yield Fault(name, f"{place}: port {port} is given to another endpoint too ({others})")


def _host_source(paths: Paths, errors: list[str]) -> Source:
    if not paths.config_file.exists():
        return Source(str(paths.config_file))
    try:
        return layers.read(paths.config_file)
    except ConfigError as error:
        errors.append(error.message)
        return Source(str(paths.config_file))


def _table(source: Source, key: str, errors: list[str]) -> Mapping[str, Any]:
    value = (source.values or {}).get(key, {})
    if isinstance(value, dict):
        return value
    errors.append(f"{source.place(key)}: {key} must be a table")
    return {}


def _given(
    source: Source | Origin,
    values: Mapping[str, Any],
    known: Sequence[settings.Setting],
    errors: list[str],
    table: str = "",
) -> dict[str, Any]:
    """The keys that are there, checked; faults are added to `errors`."""
    settable = {setting.key: setting for setting in known}
    found = {}
    for key, value in values.items():
        try:
            if key not in settable:
                raise ValueError(_unknown(key, settable, table))
            found[key] = settable[key].check(value)
        except ValueError as error:
            place = source.place(key, table) if isinstance(source, Source) else source.place(key)
            message = f"{key} {error}" if key in settable else str(error)
            errors.append(f"{place}: {f'[{table}] ' if table else ''}{message}")
    return found


def _unknown(key: str, settable: Mapping[str, settings.Setting], table: str) -> str:
    if table == "defaults" and any(setting.key == key for setting in settings.ENDPOINT):
        return f"unknown key {key!r}: it belongs into an endpoint's own file"
    tables = [] if table or "model" in settable else [*settings.TABLES]
    near = difflib.get_close_matches(key, [*settable, *tables], n=1)
    return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "")


def _checked(
    source: Source,
    values: Mapping[str, Any],
    known: Sequence[settings.Setting],
    errors: list[str],
    table: str = "",
) -> dict[str, Any]:
    defaults = {setting.key: setting.default for setting in known}
    return defaults | _given(source, values, known, errors, table)


def _watch(source: Source, values: Mapping[str, Any], errors: list[str]) -> Watch:
    found = Watch(**_checked(source, values, settings.WATCH, errors, "watch"))
    least = 3 * found.interval_seconds
    rules = (
        ("sick_seconds", found.sick_seconds >= least, f"must be three intervals ({least}) or more"),
        (
            "hung_seconds",
            found.hung_seconds > max(found.canary_seconds, least),
            "must be more than canary_seconds and than three intervals",
        ),
        (
            "prefill_seconds",
            found.prefill_seconds >= found.hung_seconds,
            "must not be less than hung_seconds",
        ),
    )
    errors += [
        f"{source.place(key, 'watch')}: [watch] {key} {rule}"
        for key, kept, rule in rules
        if not kept
    ]
    return found


def _combination_faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each with the key that it is told of."""
    try:
        ipaddress.ip_address(values["address"])
    except ValueError:
        yield "address", f"address {values['address']!r} is not an IP address"
    if values["runtime"] == "auto" and values["environment"] and values["image"]:
        yield (
            "image",
            "environment is for the host runtime and image for containers: give one of them, or "
            "say which runtime is meant",
        )
    if values["model_dir"] and values["revision"]:
        yield "revision", "revision has no meaning for model_dir, which is used as it is"
    options = (argument.split("=", 1)[0] for argument in values["vllm_args"])
    reserved = sorted({option for option in options if _is_managed(option)})
    if reserved:
        rule = "the plan sets that; use the key for it"
        yield "vllm_args", f"vllm_args must not hold {', '.join(reserved)}: {rule}"
    clash = sorted({name for name, _ in values["env"]} & MANAGED_VARIABLES)
    if clash:
        yield "env", f"env must not set {', '.join(clash)}: the plan sets that"


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
