"""Which platform vLLM will choose, and why, from cpuinfo and packages alone; starts nothing. Pure.

The order is vLLM's own (vllm/platforms/__init__.py, 0.32.0): one out-of-tree plugin precedes what
is built in; of that the CPU's is there only where the version says cpu; it is the Zen one where
/proc/cpuinfo holds "AuthenticAMD" and "avx512" and zentorch can be imported.
"""

from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.plan.stacks import PlatformRules, release
from epyc_vllm_agent.plan.values import PlatformKind, Prediction, Refusal, Stack


def predict(cpu: Cpu, stack: Stack, rules: PlatformRules) -> Prediction | None:
    """None where there is no vLLM to choose, or where its packages were not looked at."""
    if stack.vllm is None or stack.zentorch_importable is None:
        return None
    plugins = [name for name in stack.plugins if is_zen(cpu) or name not in rules.zen_plugins]
    if len(plugins) > 1:
        names = ", ".join(plugins)
        return Prediction(PlatformKind.NONE, None, f"only one platform plugin may act, not {names}")
    if plugins:
        why = f"the platform plugin {plugins[0]!r} precedes the platforms built in"
        return Prediction(PlatformKind.PLUGIN, None, why)
    if "cpu" not in stack.vllm:
        why = f"vLLM {stack.vllm} is no build for the CPU: its version does not say cpu"
        return Prediction(PlatformKind.NONE, None, why)
    return _built_in(cpu, stack, rules)


def is_zen(cpu: Cpu) -> bool:
    """vLLM's own rule, which knows no EPYC and no BF16."""
    return cpu.vendor == "AuthenticAMD" and (cpu.avx512f or cpu.avx512_bf16)


def _built_in(cpu: Cpu, stack: Stack, rules: PlatformRules) -> Prediction:
    if not is_zen(cpu):
        vendor = cpu.vendor or "no vendor"
        why = f"the CPU is {vendor}" + ("" if cpu.avx512f else ", without AVX-512")
        return Prediction(PlatformKind.STOCK, rules.stock, why)
    if release(stack.vllm) < release(rules.zen_since):
        why = f"vLLM {stack.vllm} has no Zen platform yet: {rules.zen_since} was the first"
        return Prediction(PlatformKind.STOCK, rules.stock, why)
    if not stack.zentorch_importable:
        reason = stack.zentorch_error or "it is not installed"
        why = f"zentorch cannot be imported: {reason}"
        return Prediction(PlatformKind.STOCK, rules.stock, why)
    why = f"AuthenticAMD with AVX-512, and zentorch {stack.zentorch or 'of no version'} is there"
    return Prediction(PlatformKind.ZEN, rules.zen, why)


def kind_of(platform: str | None, rules: PlatformRules) -> PlatformKind:
    """The kind of a class path as vLLM names it."""
    if platform is None or platform == "vllm.platforms.interface.UnspecifiedPlatform":
        return PlatformKind.NONE
    if platform == rules.zen:
        return PlatformKind.ZEN
    if platform == rules.stock:
        return PlatformKind.STOCK
    built_in = platform.startswith("vllm.platforms.")
    return PlatformKind.OTHER if built_in else PlatformKind.PLUGIN


def disagreement(
    stack: Stack, prediction: Prediction | None, rules: PlatformRules
) -> Refusal | None:
    """Where the probe saw another platform than was predicted: one of the two is not understood."""
    if prediction is None or not stack.probed:
        return None
    if kind_of(stack.platform, rules) is prediction.kind:
        return None
    expected = prediction.platform or f"one of kind {prediction.kind}"
    return Refusal(
        "platform-mismatch",
        f"predicted is {expected} ({prediction.why}), but vLLM {stack.vllm} chose "
        f"{stack.platform or 'no platform'}",
        "look at the environment's packages and at /proc/cpuinfo as vLLM's user sees it; "
        "VLLM_PLUGINS and VLLM_TARGET_DEVICE change the choice",
    )
