"""Which processor is what: names, families and models as machines, clouds and hypervisors print."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.cpu import describe, read_cpu
from epyc_vllm_agent.facts.cpuinfo import Identity, parse_identity
from epyc_vllm_agent.facts.generations import Part, Routing
from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.paths import Paths
from tests.hosts import DATA, GENERATIONS, GENOA, GENOA_MASKED, HOSTS, XEON, Processor, build

AMD = "AuthenticAMD"
SEED_GENERATIONS = {"Naples", "Rome", "Milan", "Genoa", "Bergamo", "Siena", "Turin", "Venice"} | {
    "EPYC 4004",
    "EPYC 4005",
}


def cpu_of(name: str | None, family: int | None, model: int | None, vendor: str = AMD) -> Cpu:
    return describe(Identity(vendor, name, family, model, 1, frozenset()), GENERATIONS, None)


@pytest.mark.parametrize(
    ("name", "family", "model", "generation", "zen_arch", "series"),
    [
        ("AMD EPYC 7601 32-Core Processor", 23, 1, "Naples", "Zen1", "7001"),
        ("AMD EPYC 7551P 32-Core Processor", 23, 1, "Naples", "Zen1", "7001"),
        ("AMD EPYC Processor (with IBPB)", 23, 1, "Naples", "Zen1", "7001"),
        ("AMD EPYC 3201 8-Core Processor", 23, 1, "Snowy Owl", "Zen1", "3001"),
        ("AMD EPYC Embedded 3255 8-Core Processor", 23, 1, "Snowy Owl", "Zen1", "3001"),
        ("AMD EPYC 7742 64-Core Processor", 23, 49, "Rome", "Zen2", "7002"),
        ("AMD EPYC 7F52 16-Core Processor", 23, 49, "Rome", "Zen2", "7002"),
        ("AMD EPYC 7V12 64-Core Processor", 23, 49, "Rome", "Zen2", "7002"),
        ("AMD EPYC-Rome Processor", 23, 49, "Rome", "Zen2", "7002"),
        ("AMD EPYC 7763 64-Core Processor", 25, 1, "Milan", "Zen3", "7003"),
        ("AMD EPYC 7V73X 64-Core Processor", 25, 1, "Milan", "Zen3", "7003"),
        ("AMD EPYC 7R13 Processor", 25, 1, "Milan", "Zen3", "7003"),
        ("AMD EPYC-Milan-v2 Processor", 25, 1, "Milan", "Zen3", "7003"),
        ("AMD EPYC 7A53 64-Core Processor", 25, 48, "Trento", "Zen3", "7003"),
        ("AMD EPYC 9654 96-Core Processor", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC 9684X 96-Core Processor", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC 9V33X 96-Core Processor", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC 9R14", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC-Genoa Processor", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC-Genoa-v2 Processor", 25, 17, "Genoa", "Zen4", "9004"),
        ("AMD EPYC 9754 128-Core Emb Processor", 25, 160, "Bergamo", "Zen4c", "9004"),
        ("AMD EPYC 8534P 64-Core Processor", 25, 160, "Siena", "Zen4c", "8004"),
        ("AMD EPYC 8024PN 8-Core Processor", 25, 160, "Siena", "Zen4c", "8004"),
        ("AMD EPYC 4124P 4-Core Processor", 25, 97, "EPYC 4004", "Zen4", "4004"),
        ("AMD EPYC 9V64H 96-Core Processor", 25, 144, "MI300C", "Zen4", "9004"),
        ("AMD EPYC 9655 96-Core Processor", 26, 2, "Turin", "Zen5", "9005"),
        ("AMD EPYC 9R45", 26, 2, "Turin", "Zen5", "9005"),
        ("AMD EPYC-Turin Processor", 26, 0, "Turin", "Zen5", "9005"),
        ("AMD EPYC 9965 192-Core Processor", 26, 17, "Turin", "Zen5c", "9005"),
        ("AMD EPYC 4545P 16-Core Processor", 26, 68, "EPYC 4005", "Zen5", "4005"),
        ("AMD EPYC 9G76 Processor", 26, 80, "Venice", "Zen6", "9006"),
        ("AMD EPYC 9016 Processor", 26, 144, "Venice", "Zen6", "9006"),
    ],
)
def test_generation(
    name: str, family: int, model: int, generation: str, zen_arch: str, series: str
) -> None:
    cpu = cpu_of(name, family, model)
    assert cpu.is_amd_epyc
    assert (cpu.generation, cpu.zen_arch, cpu.series) == (generation, zen_arch, series)


@pytest.mark.parametrize(
    ("name", "family", "model", "generation", "zen_arch"),
    [
        # The hypervisor's family and model win over a name that its user may choose.
        ("AMD EPYC-Genoa Processor", 25, 1, "Milan", "Zen3"),
        # A cloud's number for one of two parts with the same family and model.
        ("AMD EPYC 9X99 Processor", 25, 160, "Bergamo", "Zen4c"),
        # The last digit is 5 and the second part is dense: only the list knows.
        ("AMD EPYC 9745 128-Core Processor", 26, 17, "Turin", "Zen5c"),
        ("AMD EPYC 9755 128-Core Processor", 26, 2, "Turin", "Zen5"),
    ],
)
def test_family_and_model_come_first(
    name: str, family: int, model: int, generation: str, zen_arch: str
) -> None:
    cpu = cpu_of(name, family, model)
    assert (cpu.generation, cpu.zen_arch) == (generation, zen_arch)


@pytest.mark.parametrize(
    ("name", "generation", "zen_arch"),
    [
        ("AMD EPYC 7301 16-Core Processor", "Naples", "Zen1"),
        ("AMD EPYC 3251 8-Core Processor", "Snowy Owl", "Zen1"),
        ("AMD EPYC 7H12 64-Core Processor", "Rome", "Zen2"),
        ("AMD EPYC 7A53 64-Core Processor", "Trento", "Zen3"),
        ("AMD EPYC 7B13 64-Core Processor", "Milan", "Zen3"),
        ("AMD EPYC 9V74 80-Core Processor", "Genoa", "Zen4"),
        ("AMD EPYC 9V33X 96-Core Processor", "Genoa", "Zen4"),
        ("AMD EPYC 9734 112-Core Processor", "Bergamo", "Zen4c"),
        ("AMD EPYC 8434P 48-Core Processor", "Siena", "Zen4c"),
        ("AMD EPYC 4584PX 16-Core Processor", "EPYC 4004", "Zen4"),
        ("AMD EPYC 9575F 64-Core Processor", "Turin", "Zen5"),
        ("AMD EPYC 9B45 Processor", "Turin", "Zen5"),
        ("AMD EPYC 9845 160-Core Processor", "Turin", "Zen5c"),
        ("AMD EPYC 4465P 12-Core Processor", "EPYC 4005", "Zen5"),
        ("AMD EPYC 9686F Processor", "Venice", "Zen6"),
        ("AMD EPYC-Turin Processor", "Turin", "Zen5"),
    ],
)
@pytest.mark.parametrize("signature", [(None, None), (15, 107)])
def test_name_decides_where_family_and_model_do_not(
    name: str, generation: str, zen_arch: str, signature: tuple[int | None, int | None]
) -> None:
    cpu = cpu_of(name, *signature)
    assert (cpu.generation, cpu.zen_arch) == (generation, zen_arch)


def test_unknown_epyc_has_the_core_that_the_kernel_knows() -> None:
    cpu = cpu_of("AMD EPYC 5555 Processor", 26, 0x62)
    assert cpu.is_amd_epyc
    assert (cpu.generation, cpu.zen_arch, cpu.series) == (None, "Zen5", None)


def test_epyc_of_a_later_family_is_an_epyc_of_unknown_generation() -> None:
    cpu = cpu_of("AMD EPYC 9997 512-Core Processor", 27, 1)
    assert (cpu.is_amd_epyc, cpu.generation, cpu.zen_arch) == (True, None, None)


@pytest.mark.parametrize(
    ("name", "family", "model", "vendor"),
    [
        ("AMD Ryzen 5 1600 Six-Core Processor", 23, 1, AMD),
        ("AMD Ryzen Threadripper 3960X 24-Core Processor", 23, 49, AMD),
        ("AMD Ryzen Threadripper PRO 7995WX 96-Cores", 25, 24, AMD),
        ("AMD Ryzen 9 9950X 16-Core Processor", 26, 68, AMD),
        ("AMD Instinct MI300A Accelerator", 25, 144, AMD),
        ("AMD Opteron(tm) Processor 6328", 21, 2, AMD),
        ("AMD Engineering Sample", 16, 9, AMD),
        ("QEMU Virtual CPU version 2.5+", 15, 107, AMD),
        ("Hygon C86 7285 32-core Processor", 24, 1, "HygonGenuine"),
        ("AMD EPYC 9654 96-Core Processor", 25, 17, "GenuineIntel"),
        ("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", 6, 106, "GenuineIntel"),
        (None, None, None, AMD),
    ],
)
def test_not_an_epyc(name: str | None, family: int | None, model: int | None, vendor: str) -> None:
    cpu = cpu_of(name, family, model, vendor)
    assert not cpu.is_amd_epyc
    assert (cpu.generation, cpu.zen_arch, cpu.series) == (None, None, None)


@pytest.mark.parametrize(
    ("processor", "avx512f", "avx512_bf16"),
    [(GENOA, True, True), (GENOA_MASKED, False, False), (XEON, True, False)],
)
def test_avx512_and_bf16_are_told_apart(
    tmp_path: Path, processor: Processor, avx512f: bool, avx512_bf16: bool
) -> None:
    host = replace(HOSTS["genoa-1s"], processor=processor, cores_per_socket=1)
    cpu = read_cpu(build(host, tmp_path), GENERATIONS)
    assert (cpu.avx512f, cpu.avx512_bf16) == (avx512f, avx512_bf16)


def test_masked_guest_keeps_its_generation(tmp_path: Path) -> None:
    cpu = read_cpu(build(HOSTS["genoa-guest-masked"], tmp_path), GENERATIONS)
    assert (cpu.generation, cpu.zen_arch, cpu.avx512_bf16) == ("Genoa", "Zen4", False)


@pytest.mark.parametrize(
    ("dmi", "clocksources", "hypervisor"),
    [
        ("QEMU", "tsc", "qemu"),
        ("QEMU", "tsc kvm-clock", "kvm"),
        (None, "kvm-clock tsc", "kvm"),
        ("VMware, Inc.", "tsc", "vmware"),
        ("Microsoft Corporation", "hyperv_clocksource_tsc_page tsc", "hyper-v"),
        ("Amazon EC2", "kvm-clock tsc", "amazon"),
        ("Dell Inc.", "tsc", "unknown"),
        (None, "", "unknown"),
    ],
)
def test_hypervisor(tmp_path: Path, dmi: str | None, clocksources: str, hypervisor: str) -> None:
    host = replace(HOSTS["genoa-guest"], dmi=dmi, clocksources=clocksources, cores_per_socket=1)
    assert read_cpu(build(host, tmp_path), GENERATIONS).hypervisor == hypervisor


def test_hypervisor_needs_the_flag(tmp_path: Path) -> None:
    """Bare-metal cloud instances have the cloud's DMI strings too."""
    host = replace(HOSTS["genoa-1s"], dmi="Amazon EC2", cores_per_socket=1)
    assert read_cpu(build(host, tmp_path), GENERATIONS).hypervisor is None


