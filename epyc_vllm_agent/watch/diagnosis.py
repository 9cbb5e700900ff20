"""From a log to a cause in one sentence, by the signatures of data/failures.json; pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from epyc_vllm_agent.codec import from_plain

_TOKENS = re.compile(r"hf_[A-Za-z0-9]{8,}")  # of the hub
_BEARER = re.compile(r"(?i)(bearer\s+)[^\s'\",*]+")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signature:
    code: str
    pattern: str
    cause: str
    hint: str
    source: str


@dataclass(frozen=True, slots=True)
class Signatures:
    signatures: tuple[Signature, ...]

    @classmethod
    def from_json(cls, text: str) -> "Signatures":
        return from_plain(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class Cause:
    code: str
    text: str
    hint: str


def diagnose(log: Sequence[str], signatures: Signatures) -> Cause | None:
    """The first signature found in `log`, with the text it matched; None if there is none."""
    text = "\n".join(log)
    for signature in signatures.signatures:
        found = re.search(signature.pattern, text)
        if found:
            return Cause(
                signature.code, f"{signature.cause} ({_shown(found.group(0))})", signature.hint
            )
    return None


def masked(lines: Sequence[str], secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """`lines` without hub tokens, what stands behind "Bearer", and the given secrets."""
    known = [secret for secret in secrets if secret]
    result = []
    for line in lines:
        for secret in known:
            line = line.replace(secret, "***")
        line = _BEARER.sub(r"\1***", line)
        result.append(_TOKENS.sub("hf_***", line))
    return tuple(result)


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:157] + "..."
