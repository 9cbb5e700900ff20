"""What docker on this host is, and whether its daemon answers; starts nothing.

https://docs.docker.com/reference/cli/docker/system/info/
"""

import re

from epyc_vllm_agent.doors import command
from epyc_vllm_agent.doors.environment import tool
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.plan.runtime import Engine

_START = "start it once: systemctl enable --now docker.service"


def look() -> Engine | None:
    """docker as the root of this host has it, None where it is not installed."""
    program = tool("docker")
    if program is None or not _is_docker(program):
        return None
    try:
        done = command.run(
            [program, "info", "--format", "{{.ServerVersion}} {{json .SecurityOptions}}"],
            timeout_seconds=60,
        )
    except ActionFailed as error:
        return Engine(program, None, fault=error.message, fix=_START)
    version, _, options = done.stdout.strip().partition(" ")
    # The client ends with 0 and an empty version where there is no daemon.
    if done.status != 0 or not re.match(r"\d", version):
        return Engine(program, None, fault=_fault(done.stderr or done.stdout), fix=_START)
    if "rootless" in options:
        return Engine(
            program,
            version,
            fault="this docker is rootless: it ends with its user's session",
            fix=f"use the system's daemon; {_START}",
        )
    return Engine(program, version)


def _is_docker(program: str) -> bool:
    """podman-docker puts a podman there that calls itself docker."""
    done = command.run([program, "--version"], timeout_seconds=60)
    return done.stdout.startswith("Docker version")


def _fault(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    if "permission denied" in said.lower():
        return "docker's daemon does not answer this user: run this as root"
    return f"docker's daemon does not answer: {lines[-1] if lines else 'it says nothing'}"
