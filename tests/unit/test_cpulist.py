import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epyc_vllm_agent import cpulist


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-2", (0, 1, 2, 8)),
        ("0-2,1-3,2", (0, 1, 2, 3)),
        ("5-5", (5,)),
        (" 4-5 ", (4, 5)),
    ],
)
def test_parse(text: str, numbers: tuple[int, ...]) -> None:
    assert cpulist.parse(text) == numbers


@pytest.mark.parametrize(
    "text", ["all", "(null)", "3-1", "-1", "1-", "1--3", "0x3", "1;2", "1-2-3"]
)
def test_parse_refuses_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        cpulist.parse(text)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((7,), "7"),
        ((0, 1), "0-1"),
        ((8, 2, 1, 0, 2), "0-2,8"),
        ((0, 2, 4), "0,2,4"),
    ],
)
def test_format(numbers: tuple[int, ...], text: str) -> None:
    assert cpulist.format(numbers) == text


@settings(database=None)
@given(st.sets(st.integers(min_value=0, max_value=2000), max_size=200))
def test_parse_undoes_format(numbers: set[int]) -> None:
    assert cpulist.parse(cpulist.format(numbers)) == tuple(sorted(numbers))
