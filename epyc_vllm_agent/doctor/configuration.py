"""Checks of epyc-vllm's own files: what they say of endpoints, beside the probed stack."""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, error, warning
from epyc_vllm_agent.doctor.seen import Seen
from epyc_vllm_agent.plan.gates import precision_refusal


def check(seen: Seen) -> Iterator[Finding]:
    for fault in seen.config.errors:
        yield error("config-invalid", fault, "correct the file named")
    for item in seen.drift:
        if item.code != "file-broken":  # told above
            yield warning(item.code, f"endpoint {item.endpoint}: {item.message}", item.hint)
    shipped = seen.shipped
    for endpoint in seen.config.endpoints:
        of_host = {bad.code for bad in shipped.stacks.bad(seen.stack, ())}
        given = (*(seen.switches if endpoint.throughput else ()), *endpoint.env)
        for bad in shipped.stacks.bad(seen.stack, dict(given).items()):
            if bad.code not in of_host:
                kind = error if bad.severity == "error" else warning
                yield kind(bad.code, f"endpoint {endpoint.name}: {bad.message}", bad.hint)
        if seen.stack is None:
            continue
        precision = precision_refusal(
            endpoint.dtype, seen.stack, shipped.precisions, shipped.zentorch_precisions
        )
        if precision:
            message = f"endpoint {endpoint.name}: {precision.message}"
            yield error(precision.code, message, f'dtype = "..." in its file; {precision.hint}')
