"""Whatever a file says: `apply` ends in a sentence, and what is refused changes nothing."""

import datetime
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epyc_vllm_agent.apply.apply import Action
from epyc_vllm_agent.config.settings import ENDPOINT, HOST, HUB, WATCH
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.report import apply as report
from tests.applying import Host, host
from tests.fakes import FakeSystemd
from tests.hosts import HOSTS

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.toml"))
KEYS = [setting.key for setting in ENDPOINT if setting.key != "runtime"]  # a runtime is a program
FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Host:
    small = replace(HOSTS["genoa-2s-nps1"], cores_per_socket=6, threads=1)
    box = host(tmp_path_factory.mktemp("host"), small)
    defaults = f'[defaults]\nruntime = "host"\nenvironment = "{box.venv}"\nkv_gib = 1\n'
    box.paths.config_file.write_text(box.paths.config_file.read_text() + defaults)
    return box


@pytest.fixture
def box(made: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root would ask `test` as vLLM's user
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # no hub
    yield made
    for path in made.paths.endpoints.glob("*.toml"):
        path.unlink()
    made.apply(FakeSystemd(made.paths))


def fed(box: Host, content: bytes) -> Action:
    """What becomes of a file with that content, beside a good one that is up."""
    systemd = FakeSystemd(box.paths)
    for path in box.paths.endpoints.glob("*.toml"):
        path.unlink()
    box.write("good", sockets=[0], cores=2)
    box.apply(systemd)
    running = {unit: systemd.state(unit).invocation_id for unit in systemd.active()}
    (box.paths.endpoints / "odd.toml").write_bytes(content)
    before = box.files()
    checked = box.check(systemd)
    assert box.files() == before
    done = box.apply(systemd)
    assert done["good"].action is Action.NONE
    assert all(systemd.state(unit).invocation_id == had for unit, had in running.items())
    assert report.text(list(done.values()), is_check=False)
    json.dumps(report.plain(list(done.values()), is_check=False, with_diff=True))
    if "odd" not in done:  # empty: masked
        assert not content
        return Action.NONE
    odd = done["odd"]
    assert checked["odd"].action is odd.action
    if odd.error:
        assert odd.error.message.isprintable()
        assert box.files() == before
        assert systemd.active() == set(running)
    return odd.action


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus(box: Host, path: Path) -> None:
    assert fed(box, path.read_bytes()) is Action.ERROR


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace"))
    )
)
def test_any_bytes(box: Host, content: bytes) -> None:
    fed(box, content)


SCALARS = st.one_of(
    st.text(max_size=12),
    st.integers(-(2**70), 2**70),
    st.integers(0, 70000),
    st.booleans(),
    st.floats(),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.sampled_from(
        ["all", "auto", "/etc", "/", "127.0.0.1", "::1", "bfloat16", "not-epyc", "restart"]
    ),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text("ABC_1", min_size=1, max_size=3), SCALARS, max_size=3),
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        items = ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items())
        return "{ " + items + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, (float, datetime.date, datetime.time)):
        return value.isoformat() if not isinstance(value, float) else repr(value)
    return json.dumps(value, ensure_ascii=True) if not isinstance(value, str) else _text(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@FUZZ
@given(values=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), ours=st.booleans())
def test_any_values_of_known_keys(box: Host, values: dict[str, Any], ours: bool) -> None:
    if ours:
        values = {"model": box.model, "cores": 1, "sockets": [1], **values}
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    text = "\n".join([*lines, "# end"]) + "\n"
    fed(box, text.encode("utf-8", "surrogatepass"))


@FUZZ
@given(values=st.dictionaries(st.sampled_from(KEYS[3:]), VALUES, max_size=3))
def test_any_drop_in(box: Host, values: dict[str, Any]) -> None:
    folder = box.paths.endpoints / "odd.toml.d"
    folder.mkdir(exist_ok=True)
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    drop_in = folder / "10.toml"
    drop_in.write_bytes("\n".join([*lines, "# end"]).encode("utf-8", "surrogatepass"))
    base = f'model = "{box.model}"\ncores = 1\nsockets = [1]\n'
    try:
        fed(box, base.encode())
    finally:
        drop_in.unlink()
        folder.rmdir()


HOST_WIDE = [setting.key for setting in ENDPOINT if setting.host_wide and setting.key in KEYS]
TABLES = {
    "hub": [setting.key for setting in HUB],
    "watch": [setting.key for setting in WATCH],
    "defaults": HOST_WIDE,
    "odd": ["key"],
}


@FUZZ
@given(
    host=st.dictionaries(st.sampled_from([setting.key for setting in HOST]), VALUES, max_size=2),
    tables=st.fixed_dictionaries(
        {},
        optional={
            name: VALUES | st.dictionaries(st.sampled_from(keys), VALUES, max_size=3)
            for name, keys in TABLES.items()
        },
    ),
)
def test_any_host_wide_file(box: Host, host: dict[str, Any], tables: dict[str, Any]) -> None:
    """One that is wrong stops the whole run, and what runs goes on."""
    systemd = FakeSystemd(box.paths)
    box.write("good", sockets=[0], cores=2)
    box.apply(systemd)
    running = systemd.active()
    file = box.paths.config_file
    kept = file.read_bytes()
    lines = [f"{key} = {toml(value)}" for key, value in (host | tables).items()]
    file.write_bytes("\n".join([*lines, "# end"]).encode("utf-8", "surrogatepass"))
    before = box.files()
    refused, done = None, {}
    try:
        done = box.apply(systemd)
    except ConfigError as error:
        refused = error
    after = box.files()
    file.write_bytes(kept)
    if refused:
        assert refused.message.isprintable()
        assert after == before
    else:
        assert report.text(list(done.values()), is_check=False)
    assert systemd.active() == running
