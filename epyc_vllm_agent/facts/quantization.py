"""How a checkpoint is quantised, and whether that runs on a CPU without AMX; pure.

EPYC processors have no AMX, and many of vLLM's CPU kernels for quantised weights are written for
it. What loads without is in data/models.json (cpu_refused.quantizations).
"""

from epyc_vllm_agent.facts.catalog import ModelNotes, Registry
from epyc_vllm_agent.facts.hfconfig import HfConfig

_SECTIONS = ("quantization_config", "compression_config")


def quantization_section(outer: HfConfig, language: HfConfig) -> HfConfig | None:
    for config in (outer, language):
        for name in _SECTIONS:
            if section := config.section(name):
                return section
    return None


def quantization(outer: HfConfig, language: HfConfig) -> str | None:
    """quant_method as stored; None for plain weights."""
    section = quantization_section(outer, language)
    if section is None:
        return None
    return section.text("quant_method") or "compressed-tensors"


def scheme(section: HfConfig) -> str:
    """The kind of weights, finer than quant_method where kernels differ."""
    method = section.text("quant_method") or "compressed-tensors"
    if method == "compressed-tensors":
        return _compressed(section)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return "mxfp4"
    if method == "fp8":
        return "fp8-block" if section.raw("weight_block_size") is not None else "fp8"
    if method == "gptq":
        return _gptq(section)
    return method


def _gptq(section: HfConfig) -> str:
    # With one group per output channel (-1) the order does not matter.
    if section.flag("desc_act") and section.number("group_size") != -1:
        return "gptq-desc-act"
    return "gptq" if section.integer("bits") in (None, 4) else "gptq-8bit"


def _compressed(section: HfConfig) -> str:
    form = section.text("format") or ""
    for name in ("nvfp4", "mxfp4"):
        if form.startswith(name):
            return name
    groups = section.section("config_groups")
    names = sorted(groups.values) if groups else []
    group = groups.section(names[0]) if groups and names else None
    weights = group.section("weights") if group else None
    if weights is None or weights.text("type") != "float":
        return "compressed-tensors"
    return "fp8-block" if weights.text("strategy") == "block" else "fp8"


def quantization_refusal(
    outer: HfConfig, language: HfConfig, registry: Registry, notes: ModelNotes, *, experts: bool
) -> str | None:
    """Why these weights will not run here; None where they do or are plain."""
    section = quantization_section(outer, language)
    method = quantization(outer, language)
    if section is None or method is None:
        return None
    if method not in registry.quantizations:
        return f"vLLM {registry.vllm} knows no quantisation {method}"
    refusal = notes.refused_quantizations.get(scheme(section))
    if refusal is None or (refusal.experts_only and not experts):
        return None
    return refusal.reason
