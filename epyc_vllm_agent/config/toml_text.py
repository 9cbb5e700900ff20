"""TOML text of an endpoint's file: made new, or edited so that comments and order stay.

Pure. The result is parsed again and compared, so what is returned always says what was meant.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from epyc_vllm_agent.errors import ConfigError


def compose(values: Mapping[str, Any], comment: str) -> str:
    """A new file: a comment, then one line per key, tables last."""
    lines = [f"# {comment}"]
    lines += [f"{k} = {_value(v)}" for k, v in values.items() if not isinstance(v, dict)]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]"]
            lines += [f"{name} = {_value(item)}" for name, item in value.items()]
    return _proven("\n".join(lines) + "\n", values)


def edit(old: str, changes: Mapping[str, Any]) -> str:
    """`old` with top-level keys set to `changes`; every other line, and a comment behind a
    value, stays as it was.

    Raises ConfigError where a value to change spans several lines or stands in a table.
    """
    wanted = tomllib.loads(old) | dict(changes)
    lines = re.findall(r"[^\n]*\n|[^\n]+", old)  # splitlines() also splits inside of texts
    first_table = next((i for i, line in enumerate(lines) if line.lstrip().startswith("[")), None)
    head, tail = lines[:first_table], lines[len(lines[:first_table]) :]
    for key, value in changes.items():
        new = f"{key} = {_value(value)}"
        at = [i for i, line in enumerate(head) if re.match(rf"\s*{re.escape(key)}\s*=", line)]
        if at:
            head[at[0]] = new + _comment(head[at[0]]) + "\n"
        else:
            if head and not head[-1].endswith("\n"):
                head[-1] += "\n"
            head.append(new + "\n")
    return _proven("".join(head + tail), wanted)


def line_of(text: str, key: str, table: str = "") -> int | None:
    """The number of the line, from 1, that sets `key` of `table`; None where none does plainly."""
    name = rf"""(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')"""
    lines = text.split("\n")
    current = ""
    for number, line in enumerate(lines, 1):
        header = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]", line)
        sets = current == table and re.match(rf"\s*{name}\s*[=.]", line)
        opens = not table and header and re.fullmatch(rf"{name}(?:\..*)?", header[1])
        if (header or sets) and _is_whole("\n".join(lines[: number - 1])):
            if sets or opens:
                return number
            current = header[1] if header else current
    return None


def _is_whole(text: str) -> bool:
    """Whether the text ends between two statements, and not inside of a value."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _comment(line: str) -> str:
    """The comment behind a key's value, with the blanks before it: the first "#" that no text
    holds, so that what stands before it is TOML by itself."""
    for found in re.finditer("#", line):
        before = line[: found.start()]
        try:
            tomllib.loads(before)
        except tomllib.TOMLDecodeError:
            continue
        return line[len(before.rstrip()) :].rstrip()
    return ""


def _proven(text: str, wanted: Mapping[str, Any]) -> str:
    try:
        same = tomllib.loads(text) == dict(wanted)
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            "endpoint-file-edit",
            "the endpoint's file cannot be changed line by line (a value spans several lines)",
            "change the file by hand, then run enable again",
        )
    return text


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_value(item) for item in value) + "]"
