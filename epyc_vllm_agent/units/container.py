"""What a container runtime is told to run vLLM: volumes, environment, options, command; pure.

Inside, the model cache is at /root/.cache/huggingface, as the recipe has it.
"""

import re
from pathlib import PurePosixPath

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Instance
from epyc_vllm_agent.units.quadlet import Option

CACHE = "/var/cache/epyc-vllm"  # inside
HUB = "/root/.cache/huggingface"
MODEL, TEMPLATE = "/srv/model", "/srv/chat-template.jinja"
KEY = "/run/epyc-vllm/api-key"
LABEL = "epyc-vllm.instance"

# The key is in no argument, no environment of the runtime's own records and no unit: the server's
# own shell reads it from a file that only root can read.
_WITH_KEY = f'VLLM_API_KEY="$(cat {KEY})" && export VLLM_API_KEY && exec "$@"'

_IN_HUB = re.compile(r"(?P<hub>.+)/(?P<rest>models--[^/]+/snapshots/[^/]+)")


def name(instance: Instance) -> str:
    return f"epyc-vllm-{instance.name}"


def key_file(instance: Instance) -> str:
    """Where the unit's first step leaves the API key for the container."""
    return f"/run/epyc-vllm/{instance.name}.key"


def served_path(plan: EndpointPlan) -> str:
    """The model's path as the server sees it."""
    found = _IN_HUB.fullmatch(plan.model.path)
    return f"{HUB}/{found['rest']}" if found else MODEL


def volumes(plan: EndpointPlan, instance: Instance) -> tuple[str, ...]:
    """source:target[:ro]. A snapshot is links into the hub's cache, which is mounted whole."""
    found = _IN_HUB.fullmatch(plan.model.path)
    model = f"{found['hub']}:{HUB}:ro" if found else f"{plan.model.path}:{MODEL}:ro"
    cache = f"{plan.cache_folder(instance)}:{CACHE}"
    template = [f"{plan.config.chat_template}:{TEMPLATE}:ro"] if plan.config.chat_template else []
    key = [f"{key_file(instance)}:{KEY}:ro"] if plan.config.api_key_file else []
    return (model, cache, *template, *key)


def options(plan: EndpointPlan, instance: Instance) -> tuple[Option, ...]:
    """Everything but image and command, in the seed recipe's order."""
    container = of(plan)
    stop = max(plan.stop_timeout_seconds - 5, 1)  # then the runtime kills, before systemd does
    found = [
        Option("ContainerName", name(instance), f"--name={name(instance)}"),
        Option("Label", f"{LABEL}={instance.name}", f"--label={LABEL}={instance.name}"),
        Option("Pull", "never", "--pull=never"),
        Option("Network", "host", "--network=host"),
        Option(None, "host", "--ipc=host"),  # and never --shm-size beside it
        # What a killed worker leaves in the host's /dev/shm would stay there: hundreds of MiB.
        Option(None, "", "--mount=type=tmpfs,destination=/dev/shm,tmpfs-mode=1777"),
        Option("AddCapability", "SYS_NICE", "--cap-add=SYS_NICE"),  # to bind memory to nodes
        Option("RunInit", "true", "--init"),
        Option("StopTimeout", str(stop), f"--stop-timeout={stop}"),
    ]
    if container.cpuset:
        cpus, nodes = cpulist.format(instance.cpus), cpulist.format(instance.nodes)
        found += [
            Option(None, cpus, f"--cpuset-cpus={cpus}"),
            Option(None, nodes, f"--cpuset-mems={nodes}"),
        ]
    found += [Option("Volume", v, f"--volume={v}") for v in volumes(plan, instance)]
    pairs = [f"{key}={value}" for key, value in environment(plan, instance)]
    found += [Option("Environment", pair, f"--env={pair}") for pair in pairs]
    if container.serves and plan.config.api_key_file:
        found.append(Option("Entrypoint", "/bin/sh", "--entrypoint=/bin/sh"))
    return tuple(found)


def environment(plan: EndpointPlan, instance: Instance) -> tuple[tuple[str, str], ...]:
    """vLLM's environment; PATH, HOME and preloads are the image's own."""
    return (
        ("VLLM_CPU_OMP_THREADS_BIND", instance.threads_bind),
        ("VLLM_CPU_KVCACHE_SPACE", str(instance.kv_gib_per_rank)),
        ("VLLM_CACHE_ROOT", CACHE),
        ("VLLM_ENGINE_READY_TIMEOUT_S", str(plan.start_timeout_seconds)),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_HOST_IP", "127.0.0.1"),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_MODULES_CACHE", f"{CACHE}/modules"),  # the hub's cache is read-only
        *plan.launch.switches,
        *plan.config.env,
    )


def command(plan: EndpointPlan, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """What follows the image: `arguments` are those of `vllm serve`."""
    serve = ("vllm", "serve")
    container = of(plan)
    if plan.config.api_key_file:
        # An entrypoint that serves was replaced by the shell, any other is given it.
        shell = () if container.serves else ("/bin/sh",)
        return (*shell, "-c", _WITH_KEY, "sh", *serve, *arguments)
    return arguments if container.serves else (*serve, *arguments)


def image(plan: EndpointPlan) -> str:
    """By digest; by name as long as the image is not here, which no unit is written for."""
    container = of(plan)
    return container.pinned or container.image


def mounted(plan: EndpointPlan) -> tuple[str, ...]:
    """Paths on the host whose file systems must be there."""
    template = [plan.config.chat_template] if plan.config.chat_template else []
    return (str(PurePosixPath(plan.model.path)), *template)


def of(plan: EndpointPlan) -> Container:
    if plan.launch.container is None:
        raise ValueError(f"{plan.name} runs on the host, in no container")
    return plan.launch.container
