"""Quoting: systemd reads every word back as it was meant."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epyc_vllm_agent.units.quoting import line, word
from tests.unitsyntax import specifiers, words

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
NASTY = st.text("ab \"'\\%$;#{}`~*?[]=-+@!:,.é\u2028\u00a0𝄞", max_size=12)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ('"a b" \'c "d\'', ["a b", 'c "d']),
        ('x"a b"y', ["xa by"]),
        ('""', [""]),
        ('"a\\"b\\\\" \\x'.removesuffix(" \\x"), ['a"b\\']),
        ("100%%", ["100%"]),
    ],
)
def test_the_reader_itself(value: str, expected: list[str]) -> None:
    assert words(value) == expected


@pytest.mark.parametrize("value", ['"a', "%n", "a%", '"\\d"'])
def test_the_reader_refuses(value: str) -> None:
    with pytest.raises(ValueError, match=r"unbalanced|specifier|escape"):
        words(value)


@given(TEXTS | NASTY)
def test_a_word_is_read_as_it_was_meant(value: str) -> None:
    assert words(word(value)) == [value]


@given(st.lists(TEXTS | NASTY))
def test_words_stay_apart(values: list[str]) -> None:
    assert words(" ".join(map(word, values))) == values


@given(TEXTS | NASTY)
def test_a_word_is_one_line_that_does_not_go_on(value: str) -> None:
    text = word(value)
    assert "\n" not in text
    assert "\r" not in text
    assert not text.endswith("\\")
    # A lone ";" separates commands; "#" begins a comment only where a line does.
    assert text != ";"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain/path-1.2_3@x:y,z=1", "plain/path-1.2_3@x:y,z=1"),
        ("", '""'),
        (";", '";"'),
        ("a b", '"a b"'),
        ("100%", "100%%"),
        ("%h", "%%h"),
        ("$HOME ${X}", '"$HOME ${X}"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("it's", '"it\'s"'),
        ("a\\", '"a\\\\"'),
        ("\\n", '"\\\\n"'),
        ("größe", '"größe"'),
    ],
)
def test_how_it_is_written(value: str, expected: str) -> None:
    assert word(value) == expected


@pytest.mark.parametrize("number", [*range(32), 127])
def test_control_characters_are_refused(number: int) -> None:
    for quote in (word, line):
        with pytest.raises(ValueError, match="control character"):
            quote(f"a{chr(number)}b")


@given(TEXTS | NASTY)
@example("C:\\")
def test_free_text_stays_on_its_line(value: str) -> None:
    """A backslash at the end would make the next line, a directive, a part of the text."""
    text = line(value)
    assert specifiers(text).rstrip(" ") == value.rstrip(" ")
    assert not text.endswith("\\")
    assert "\n" not in text
