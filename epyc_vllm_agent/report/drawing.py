"""A host as text: its facts in lines, and on a terminal a drawing of what sits where. Pure."""

import string
from collections.abc import Iterator, Mapping, Sequence

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.host import Core, HostFacts, NumaNode, Socket
from epyc_vllm_agent.report.host import Seat
from epyc_vllm_agent.report.text import grid, table
from epyc_vllm_agent.sizes import gib

_FREE, _OUTSIDE = ".", "x"
_BAR = 20  # cells
_INDENT = 10


def text(facts: HostFacts) -> str:
    nodes = [
        (
            ",".join(str(s.id) for s in facts.sockets if node.id in s.nodes) or "-",
            str(node.id),
            cpulist.format(node.cpus) or "none",
            gib(node.memory_bytes),
            gib(node.free_bytes),
        )
        for node in facts.nodes
    ]
    rows = table(list(_rows(facts)))
    return f"{rows}\n\n{grid(('SOCKET', 'NODE', 'CPUS', 'MEMORY', 'FREE'), nodes)}"


def _rows(facts: HostFacts) -> Iterator[tuple[str, str]]:
    cpu = facts.cpu
    numa = f"NPS{facts.nps}" if facts.nps is not None else "NPS not known"
    yield "CPU", cpu.model_name or "not told"
    zen = f" ({cpu.zen_arch})" if cpu.zen_arch else ""
    yield "EPYC", f"{cpu.generation or 'of unknown generation'}{zen}" if cpu.is_amd_epyc else "no"
    yield "AVX-512", f"F {_yes(cpu.avx512f)}, BF16 {_yes(cpu.avx512_bf16)}"
    yield (
        "Cores",
        f"{facts.physical_cores} on {len(facts.sockets)} socket(s), "
        f"{facts.threads_per_core} thread(s) each, {facts.logical_cpus} CPUs",
    )
    yield "NUMA", f"{len(facts.nodes)} node(s), {numa}{', L3 as NUMA' if facts.l3_as_numa else ''}"
    yield "Memory", f"{gib(facts.memory_bytes)}, {gib(facts.available_bytes)} available"
    yield "Usable CPUs", cpulist.format(facts.allowed_cpus) or "none"
    for name, cpus in (("Offline", facts.offline_cpus), ("Isolated", facts.isolated_cpus)):
        if cpus:
            yield name, cpulist.format(cpus)
    if cpu.hypervisor:
        yield "Hypervisor", cpu.hypervisor


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def draw(facts: HostFacts, seats: Sequence[Seat], width: int = 80) -> str:
    """Sockets, their nodes with used memory, and a character for each core: whose it is."""
    letters = {
        seat.instance: string.ascii_lowercase[i] if i < 26 else "*" for i, seat in enumerate(seats)
    }
    owners = _owners(seats, letters)
    lines = [line for socket in facts.sockets for line in _socket(facts, socket, owners, width)]
    seated = {node for socket in facts.sockets for node in socket.nodes}
    alone = [node for node in facts.nodes if node.id not in seated]
    lines += [f"{_node(node)} (no CPUs)" for node in alone]
    return "\n".join([*lines, "", *_legend(facts, seats, letters)])


def _owners(seats: Sequence[Seat], letters: Mapping[str, str]) -> dict[int, str]:
    """The letter of each CPU that an instance has; upper case for those kept for its server."""
    found: dict[int, str] = {}
    for seat in seats:
        letter = letters[seat.instance]
        found |= dict.fromkeys(seat.cpus, letter)
        found |= dict.fromkeys(seat.kept_cpus, letter.upper())
    return found


def _socket(
    facts: HostFacts, socket: Socket, owners: Mapping[int, str], width: int
) -> Iterator[str]:
    yield f"socket {socket.id}: {len(socket.cores)} cores"
    for number in socket.nodes:
        yield _node(facts.node(number))
        cores = [core for core in socket.cores if core.node == number]
        yield from _core_lines(facts, cores, owners, width)


def _node(node: NumaNode) -> str:
    name = f"  node {node.id}"
    if not node.memory_bytes:
        known = "no memory" if node.memory_bytes == 0 else "memory not known"
        return f"{name:<{_INDENT}}{known}"
    if node.free_bytes is None:
        return f"{name:<{_INDENT}}{gib(node.memory_bytes)}"
    used = max(node.memory_bytes - node.free_bytes, 0)
    cells = round(_BAR * used / node.memory_bytes)
    bar = "#" * cells + "-" * (_BAR - cells)
    return f"{name:<{_INDENT}}[{bar}] {gib(used)} of {gib(node.memory_bytes)} used"


def _core_lines(
    facts: HostFacts, cores: Sequence[Core], owners: Mapping[int, str], width: int
) -> Iterator[str]:
    """The cores of a node in order, a blank between L3 groups, cut where the line is full."""
    group_of = {cpu: i for i, group in enumerate(facts.l3_groups) for cpu in group.cpus}
    allowed = set(facts.allowed_cpus)
    groups: list[str] = []
    last: int | None = None
    for core in cores:
        group = group_of.get(core.cpus[0], -1)
        if not groups or group != last:
            groups.append("")
        groups[-1] += owners.get(core.cpus[0], _FREE if core.cpus[0] in allowed else _OUTSIDE)
        last = group
    room = max(width - _INDENT, 16)
    line = ""
    for piece in (g[i : i + room] for g in groups for i in range(0, len(g), room)):
        if line and len(line) + 1 + len(piece) > room:
            yield " " * _INDENT + line
            line = ""
        line = f"{line} {piece}" if line else piece
    if line:
        yield " " * _INDENT + line


def _legend(facts: HostFacts, seats: Sequence[Seat], letters: Mapping[str, str]) -> Iterator[str]:
    for seat in seats:
        letter = letters[seat.instance]
        kept = f", {letter.upper()} kept for its server" if seat.kept_cpus else ""
        where = f"socket {seat.socket}, node {cpulist.format(seat.nodes)}"
        yield f"{letter}  {seat.instance} of endpoint {seat.endpoint}: {where}{kept}"
    outside = len(facts.allowed_cpus) < facts.logical_cpus
    yield f"{_FREE}  a free core" + (f"    {_OUTSIDE}  one that may not be used" if outside else "")
