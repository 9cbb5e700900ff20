"""Bytes in words."""

GIB = 1 << 30


def gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"
