"""What a check finds, as frozen values; checks nothing itself."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # an endpoint cannot be served like this
    WARNING = "warning"  # it can, but slower, unpinned, or only when asked for by name
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable, `seen` one sentence of what is there, `fix` what is to be done once."""

    severity: Severity
    code: str
    seen: str
    fix: str


def error(code: str, seen: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, code, seen, fix)


def warning(code: str, seen: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, code, seen, fix)


def advice(code: str, seen: str, fix: str) -> Finding:
    return Finding(Severity.ADVICE, code, seen, fix)
