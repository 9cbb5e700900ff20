"""Which stack a host gets and which gates stand before it; pure.

A gate is accepted by its name only. What a name means is in data/gates.json.
"""

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass

from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.generations import Routing
from epyc_vllm_agent.facts.host import Cpu
from epyc_vllm_agent.plan.values import Gate, Refusal, Stack

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


def gates(
    config: EndpointConfig,
    cpu: Cpu,
    routing: Routing | None,
    custom_code: bool,
    texts: GateTexts,
) -> tuple[Gate, ...]:
    """The gates of this endpoint; `routing` is the generation's class in data/generations.json."""
    names = []
    if not cpu.is_amd_epyc:
        names.append("not-epyc")
    elif not cpu.avx512_bf16:
        names.append("stock-cpu")
    elif routing is not Routing.VALIDATED:
        names.append("unvalidated-cpu")
    if not ipaddress.ip_address(config.address).is_loopback and config.api_key_file is None:
        names.append("open-address")
    if custom_code:
        names.append("custom-code")
    return tuple(texts.gate(name, config) for name in names)


def stack_refusal(stack: Stack) -> Refusal | None:
    """A stack that is not what its name says must not start, and no gate opens it."""
    if stack.vllm is None:
        return Refusal(
            "no-vllm",
            "the environment has no working vLLM",
            "make one with packaging/make-environment, or name another with environment = ...",
        )
    if stack.name == ZENTORCH and "zen" not in (stack.platform or "").lower():
        return Refusal(
            "zentorch-not-active",
            f"zentorch is not active: vLLM {stack.vllm} chose {stack.platform or 'no platform'}",
            "install the zentorch that this vLLM pins into the environment "
            f"(found: zentorch {stack.zentorch or 'none'}, torch {stack.torch or 'none'})",
        )
    return None