def test_missing_cpuinfo_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        read_cpu(Paths(tmp_path), GENERATIONS)
    assert caught.value.code == "no-cpuinfo"
    assert str(tmp_path / "proc/cpuinfo") in caught.value.message


def test_identity_of_a_real_stanza() -> None:
    text = (
        "processor       : 0\nvendor_id       : AuthenticAMD\ncpu family      : 26\n"
        "model           : 2\nmodel name      : AMD EPYC 9575F 64-Core Processor   \n"
        "stepping        : 1\nflags           : fpu avx512f avx512_bf16\nbugs            : srso\n"
        "\nprocessor       : 1\nvendor_id       : Other\n"
    )
    flags = frozenset({"fpu", "avx512f", "avx512_bf16"})
    name = "AMD EPYC 9575F 64-Core Processor"
    assert parse_identity(text) == Identity(AMD, name, 26, 2, 1, flags)


@pytest.mark.parametrize("text", ["", "\n\n", "processor\t: 0\nFeatures\t: fp asimd\n", "nonsense"])
def test_cpuinfo_without_x86_keys_is_no_epyc(text: str) -> None:
    identity = parse_identity(text)
    assert identity == Identity(None, None, None, None, None, frozenset())
    assert not describe(identity, GENERATIONS, None).is_amd_epyc


