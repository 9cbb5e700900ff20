"""Which stack a host gets and which gates stand before it; pure.

A gate is accepted by its name only. What a name means is in data/gates.json.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.errors import Refused
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.plan.platform import disagreement, kind_of
from epyc_vllm_agent.plan.stacks import KeyRules, PlatformRules, Stacks
from epyc_vllm_agent.plan.values import EndpointPlan, Gate, PlatformKind, Prediction, Refusal, Stack

STOCK, ZENTORCH = "stock", "zentorch"


@dataclass(frozen=True, slots=True)
class GateTexts:
    texts: Mapping[str, str]

    @classmethod
    def from_json(cls, text: str) -> "GateTexts":
        values = json.loads(text)
        return cls({key: value for key, value in values.items() if key != "about"})

    def gate(self, name: str, config: EndpointConfig) -> Gate:
        return Gate(name, name in config.accept, self.texts[name])


def stack_name(cpu: Cpu) -> str:
    """The stack that a CPU is for: zentorch needs an EPYC with AVX-512 BF16."""
    return ZENTORCH if cpu.is_amd_epyc and cpu.avx512_bf16 else STOCK


def served_name(cpu: Cpu, stack: Stack, rules: PlatformRules) -> str:
    """What a stack really is: on a CPU that is no EPYC, whatever its vLLM has chosen."""
    if cpu.is_amd_epyc or not cpu.avx512_bf16:
        return stack_name(cpu)
    return ZENTORCH if is_accelerated(stack, rules) else STOCK


def is_accelerated(stack: Stack, rules: PlatformRules) -> bool:
    """Whether vLLM chose a platform of zentorch, in-tree or its plugin's."""
    return kind_of(stack.platform, rules) in (PlatformKind.ZEN, PlatformKind.PLUGIN) and (
        "zen" in (stack.platform or "").lower()
    )


def gates(
    config: EndpointConfig,
    cpu: Cpu,
    routing: Routing | None,
    stack: Stack,
    stacks: Stacks,
    custom_code: bool,
    texts: GateTexts,
) -> tuple[Gate, ...]:
    """The gates of this endpoint; `routing` is the generation's class in data/generations.json."""
    names = host_gates(cpu, routing, stack, stacks)
    if _is_open(config) and config.api_key_file is None:
        names.append("open-address")
    if custom_code:
        names.append("custom-code")
    return tuple(texts.gate(name, config) for name in names)


def key_warning(config: EndpointConfig, rules: KeyRules) -> str | None:
    """What an API key does not keep from others, where they can reach the server."""
    if config.api_key_file is None or not _is_open(config):
        return None
    others = ", ".join(path for path in rules.leaves_open if path != rules.infers)
    return (
        f"vLLM asks for the API key below {', '.join(rules.guards)} only: whoever reaches "
        f"{config.address} has completions without it from {rules.infers}, and {others} answer "
        "too; let a proxy in front pass /v1 alone, and listen on 127.0.0.1"
    )


def _is_open(config: EndpointConfig) -> bool:
    return not ipaddress.ip_address(config.address).is_loopback


def host_gates(cpu: Cpu, routing: Routing | None, stack: Stack | None, stacks: Stacks) -> list[str]:
    """The names of the gates that the CPU and the stack (None: not known) bring."""
    if not cpu.is_amd_epyc:
        return ["not-epyc"]
    if not cpu.avx512_bf16:
        return ["stock-cpu"]
    names = [] if routing and routing.is_validated else ["unvalidated-cpu"]
    # Without zentorch there is no pair to validate: such a stack is refused, whatever is accepted.
    if stack and stack.vllm and (stack.zentorch or stack.zentorch_importable):
        pinned_only = routing is Routing.PINNED
        good = stacks.is_pinned(stack) if pinned_only else stacks.is_validated(stack)
        names += [] if good else ["unvalidated-stack"]
    return names


def stack_refusals(
    stack: Stack, cpu: Cpu, prediction: Prediction | None, rules: PlatformRules
) -> tuple[Refusal, ...]:
    """Why a stack that is not what its name says must not start; no gate opens it."""
    if stack.vllm is None:
        return (
            Refusal(
                "no-vllm",
                "the environment has no working vLLM",
                "make one with packaging/make-environment, or name another with environment = ...",
            ),
        )
    found = (
        disagreement(stack, prediction, rules),
        _not_accelerated(stack, rules) if stack.name == ZENTORCH else _not_stock(stack, cpu, rules),
    )
    return tuple(refusal for refusal in found if refusal)


def _not_accelerated(stack: Stack, rules: PlatformRules) -> Refusal | None:
    if is_accelerated(stack, rules):
        return None
    failed = f", which cannot be imported: {stack.zentorch_error}" if stack.zentorch_error else ""
    return Refusal(
        "zentorch-not-active",
        f"zentorch is not active: vLLM {stack.vllm} chose {stack.platform or 'no platform'}",
        "install the zentorch that this vLLM pins into the environment "
        f"(found: zentorch {stack.zentorch or 'none'}{failed}, torch {stack.torch or 'none'})",
    )


def _not_stock(stack: Stack, cpu: Cpu, rules: PlatformRules) -> Refusal | None:
    """The stock stack has to be on vLLM's CPU platform: zentorch needs AVX-512 BF16."""
    if kind_of(stack.platform, rules) is PlatformKind.STOCK:
        return None
    return Refusal(
        "stock-not-active",
        f"this CPU ({cpu.model_name or 'of no name'}) has no AVX-512 BF16 and needs the stock CPU "
        f"platform, but vLLM {stack.vllm} chose {stack.platform or 'no platform'}",
        "name an environment with a CPU build of vLLM and without zentorch: "
        "packaging/make-environment --without-zentorch makes one",
    )


def precision_refusal(
    dtype: str, stack: Stack, precisions: Sequence[str], zentorch_precisions: Sequence[str]
) -> Refusal | None:
    """vLLM would say no itself, but only after it has loaded."""
    able = zentorch_precisions if stack.name == ZENTORCH else precisions
    if dtype in able:
        return None
    return Refusal(
        "dtype-unsupported",
        f"{stack.name} cannot serve {dtype}: it has {', '.join(able)}",
        f"choose one of them: --dtype {able[0]}",
    )


def require_startable(plan: EndpointPlan) -> None:
    """Raises Refused for the first refusal, or for every gate that is not accepted."""
    if plan.refusals:
        first = plan.refusals[0]
        raise Refused(first.code, first.message, first.hint)
    closed = [gate for gate in plan.gates if not gate.accepted]
    if closed:
        raise Refused(
            "gate-closed",
            "; ".join(f"{gate.name}: {gate.text}" for gate in closed),
            "accept by name: " + " ".join(f"--accept {gate.name}" for gate in closed),
        )
