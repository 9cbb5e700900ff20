"""What a configuration value may be: one rule per kind, value in, narrowed value out.

Each raises ValueError with what it breaks ("must be a whole number from 1 to 65535"), and says of
itself, in words and as JSON schema, what it takes.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """`words` is what a manual says of the values, `schema` the same for an editor; where a schema
    cannot tell all, the check is the stricter one."""

    check: Callable[[object], T]
    words: str
    schema: Mapping[str, Any]

    def __call__(self, value: object) -> T:
        return self.check(value)


def _rule(words: str, **schema: Any) -> Callable[[Callable[[object], T]], Rule[T]]:
    def made(check: Callable[[object], T]) -> Rule[T]:
        return Rule(check, words, schema)

    return made


# systemd, podman and environment blocks are line based: a control character cannot be carried
# through all of them unchanged, so it is refused here and nowhere else has to think of it.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs"})


_PLAIN = r"^[^\x00-\x1f\x7f-\x9f]+$"  # in a schema: no control characters
_NAME = r"^[^-\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"


@_rule("text", type="string", pattern=_PLAIN)
def text(value: object) -> str:
    """A string of at least one character, without control characters and lone surrogates."""
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    if not value:
        raise ValueError("must not be empty")
    for character in value:
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise ValueError(f"must not hold the control character {character!r}")
    return value


@_rule("absolute path", type="string", pattern=r"^/[^\x00-\x1f\x7f-\x9f]*$")
def path(value: object) -> str:
    found = text(value)
    if not found.startswith("/"):
        raise ValueError("must be an absolute path")
    if {".", ".."} & {*found.split("/")}:  # systemd drops such a path with no more than a warning
        raise ValueError('must be a path without "." and ".." in it')
    return found


@_rule("hub id or absolute path", type="string", pattern=_PLAIN)
def model(value: object) -> str:
    """A hub's id or a directory."""
    found = text(value)
    return path(found) if found.startswith("/") else found


@_rule('text that does not begin with "-"', type="string", pattern=_NAME)
def name(value: object) -> str:
    """Text that stands behind an option: with a "-" in front it would be taken for one itself."""
    found = text(value)
    if found.startswith("-"):
        raise ValueError('must not begin with "-"')
    return found


@_rule("absolute path without blanks and colons", type="string", pattern=r"^/[^:\s]*$")
def prefix(value: object) -> str:
    """A folder of programs and libraries: PATH splits at colons, LD_PRELOAD at blanks too."""
    found = path(value)
    if re.search(r"[:\s]", found):
        raise ValueError("must be an absolute path without blanks and colons")
    return found


@_rule(
    "absolute path without blanks, wildcards and backslashes",
    type="string",
    pattern=r"^/[^\s*?\[\\\]]*$",
)
def key_file(value: object) -> str:
    """A path for LoadCredential=, which knows no quotes; a list of paths is none either."""
    found = path(value)
    if re.search(r"[\s*?\[\\]", found):
        raise ValueError("must be an absolute path without blanks, wildcards and backslashes")
    return found


# Registry, name, tag, digest: the grammar of github.com/distribution/reference. The registry cannot
# be left out: a short name asks, or means another image on another host.
_IMAGE = (
    r"(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(?::[0-9]+)?"
    r"(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)+"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


@_rule("image name with its registry", type="string", pattern=f"^{_IMAGE}$")
def image(value: object) -> str:
    """A container image by its full name."""
    found = text(value)
    if not re.fullmatch(_IMAGE, found, re.ASCII):
        raise ValueError(
            "must be a full image name, with registry: docker.io/vllm/vllm-openai-cpu:latest-x86_64"
        )
    return found


@_rule("true or false", type="boolean")
def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def is_http_url(value: str) -> bool:
    """Whether it names a host, and no more than a client can use."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    return bool(usable) and value.isascii() and value.isprintable() and " " not in value


@_rule("http(s) URL", type="string", pattern=r"^(?:https?://[^\s]+)$")
def http_url(value: object) -> str:
    found = text(value)
    if not is_http_url(found):
        raise ValueError("must be an http(s) URL")
    return found


def matching(pattern: str, words: str) -> Rule[str]:
    """Text of that ASCII pattern; `words` say what it is ("IP address")."""

    @_rule(words, type="string", pattern=f"^(?:{pattern})$")
    def check(value: object) -> str:
        found = text(value)
        if not re.fullmatch(pattern, found, re.ASCII):
            raise ValueError(
                f"must be a {words}" if words[0] not in "AI" else f"must be an {words}"
            )
        return found

    return check


def choice(options: Sequence[str]) -> Rule[str]:
    words = ", ".join(f'"{option}"' for option in options)

    @_rule(f"one of {words}", enum=list(options))
    def check(value: object) -> str:
        if value not in options:
            raise ValueError(f"must be one of {words}")
        return str(value)

    return check


def integer(low: int, high: int) -> Rule[int]:
    words = f"whole number from {low} to {high}"

    @_rule(words, type="integer", minimum=low, maximum=high)
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a {words}")
        return value

    return check


@_rule("list of texts", type="array", items=text.schema)
def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of texts")
    return tuple(text(item) for item in value)


def choices(options: Sequence[str]) -> Rule[tuple[str, ...]]:
    one = choice(options)

    @_rule(f"list of {one.words.removeprefix('one of ')}", type="array", items=one.schema)
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return tuple(one(item) for item in value)

    return check


@_rule(
    "table of texts",
    type="object",
    patternProperties={r"^[A-Za-z_][A-Za-z0-9_]*$": text.schema},
    additionalProperties=False,
)
def variables(value: object) -> tuple[tuple[str, str], ...]:
    """Environment variables as sorted pairs."""
    if not isinstance(value, dict):
        raise ValueError("must be a table of texts")
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise ValueError(f"has {name!r}, which is no name of an environment variable")
    return tuple(sorted((name, text(item)) for name, item in value.items()))


@_rule(
    '"all", "auto" or a list of socket numbers',
    anyOf=[
        {"enum": ["all", "auto"]},
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 1,
            "uniqueItems": True,
        },
    ],
)
def sockets(value: object) -> str | tuple[int, ...]:
    """ "all", "auto", or a list of socket numbers as the kernel counts them."""
    if isinstance(value, str) and value in ("all", "auto"):
        return value
    numbers = value if isinstance(value, list) else []
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError('must be "all", "auto" or a list of socket numbers')
    if len(set(numbers)) != len(numbers):
        raise ValueError("names a socket twice")
    return tuple(numbers)


@_rule("list: the absolute path of a program, and its arguments", type="array", items=text.schema)
def program(value: object) -> tuple[str, ...]:
    """A program by its absolute path, and its arguments; an empty list: none."""
    found = texts(value)
    if found and not found[0].startswith("/"):
        raise ValueError("must begin with the absolute path of a program")
    return found
