"""Reads small kernel files below /proc and /sys; knows their formats, not what they mean.

A file that is absent, unreadable or not in the expected format is None: a capture may be cut
short, a container may hide files, and a CPU may go offline between two reads.
"""

from pathlib import Path

from epyc_vllm_agent import cpulist


def read_text(path: Path | str, limit: int = -1) -> str | None:
    """The file's text, at most its first `limit` bytes (one read of a /proc file).

    A path may be text where many are read again and again: a Path costs as much as the reading.
    """
    try:
        # Unbuffered: a host of 1024 CPUs has a thousand such files.
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - of text as well
            return (file.read(limit) or b"").decode(errors="replace")
    except OSError:
        return None


def read_number(path: Path | str) -> int | None:
    text = read_text(path)
    return None if text is None else parse_number(text)


def read_list(path: Path | str) -> tuple[int, ...] | None:
    """A kernel list ("0-3,8") as numbers."""
    text = read_text(path)
    return None if text is None else parse_list(text)


def read_mask(path: Path) -> tuple[int, ...] | None:
    """A kernel bit mask ("ff,00000001": words of 32 bits, highest first) as numbers."""
    text = read_text(path)
    try:
        mask = None if text is None else int(text.strip().replace(",", ""), 16)
    except ValueError:
        return None
    return None if mask is None else tuple(n for n in range(mask.bit_length()) if mask >> n & 1)


def parse_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def parse_list(text: str) -> tuple[int, ...] | None:
    try:
        return cpulist.parse(text)
    except ValueError:
        return None
