"""An endpoint's plan as systemd unit files; pure, decides nothing that the plan has not."""

from functools import cache
from typing import Any

import jinja2

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units import container, quadlet, quoting
from epyc_vllm_agent.units.names import (
    QUADLETS,
    SYSTEM_UNITS,
    UnitFile,
    quadlet_name,
    service_name,
    target_name,
)

_PRIVATE = ("/tmp/", "/var/tmp/")  # noqa: S108 - what PrivateTmp= hides, not what is used


def render(plan: EndpointPlan) -> tuple[UnitFile, ...]:
    """The endpoint's target and one service or quadlet for each instance."""
    services = [service_name(instance.name) for instance in plan.instances]
    target = _template("endpoint.target.j2").render(plan=plan, services=services)
    files = [UnitFile(str(SYSTEM_UNITS / target_name(plan.name)), target)]
    files += [_instance(plan, instance) for instance in plan.instances]
    return tuple(files)


def _instance(plan: EndpointPlan, instance: Instance) -> UnitFile:
    if plan.launch.container is None:
        return _host_service(plan, instance)
    if plan.launch.container.generator is None:
        return _container_service(plan, instance)
    return _quadlet(plan, instance)


def _host_service(plan: EndpointPlan, instance: Instance) -> UnitFile:
    return _file(
        "instance.service.j2",
        plan,
        instance,
        command=command(plan, instance),
        environment=environment(plan, instance),
        mounts=_paths(plan),
        private_tmp=not any(path.startswith(_PRIVATE) for path in _paths(plan)),
    )


def _container_service(plan: EndpointPlan, instance: Instance) -> UnitFile:
    program = container.of(plan).program
    return _file(
        "container.service.j2",
        plan,
        instance,
        command=command(plan, instance),
        stop=(program, "stop", container.name(instance)),
        mounts=container.mounted(plan),
    )


def _quadlet(plan: EndpointPlan, instance: Instance) -> UnitFile:
    version = container.of(plan).version
    text = _template("instance.container.j2").render(
        plan=plan,
        instance=instance,
        image=container.image(plan),
        lines=quadlet.lines(container.options(plan, instance), version),
        command=container.command(plan, arguments(plan, instance)),
        mounts=container.mounted(plan),
        no_defaults=quadlet.keys().knows(version, "DefaultDependencies"),
    )
    return UnitFile(str(QUADLETS / quadlet_name(instance.name)), text)


def _file(template: str, plan: EndpointPlan, instance: Instance, **values: Any) -> UnitFile:
    text = _template(template).render(plan=plan, instance=instance, **values)
    return UnitFile(str(SYSTEM_UNITS / service_name(instance.name)), text)


def _paths(plan: EndpointPlan) -> list[str]:
    """What the server reads outside the system's own folders."""
    template = [plan.config.chat_template] if plan.config.chat_template else []
    return [plan.model.path, *filter(None, [plan.launch.environment]), *template]


def command(plan: EndpointPlan, instance: Instance) -> tuple[str, ...]:
    """The argument vector that serves: what pins and contains it, then `vllm serve`."""
    served = arguments(plan, instance)
    if plan.launch.container is None:
        vllm = f"{plan.launch.environment}/bin/vllm"
        return (*_with_key(plan), *_pin(plan, instance), vllm, "serve", *served)
    # In the foreground and with no log of its own: what it says is the unit's.
    run = [plan.launch.container.program, "run", "--rm", "--log-driver=none"]
    if plan.runtime == "podman":
        run += ["--cgroups=split", "--sdnotify=ignore"]
    run += [option.argument for option in container.options(plan, instance)]
    return (*run, container.image(plan), *container.command(plan, served))


def arguments(plan: EndpointPlan, instance: Instance) -> tuple[str, ...]:
    """Those of `vllm serve`; never --device, which newer ones refuse."""
    config, inside = plan.config, plan.launch.container is not None
    found = [
        container.served_path(plan) if inside else plan.model.path,
        "--served-model-name",
        config.client_name,
        "--host",
        config.address,
        "--port",
        str(instance.port),
        "--dtype",
        config.dtype,
        "--max-model-len",
        str(config.max_model_len),
        "--disable-access-log-for-endpoints",
        "/health,/metrics",
    ]
    if len(instance.ranks) > 1:
        found += ["--tensor-parallel-size", str(len(instance.ranks))]
    if config.chat_template:
        found += ["--chat-template", container.TEMPLATE if inside else config.chat_template]
    if any(gate.name == "custom-code" and gate.accepted for gate in plan.gates):
        found.append("--trust-remote-code")
    return (*found, *config.vllm_args)


def _with_key(plan: EndpointPlan) -> tuple[str, ...]:
    """What gives the API key to the server, and to it alone: a unit's EnvironmentFile= would give
    it to the agent's own steps too."""
    return (plan.launch.agent, "unit", "serve", "--") if plan.config.api_key_file else ()


def _pin(plan: EndpointPlan, instance: Instance) -> tuple[str, ...]:
    """numactl binds CPUs and memory, taskset only CPUs; without both the server runs unpinned."""
    nodes, cpus = cpulist.format(instance.nodes), cpulist.format(instance.cpus)
    if plan.launch.numactl:
        where = f"--cpunodebind={nodes}" if instance.whole_nodes else f"--physcpubind={cpus}"
        return (plan.launch.numactl, where, f"--membind={nodes}")
    if plan.launch.taskset:
        return (plan.launch.taskset, "--cpu-list", cpus)
    return ()


def environment(plan: EndpointPlan, instance: Instance) -> tuple[tuple[str, str], ...]:
    """vLLM's environment; the administrator's own variables come last."""
    cache_root = plan.cache_folder(instance)
    values = [
        ("VLLM_CPU_OMP_THREADS_BIND", instance.threads_bind),
        ("VLLM_CPU_KVCACHE_SPACE", str(instance.kv_gib_per_rank)),
        ("VLLM_CACHE_ROOT", cache_root),
        ("VLLM_ENGINE_READY_TIMEOUT_S", str(plan.start_timeout_seconds)),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_HOST_IP", "127.0.0.1"),  # ranks of one host; without it vLLM looks for a route out
        ("HF_HUB_OFFLINE", "1"),
        ("HOME", cache_root),
        ("PATH", f"{plan.launch.environment}/bin:/usr/local/bin:/usr/bin:/bin"),
    ]
    if plan.launch.preload:
        values.append(("LD_PRELOAD", ":".join(plan.launch.preload)))
    return (*values, *plan.launch.switches, *plan.config.env)


@cache
def _template(name: str) -> jinja2.Template:
    loader = jinja2.PackageLoader("epyc_vllm_agent.units")
    environment = jinja2.Environment(  # noqa: S701 - unit files, not HTML: quoting is our own
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["word"] = quoting.word
    environment.filters["quadlet"] = quadlet.word
    environment.filters["line"] = quoting.line
    return environment.get_template(name)
