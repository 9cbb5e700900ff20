"""A host's facts as text or JSON; the JSON has the recipe's field names."""

from typing import Any

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.report.text import grid, table
from epyc_vllm_agent.sizes import gib


def plain(facts: HostFacts, routing: Routing | None) -> dict[str, Any]:
    cpu = facts.cpu
    return {
        "cpu_model": cpu.model_name,
        "vendor": cpu.vendor,
        "is_amd_epyc": cpu.is_amd_epyc,
        "epyc_generation": cpu.generation,
        "zen_arch": cpu.zen_arch,
        "is_supported_epyc": routing is Routing.VALIDATED and cpu.avx512_bf16,
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
        "memory_gb": round(facts.memory_bytes / 2**30, 1) if facts.memory_bytes else None,
        "available_gb": round(facts.available_bytes / 2**30, 1) if facts.available_bytes else None,
        "nps": facts.nps,
        "l3_as_numa": facts.l3_as_numa,
        "l3_groups": [cpulist.format(group.cpus) for group in facts.l3_groups],
        "offline_cpus": cpulist.format(facts.offline_cpus),
        "isolated_cpus": cpulist.format(facts.isolated_cpus),
        "allowed_cpus": cpulist.format(facts.allowed_cpus),
        "allowed_nodes": cpulist.format(facts.allowed_nodes),
        "topology": [_socket(facts, socket.id) for socket in facts.sockets],
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


def text(facts: HostFacts) -> str:
    cpu = facts.cpu
    layout = "L3 as NUMA" if facts.l3_as_numa else f"NPS{facts.nps}" if facts.nps else "unknown"
    rows = [
        ("CPU", cpu.model_name or "not told"),
        ("EPYC", f"{cpu.generation or 'yes'} ({cpu.zen_arch})" if cpu.is_amd_epyc else "no"),
        ("AVX-512", f"F {_yes(cpu.avx512f)}, BF16 {_yes(cpu.avx512_bf16)}"),
        (
            "Cores",
            f"{facts.physical_cores} on {len(facts.sockets)} socket(s), "
            f"{facts.threads_per_core} thread(s) each, {facts.logical_cpus} CPUs",
        ),
        ("NUMA", f"{len(facts.nodes)} node(s), {layout}"),
        ("Memory", f"{gib(facts.memory_bytes)}, {gib(facts.available_bytes)} available"),
        ("Usable CPUs", cpulist.format(facts.allowed_cpus)),
    ]
    if facts.offline_cpus:
        rows.append(("Offline", cpulist.format(facts.offline_cpus)))
    if facts.isolated_cpus:
        rows.append(("Isolated", cpulist.format(facts.isolated_cpus)))
    if cpu.hypervisor:
        rows.append(("Hypervisor", cpu.hypervisor))
    nodes = [
        (
            str(socket.id),
            str(node.id),
            cpulist.format(node.cpus),
            gib(node.memory_bytes),
            gib(node.free_bytes),
        )
        for socket in facts.sockets
        for node in facts.nodes
        if node.id in socket.nodes
    ]
    return f"{table(rows)}\n\n{grid(('SOCKET', 'NODE', 'CPUS', 'MEMORY', 'FREE'), nodes)}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
