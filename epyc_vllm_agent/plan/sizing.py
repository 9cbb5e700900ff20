"""Memory arithmetic: weights, KV cache and runtime of a rank against the node it is bound to; pure.

vLLM binds a rank's memory strictly to one node and checks the KV space against that node alone
(vllm 0.32.0, CPUWorker), so the fit is computed per rank and node, never against the whole host.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from epyc_vllm_agent.codec import from_plain
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.facts.host import HostFacts
from epyc_vllm_agent.facts.kv import (
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_capacity_tokens,
    kv_pool,
    kv_request_bytes,
)
from epyc_vllm_agent.facts.model import KvLayout, ModelFacts
from epyc_vllm_agent.plan import support
from epyc_vllm_agent.plan.gates import ZENTORCH
from epyc_vllm_agent.plan.placement import Placement
from epyc_vllm_agent.plan.values import Fit, Hold, Refusal
from epyc_vllm_agent.sizes import GIB

CONTEXT_STEP = 256  # suggestions are rounded down to this, as the recipe does


@dataclass(frozen=True, slots=True)
class KvRule:
    small_socket_bytes: int
    small_socket_share: float
    share: float
    left_bytes: int


@dataclass(frozen=True, slots=True)
class RuntimeFigures:
    """Memory beside weights and KV. API server and engine are there once for all ranks, and may
    lie on any of their nodes: the kernel falls back to the next one where the first is full."""

    server_bytes: int
    worker_bytes: int  # of each rank
    weight_share: float
    packed_table_bytes_per_element: int  # of vocabulary x hidden size, over all ranks
    # Packed copies of every routed expert, beside the original; in float32 they grow with the
    # threads: pairs of up to how many, and copies.
    zentorch_expert_copies: float
    zentorch_float32_expert_copies: tuple[tuple[int, float], ...]

    def expert_copies(self, dtype: str, threads: int) -> float:
        few = self.zentorch_float32_expert_copies if dtype == "float32" else ()
        found = (copies for most, copies in few if threads <= most)
        return next(found, self.zentorch_expert_copies)


@dataclass(frozen=True, slots=True)
class OsReserve:
    base_bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Times:
    start_base_seconds: int
    start_bytes_per_second: int
    stop_seconds: int
    completion_seconds: int


@dataclass(frozen=True, slots=True)
class Figures:
    """data/sizing.json, which also tells where each figure comes from."""

    kv: KvRule
    runtime: RuntimeFigures
    os_reserve: OsReserve
    kept_cores_per_rank: int
    times: Times

    @classmethod
    def from_json(cls, text: str) -> "Figures":
        return from_plain(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class Sized:
    """KV GiB per rank and the fit; `refusal` where it does not fit."""

    kv_gib_per_rank: int
    fit: Fit
    refusal: Refusal | None


def size(
    config: EndpointConfig,
    facts: HostFacts,
    model: ModelFacts,
    placement: Placement,
    holds: Sequence[Hold],
    figures: Figures,
    stack: str,
    running: bool = False,
) -> Sized:
    """The KV space per rank and the memory balance of one instance.

    `stack` is the one that serves, "zentorch" or "stock". `running`: the instance itself holds
    memory now, so what is free now tells nothing.
    """
    model = as_served(model, config)
    ranks = len(placement.by_node)
    weights = -(-(model.weight_bytes or 0) // ranks)
    runtime = _runtime_bytes(model, weights, ranks, figures.runtime)
    if stack == ZENTORCH:
        threads = max(len(share.cores) for share in placement.by_node) - figures.kept_cores_per_rank
        copies = figures.runtime.expert_copies(config.dtype, threads)
        runtime += math.ceil(model.expert_bytes * copies / ranks)
    reserve = figures.os_reserve
    rooms = [_room(facts, node.node, holds, reserve, running) for node in placement.by_node]
    left = min(rooms) - weights - runtime
    need = _kv_need(model, config.max_model_len, config.num_prompts, ranks)
    gib = config.kv_gib or _kv_gib(_kv_wish(facts, placement, figures.kv), left, need)
    required = weights + runtime + gib * GIB
    fits = required <= min(rooms) and need <= gib * GIB
    context = None if fits else _longest_context(config, model, ranks, left)
    fit = Fit(
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token(model.kv) if model.kv else None,
        kv_request_bytes=_request_bytes(model, config.max_model_len, ranks),
        runtime_bytes=runtime * ranks,
        required_bytes=required * ranks,
        available_bytes=min(rooms) * ranks,  # ranks are equal: the fullest node decides
        fits=fits,
        suggested_max_model_len=context,
        kv_capacity_tokens=_capacity(model, config.max_model_len, ranks, gib),
    )
    return Sized(gib, fit, None if fits else _refusal(config, placement, fit, gib, need))


def as_served(model: ModelFacts, config: EndpointConfig) -> ModelFacts:
    """The model as `config` has it: its facts are for two bytes and for prefix caching."""
    if model.kv and model.kv.state_copies > 1 and not support.caches_prefixes(config):
        model = replace(model, kv=replace(model.kv, state_copies=1))
    return _in_float32(model) if config.dtype == "float32" else model


def _in_float32(model: ModelFacts) -> ModelFacts:
    """Quantised weights stay as they are stored, but for embedding and head; vLLM's KV cache
    follows the precision (kv_cache_dtype "auto").
    """
    weights = model.weight_bytes
    if weights is not None:
        table = 2 * (model.vocab_size or 0) * (model.hidden_size or 0)
        weights += weights if model.quantization is None else 2 * table
    experts = model.expert_bytes * (2 if model.quantization is None else 1)
    return replace(
        model,
        weight_bytes=weights,
        expert_bytes=experts,
        kv=_doubled(model.kv) if model.kv else None,
    )


def _doubled(kv: KvLayout) -> KvLayout:
    layers = [replace(layer, bytes_per_token=2 * layer.bytes_per_token) for layer in kv.layers]
    return replace(
        kv,
        layers=tuple(layers),
        state_bytes=2 * kv.state_bytes,  # an upper bound: its recurrent part has four bytes already
        cross_bytes_per_encoder_token=2 * kv.cross_bytes_per_encoder_token,
    )


def _runtime_bytes(model: ModelFacts, weights: int, ranks: int, figures: RuntimeFigures) -> int:
    """Of one rank, with its part of what there is once."""
    table = (model.vocab_size or 0) * (model.hidden_size or 0)
    packed = table * figures.packed_table_bytes_per_element
    shared = -(-(figures.server_bytes + packed) // ranks)
    return figures.worker_bytes + shared + int(weights * figures.weight_share)


def _room(
    facts: HostFacts, node_id: int, holds: Sequence[Hold], reserve: OsReserve, running: bool
) -> int:
    """Bytes of a node that an instance may have: less the OS's part and what others hold.

    What is in use now counts too: it may be another program's. A neighbour's reservation counts
    even while its KV cache is not touched yet, so the lesser of both views holds.
    """
    node = facts.node(node_id)
    total = node.memory_bytes or 0
    kept = reserve.base_bytes + int(total * reserve.share)
    held = sum(size for hold in holds for where, size in hold.bytes_by_node if where == node_id)
    room = total - kept - held
    if node.free_bytes is not None and not running:
        room = min(room, node.free_bytes - kept)
    return max(0, room)


def _kv_wish(facts: HostFacts, placement: Placement, rule: KvRule) -> int:
    """The recipe's rule, on the part of its node that a rank's cores make up."""
    wishes = []
    for share in placement.by_node:
        cores = [c for s in facts.sockets for c in s.cores if c.node == share.node]
        memory = (facts.node(share.node).memory_bytes or 0) * len(share.cores) // len(cores)
        if memory <= rule.small_socket_bytes:
            wishes.append(int(memory * rule.small_socket_share))
        else:
            wishes.append(min(int(memory * rule.share), memory - rule.left_bytes))
    return min(wishes)


def _kv_need(model: ModelFacts, context_tokens: int, prompts: int, ranks: int) -> int:
    if model.kv is None:
        return 0
    return kv_cache_bytes(kv_pool(model.kv, context_tokens, ranks=ranks), prompts)


def _request_bytes(model: ModelFacts, context_tokens: int, ranks: int) -> int | None:
    if model.kv is None:
        return None
    return kv_request_bytes(model.kv, context_tokens, ranks=ranks) * ranks or None


def _capacity(model: ModelFacts, context_tokens: int, ranks: int, gib: int) -> int | None:
    if model.kv is None:
        return None
    pool = kv_pool(model.kv, context_tokens, ranks=ranks)
    return kv_capacity_tokens(pool, gib * GIB, context_tokens)


def _kv_gib(wish: int, left: int, need: int) -> int:
    """Whole GiB: the wish where there is room, never under the need, at least one."""
    return max(min(wish, left) // GIB, -(-need // GIB), 1)


def _longest_context(
    config: EndpointConfig, model: ModelFacts, ranks: int, left: int
) -> int | None:
    """The longest context, a multiple of CONTEXT_STEP, whose KV fits into whole GiB of `left`;
    never longer than the model's own."""
    room = (config.kv_gib or left // GIB) * GIB
    if not 0 < room <= left:
        return None
    limit = support.longest_context(config, model) or config.max_model_len
    low, high = 0, min(config.max_model_len, limit) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        need = _kv_need(model, middle * CONTEXT_STEP, config.num_prompts, ranks)
        low, high = (middle, high) if need <= room else (low, middle - 1)
    return low * CONTEXT_STEP or None


def _refusal(
    config: EndpointConfig, placement: Placement, fit: Fit, gib: int, need: int
) -> Refusal:
    nodes = ", ".join(str(share.node) for share in placement.by_node)
    if fit.required_bytes <= fit.available_bytes and need > gib * GIB:
        message = (
            f"kv_gib = {gib} holds less than {config.num_prompts} x {config.max_model_len} tokens, "
            f"which need {need / GIB:.1f} GiB per rank"
        )
    else:
        message = (
            f"{config.model} needs {fit.required_bytes / GIB:.1f} GiB on node {nodes} of socket "
            f"{placement.socket}, which has {fit.available_bytes / GIB:.1f} GiB for it"
        )
    if fit.suggested_max_model_len:
        hint = f"the longest context that fits is {fit.suggested_max_model_len} (max_model_len)"
    else:
        hint = "no context fits there: use a smaller or quantised model, or give it more memory"
    return Refusal("does-not-fit", message, hint)
