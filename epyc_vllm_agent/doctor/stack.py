"""Checks of the stack that was probed, and the recipe's verdict on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from epyc_vllm_agent.doctor.finding import Finding, advice, error, warning
from epyc_vllm_agent.doctor.seen import Seen
from epyc_vllm_agent.plan.gates import host_gates, stack_refusals


class Status(StrEnum):
    PROCEED = "proceed"
    BLOCKED = "blocked"
    CONFIRMATION_REQUIRED = "confirmation_required"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """`status` is None where there was no stack to probe."""

    status: Status | None
    message: str


def check(seen: Seen) -> Iterator[Finding]:
    for item in seen.upgrades:
        yield advice(
            "stack-outdated",
            f"{item.endpoint} has {item.has}, and {item.pinned} is pinned now",
            f"epyc-vllm upgrade {item.endpoint}",
        )
    stack = seen.stack
    if stack is None:
        return
    rules = seen.shipped.stacks.platforms
    for refusal in stack_refusals(stack, seen.facts.cpu, seen.prediction, rules):
        yield error(refusal.code, refusal.message, refusal.hint)
    if "unvalidated-stack" in gates(seen) and "unvalidated-stack" not in seen.accepted:
        yield warning("unvalidated-stack", _unvalidated(seen), _recommendation(seen))
    for bad in seen.shipped.stacks.bad(stack, ()):
        kind = error if bad.severity == "error" else warning
        yield kind(bad.code, bad.message, bad.hint)


def gates(seen: Seen) -> tuple[str, ...]:
    """The gates that this host brings to every endpoint, accepted or not."""
    return tuple(host_gates(seen.facts.cpu, seen.shipped.routing, seen.stack, seen.shipped.stacks))


def closed(seen: Seen) -> tuple[str, ...]:
    return tuple(gate for gate in gates(seen) if gate not in seen.accepted)


def compatibility(seen: Seen) -> Compatibility:
    """The recipe's stack-compatibility gate (step 2)."""
    stack, rules = seen.stack, seen.shipped.stacks.platforms
    if "not-epyc" in closed(seen):
        return Compatibility(Status.BLOCKED, "this is no AMD EPYC")
    if stack is None:
        reason = "on another host nothing is run" if seen.far else "there is none to ask"
        return Compatibility(None, f"no stack was probed: {reason}")
    refusals = stack_refusals(stack, seen.facts.cpu, seen.prediction, rules)
    if refusals:
        return Compatibility(Status.BLOCKED, refusals[0].message)
    found = closed(seen)
    if not found:
        with_zentorch = f" with zentorch {stack.zentorch}" if stack.name == "zentorch" else ""
        platform = stack.platform or "no platform"
        return Compatibility(Status.PROCEED, f"vLLM {stack.vllm}{with_zentorch} runs on {platform}")
    texts = seen.shipped.gate_texts.texts
    message = "; ".join(
        f"{_unvalidated(seen)}: {_recommendation(seen)}"
        if name == "unvalidated-stack"
        else texts[name]
        for name in found
    )
    return Compatibility(Status.CONFIRMATION_REQUIRED, message)


def _unvalidated(seen: Seen) -> str:
    stack = seen.stack
    assert stack is not None  # noqa: S101 - callers have one
    pair = f"vLLM {stack.vllm} with zentorch {stack.zentorch or 'none'}"
    return f"{pair} is not validated on {seen.facts.cpu.generation or 'this CPU'}"


def _recommendation(seen: Seen) -> str:
    pinned = seen.shipped.stacks.pinned
    return (
        f"use the pinned vLLM {pinned.vllm} with zentorch {pinned.zentorch} "
        f"({seen.image}), or accept it by name: --accept unvalidated-stack"
    )
