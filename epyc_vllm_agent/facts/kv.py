"""Bytes of KV cache by vLLM's own allocation rules (0.32.0, CPU backend); reads no config.

vLLM draws every layer's cache from one pool of blocks. Layers are put into groups of equal size,
and a request takes blocks for each group: whole blocks, a window's worth for windowed layers, a
fixed number for states (vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py).
"""

from dataclasses import dataclass

from epyc_vllm_agent.facts.model import KvLayer, KvLayout

BLOCK_TOKENS = 128  # vllm/platforms/cpu.py, unless the layout fixes another
BATCHED_TOKENS = 2048  # max_num_batched_tokens by default on CPUs, times the ranks (arg_utils.py)


@dataclass(frozen=True, slots=True)
class KvPool:
    """The pool of one rank: what a block costs and how many of them one request takes."""

    block_bytes: int
    request_blocks: int

    @property
    def request_bytes(self) -> int:
        return self.block_bytes * self.request_blocks


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers whose caches have one shape: they can share a group."""

    layers: int
    page_bytes: int
    request_blocks: int
    stretches: bool = True  # over more tokens where pages are larger; a state is padded


def layer_token_bytes(layer: KvLayer, ranks: int = 1) -> int:
    """Bytes of a token in one such layer on one rank; too few heads are replicated."""
    if layer.heads is None:
        return layer.bytes_per_token
    return layer.bytes_per_token // layer.heads * max(1, layer.heads // ranks)


def kv_bytes_per_token(layout: KvLayout, ranks: int = 1) -> int:
    """Bytes that a token adds on one rank while the sequence is shorter than every window."""
    return sum(layer.count * layer_token_bytes(layer, ranks) for layer in layout.layers)


def growing_bytes_per_token(layout: KvLayout, ranks: int = 1) -> int:
    """Bytes that a token adds on one rank beyond every window."""
    return sum(
        layer.count * layer_token_bytes(layer, ranks)
        for layer in layout.layers
        if layer.window is None
    )


def kv_request_bytes(
    layout: KvLayout,
    context_tokens: int,
    *,
    ranks: int = 1,
    block_tokens: int = BLOCK_TOKENS,
    batched_tokens: int | None = None,
) -> int:
    """Bytes that one request of `context_tokens` takes from the pool of one rank."""
    pool = kv_pool(
        layout,
        context_tokens,
        ranks=ranks,
        block_tokens=block_tokens,
        batched_tokens=batched_tokens,
    )
    return pool.request_bytes


def kv_cache_bytes(pool: KvPool, requests: int) -> int:
    """Bytes that a rank's pool must have for so many requests; vLLM keeps one block back."""
    return pool.block_bytes * (pool.request_blocks * requests + 1)


def kv_capacity_tokens(pool: KvPool, cache_bytes: int, context_tokens: int) -> int | None:
    """What vLLM logs as "KV cache size" for a cache of `cache_bytes`; None: nothing is cached."""
    if pool.block_bytes == 0 or pool.request_blocks == 0:
        return None
    blocks = cache_bytes // pool.block_bytes
    return int(blocks / pool.request_blocks * context_tokens)


def kv_pool(
    layout: KvLayout,
    context_tokens: int,
    *,
    ranks: int = 1,
    block_tokens: int = BLOCK_TOKENS,
    batched_tokens: int | None = None,
) -> KvPool:
    block = layout.block_tokens or block_tokens
    batched = batched_tokens or BATCHED_TOKENS * ranks
    state_page = _state_page(layout, ranks)
    if state_page and layout.layers:
        block = _hybrid_block(layout, state_page, block, ranks)
    buckets = [
        _Bucket(
            layer.count,
            layer_token_bytes(layer, ranks) * block,
            _request_blocks(layer, context_tokens, block, batched),
        )
        for layer in layout.layers
    ]
    if layout.cross_layers:
        # The encoder's budget is max_num_batched_tokens (vllm/config/scheduler.py).
        token_bytes = layout.cross_bytes_per_encoder_token // layout.cross_layers // ranks
        buckets.append(_Bucket(layout.cross_layers, token_bytes * block, _blocks(batched, block)))
    if state_page:
        buckets.append(
            _Bucket(layout.state_layers, state_page, layout.state_copies, stretches=False)
        )
    if not buckets:
        return KvPool(0, 0)
    return _one_group(buckets) if _same_need(layout) else _equal_groups(buckets)


def _blocks(tokens: int, block: int) -> int:
    return -(-tokens // block)


def _state_page(layout: KvLayout, ranks: int) -> int:
    if not layout.state_layers:
        return 0
    return _blocks(layout.state_bytes, layout.state_layers * ranks)


def _hybrid_block(layout: KvLayout, state_page: int, block: int, ranks: int) -> int:
    """The attention block that covers a state's page (_align_hybrid_block_size in 0.32.0)."""
    align = max(block, BLOCK_TOKENS)
    token_bytes = max(layer_token_bytes(layer, ranks) for layer in layout.layers)
    return align * _blocks(state_page, align * token_bytes)


def _request_blocks(layer: KvLayer, context: int, block: int, batched: int) -> int:
    if layer.window is None:
        return _blocks(context, block)
    if layer.chunked:
        return _blocks(min(layer.window + batched, context), block)
    # One more: a window need not begin at the beginning of a block.
    return _blocks(min(layer.window - 1 + batched, context), block) + 1


def _same_need(layout: KvLayout) -> bool:
    """All layers hold the same tokens, so that vLLM puts them into one group."""
    kinds: set[object] = {(layer.window, layer.chunked) for layer in layout.layers}
    if layout.state_layers:
        kinds.add("state")
    if layout.cross_layers:
        kinds.add("cross")
    return len(kinds) == 1


def _one_group(buckets: list[_Bucket]) -> KvPool:
    return KvPool(
        sum(bucket.layers * bucket.page_bytes for bucket in buckets),
        max(bucket.request_blocks for bucket in buckets),
    )


def _equal_groups(buckets: list[_Bucket]) -> KvPool:
    """Groups of the smallest bucket's size, all with the largest page.

    A smaller attention page is stretched over more tokens where it divides the largest, else it
    is padded; states are always padded (unify_kv_cache_spec_page_size).
    """
    page = max(bucket.page_bytes for bucket in buckets)
    fewest = min(bucket.layers for bucket in buckets)
    most = max(bucket.layers for bucket in buckets)
    size = most if most < fewest * 1.5 else fewest
    blocks = sum(_blocks(bucket.layers, size) * _stretched(bucket, page) for bucket in buckets)
    return KvPool(size * page, blocks)


def _stretched(bucket: _Bucket, page: int) -> int:
    ratio, rest = divmod(page, bucket.page_bytes)
    if rest or not bucket.stretches:
        return bucket.request_blocks
    return _blocks(bucket.request_blocks, ratio)
