"""What a configuration value may be: one function per kind, value in, narrowed value out.

Each raises ValueError with the rule it breaks ("must be a whole number from 1 to 65535").
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

Check = Callable[[object], object]

# systemd, podman and environment blocks are line based: a control character cannot be carried
# through all of them unchanged, so it is refused here and nowhere else has to think of it.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs"})


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


def path(value: object) -> str:
    found = text(value)
    if not found.startswith("/"):
        raise ValueError("must be an absolute path")
    if {".", ".."} & {*found.split("/")}:  # systemd drops such a path with no more than a warning
        raise ValueError('must be a path without "." and ".." in it')
    return found


def model(value: object) -> str:
    """A hub's id or a directory."""
    found = text(value)
    return path(found) if found.startswith("/") else found


def name(value: object) -> str:
    """Text that stands behind an option: with a "-" in front it would be taken for one itself."""
    found = text(value)
    if found.startswith("-"):
        raise ValueError('must not begin with "-"')
    return found


def prefix(value: object) -> str:
    """A folder of programs and libraries: PATH splits at colons, LD_PRELOAD at blanks too."""
    found = path(value)
    if re.search(r"[:\s]", found):
        raise ValueError("must be an absolute path without blanks and colons")
    return found


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


def image(value: object) -> str:
    """A container image by its full name."""
    found = text(value)
    if not re.fullmatch(_IMAGE, found, re.ASCII):
        raise ValueError(
            "must be a full image name, with registry: docker.io/vllm/vllm-openai-cpu:latest-x86_64"
        )
    return found


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def matching(pattern: str, rule: str) -> Check:
    def check(value: object) -> str:
        found = text(value)
        if not re.fullmatch(pattern, found, re.ASCII):
            raise ValueError(rule)
        return found

    return check


def choice(options: Sequence[str]) -> Check:
    def check(value: object) -> str:
        if value not in options:
            raise ValueError("must be one of " + ", ".join(f'"{option}"' for option in options))
        return str(value)

    return check


def integer(low: int, high: int) -> Check:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of texts")
    return tuple(text(item) for item in value)


def choices(options: Sequence[str]) -> Check:
    one = choice(options)

    def check(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return tuple(one(item) for item in value)

    return check


def variables(value: object) -> tuple[tuple[str, str], ...]:
    """Environment variables as sorted pairs."""
    if not isinstance(value, dict):
        raise ValueError("must be a table of texts")
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise ValueError(f"has {name!r}, which is no name of an environment variable")
    return tuple(sorted((name, text(item)) for name, item in value.items()))


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


def program(value: object) -> tuple[str, ...]:
    """A program by its absolute path, and its arguments; an empty list: none."""
    found = texts(value)
    if found and not found[0].startswith("/"):
        raise ValueError("must begin with the absolute path of a program")
    return found
