"""The throughput switches under the names that a stack reads: all of them or none; pure."""

from epyc_vllm_agent.plan.values import Stack
from epyc_vllm_agent.recipe import ThroughputRule

_IN_TREE = "vllm.platforms."


def switches(stack: Stack, rule: ThroughputRule) -> tuple[tuple[str, str], ...]:
    """What `throughput = true` sets; nothing for a stack that has no zentorch to speed up."""
    if stack.name != "zentorch":
        return ()
    in_tree = (stack.platform or "").startswith(_IN_TREE)
    prepack = rule.prepack_in_tree if in_tree else rule.prepack_plugin
    return (*rule.env, (prepack, "1"))
