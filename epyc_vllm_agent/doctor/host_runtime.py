"""Checks of the host runtime: the environment, what compiles for it, what pins it."""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, advice, error, warning
from epyc_vllm_agent.doctor.seen import Environment, Programs, Seen


def check(seen: Seen) -> Iterator[Finding]:
    if seen.programs:
        yield from _numactl(seen.programs)
    if seen.environment is None:
        return
    if seen.environment.fault:
        kind = advice if seen.runtime else warning
        yield kind("environment-unusable", seen.environment.fault, seen.environment.fix or "")
        return
    yield from _libraries(seen.environment)
    if seen.programs and seen.programs.compiler is None:
        # A container brings its own.
        kind = warning if seen.runtime else error
        yield kind(
            "no-compiler",
            f"there is no {seen.limits.compiler}: vLLM compiles at start and ends without it",
            "apt-get install g++",
        )
    if seen.system.user_exists is False:
        yield warning(
            "no-user",
            f"the user {seen.config.user}, as whom vLLM runs, does not exist",
            "systemd-sysusers, or reinstall epyc-vllm",
        )


def _numactl(programs: Programs) -> Iterator[Finding]:
    if programs.numactl is None:
        pinned = "memory is not bound" if programs.taskset else "servers run unpinned"
        yield warning(
            "no-numactl", f"numactl is not installed: {pinned}", "apt-get install numactl"
        )


def _libraries(environment: Environment) -> Iterator[Finding]:
    names = " ".join(environment.preload)
    if "tcmalloc" not in names:
        yield warning(
            "no-tcmalloc",
            "tcmalloc is not there to be preloaded: allocation is slower",
            "apt-get install libtcmalloc-minimal4",
        )
    if "omp" not in names:
        yield warning(
            "no-openmp",
            "there is no Intel or LLVM OpenMP to preload: vLLM's threads wander over their CPUs",
            "install intel-openmp into the environment, or libomp on the host",
        )
