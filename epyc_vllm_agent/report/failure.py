"""A failure report as a person reads it; formats, decides nothing."""

from collections.abc import Sequence

from epyc_vllm_agent.report.text import grid, table, when
from epyc_vllm_agent.sizes import gib
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.watch.decide import Observation
from epyc_vllm_agent.watch.evidence import Evidence, NodeMemory
from epyc_vllm_agent.watch.failure import FailureReport


def text(report: FailureReport, earlier: int) -> str:
    """Log and evidence first, so that the cause is the last thing on the screen."""
    parts = [report.log_text]
    if report.evidence:
        parts += _evidence(report.evidence)
    rows = [
        ("Instance", f"{report.instance} of endpoint {report.endpoint}"),
        ("When", when(report.time)),
        ("Phase", report.phase),
        ("Verdict", report.verdict.value),
        ("End", f"{report.exit.text} (result {report.exit.result})"),
        *_software(report),
        ("Cause", f"{report.cause} [{report.cause_code}]"),
        ("To do", report.hint or "-"),
        ("Again", f"systemctl start {service_name(report.instance)}"),
    ]
    parts.append(table(rows))
    if earlier:
        parts.append(f"{earlier} earlier; `epyc-vllm report --list` shows them")
    return "\n\n".join(parts)


def listing(reports: Sequence[FailureReport]) -> str:
    rows = [
        (when(one.time), one.instance, one.phase, one.verdict.value, one.cause_code, one.cause)
        for one in reports
    ]
    return grid(("WHEN", "INSTANCE", "PHASE", "VERDICT", "CODE", "CAUSE"), rows)


def _software(report: FailureReport) -> list[tuple[str, str]]:
    if report.plan is None:
        return []
    stack, agent = report.plan.stack, report.evidence.agent if report.evidence else "?"
    said = f"vLLM {stack.vllm}, torch {stack.torch}, zentorch {stack.zentorch}, epyc-vllm {agent}"
    return [("Model", report.plan.model.id), ("Versions", said)]


def _evidence(evidence: Evidence) -> list[str]:
    parts = ["memory   " + ", ".join(map(_memory, evidence.nodes))] if evidence.nodes else []
    seen = evidence.seen
    if seen and seen.observations:
        rows = [_look(look) for look in seen.observations]
        header = ("SECONDS", "HEALTH", "RUNNING", "WAITING", "TOKENS", "CPU SECONDS", "CANARY")
        parts.append(grid(header, rows))
    if seen and seen.processes:
        found = [
            (str(p.pid), p.name, p.state, f"{p.cpu_seconds:.1f}", gib(p.rss_bytes))
            for p in seen.processes
        ]
        parts.append(grid(("PID", "NAME", "STATE", "CPU SECONDS", "MEMORY"), found))
    return parts


def _memory(node: NodeMemory) -> str:
    free = gib(node.free_bytes) if node.free_bytes is not None else "?"
    total = gib(node.total_bytes) if node.total_bytes is not None else "?"
    return f"node {node.node} {free} of {total} free"


def _look(look: Observation) -> tuple[str, ...]:
    health, counters, canary = look.health, look.counters, look.canary
    answer = canary.answer if canary else None
    return (
        f"{look.at:.0f}",
        "-" if health is None else "ok" if health.ok else str(health.reason)[:60],
        str(counters.running) if counters else "-",
        str(counters.waiting) if counters else "-",
        str(counters.tokens) if counters else "-",
        ", ".join(f"{worker.cpu_seconds:.1f}" for worker in look.workers or ()) or "-",
        "-" if not canary else "waits" if not answer else "ok" if answer.ok else "failed",
    )
