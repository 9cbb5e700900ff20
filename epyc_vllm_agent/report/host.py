"""A host's facts as JSON values, with the recipe's field names (data/detect.schema.json)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import HostFacts


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an instance of an endpoint sits, by its stored plan."""

    endpoint: str
    instance: str
    socket: int
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    kept_cpus: tuple[int, ...]


def plain(facts: HostFacts, routing: Routing | None, seats: Sequence[Seat] = ()) -> dict[str, Any]:
    cpu = facts.cpu
    return {
        "cpu_model": cpu.model_name,
        "vendor": cpu.vendor,
        "is_amd_epyc": cpu.is_amd_epyc,
        "epyc_generation": cpu.generation,
        "zen_arch": cpu.zen_arch,
        "is_supported_epyc": bool(routing and routing.is_validated and cpu.avx512_bf16),
        "avx512": cpu.avx512_bf16,
        "avx512f": cpu.avx512f,
        "avx512_bf16": cpu.avx512_bf16,
        "family": cpu.family,
        "model": cpu.model,
        "stepping": cpu.stepping,
        "hypervisor": cpu.hypervisor,
        "logical_cores": facts.logical_cpus,
        "physical_cores": facts.physical_cores,
        "threads_per_core": facts.threads_per_core,
        "sockets": len(facts.sockets),
        "numa_nodes": len(facts.nodes),
        "memory_gb": in_gb(facts.memory_bytes),
        "available_gb": in_gb(facts.available_bytes),
        "nps": facts.nps,
        "l3_as_numa": facts.l3_as_numa,
        "l3_groups": [cpulist.format(group.cpus) for group in facts.l3_groups],
        "offline_cpus": cpulist.format(facts.offline_cpus),
        "isolated_cpus": cpulist.format(facts.isolated_cpus),
        "allowed_cpus": cpulist.format(facts.allowed_cpus),
        "allowed_nodes": cpulist.format(facts.allowed_nodes),
        "instances": [_seat(seat) for seat in seats],
        "topology": [_socket(facts, socket.id) for socket in facts.sockets],
    }


def in_gb(count: int | None) -> float | None:
    """As the recipe counts: of 2^30 bytes, with one digit."""
    return None if count is None else round(count / 2**30, 1)


def _seat(seat: Seat) -> dict[str, Any]:
    return {
        "endpoint": seat.endpoint,
        "name": seat.instance,
        "socket": seat.socket,
        "nodes": list(seat.nodes),
        "cpus": cpulist.format(seat.cpus),
        "kept_cpus": cpulist.format(seat.kept_cpus),
    }


def _socket(facts: HostFacts, socket_id: int) -> dict[str, Any]:
    socket = next(socket for socket in facts.sockets if socket.id == socket_id)
    return {
        "socket": socket.id,
        "cores": len(socket.cores),
        "nodes": [
            {
                "node": node.id,
                "cpus": cpulist.format(node.cpus),
                "memory_bytes": node.memory_bytes,
                "free_bytes": node.free_bytes,
            }
            for node in facts.nodes
            if node.id in socket.nodes
        ],
    }
