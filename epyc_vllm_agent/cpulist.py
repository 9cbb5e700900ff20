"""The kernel's list format for CPUs and nodes ("0-3,8"): text to numbers and back.

https://docs.kernel.org/admin-guide/cputopology.html and bitmap_parselist() in lib/bitmap-str.c.
"""

from collections.abc import Iterable


def parse(text: str) -> tuple[int, ...]:
    """Numbers of a kernel list, ascending and without repeats; "" gives ().

    Raises ValueError for anything else than numbers and ranges.
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if low < 0 or high < low:
            raise ValueError(f"not a CPU or node list: {text!r}")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def format(numbers: Iterable[int]) -> str:  # noqa: A001 - the pair of parse, always used qualified
    """The shortest kernel list: (0, 1, 2, 8) gives "0-2,8"; no numbers give ""."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
