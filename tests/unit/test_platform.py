"""Which platform vLLM will choose: the table of its own rules, and what disagrees with a probe."""

from dataclasses import replace

import pytest

from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.plan.platform import disagreement, is_zen, kind_of, predict
from epyc_vllm_agent.plan.stacks import Stacks, release
from epyc_vllm_agent.plan.values import PlatformKind, Stack
from tests.hosts import HOSTS, facts_of
from tests.plans import LAUNCH, RECIPE, STACKS, STOCK, ZEN, endpoint, plan

RULES = STACKS.platforms
GENOA, MILAN = "genoa-1s", "milan-1s"


def cpu_of(host: str) -> Cpu:
    return facts_of(HOSTS[host]).cpu


BROKEN = replace(ZEN, zentorch_importable=False, zentorch_error="OSError: undefined symbol")


@pytest.mark.parametrize(
    ("host", "stack", "kind", "why"),
    [
        (GENOA, ZEN, "zen", "AuthenticAMD with AVX-512, and zentorch 2.13.0.1 is there"),
        (GENOA, STOCK, "stock", "zentorch cannot be imported: it is not installed"),
        (GENOA, BROKEN, "stock", "zentorch cannot be imported: OSError: undefined symbol"),
        (MILAN, ZEN, "stock", "the CPU is AuthenticAMD, without AVX-512"),
        ("genoa-guest-masked", ZEN, "stock", "the CPU is AuthenticAMD, without AVX-512"),
        ("xeon-2s", ZEN, "stock", "the CPU is GenuineIntel"),
        ("arm-1s", ZEN, "stock", "the CPU is no vendor, without AVX-512"),
        ("ryzen-1s", ZEN, "zen", "AuthenticAMD with AVX-512"),
        (GENOA, replace(ZEN, vllm="0.17.1+cpu"), "stock", "no Zen platform yet: 0.18"),
        (GENOA, replace(ZEN, vllm="0.18.0+cpu"), "zen", "zentorch 2.13.0.1 is there"),
        (GENOA, replace(ZEN, vllm="0.32.0"), "none", "its version does not say cpu"),
        (GENOA, replace(ZEN, plugins=("zentorch",)), "plugin", "'zentorch' precedes"),
        (GENOA, replace(ZEN, vllm="0.25.1", plugins=("zentorch",)), "plugin", "'zentorch'"),
        (MILAN, replace(ZEN, plugins=("zentorch",)), "stock", "without AVX-512"),
        (MILAN, replace(ZEN, plugins=("other",)), "plugin", "'other' precedes"),
        (GENOA, replace(ZEN, plugins=("zentorch", "other")), "none", "only one platform plugin"),
    ],
)  # fmt: skip
def test_predictions(host: str, stack: Stack, kind: str, why: str) -> None:
    found = predict(cpu_of(host), stack, RULES)
    assert found is not None
    assert (found.kind, why in found.why) == (PlatformKind(kind), True), found.why
    assert found.platform == {"zen": RULES.zen, "stock": RULES.stock}.get(kind)


@pytest.mark.parametrize("stack", [replace(ZEN, vllm=None), replace(ZEN, zentorch_importable=None)])
def test_nothing_is_predicted_of_packages_that_were_not_looked_at(stack: Stack) -> None:
    assert predict(cpu_of(GENOA), stack, RULES) is None


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("vllm.platforms.zen_cpu.ZenCpuPlatform", "zen"),
        ("vllm.platforms.cpu.CpuPlatform", "stock"),
        ("vllm.platforms.cuda.CudaPlatform", "other"),
        ("vllm.platforms.interface.UnspecifiedPlatform", "none"),
        ("zentorch.vllm.ZenCPUPlatform", "plugin"),
        (None, "none"),
    ],
)
def test_kinds(path: str | None, kind: str) -> None:
    assert kind_of(path, RULES) is PlatformKind(kind)


def test_an_avx512_without_bf16_is_zen_to_vllm_but_not_to_us() -> None:
    """vLLM looks for "avx512" alone; zentorch's bfloat16 path needs more, so the plan refuses."""
    cpu = replace(cpu_of(GENOA), avx512_bf16=False)
    assert is_zen(cpu)
    facts = replace(facts_of(HOSTS[GENOA]), cpu=cpu)
    made = plan(facts, stack=replace(ZEN, name="stock"))
    assert [refusal.code for refusal in made.refusals] == ["stock-not-active"]
    assert "--without-zentorch" in made.refusals[0].hint


