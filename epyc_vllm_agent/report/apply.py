"""What `apply` did or would do, as text, differences and values."""

import difflib
from collections.abc import Sequence
from typing import Any

from epyc_vllm_agent.apply.apply import Action, Applied
from epyc_vllm_agent.changes.changes import FileChange


def text(applied: Sequence[Applied], is_check: bool) -> str:
    warnings = [f"warning  {one.endpoint}: {said}" for one in applied for said in one.warnings]
    lines = [line for one in applied for line in _lines(one, is_check)]
    return "\n".join([*warnings, *(lines or ["no changes"])])


def diff(applied: Sequence[Applied]) -> str:
    """Unified differences of all files, as `patch` reads them."""
    return "".join(_diff(change) for one in applied for change in one.files)


def plain(applied: Sequence[Applied], is_check: bool, with_diff: bool) -> dict[str, Any]:
    return {
        "check": is_check,
        "changed": any(one.is_change for one in applied),
        "endpoints": [_plain(one, with_diff) for one in applied],
    }


def _plain(one: Applied, with_diff: bool) -> dict[str, Any]:
    error = one.error and {
        "code": one.error.code,
        "message": one.error.message,
        "hint": one.error.hint,
        "details": one.error.details,
        "exit_code": int(one.error.exit_code),
    }
    values = {
        "name": one.endpoint,
        "action": one.action.value,
        "changed": one.is_change,
        "files": [{"path": change.path, "action": _action(change)} for change in one.files],
        "started": list(one.started),
        "pending": list(one.pending),
        "warnings": list(one.warnings),
        "error": error,
    }
    return values | ({"diff": "".join(map(_diff, one.files))} if with_diff else {})


def _lines(one: Applied, is_check: bool) -> list[str]:
    lines = []
    if one.error:
        lines.append(f"error    {one.endpoint}: {one.error.message}")
        lines += [f"         {more}" for more in (one.error.hint, one.error.outcome) if more]
    elif one.action is not Action.NONE:
        count = f"{len(one.files)} files" if len(one.files) != 1 else "1 file"
        word = "start" if is_check else "started"
        started = f", {word} {', '.join(one.started)}" if one.started else ""
        lines.append(f"{one.action.value:<8} {one.endpoint}: {count}{started}")
    if one.pending:
        lines.append(
            f"pending  {one.endpoint}: {', '.join(one.pending)} with the next start, or "
            "`epyc-vllm apply --restart`"
        )
    return lines


def _action(change: FileChange) -> str:
    if change.old is None:
        return "create"
    return "remove" if change.new is None else "change"


def _diff(change: FileChange) -> str:
    old = change.path if change.old is not None else "/dev/null"
    new = change.path if change.new is not None else "/dev/null"
    before, after = ((text or "").splitlines(keepends=True) for text in (change.old, change.new))
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
