"""What a plan says, as frozen values; decides nothing itself.

Memory is in bytes unless the name says GiB. CPU, node and socket numbers are the kernel's.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.model import ChatTemplate, EndpointKind, ModelKind


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan must not be started: one sentence with the numbers, and what to do."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    accepted: bool
    text: str


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker process: its OpenMP threads' CPUs and the node that its memory is bound to."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of one instance, all ranks together, against what its nodes have for it."""

    weight_bytes: int | None
    kv_bytes_per_token: int | None
    kv_request_bytes: int | None  # one request of max_model_len
    runtime_bytes: int
    required_bytes: int
    available_bytes: int
    fits: bool
    suggested_max_model_len: int | None  # the longest that fits, where max_model_len does not
    kv_capacity_tokens: int | None = None  # of each rank's KV space, as vLLM logs it


@dataclass(frozen=True, slots=True)
class Instance:
    name: str
    socket: int
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]  # all threads of its cores
    whole_nodes: bool  # its cores are all of its nodes' cores
    kept_cpus: tuple[int, ...]  # first threads left to API server and engine
    ranks: tuple[Rank, ...]
    port: int
    kv_gib_per_rank: int
    fit: Fit

    @property
    def threads_bind(self) -> str:
        """VLLM_CPU_OMP_THREADS_BIND: ranks separated by "|"."""
        return "|".join(cpulist.format(rank.cpus) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Model:
    """The model as resolved: what is served, from where."""

    id: str
    revision: str | None
    path: str  # the snapshot (or the user's directory) that vLLM reads
    kind: ModelKind
    primary_endpoint: EndpointKind
    supported_endpoints: tuple[EndpointKind, ...]
    chat_template: ChatTemplate
    weight_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stack:
    """The software that serves: `name` is "zentorch" or "stock", the rest as probed."""

    name: str
    vllm: str | None
    zentorch: str | None
    torch: str | None
    platform: str | None  # class path of vLLM's platform, as the probe saw it
    zentorch_importable: bool | None = None  # None: not looked at
    zentorch_error: str | None = None  # why it cannot be imported although it is installed
    plugins: tuple[str, ...] = ()  # entry points of vLLM's platform plugins
    probed: bool = True  # False: `platform` is what was predicted, vLLM was not asked


class PlatformKind(StrEnum):
    ZEN = "zen"  # vLLM's own, in-tree
    PLUGIN = "plugin"  # out-of-tree, zentorch's for example
    STOCK = "stock"
    OTHER = "other"  # of an accelerator
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The platform that vLLM will choose, and why; a plugin's class path is not known before."""

    kind: PlatformKind
    platform: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Container:
    """What a container runtime starts vLLM with."""

    program: str  # absolute path of podman or docker
    version: str
    generator: str | None  # podman's quadlet generator; None: a plain service runs the program
    image: str  # as configured: registry/name:tag
    pinned: str | None  # the same by digest; None while it is not on this host
    serves: bool  # its entrypoint is `vllm serve`: it takes arguments only
    cpuset: bool  # the cpuset controller is there to pin with

    @property
    def runtime(self) -> str:
        return PurePosixPath(self.program).name


@dataclass(frozen=True, slots=True)
class Launch:
    """What vLLM is started with; absolute paths. Either `environment` or `container` is there."""

    environment: str | None
    numactl: str | None
    taskset: str | None
    preload: tuple[str, ...]
    user: str
    agent: str  # this command, for the unit's own steps
    container: Container | None = None
    switches: tuple[tuple[str, str], ...] = ()  # environment that `throughput = true` brings
    reason: str = ""  # why this runtime

    @property
    def runtime(self) -> str:
        return self.container.runtime if self.container else "host"

    @property
    def is_here(self) -> bool:
        """Whether what is to be launched is on this host: an image may still have to be fetched."""
        return self.container is None or self.container.pinned is not None


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    name: str
    config: EndpointConfig
    hardware: str
    runtime: str
    stack: Stack
    launch: Launch
    model: Model
    instances: tuple[Instance, ...]
    start_timeout_seconds: int
    stop_timeout_seconds: int
    gates: tuple[Gate, ...] = ()
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    socket_reason: str = ""
    socket_warning: str | None = None  # one of `warnings`, kept with the socket
    prediction: Prediction | None = None

    @property
    def cache_key(self) -> str:
        """Names what compiled: a cache must not outlive the vLLM or zentorch that made it."""
        stack, container = self.stack, self.launch.container
        parts = [f"vllm-{stack.vllm}", f"torch-{stack.torch}"]
        parts += [f"zentorch-{stack.zentorch}"] if stack.zentorch else []
        if container and container.pinned:
            parts.append(container.pinned.rpartition(":")[2][:12])
        return re.sub(r"[^A-Za-z0-9.+-]", "_", "-".join(parts))

    def cache_folder(self, instance: Instance) -> str:
        """Where an instance's server keeps what it compiled."""
        return f"/var/cache/epyc-vllm/{instance.name}/{self.cache_key}"

    def instance(self, name: str) -> Instance | None:
        return next((instance for instance in self.instances if instance.name == name), None)


@dataclass(frozen=True, slots=True)
class Hold:
    """What an instance of another endpoint has reserved."""

    endpoint: str
    instance: str
    socket: int
    cpus: tuple[int, ...]
    port: int | None  # None: it is given up in this run
    bytes_by_node: tuple[tuple[int, int], ...]


def holds_of(plan: EndpointPlan) -> tuple[Hold, ...]:
    """What `plan` reserves, for the planning of other endpoints."""
    return tuple(hold_of(plan.name, instance) for instance in plan.instances)


def hold_of(endpoint: str, instance: Instance) -> Hold:
    each = instance.fit.required_bytes // len(instance.ranks)
    return Hold(
        endpoint=endpoint,
        instance=instance.name,
        socket=instance.socket,
        cpus=instance.cpus,
        port=instance.port,
        bytes_by_node=tuple((rank.node, each) for rank in instance.ranks),
    )
