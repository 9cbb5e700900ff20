"""Endpoints, models and plans for the tests, each from what the test cares about alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from epyc_vllm_agent.config.config import EndpointConfig, parse_endpoint
from epyc_vllm_agent.config.layers import origin
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.model import (
    ChatTemplate,
    KvLayer,
    KvLayout,
    ModelFacts,
    ModelKind,
    TemplateStatus,
)
from epyc_vllm_agent.plan.endpoint import Shipped, plan_endpoint
from epyc_vllm_agent.plan.gates import GateTexts, stack_name
from epyc_vllm_agent.plan.placement import Load
from epyc_vllm_agent.plan.sizing import Figures
from epyc_vllm_agent.plan.stacks import Stacks
from epyc_vllm_agent.plan.values import EndpointPlan, Hold, Launch, Stack
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.watch.diagnosis import Signatures
from tests.hosts import DATA, GENERATIONS

FIGURES = Figures.from_json((DATA / "sizing.json").read_text())
GATE_TEXTS = GateTexts.from_json((DATA / "gates.json").read_text())
STACKS = Stacks.from_json((DATA / "stacks.json").read_text())
RECIPE = Recipe.from_json((DATA / "epyc.json").read_text())
SIGNATURES = Signatures.from_json((DATA / "failures.json").read_text())

LAUNCH = Launch(
    environment="/opt/vllm",
    numactl="/usr/bin/numactl",
    taskset="/usr/bin/taskset",
    preload=("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "/opt/vllm/lib/libiomp5.so"),
    user="_epyc-vllm",
    agent="/usr/bin/epyc-vllm",
)
ZEN = Stack(
    *("zentorch", "0.32.0+cpu", "2.13.0.1", "2.13.0", "vllm.platforms.zen_cpu.ZenCpuPlatform"),
    zentorch_importable=True,
)
STOCK = Stack(
    *("stock", "0.32.0+cpu", None, "2.13.0", "vllm.platforms.cpu.CpuPlatform"),
    zentorch_importable=False,
)

CHAT = ChatTemplate(TemplateStatus.PRESENT, ("default",), "tokenizer_config.json")
NO_CHAT = ChatTemplate(TemplateStatus.ABSENT)


def kv_layout(layers: int = 36, heads: int = 8, head_dim: int = 128) -> KvLayout:
    """Full attention in bfloat16; by itself Qwen3-8B's."""
    return KvLayout((KvLayer(layers, heads * 2 * head_dim * 2, heads),))


def model_facts(**changes: Any) -> ModelFacts:
    """Qwen3-8B, but for `changes`."""
    values: dict[str, Any] = {
        "id": "Qwen/Qwen3-8B",
        "revision": "b968826d9c46dd6066d109eabc6255188de91218",
        "architectures": ("Qwen3ForCausalLM",),
        "kind": ModelKind.TEXT,
        "dtype": "bfloat16",
        "quantization": None,
        "max_context_tokens": 40960,
        "custom_code": False,
        "chat_template": CHAT,
        "weight_files": (),
        "weight_bytes": 16_381_470_720,
        "vocab_size": 151936,
        "hidden_size": 4096,
        "attention_heads": 32,
        "kv": kv_layout(),
        "registry_vllm": "0.32.0",
    }
    return ModelFacts(**(values | changes))


def endpoint(name: str = "qwen3-8b", **keys: Any) -> EndpointConfig:
    """An endpoint as its file with `keys` describes it."""
    values: Mapping[str, Any] = {"model": "Qwen/Qwen3-8B", **keys}
    return parse_endpoint(name, values, {}, origin(f"{name}.toml"))


def shipped_for(facts: HostFacts) -> Shipped:
    routing = GENERATIONS.routing(facts.cpu.generation)
    return Shipped(
        FIGURES, GATE_TEXTS, routing, STACKS, RECIPE.precisions, RECIPE.zentorch_precisions
    )


def plan(
    facts: HostFacts,
    config: EndpointConfig | None = None,
    model: ModelFacts | None = None,
    *,
    stack: Stack | None = None,
    launch: Launch = LAUNCH,
    previous: EndpointPlan | None = None,
    holds: Sequence[Hold] = (),
    model_path: str | None = None,
    load: Load | None = None,
) -> EndpointPlan:
    """The plan of Qwen3-8B on `facts`, on the stack that its CPU is for, but for what is given."""
    model = model or model_facts()
    cache = f"/var/lib/epyc-vllm/models/models--{model.id.replace('/', '--')}/snapshots"
    return plan_endpoint(
        config or endpoint(),
        facts,
        model,
        model_path or f"{cache}/{model.revision}",
        stack or (ZEN if stack_name(facts.cpu) == "zentorch" else STOCK),
        launch,
        previous,
        holds,
        shipped_for(facts),
        load,
    )
