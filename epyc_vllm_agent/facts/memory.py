"""NUMA nodes and memory as the kernel counts them; knows no sockets and no caches.

Files: /proc/meminfo, and /sys/devices/system/node/nodeN/{cpulist,cpumap,meminfo,distance}
(https://docs.kernel.org/admin-guide/abi-stable.html).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from epyc_vllm_agent.facts.files import parse_number, read_list, read_mask, read_text
from epyc_vllm_agent.facts.host import NumaNode
from epyc_vllm_agent.paths import Paths

_NODES = "/sys/devices/system/node"
# What the kernel gives up first. The same sum that vLLM takes for a node before it reserves its
# KV cache (vllm/utils/cpu_resource_utils.py, 0.32), so that both judge alike.
_RECLAIMABLE = ("Active(file)", "Inactive(file)", "SReclaimable")


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int | None
    available_bytes: int | None


def read_memory(paths: Paths) -> Memory:
    """The whole host's memory."""
    fields = _parse(read_text(paths.at("/proc/meminfo")) or "")
    return Memory(fields.get("MemTotal"), fields.get("MemAvailable", _reclaimable(fields)))


def read_nodes(paths: Paths, online: Iterable[int]) -> tuple[NumaNode, ...]:
    """The nodes in order of their numbers; empty where there is no node directory.

    A node may have no memory (empty DIMM slots) or no CPUs (CXL and persistent memory).
    """
    present = set(online)
    return tuple(_read_node(paths, number, present) for number in _numbers(paths))


def read_distances(paths: Paths) -> dict[tuple[int, int], int]:
    """Distances (ACPI SLIT) between pairs of nodes; a pair is absent where it is not told."""
    numbers = _numbers(paths)
    found: dict[tuple[int, int], int] = {}
    for number in numbers:
        text = read_text(paths.at(f"{_NODES}/node{number}/distance")) or ""
        row = [parse_number(word) for word in text.split()]
        if len(row) == len(numbers):
            found |= {(number, n): d for n, d in zip(numbers, row, strict=True) if d is not None}
    return found


def _read_node(paths: Paths, number: int, online: set[int]) -> NumaNode:
    folder = paths.at(f"{_NODES}/node{number}")
    cpus = read_list(folder / "cpulist")
    if cpus is None:
        cpus = read_mask(folder / "cpumap") or ()
    fields = _parse(read_text(folder / "meminfo") or "")
    return NumaNode(
        id=number,
        cpus=tuple(cpu for cpu in cpus if cpu in online),
        memory_bytes=fields.get("MemTotal"),
        free_bytes=_reclaimable(fields),
    )


def _numbers(paths: Paths) -> tuple[int, ...]:
    try:
        names = [entry.name for entry in paths.at(_NODES).iterdir()]
    except OSError:
        return ()
    matches = (re.fullmatch(r"node(\d+)", name) for name in names)
    return tuple(sorted(int(match[1]) for match in matches if match))


def _reclaimable(fields: dict[str, int]) -> int | None:
    free = fields.get("MemFree")
    return None if free is None else free + sum(fields.get(name, 0) for name in _RECLAIMABLE)


def _parse(text: str) -> dict[str, int]:
    """Fields in kB as bytes, of "MemTotal: 8 kB" or of a node's "Node 0 MemTotal: 8 kB"."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(?:Node \d+ )?(\S+):\s*(\d+) kB", line.rstrip())
        if match:
            found[match[1]] = int(match[2]) * 1024
    return found
