"""Captures of real machines, each with its truth: what `gather` says must equal what is known.

EPYC_VLLM_CAPTURES names the folder of archives. Each holds proc/, sys/ and expected.json, which
util-linux, hwloc and people wrote, never this project.
"""

import fnmatch
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.facts.gather import FILES, gather
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.paths import Paths
from tests.hosts import GENERATIONS

FOLDER = os.environ.get("EPYC_VLLM_CAPTURES")
ARCHIVES = sorted(Path(FOLDER).glob("*.tar.xz")) if FOLDER else []
pytestmark = pytest.mark.skipif(FOLDER is None, reason="EPYC_VLLM_CAPTURES is not set")

# Fields of expected.json that are not compared, and why.
NOT_COMPARED = {
    "name": "of the archive",
    "source": "where the capture comes from",
    "licence": "of that source",
    "fidelity": "how the capture was made",
    "how": "how the capture was made",
    "flags_from": "how the capture was made",
    "note": "prose; what it warns of is in the other fields",
    "identity_only": "says which fields cannot be compared, see `supported`",
    "oracles": "what other programs say; where they differ from the other fields they are wrong",
    "disagreements": "where those programs are wrong",
}
# Cannot be told from one stanza of many: these captures hold the first CPU's only.
NOT_IN_IDENTITY = {"sockets", "physical_cores", "logical_cpus", "threads_per_core"}
# Every capture supports these.
IDENTITY = {
    *("vendor", "model_name", "family", "model", "stepping", "avx512f", "avx512_bf16"),
    *("hypervisor_flag", "is_amd_epyc", "generation", "zen_arch"),
}
# expected.json calls parts by die or codename, the agent by the seed's list.
GENERATION_NAMES = {"Turin Dense": "Turin"}


@dataclass(frozen=True, slots=True)
class Capture:
    facts: HostFacts
    expected: dict[str, Any]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def capture(request: pytest.FixtureRequest) -> Iterator[Capture]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack(request.param, root)
        expected = json.loads((root / "expected.json").read_text())
        yield Capture(gather(Paths(root), GENERATIONS), expected)


def unpack(archive: Path, root: Path) -> None:
    """What `gather` reads, and the truth; archives have ten times as many files."""
    wanted = re.compile("|".join(fnmatch.translate(name) for name in (*FILES, "expected.json")))
    made: set[Path] = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if member.isfile() and wanted.match(name):
                path = root / name
                if path.parent not in made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made.add(path.parent)
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())


def cpu_list(cpus: tuple[int, ...]) -> str:
    return cpulist.format(cpus)


def online(facts: HostFacts) -> tuple[int, ...]:
    return tuple(c for s in facts.sockets for core in s.cores for c in core.cpus)


def nodes_by_socket(facts: HostFacts) -> dict[str, list[int]]:
    return {str(s.id): [*s.nodes] if facts.numa_known else [] for s in facts.sockets}


def known_nodes(facts: HostFacts) -> dict[int, tuple[tuple[int, ...], int | None]]:
    nodes = facts.nodes if facts.numa_known else ()
    return {node.id: (node.cpus, node.memory_bytes) for node in nodes}


def kib(size: int | None) -> int | None:
    return None if size is None else size // 1024


# How each field of expected.json reads in HostFacts.
COMPARED: dict[str, Callable[[HostFacts], Any]] = {
    "vendor": lambda f: f.cpu.vendor,
    "model_name": lambda f: f.cpu.model_name,
    "family": lambda f: f.cpu.family,
    "model": lambda f: f.cpu.model,
    "stepping": lambda f: f.cpu.stepping,
    "avx512f": lambda f: f.cpu.avx512f,
    "avx512_bf16": lambda f: f.cpu.avx512_bf16,
    "hypervisor_flag": lambda f: f.cpu.hypervisor is not None,
    "is_amd_epyc": lambda f: f.cpu.is_amd_epyc,
    "generation": lambda f: f.cpu.generation,
    "zen_arch": lambda f: f.cpu.zen_arch,
    "series": lambda f: f.cpu.series,
    "sockets": lambda f: len(f.sockets),
    "socket_ids": lambda f: [s.id for s in f.sockets],
    "physical_cores": lambda f: f.physical_cores,
    "logical_cpus": lambda f: f.logical_cpus,
    "threads_per_core": lambda f: f.threads_per_core,
    "online_cpulist": lambda f: cpu_list(online(f)),
    "cpulist": lambda f: cpu_list(online(f)),
    "offline_cpus": lambda f: cpu_list(f.offline_cpus),
    "numa_nodes": lambda f: len(f.nodes) if f.numa_known else None,
    "node_ids": lambda f: [*known_nodes(f)] or None,
    "nodes_by_socket": nodes_by_socket,
    "node_cpulist": lambda f: {str(n): cpu_list(cpus) for n, (cpus, _) in known_nodes(f).items()},
    "first_thread_cpulist_by_socket": lambda f: {
        str(s.id): cpu_list(tuple(core.cpus[0] for core in s.cores)) for s in f.sockets
    },
    "mem_total_kb": lambda f: kib(f.memory_bytes),
    "mem_total_kb_by_node": lambda f: {
        str(n): kib(memory) for n, (_, memory) in known_nodes(f).items()
    },
    "memoryless_nodes": lambda f: [n for n, (_, memory) in known_nodes(f).items() if memory == 0],
    "cpuless_nodes": lambda f: [n for n, (cpus, _) in known_nodes(f).items() if not cpus],
    "container_allowed_cpus": lambda f: cpu_list(f.allowed_cpus),
    "container_allowed_mems": lambda f: cpu_list(f.allowed_nodes),
}


def as_written_here(field: str, value: Any) -> Any:
    """A value of expected.json in the agent's spelling."""
    if field == "zen_arch" and value is not None:
        return value.replace(" ", "")
    if field == "generation" and value is not None:
        name = value.partition(" (")[0]
        return GENERATION_NAMES.get(name, name)
    return value


def supported(field: str, expected: dict[str, Any]) -> bool:
    identity_only = expected.get("identity_only", False)
    return not (identity_only and (field in NOT_IN_IDENTITY or "_by_socket" in field))


def test_the_set_is_complete() -> None:
    assert len(ARCHIVES) >= 47


def test_every_field_is_as_expected(capture: Capture) -> None:
    fields = [name for name in capture.expected if name not in NOT_COMPARED]
    assert set(fields) <= set(COMPARED), "a field of expected.json that nothing compares"
    compared = [name for name in fields if supported(name, capture.expected)]
    found = {name: COMPARED[name](capture.facts) for name in compared}
    assert found == {name: as_written_here(name, capture.expected[name]) for name in compared}
    assert set(compared) >= IDENTITY


def test_negatives_are_never_epyc(capture: Capture) -> None:
    negative = capture.expected["name"].startswith("neg-")
    assert capture.facts.cpu.is_amd_epyc != negative


def test_nps_is_that_of_the_captures_name(capture: Capture) -> None:
    match = re.search(r"-nps(\d)", capture.expected["name"])
    if match:
        assert capture.facts.nps == int(match[1])
    assert capture.facts.l3_as_numa == ("l3numa" in capture.expected["name"])


def test_groups_and_cores_cover_the_online_cpus_once(capture: Capture) -> None:
    facts = capture.facts
    assert len(set(online(facts))) == facts.logical_cpus
    grouped = [cpu for group in facts.l3_groups for cpu in group.cpus]
    assert sorted(grouped) in ([], sorted(online(facts)))
