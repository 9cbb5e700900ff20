"""What systemd reads in a unit's value: systemd.syntax(7), "Specifiers" in systemd.unit(5)."""

import re

BLANKS = " \t\n\r"
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}


def words(value: str) -> list[str]:
    """What systemd makes of a unit's value: words unquoted, then specifiers resolved."""
    return [specifiers(found) for found in split(value)]


def split(value: str) -> list[str]:
    """Words between blanks; quotes of either kind may begin inside of one; C escapes."""
    found: list[str] = []
    current: str | None = None
    quote = ""
    characters = iter(value)
    for character in characters:
        if character == "\\":
            escaped = next(characters)  # StopIteration: a lone backslash at the end
            if escaped not in {*ESCAPES, "\\", '"', "'"}:
                raise ValueError(f"unknown escape sequence \\{escaped}")
            current = (current or "") + ESCAPES.get(escaped, escaped)
        elif quote:
            if character == quote:
                quote = ""
            else:
                current = (current or "") + character
        elif character in "\"'":
            quote, current = character, current or ""
        elif character in BLANKS:
            found += [] if current is None else [current]
            current = None
        else:
            current = (current or "") + character
    if quote:
        raise ValueError("unbalanced quotes")
    return found + ([] if current is None else [current])


def specifiers(value: str) -> str:
    """ "%%" is a per cent sign; any other would be replaced by something of the host's."""
    if re.search("%(?!%)", value.replace("%%", "")):
        raise ValueError(f"a specifier in {value!r}")
    return value.replace("%%", "%")
