"""What a runtime cannot carry or does not do, as refusals and warnings of the plan; pure."""

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.plan.values import Container, Launch, Refusal


def refusals(config: EndpointConfig, model_path: str, launch: Launch) -> list[Refusal]:
    """Values that would be another thing once the runtime has read them."""
    if launch.container is None:
        return []
    found = []
    mounted = [model_path, *filter(None, [config.chat_template])]
    found += [
        Refusal(
            "path-not-mountable",
            f"{path} has a colon in it, with which a volume's parts are told apart",
            "use a path without colons, or the host runtime",
        )
        for path in mounted
        if ":" in path
    ]
    if launch.container.generator and ";" in config.vllm_args:
        found.append(
            Refusal(
                "argument-not-carried",
                'an argument ";" ends the command in the service that quadlet makes',
                "leave it out of vllm_args, or use another runtime",
            )
        )
    return found


def warnings(config: EndpointConfig, launch: Launch) -> list[str]:
    found = _of_container(launch.container) if launch.container else _of_host(launch)
    if config.throughput and not launch.switches:
        found.append("throughput = true does nothing: its switches are zentorch's")
    return found


def _of_host(launch: Launch) -> list[str]:
    if launch.numactl is None and launch.taskset is None:
        return ["neither numactl nor taskset is there: the server runs unpinned"]
    if launch.numactl is None:
        return ["numactl is missing: CPUs are pinned by taskset, memory is not bound"]
    return []


def _of_container(container: Container) -> list[str]:
    found = []
    if container.pinned is None:
        found.append(
            f"the image {container.image} is not here yet: enable fetches it, and asks it what is "
            "in it before the launch"
        )
    if not container.cpuset:
        found.append(
            "the cpuset controller is not there: the container is not bound to its CPUs and nodes, "
            "only vLLM's own threads are"
        )
    return found
