"""The man pages say what the program does: verbs, options, exit codes and keys, none missing."""

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import click
import pytest

from epyc_vllm_agent.cli import group
from epyc_vllm_agent.config import settings
from epyc_vllm_agent.config.settings import Setting
from epyc_vllm_agent.errors import ExitCode

SCRIPT = Path(__file__).parents[2] / "packaging/make-manuals"
TABLES = {
    "KEYS OF AN ENDPOINT": (settings.ENDPOINT,),
    "KEYS OF THE HOST": (settings.HOST, settings.HUB, settings.WATCH),
}


def load() -> ModuleType:
    loader = SourceFileLoader("make_manuals", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


SCRIPTED = load()
PAGES: dict[str, str] = SCRIPTED.pages()
VERBS: dict[str, click.Command] = dict(SCRIPTED.verbs())


def section(page: str, title: str) -> str:
    found = re.search(rf"^\.Sh {title}\n(.*?)(?=^\.Sh |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def plain(words: str) -> str:
    return words.replace("\\-", "-").replace("\\(dq", '"')


def test_the_command_has_a_page_and_each_verb_and_the_files() -> None:
    verbs = {f"epyc-vllm-{name}.1" for name in VERBS}
    assert PAGES.keys() == {"epyc-vllm.1", "epyc-vllm.toml.5"} | verbs
    assert {"detect", "doctor", "plan", "enable", "disable", "status"} <= VERBS.keys()


def test_every_verb_is_in_the_main_page_and_no_other() -> None:
    listed = re.findall(r"^\.It Cm (\S+)", section(PAGES["epyc-vllm.1"], "VERBS"), re.MULTILINE)
    assert sorted(listed) == sorted(VERBS)


def test_the_exit_codes_are_the_programs() -> None:
    listed = section(PAGES["epyc-vllm.1"], "EXIT STATUS")
    assert [int(code) for code in re.findall(r"^\.It (\d+)$", listed, re.MULTILINE)] == [
        code.value for code in ExitCode
    ]
    documented = Path(SCRIPT.parents[1], "docs/exit-codes.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", documented, re.MULTILINE)] == [
        code.value for code in ExitCode
    ]


def test_every_general_option_is_in_the_main_page() -> None:
    listed = section(PAGES["epyc-vllm.1"], "OPTIONS")
    for parameter in group.get_params(SCRIPTED.program()):
        assert f"Fl Fl {max(parameter.opts, key=len).removeprefix('--')}" in listed


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_in_its_verbs_page(verb: str) -> None:
    page = plain(PAGES[f"epyc-vllm-{verb}.1"])
    listed = set(re.findall(r'^\.It Fl "-?([a-z-]+)', page, re.MULTILINE))
    context = click.Context(VERBS[verb], info_name=verb, parent=SCRIPTED.program())
    wanted = {
        parameter.opts[0].lstrip("-")
        for parameter in VERBS[verb].get_params(context)
        if isinstance(parameter, click.Option)
    }
    assert listed == wanted


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_in_the_files_page(title: str) -> None:
    listed = re.findall(
        r'^\.It Ic "(\w+)"', section(PAGES["epyc-vllm.toml.5"], title), re.MULTILINE
    )
    assert listed == [setting.key for table in TABLES[title] for setting in table]


def test_every_key_says_what_it_may_be() -> None:
    page = PAGES["epyc-vllm.toml.5"]
    assert '.It Ic "cores" No = Ar "whole number from 1 to 1024"' in page
    assert page.count(" No = Ar ") == sum(
        len(table) for found in TABLES.values() for table in found
    )


@pytest.mark.parametrize(
    "setting", [setting for tables in TABLES.values() for table in tables for setting in table]
)
def test_every_key_has_its_words(setting: Setting) -> None:
    page = " ".join(plain(PAGES["epyc-vllm.toml.5"]).split())
    assert " ".join(plain(SCRIPTED.text(SCRIPTED.sentence(setting))).split()) in page


def test_words_are_not_taken_for_requests() -> None:
    assert SCRIPTED.text(".Sh no\n'br\na\\b --x") == "\\&.Sh no\n\\&'br\na\\eb \\-\\-x"
    assert SCRIPTED.argument('say "x" Fl') == '"say \\(dqx\\(dq Fl"'


@pytest.mark.parametrize("shell", ["zsh/_epyc-vllm", "fish/epyc-vllm.fish"])
def test_completions_ask_the_program(shell: str) -> None:
    made = SCRIPTED.COMPLETIONS[shell](group, {}, "epyc-vllm", "_EPYC_VLLM_COMPLETE")
    assert "_EPYC_VLLM_COMPLETE" in made.source()
    (found,) = (item.value for item in made.get_completions([], "doc"))
    assert found == "doctor"
    offered = {item.value for item in made.get_completions(["enable"], "--kv")}
    assert offered == {"--kv-gib"}


def test_zsh_completes_each_time_and_fish_tells_all() -> None:
    zsh, fish = (
        SCRIPTED.COMPLETIONS[shell](group, {}, "epyc-vllm", "_EPYC_VLLM_COMPLETE").source()
        for shell in ("zsh/_epyc-vllm", "fish/epyc-vllm.fish")
    )
    assert zsh.endswith('}\n\n_epyc_vllm_completion "$@"')
    assert 'string split -m 1 ","' in fish
