"""detect: the recipe's field names, the schema, and the drawing of a host."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.report import answer, drawing, host
from epyc_vllm_agent.report.host import Seat
from tests.hosts import DATA, GENERATIONS, HOSTS, HostDescription, facts_of
from tests.jsonschema import faults
from tests.unit.test_captures import ARCHIVES, FOLDER, unpack

SCHEMA = json.loads((DATA / "detect.schema.json").read_text())
# serving-llms-on-epyc, step 1: "Returns ...".
RECIPE_FIELDS = {
    *("cpu_model", "is_amd_epyc", "epyc_generation", "zen_arch", "is_supported_epyc", "avx512"),
    *("logical_cores", "physical_cores", "sockets", "numa_nodes", "memory_gb"),
}
RECIPE_GENERATIONS = {
    *("Naples", "Rome", "Milan", "Genoa", "Bergamo", "Siena", "Turin", "Venice"),
    *("EPYC 4004", "EPYC 4005"),
}
ODD = {
    "no-nodes": replace(HOSTS["milan-1s"], node_directory=False),
    "memory-less": replace(HOSTS["genoa-2s-nps1"], memory_gib=(384, 0)),
    "no-meminfo": replace(HOSTS["genoa-2s-nps1"], memory_gib=(384, None)),
    "cxl": replace(HOSTS["genoa-1s"], cpuless_memory_gib=(512,)),
    "offline": replace(HOSTS["milan-1s"], offline="3-5", isolated="8"),
    "cpuset": replace(HOSTS["genoa-2s-nps1"], cpuset_cpus="0-3", cpuset_mems="0"),
    "nps0": replace(HOSTS["genoa-2s-nps1"], nps=0),
    "gaps": replace(HOSTS["genoa-2s-nps1"], package_ids=(0, 3), node_ids=(0, 4)),
    "no-l3": replace(HOSTS["genoa-1s"], cores_per_l3=None),
}
EVERY = {**HOSTS, **ODD}


def answered(description: HostDescription, seats: tuple[Seat, ...] = ()) -> dict[str, Any]:
    facts = facts_of(description)
    values = host.plain(facts, GENERATIONS.routing(facts.cpu.generation), seats)
    found: dict[str, Any] = json.loads(answer.dump(values))
    return found


def test_the_recipes_names_are_there_and_required() -> None:
    assert answered(HOSTS["genoa-1s"]).keys() >= RECIPE_FIELDS
    assert set(SCHEMA["required"]) >= RECIPE_FIELDS
    assert {part.generation for part in GENERATIONS.parts} >= RECIPE_GENERATIONS


@pytest.mark.parametrize("name", [name for name in EVERY if "largest" not in name])
def test_every_host_fits_the_schema(name: str) -> None:
    seat = Seat("a", "a-s0", 0, (0,), (0, 1), (1,))
    assert list(faults(answered(EVERY[name], (seat,)), SCHEMA)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sockets": "2"}, "$.sockets: '2' is not integer"),
        ({"sockets": True}, "$.sockets: True is not integer"),
        ({"zen_arch": "Zen 4"}, "$.zen_arch: 'Zen 4' does not match"),
        ({"nps": 3}, "$.nps: 3 is none of"),
        ({"other": 1}, "$: other is not known"),
        ({"allowed_cpus": "0-3,"}, "$.allowed_cpus: '0-3,' does not match"),
        ({"schema": 2}, "$.schema: 2 is not 1"),
        ({"logical_cores": 0}, "$.logical_cores: 0 is below 1"),
        ({"topology": [{}]}, "$.topology[0]: socket is missing"),
    ],
)
def test_the_schema_holds_what_it_says(change: dict[str, Any], fault: str) -> None:
    found = list(faults(answered(HOSTS["genoa-1s"]) | change, SCHEMA))
    assert any(line.startswith(fault) for line in found), found


@pytest.mark.parametrize("field", sorted(RECIPE_FIELDS))
def test_a_field_that_is_missing_is_found(field: str) -> None:
    values = answered(HOSTS["genoa-1s"])
    del values[field]
    assert list(faults(values, SCHEMA)) == [f"$: {field} is missing"]


@pytest.mark.parametrize(
    ("name", "generation", "zen_arch", "supported", "avx512"),
    [
        ("genoa-1s", "Genoa", "Zen4", True, True),
        ("turin-1s", "Turin", "Zen5", True, True),
        ("turin-dense-2s", "Turin", "Zen5c", True, True),
        ("venice-1s", "Venice", "Zen6", True, True),
        ("milan-1s", "Milan", "Zen3", False, False),
        ("trento-1s", "Trento", "Zen3", False, False),
        ("snowy-owl-1s", "Snowy Owl", "Zen1", False, False),
        ("bergamo-2s", "Bergamo", "Zen4c", False, True),
        ("epyc4005-1s", "EPYC 4005", "Zen5", False, True),
        ("genoa-guest-masked", "Genoa", "Zen4", False, False),
        ("ryzen-1s", None, None, False, True),
        ("xeon-2s", None, None, False, False),
    ],
)
def test_routing_fields(
    name: str, generation: str | None, zen_arch: str | None, supported: bool, avx512: bool
) -> None:
    found = answered(HOSTS[name])
    assert (found["epyc_generation"], found["zen_arch"]) == (generation, zen_arch)
    assert (found["is_supported_epyc"], found["avx512"]) == (supported, avx512)


def test_no_memory_is_none_and_none_is_zero() -> None:
    assert host.in_gb(0) == 0.0
    assert host.in_gb(None) is None


def facts(name: str) -> HostFacts:
    return facts_of(EVERY[name])


def test_a_host_with_endpoints_is_drawn() -> None:
    description = replace(HOSTS["genoa-2s-nps1"], cores_per_socket=8, used_gib=96)
    seats = (
        Seat("chat", "chat-s0", 0, (0,), (0, 1, 2, 3, 16, 17, 18, 19), (3,)),
        Seat("base", "base-s1", 1, (1,), tuple(range(8, 16)) + tuple(range(24, 32)), (15,)),
    )
    assert drawing.draw(facts_of(description), seats) == (
        "socket 0: 8 cores\n"
        "  node 0  [#####---------------] 96.0 GiB of 384.0 GiB used\n"
        "          aaaA ....\n"
        "socket 1: 8 cores\n"
        "  node 1  [#####---------------] 96.0 GiB of 384.0 GiB used\n"
        "          bbbb bbbB\n"
        "\n"
        "a  chat-s0 of endpoint chat: socket 0, node 0, A kept for its server\n"
        "b  base-s1 of endpoint base: socket 1, node 1, B kept for its server\n"
        ".  a free core"
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_every_core_is_drawn_once_and_no_line_is_too_long(name: str, width: int) -> None:
    found = drawing.draw(facts(name), (), width)
    body = found.split("\n\n")[0]
    rows = [line for line in body.splitlines() if line.startswith(" " * 10)]
    assert sum(len(row.replace(" ", "")) for row in rows) == facts(name).physical_cores
    assert all(len(row) <= max(width, 26) for row in rows)
    assert found.isascii()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("memory-less", "node 1  no memory"),
        ("no-meminfo", "node 1  memory not known"),
        ("cxl", "node 1  [--------------------] 0.0 GiB of 512.0 GiB used (no CPUs)"),
        ("cpuset", "xxxx"),
        ("cpuset", "one that may not be used"),
        ("gaps", "socket 3: 16 cores\n  node 4"),
    ],
)
def test_what_is_odd_shows(name: str, part: str) -> None:
    assert part in drawing.draw(facts(name), ())


def test_more_instances_than_letters() -> None:
    seats = tuple(Seat("e", f"e{n}", 0, (0,), (n,), ()) for n in range(30))
    found = drawing.draw(facts("genoa-2s-nps1"), seats)
    assert "*  e29 of endpoint e" in found


def test_nps0_is_told_and_what_is_not_known_too() -> None:
    assert "NPS0" in drawing.text(facts("nps0"))
    assert "NPS not known" in drawing.text(facts("genoa-guest"))
    assert "NPS1, L3 as NUMA" in drawing.text(facts("rome-1s-l3numa"))
    assert "of unknown generation" in drawing.text(
        replace(facts("genoa-1s"), cpu=replace(facts("genoa-1s").cpu, generation=None))
    )


@pytest.mark.skipif(FOLDER is None, reason="EPYC_VLLM_CAPTURES is not set")
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.split(".")[0])
def test_captures_fit_the_schema_and_can_be_drawn(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path)
    found = gather(Paths(tmp_path), GENERATIONS)
    routing = GENERATIONS.routing(found.cpu.generation)
    values = json.loads(answer.dump(host.plain(found, routing)))
    assert list(faults(values, SCHEMA)) == []
    assert drawing.draw(found, ()).count("socket ") == len(found.sockets)
    assert drawing.text(found)
