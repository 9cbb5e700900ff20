"""systemd's quoting of unit values, so that what it parses back is what was meant; pure.

systemd.syntax(7) and "Command lines" in systemd.service(5). `$` needs no care: every command line
of ours has the ":" prefix, which turns variable substitution off.
"""

import re

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def word(value: str) -> str:
    """`value` as one word of ExecStart= or Environment=; "%" is doubled, the rest is quoted.

    Raises ValueError for control characters: they were to be refused with the configuration.
    """
    line(value)
    doubled = value.replace("%", "%%")
    if _PLAIN.fullmatch(doubled):
        return doubled
    return '"' + doubled.replace("\\", "\\\\").replace('"', '\\"') + '"'


def line(value: str) -> str:
    """`value` for free text such as Description=; "%" is doubled, it must stay on one line.

    A backslash at the end would join the next line to it: a blank, which systemd strips, stops it.
    """
    if _CONTROL.search(value):
        raise ValueError(f"control character in a unit value: {value!r}")
    return value.replace("%", "%%") + (" " if value.endswith("\\") else "")