def test_a_disagreement_shows_both_sides() -> None:
    probed = replace(ZEN, platform=STOCK.platform)
    found = disagreement(probed, predict(cpu_of(GENOA), probed, RULES), RULES)
    assert found is not None
    assert found.code == "platform-mismatch"
    for part in (RULES.zen, RULES.stock, "AuthenticAMD with AVX-512", "0.32.0+cpu"):
        assert part in found.message


@pytest.mark.parametrize(
    ("stack", "host"),
    [
        (ZEN, GENOA),
        (STOCK, MILAN),
        (replace(ZEN, platform="zentorch.vllm.P", plugins=("zentorch",)), GENOA),
        (replace(ZEN, platform=STOCK.platform, probed=False), GENOA),
        (replace(ZEN, zentorch_importable=None, platform=STOCK.platform), GENOA),
    ],
)
def test_no_disagreement(stack: Stack, host: str) -> None:
    assert disagreement(stack, predict(cpu_of(host), stack, RULES), RULES) is None


def test_the_plan_keeps_what_was_predicted() -> None:
    made = plan(facts_of(HOSTS[GENOA]))
    assert made.prediction is not None
    assert made.prediction.platform == made.stack.platform
    assert made.refusals == ()


FREEZING = {"TORCHINDUCTOR_FREEZING": "1"}


@pytest.mark.parametrize(
    ("env", "codes"),
    [
        ({}, []),
        (FREEZING, ["freezing-alone"]),
        (FREEZING | {"VLLM_USE_AOT_COMPILE": "1"}, ["freezing-alone"]),
        (FREEZING | {"VLLM_USE_AOT_COMPILE": "0"}, []),
        ({"TORCHINDUCTOR_FREEZING": "0"}, []),
    ],
)
def test_freezing_without_its_partner_is_refused(env: dict[str, str], codes: list[str]) -> None:
    made = plan(facts_of(HOSTS[GENOA]), endpoint(env=env))
    assert [refusal.code for refusal in made.refusals] == codes


def test_the_switches_of_throughput_bring_the_partner() -> None:
    facts, config = facts_of(HOSTS[GENOA]), endpoint(throughput=True, env=FREEZING)
    launch = replace(LAUNCH, switches=RECIPE.throughput.env)
    assert plan(facts, config, launch=launch).refusals == ()
    against = endpoint(throughput=True, env={"VLLM_USE_AOT_COMPILE": "1"})
    (refusal,) = plan(facts, against, launch=launch).refusals
    assert refusal.code == "freezing-alone"


@pytest.mark.parametrize(
    ("torch", "env", "warned"),
    [
        ("2.10.0", {}, True),
        ("2.10.1+cpu", {}, True),
        ("2.10.0", {"VLLM_ZENTORCH_WEIGHT_PREPACK": "0"}, False),
        ("2.11.0", {}, False),
        ("2.1.0", {}, False),
        ("2.100.0", {}, False),
        (None, {}, False),
    ],
)
def test_a_torch_that_cannot_make_cache_keys_is_warned_of(
    torch: str | None, env: dict[str, str], warned: bool
) -> None:
    made = plan(facts_of(HOSTS[GENOA]), endpoint(env=env), stack=replace(ZEN, torch=torch))
    assert any("cache key" in warning for warning in made.warnings) == warned
    assert made.refusals == ()


def test_a_stock_stack_prepacks_nothing() -> None:
    made = plan(facts_of(HOSTS[MILAN]), stack=replace(STOCK, torch="2.10.0"))
    assert not any("cache key" in warning for warning in made.warnings)


def test_float16_is_refused_on_zen_before_anything_is_loaded() -> None:
    refused = plan(facts_of(HOSTS[GENOA]), endpoint(dtype="float16"))
    assert [refusal.code for refusal in refused.refusals] == ["dtype-unsupported"]
    assert plan(facts_of(HOSTS[MILAN]), endpoint(dtype="float16")).refusals == ()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.32.0+cpu", (0, 32, 0)),
        ("2.13.0.1", (2, 13, 0, 1)),
        ("v0.25.1", (0, 25, 1)),
        ("0.33.0rc1", (0, 33, 0)),
        ("unknown", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_releases(version: str | None, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_one_validated_stack_is_the_pinned_one_of_the_recipe() -> None:
    assert isinstance(STACKS, Stacks)
    assert [stack.vllm for stack in STACKS.validated if stack.pinned] == ["0.25.1"]
    assert STACKS.is_validated(ZEN)
    assert not STACKS.is_validated(STOCK)
    assert not STACKS.is_validated(replace(ZEN, vllm=None, zentorch=None))
