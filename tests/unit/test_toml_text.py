"""TOML text: new files and edits say what was meant, and leave everything else as it was."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config import checks
from epyc_vllm_agent.config.toml_text import compose, edit
from epyc_vllm_agent.errors import ConfigError

FILE = """\
# Endpoint of the search team.
model = "org/name"   # do not change without telling them

  port = 8000 # behind nginx
served_model_name = "a # b"    # not a comment inside

# only what is needed
max_model_len=4096
[env]
port = "8000"
A = "b"
"""


def is_text(value: str) -> bool:
    try:
        checks.text(value)
    except ValueError:
        return False
    return True


TEXTS = st.text(min_size=1).filter(is_text)
LINES = (
    "# port = 1",
    "",
    "port = 8000",
    "  cores=2\t# 'two' \"cores\" # really",
    "model = '''\nport = 1 # \"\n'''",
    'model = "a \\" # b" # "',
    'dtype = """\\\n[env]\n# """',
    "accept = [ # none\n]",
    'vllm_args = ["a",\n["b"], # c\n]',
    '"cores" = 3',
    "env.port = 1",
    "env = { port = 1, cores = [2] } # x",
)
SCALARS = TEXTS | st.integers(-(2**63), 2**63 - 1) | st.booleans()
VALUES = SCALARS | st.lists(SCALARS)
KEYS = st.sampled_from(["model", "port", "cores", "vllm_args", "accept", "dtype"])
TABLES = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), TEXTS, max_size=3
)


@given(st.dictionaries(KEYS, VALUES), TABLES)
def test_a_new_file_says_what_was_meant(values: dict[str, Any], env: dict[str, str]) -> None:
    text = compose({"env": env, **values}, "A comment.")
    assert text.startswith("# A comment.\n")
    assert tomllib.loads(text) == {"env": env, **values}


@given(st.dictionaries(KEYS, VALUES), TABLES, st.dictionaries(KEYS, VALUES))
def test_an_edit_says_what_was_meant(
    values: dict[str, Any], env: dict[str, str], changes: dict[str, Any]
) -> None:
    old = compose({**values, "env": env}, "A comment.")
    assert tomllib.loads(edit(old, changes)) == {"env": env} | values | changes


@given(
    st.lists(st.sampled_from(LINES), unique=True).map("\n".join),
    st.sampled_from(["", "\n", "\n[env]\nport = '1'\n", "\n[[port]]\na = [\n[1]]"]),
    KEYS,
    VALUES,
)
def test_an_edit_of_any_file_is_right_or_refused(
    head: str, tail: str, key: str, value: Any
) -> None:
    old = head + tail
    try:
        before = tomllib.loads(old)
    except tomllib.TOMLDecodeError:  # a key twice
        return
    try:
        text = edit(old, {key: value})
    except ConfigError:
        return
    assert tomllib.loads(text) == before | {key: value}


def test_comments_order_and_other_lines_stay() -> None:
    changed = edit(FILE, {"port": 9000, "served_model_name": "c", "cores": 2})
    assert changed.splitlines() == [
        "# Endpoint of the search team.",
        'model = "org/name"   # do not change without telling them',
        "",
        "port = 9000 # behind nginx",
        'served_model_name = "c"    # not a comment inside',
        "",
        "# only what is needed",
        "max_model_len=4096",
        "cores = 2",
        "[env]",
        'port = "8000"',
        'A = "b"',
    ]


def test_nothing_to_change_changes_nothing() -> None:
    assert edit(FILE, {}) == FILE


def test_a_file_without_an_end_of_line() -> None:
    assert edit('model = "a"', {"port": 1}) == 'model = "a"\nport = 1\n'


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u3000", "\ufeff"])
def test_what_is_no_end_of_line_in_toml(separator: str) -> None:
    old = f'model = "a{separator}port = 1"\n'
    assert edit(old, {"port": 2}) == f"{old}port = 2\n"


@pytest.mark.parametrize(
    "old",
    [
        'vllm_args = [\n  "--seed",\n  "1",\n]\n',
        'vllm_args = [\n  ["a"],\n]\n',
        'vllm_args = """\nport = 1\n"""\n',
        '"vllm_args" = []\n',
        "vllm_args.a = 1\n",
        "[vllm_args]\na = 1\n",
    ],
)
def test_what_cannot_be_edited_by_line_is_refused(old: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edit(old, {"vllm_args": ["--seed", "2"]})
    assert (caught.value.code, caught.value.exit_code) == ("endpoint-file-edit", 2)


def test_a_line_inside_a_multi_line_text_is_not_taken_for_a_key() -> None:
    old = 'served_model_name = """\nport = 1\n"""\n'
    with pytest.raises(ConfigError):
        edit(old, {"port": 2})
