"""A diagnosis as text or JSON; the JSON has the recipe's field names (data/doctor.schema.json)."""

from typing import Any

from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.doctor.diagnose import Diagnosis
from epyc_vllm_agent.doctor.finding import Finding, Severity
from epyc_vllm_agent.doctor.models import is_network
from epyc_vllm_agent.doctor.seen import Runtime, Seen
from epyc_vllm_agent.report.host import in_gb
from epyc_vllm_agent.report.text import table
from epyc_vllm_agent.sizes import gib


def plain(seen: Seen, found: Diagnosis) -> dict[str, Any]:
    cpu, stack = seen.facts.cpu, seen.stack
    return {
        "ready": found.is_ready,
        "requires_confirmation": bool(set(found.closed_gates) - {"not-epyc"}),
        "zentorch_capable": cpu.is_amd_epyc and cpu.avx512_bf16,
        "runtime": seen.runtime.name if seen.runtime else None,
        "runtime_detail": _runtime_detail(seen),
        "conda_path_available": stack is not None,
        "stack": None if stack is None else {"runtime": "host", **to_plain(stack)},
        "prediction": to_plain(seen.prediction),
        "compatibility": to_plain(found.compatibility),
        "hf_cache": _cache(seen),
        "ram_gb": in_gb(seen.facts.memory_bytes),
        "gates": [
            {"name": name, "accepted": name not in found.closed_gates} for name in found.gates
        ],
        "errors": _findings(found, Severity.ERROR),
        "warnings": _findings(found, Severity.WARNING),
        "advisories": _findings(found, Severity.ADVICE),
        "image": seen.image,
        "runtimes": [_runtime(runtime) for runtime in seen.runtimes],
        "environment": seen.environment.path if seen.environment else None,
        "not_asked": seen.far,
    }


def _findings(found: Diagnosis, severity: Severity) -> list[dict[str, str]]:
    return [
        {"code": finding.code, "seen": finding.seen, "fix": finding.fix}
        for finding in found.of(severity)
    ]


def _runtime(runtime: Runtime) -> dict[str, Any]:
    return {
        "name": runtime.name,
        "version": runtime.version or None,
        "usable": runtime.is_usable,
        "detail": runtime.fault,
        "image_present": runtime.image_present,
    }


def _runtime_detail(seen: Seen) -> str:
    return "; ".join(_describe(runtime) for runtime in seen.runtimes) or "not looked at"


def _describe(runtime: Runtime) -> str:
    if runtime.version is None:
        return f"{runtime.name} is not installed"
    if runtime.fault:
        return runtime.fault
    image = {True: "the image is there", False: "the image is not there", None: ""}
    described = image[runtime.image_present]
    return f"{runtime.name} {runtime.version}" + (f", {described}" if described else "")


def _cache(seen: Seen) -> dict[str, Any]:
    cache = seen.cache
    return {
        "path": cache.real,
        "mount": f"-v {cache.real}:/root/.cache/huggingface/hub",
        "filesystem": cache.filesystem,
        "is_network": is_network(seen),
        "free_bytes": cache.free_bytes,
    }


def text(seen: Seen, found: Diagnosis) -> str:
    verdict = found.compatibility
    cache = seen.cache
    stack = seen.stack
    rows = [
        ("CPU", seen.facts.cpu.model_name or "not told"),
        ("Memory", gib(seen.facts.memory_bytes)),
        ("Containers", _runtime_detail(seen)),
        ("Environment", _environment(seen)),
        ("Platform", stack.platform or "none" if stack else "not probed"),
        ("Predicted", _prediction(seen)),
        ("Verdict", f"{verdict.status or 'none'}: {verdict.message}"),
        ("Model cache", f"{cache.real} ({cache.filesystem or 'file system not known'})"),
    ]
    lines = [line for finding in found.findings for line in _lines(finding)]
    return "\n".join([table(rows), "", *(lines or ["nothing found"])])


def _environment(seen: Seen) -> str:
    if seen.environment is None:
        return f"not asked: only the files of {seen.far} were read"
    stack = seen.environment.stack
    if stack is None:
        return f"{seen.environment.path}: not usable"
    return (
        f"{seen.environment.path}: vLLM {stack.vllm}, zentorch {stack.zentorch or 'none'}, "
        f"torch {stack.torch}"
    )


def _prediction(seen: Seen) -> str:
    found = seen.prediction
    return f"{found.platform or found.kind}: {found.why}" if found else "nothing to predict from"


def _lines(finding: Finding) -> list[str]:
    first = f"{finding.severity:<8} {finding.code}: {finding.seen}"
    return [first, f"         fix: {finding.fix}"] if finding.fix else [first]
