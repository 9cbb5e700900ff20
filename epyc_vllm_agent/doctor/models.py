"""Checks of the model cache and of the hub's token."""

from collections.abc import Iterator

from epyc_vllm_agent.doctor.finding import Finding, error, warning
from epyc_vllm_agent.doctor.seen import Cache, Seen, Token


def check(seen: Seen) -> Iterator[Finding]:
    yield from _cache(seen)
    if seen.token:
        yield from _token(seen.token)


def _cache(seen: Seen) -> Iterator[Finding]:
    cache = seen.cache
    if is_network(seen):
        where = f"{cache.real} is on {cache.filesystem}"
        if cache.is_writable is False:
            yield error(
                "cache-root-squash",
                f"{where}, and root may not write there (root squash)",
                "export it with no_root_squash, or mount a local disk at /var/lib/epyc-vllm/models",
            )
        else:
            yield warning(
                "cache-on-network",
                f"{where}: every start reads the weights over the network",
                "mount a local disk at /var/lib/epyc-vllm/models",
            )
    elif cache.is_writable is False:
        yield error(
            "cache-read-only",
            f"{cache.real} cannot be written",
            "is it mounted read-only? Models are kept there",
        )
    if cache.free_bytes is not None and cache.free_bytes < seen.limits.free_cache_bytes:
        yield warning(
            "cache-full",
            f"{cache.real} has {cache.free_bytes / 1e9:.1f} GB left for models",
            "make room, or mount a larger disk there",
        )


def is_network(seen: Seen) -> bool:
    return _kind(seen.cache) in seen.limits.network_filesystems


def _kind(cache: Cache) -> str:
    return cache.filesystem or ""


def _token(token: Token) -> Iterator[Finding]:
    if token.fault:
        yield error(
            "token-unreadable",
            f"the hub's token file {token.path} cannot be read: {token.fault}",
            "correct token_file in /etc/epyc-vllm/epyc-vllm.toml",
        )
    elif token.is_public:
        yield warning(
            "token-public",
            f"every user of this host can read the hub's token in {token.path}",
            f"chmod 600 {token.path}",
        )
