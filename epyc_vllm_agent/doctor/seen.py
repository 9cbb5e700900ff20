"""All that the checks go by, as frozen values; looks at nothing itself (see `look`).

None stands for what was not looked at: of a host far away only files are read.
"""

from dataclasses import dataclass

from epyc_vllm_agent.config.config import Config
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.plan.endpoint import Shipped
from epyc_vllm_agent.plan.values import Prediction, Stack
from epyc_vllm_agent.watch.drift import Drift


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    first: str  # version


@dataclass(frozen=True, slots=True)
class Limits:
    """data/doctor.json and quadlet.json: what the host is measured against."""

    systemd_minimum: int
    open_files_minimum: int
    free_memory_bytes: int
    free_cache_bytes: int
    network_filesystems: tuple[str, ...]
    controllers: tuple[str, ...]
    compiler: str
    quadlet_first: str
    quadlet_keys: tuple[Feature, ...]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime: `fault` says why it cannot serve, `fix` what to do about it once."""

    name: str
    version: str | None
    fault: str | None
    fix: str | None
    image_present: bool | None  # None: not asked, or not to be seen by this user

    @property
    def is_usable(self) -> bool:
        return self.version is not None and self.fault is None


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python environment of the host runtime; either `stack` or `fault` is there."""

    path: str
    stack: Stack | None
    fault: str | None = None
    fix: str | None = None
    preload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of models: as named, behind all links, and what it lies on."""

    path: str
    real: str
    exists: bool
    filesystem: str | None
    free_bytes: int | None
    is_writable: bool | None  # None: this process may not tell


@dataclass(frozen=True, slots=True)
class Token:
    path: str
    fault: str | None  # why it cannot be read
    is_public: bool


@dataclass(frozen=True, slots=True)
class Programs:
    compiler: str | None
    numactl: str | None
    taskset: str | None


@dataclass(frozen=True, slots=True)
class System:
    runs_systemd: bool | None
    systemd: int | None  # version
    controllers: tuple[str, ...] | None  # of cgroup v2
    is_cgroup_v1: bool
    open_files: int | None  # fs.nr_open
    user_exists: bool | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An endpoint that another stack is pinned for by now."""

    endpoint: str
    has: str
    pinned: str


@dataclass(frozen=True, slots=True)
class Seen:
    facts: HostFacts
    config: Config
    shipped: Shipped
    limits: Limits
    accepted: tuple[str, ...]  # gates
    image: str  # that the stack of this CPU has
    runtimes: tuple[Runtime, ...]
    environment: Environment | None
    prediction: Prediction | None
    cache: Cache
    token: Token | None
    programs: Programs | None
    system: System
    switches: tuple[tuple[str, str], ...] = ()  # what `throughput = true` sets
    upgrades: tuple[Upgrade, ...] = ()
    drift: tuple[Drift, ...] = ()
    far: str | None = None  # the box, or the root, that was only read

    @property
    def stack(self) -> Stack | None:
        return self.environment.stack if self.environment else None

    @property
    def runtime(self) -> Runtime | None:
        """The container runtime that the recipe would take."""
        return next((runtime for runtime in self.runtimes if runtime.is_usable), None)
