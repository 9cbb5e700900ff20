"""The settings table is the one list of keys: fields, flags, gates and documentation follow it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from epyc_vllm_agent.cli.endpoint import enable
from epyc_vllm_agent.cli.plan import plan
from epyc_vllm_agent.config import settings
from epyc_vllm_agent.config.config import Config, EndpointConfig, Watch, load
from epyc_vllm_agent.config.settings import Setting
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths
from tests.hosts import DATA

SHIPPED = DATA / "epyc-vllm.toml"
# Tables of the endpoint's file that a command line has no flag for.
WITHOUT_FLAG = {"env", "model"}


def test_every_key_is_a_field_and_the_other_way_round() -> None:
    keys = [setting.key for setting in settings.ENDPOINT]
    assert ["name", *keys] == [field.name for field in fields(EndpointConfig)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    "setting", [*settings.ENDPOINT, *settings.HUB, *settings.HOST, *settings.WATCH]
)
def test_every_key_is_explained_and_its_default_is_allowed(setting: Setting) -> None:
    assert len(setting.help) > 10
    default = setting.default
    if default is None:
        return
    given = list(default) if isinstance(default, tuple) else default
    if setting.key == "env":
        given = {}
    assert setting.check(given) == default


@pytest.mark.parametrize("command", [plan, enable])
def test_every_key_has_a_flag(command: click.Command) -> None:
    flags = {parameter.name for parameter in command.params}
    keys = {setting.key for setting in settings.ENDPOINT}
    assert keys - flags == WITHOUT_FLAG
    own = {"what", "name", "socket", "as_json", "yes", "image_archive", "box"}
    assert flags - keys <= own


def documented() -> dict[str, set[str]]:
    """Keys in the shipped file, commented out or not, by table."""
    found: dict[str, set[str]] = {"": set()}
    table = ""
    for line in SHIPPED.read_text().splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            table = header[1]
            found[table] = set()
        elif key := re.match(r"#?(\w+) = ", line):
            found[table].add(key[1])
    return found


def test_the_shipped_file_documents_every_key() -> None:
    assert documented() == {
        "": {setting.key for setting in settings.HOST},
        "hub": {setting.key for setting in settings.HUB},
        "defaults": {setting.key for setting in settings.ENDPOINT if setting.host_wide},
        "watch": {setting.key for setting in settings.WATCH},
    }


def test_the_watchdogs_defaults_are_the_tables() -> None:
    assert [field.name for field in fields(Watch)] == [setting.key for setting in settings.WATCH]
    defaults: dict[str, Any] = {setting.key: setting.default for setting in settings.WATCH}
    assert Watch() == Watch(**defaults)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("sick_seconds = 14", "three intervals"),
        ("hung_seconds = 60", "more than canary_seconds"),
        ("prefill_seconds = 100", "not be less than hung_seconds"),
        ('on_failure = ["mail"]', "absolute path"),
        ('on_failure = "/bin/true"', "list of texts"),
        ("canary = 1", "unknown key 'canary'"),
    ],
)
def test_watch_settings_that_do_not_go_together(tmp_path: Path, lines: str, fault: str) -> None:
    paths = Paths(tmp_path)
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(f"[watch]\n{lines}\n")
    with pytest.raises(ConfigError, match=fault):
        load(paths)


def test_the_shipped_file_says_nothing_by_itself(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(SHIPPED.read_text())
    assert load(paths) == Config((), ())


def test_every_example_in_the_shipped_file_is_valid(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.config_file.parent.mkdir(parents=True)
    text = re.sub(r"^#(?=\w+ = )", "", SHIPPED.read_text(), flags=re.MULTILINE)
    paths.config_file.write_text(text)
    found = load(paths)
    assert found.errors == ()
    assert len(found.defaults) == len(documented()["defaults"])