def test_garbled_numbers_are_unknown() -> None:
    identity = parse_identity("vendor_id: AuthenticAMD\ncpu family: unknown\nmodel: \n")
    assert (identity.family, identity.model, identity.stepping) == (None, None, None)


def test_the_seed_validates_genoa_turin_and_venice_only() -> None:
    validated = {p.generation for p in GENERATIONS.parts if p.routing.is_validated}
    assert validated == {"Genoa", "Turin", "Venice"}
    assert GENERATIONS.routing("Turin") is Routing.VALIDATED
    assert GENERATIONS.routing("Siena") is Routing.UNVALIDATED
    assert GENERATIONS.routing("Milan") is Routing.STOCK
    assert GENERATIONS.routing(None) is None


def test_every_generation_of_the_seed_is_there() -> None:
    assert {part.generation for part in GENERATIONS.parts} >= SEED_GENERATIONS


@pytest.mark.parametrize("part", GENERATIONS.parts, ids=lambda part: part.codename)
def test_parts_agree_with_the_kernels_ranges(part: Part) -> None:
    ends = [model for ends in part.models.ranges for model in ends]
    cores = {GENERATIONS.zen_arch(part.models.family, model) for model in ends}
    assert cores == {part.zen_arch.removesuffix("c")}


@pytest.mark.parametrize("part", GENERATIONS.parts, ids=lambda part: part.codename)
def test_stock_means_before_zen4(part: Part) -> None:
    assert (part.routing is Routing.STOCK) == (part.zen_arch < "Zen4")


def test_every_part_names_its_source() -> None:
    table = json.loads((DATA / "generations.json").read_text())
    parts = [part for generation in table["generations"] for part in generation["parts"]]
    assert len(parts) == len(GENERATIONS.parts)
    assert all(part["source"].strip() for part in parts)
