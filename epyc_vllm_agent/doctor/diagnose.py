"""All checks over what was seen, in order of severity, with the recipe's verdict; pure."""

from dataclasses import dataclass

from epyc_vllm_agent.doctor import (
    configuration,
    containers,
    host_runtime,
    models,
    processor,
    stack,
    system,
    topology,
)
from epyc_vllm_agent.doctor.finding import Finding, Severity
from epyc_vllm_agent.doctor.seen import Seen
from epyc_vllm_agent.doctor.stack import Compatibility

_SUBJECTS = (
    processor,
    topology,
    containers,
    host_runtime,
    stack,
    models,
    system,
    configuration,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    compatibility: Compatibility
    gates: tuple[str, ...]
    closed_gates: tuple[str, ...]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is severity)

    @property
    def is_ready(self) -> bool:
        return not self.of(Severity.ERROR)


def diagnose(seen: Seen) -> Diagnosis:
    found = [finding for subject in _SUBJECTS for finding in subject.check(seen)]
    order = list(Severity)
    return Diagnosis(
        findings=tuple(sorted(found, key=lambda finding: order.index(finding.severity))),
        compatibility=stack.compatibility(seen),
        gates=stack.gates(seen),
        closed_gates=stack.closed(seen),
    )
