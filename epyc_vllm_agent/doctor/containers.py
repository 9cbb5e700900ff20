"""Checks of podman and docker, as far as a look at them tells."""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, advice, error, warning
from epyc_vllm_agent.doctor.seen import Runtime, Seen
from epyc_vllm_agent.plan.stacks import release


def check(seen: Seen) -> Iterator[Finding]:
    for runtime in seen.runtimes:
        if runtime.fault and runtime.version is not None:
            kind = advice if seen.runtime or seen.stack else warning
            yield kind(f"{runtime.name}-unusable", runtime.fault, runtime.fix or "")
    podman = next((r for r in seen.runtimes if r.name == "podman" and r.is_usable), None)
    if podman:
        yield from _quadlet(seen, podman)
    if seen.far:
        return
    if seen.runtime is None and seen.stack is None:
        yield error(
            "no-runtime",
            "nothing here can run vLLM: no container runtime and no environment that has it",
            "apt-get install podman, or make an environment with packaging/make-environment",
        )
    if seen.runtime and seen.runtime.image_present is False:
        kind = advice if seen.stack else warning
        yield kind(
            "image-absent",
            f"{seen.runtime.name} does not have the image {seen.image}: its stack is not known yet",
            f"{seen.runtime.name} pull {seen.image}",
        )


def _quadlet(seen: Seen, podman: Runtime) -> Iterator[Finding]:
    version = release(podman.version)
    lacks = [key.name for key in seen.limits.quadlet_keys if version < release(key.first)]
    if lacks:
        yield advice(
            "quadlet-old",
            f"the quadlet of podman {podman.version} does not know {', '.join(lacks)}",
            "endpoints work without: these are given as PodmanArgs=; a later podman knows them",
        )
