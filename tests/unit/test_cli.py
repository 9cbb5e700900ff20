"""The command line: exit codes, what goes to stdout, and what an ordinary user is told."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from epyc_vllm_agent.apply.converge import StartFailed
from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.cli import main
from epyc_vllm_agent.errors import AgentError, ConfigError, ExitCode, Locked, Refused
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from tests.applying import write_environment, write_model
from tests.hosts import HOSTS, build, facts_of
from tests.httpserver import Server
from tests.plans import endpoint, plan

CHANGING = [["enable", "org/name", "--yes"], ["disable", "a"], ["apply"], ["apply", "--check"]]


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """stdout as JSON: that and nothing else."""
        value: dict[str, Any] = json.loads(self.out)
        assert value["schema"] == 1
        return value


class Command:
    """`epyc-vllm` below a root, in this process."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.paths = build(HOSTS["genoa-2s-nps1"], root)
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, root: bool = True) -> Ended:
        where = ["--sysroot", str(self.paths.root)] if root else []
        self._monkeypatch.setattr(sys, "argv", ["epyc-vllm", *where, *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Ended(int(caught.value.code), out, err)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    mask, handler = os.umask(0o022), signal.getsignal(signal.SIGTERM)
    yield Command(tmp_path, monkeypatch, capsys)
    os.umask(mask)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "srv/tiny")


@pytest.fixture
def venv(command: Command, tmp_path: Path) -> str:
    return str(write_environment(command.paths, tmp_path / "opt/vllm"))


def store(paths: Paths, made: EndpointPlan) -> None:
    paths.plans.mkdir(parents=True, exist_ok=True)
    (paths.plans / f"{made.name}.json").write_text(encode_plan(made))


def planned(**keys: Any) -> EndpointPlan:
    return plan(facts_of(HOSTS["genoa-1s"]), endpoint("a", start_timeout=10, **keys))


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_exit_codes_are_the_contract() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "REFUSED": 3,
        "LOCKED": 4,
        "FINDINGS": 5,
        "CHANGES": 6,
        "INTERRUPTED": 130,
    }
    assert StartFailed([], "").exit_code is ExitCode.FAILED
    kinds: tuple[type[AgentError], ...] = (ConfigError, Refused, Locked)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4]


def test_every_exit_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/exit-codes.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in page


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["plan", "--help"], ["enable", "-h"]])
def test_help(command: Command, arguments: list[str]) -> None:
    ended = command(*arguments, root=False)
    assert (ended.code, ended.err) == (0, "")
    assert "Usage: " in ended.out


def test_the_version(command: Command) -> None:
    ended = command("-V", root=False)
    assert (ended.code, ended.out.split()[0]) == (0, "epyc-vllm,")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["plan", "--frobnicate"],
        ["plan", "--port", "x"],
        ["plan", "--accept", "everything"],
        ["plan", "--dtype", "int8"],
        ["plan", "--sockets", "x"],
        ["plan", "--sockets", ""],
        ["plan", "--sockets", "0,0"],
        ["plan", "--socket", "-1"],
        ["plan", "--socket", "0", "--sockets", "1"],
        ["plan", "--port", "0"],
        ["plan", "--cores", "0"],
        ["plan", "--address", "localhost"],
        ["plan", "--name", "No Name"],
        ["plan", "--name", ""],
        ["plan", "--vllm-arg", "--port=1"],
        ["plan", "a\nb"],
        ["plan", "no-organisation"],
        ["disable"],
        ["apply", "a"],
        ["show", "absent"],
        ["verify", "absent"],
        ["unit", "ready", "a-s0"],
        ["unit", "stopped", "a-s0"],
    ],
)
def test_usage_and_configuration(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    for name in ("INVOCATION_ID", "MAINPID", "SERVICE_RESULT"):
        monkeypatch.delenv(name, raising=False)
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err
    assert "Traceback" not in ended.err
    assert "Error: Error" not in ended.err


def test_a_sysroot_that_is_no_directory(command: Command) -> None:
    assert command("--sysroot", "/nonexistent", "detect", root=False).code == 2


def test_a_broken_configuration_is_named(command: Command) -> None:
    command.paths.config_file.parent.mkdir(parents=True)
    command.paths.config_file.write_text("colour = 1\n")
    ended = command("plan", "org/name")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("epyc-vllm: ")
    assert "epyc-vllm.toml:1: unknown key 'colour'" in ended.err
    assert "correct the files named" in ended.err


def test_detect(command: Command) -> None:
    ended = command("detect")
    assert (ended.code, ended.err) == (0, "")
    assert "AMD EPYC 9124" in ended.out
    answer = command("detect", "--json").answer
    assert (answer["epyc_generation"], answer["physical_cores"]) == ("Genoa", 32)


def test_detect_where_there_is_no_host(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = command("--sysroot", str(tmp_path / "empty"), "detect", root=False)
    assert (ended.code, ended.out) == (1, "")
    assert "proc/cpuinfo" in ended.err
    assert "give --sysroot a directory that holds" in ended.err


def test_plan_changes_nothing(command: Command, model: Path, venv: str) -> None:
    before = tree(command.paths.root)
    ended = command("plan", str(model), "--environment", venv, "--port", "9000")
    assert (ended.code, ended.err) == (0, "")
    for part in ("zentorch", "would be written by enable", "ExecStart=", "epyc-vllm-tiny.target"):
        assert part in ended.out
    assert tree(command.paths.root) == before


def test_plan_as_json(command: Command, model: Path, venv: str) -> None:
    ended = command("plan", str(model), "--environment", venv, "--json", "--sockets", "1")
    assert (ended.code, ended.err) == (0, "")
    answer = ended.answer
    assert [unit["path"].rsplit("/", 1)[1] for unit in answer["units"]] == [
        "epyc-vllm-tiny.target",
        "epyc-vllm-tiny-s1.service",
    ]
    assert answer["model"]["primary_endpoint"] == "chat_completions"


def test_a_plan_that_may_not_start_is_shown_and_refused(
    command: Command, model: Path, venv: str
) -> None:
    ended = command(
        "plan", str(model), "--environment", venv, "--address", "0.0.0.0", "--cores", "99", "--json"
    )
    assert ended.code == 3
    assert ended.answer["gates"] == [{"name": "open-address", "accepted": False}]
    assert "16 of 16 cores free; 99 are asked for" in ended.err
    ended = command("plan", str(model), "--environment", venv, "--address", "::")
    assert ended.code == 3
    assert "accept by name: --accept open-address" in ended.err
    ended = command(
        "plan", str(model), "--environment", venv, "--address", "::", "--accept", "open-address"
    )
    assert (ended.code, ended.err) == (0, "")


def test_a_directory_beside_the_user(
    command: Command, model: Path, venv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    answer = command("plan", "./tiny", "--environment", venv, "--json").answer
    assert answer["model"]["path"] == str(model)


def test_a_directory_without_a_model(command: Command, venv: str, tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir()
    ended = command("plan", str(tmp_path / "srv"), "--environment", venv)
    assert ended.code in (1, 2, 3)
    assert ended.out == ""
    assert "config.json" in ended.err


def test_an_environment_without_vllm(command: Command, model: Path, tmp_path: Path) -> None:
    ended = command("plan", str(model), "--environment", str(tmp_path / "nothing"))
    assert (ended.code, ended.out) == (3, "")
    assert "is no Python environment with vLLM" in ended.err


@pytest.mark.parametrize("arguments", CHANGING)
def test_another_hosts_files_are_not_changed(command: Command, arguments: list[str]) -> None:
    before = tree(command.paths.root)
    ended = command(*arguments)
    assert (ended.code, ended.out) == (3, "")
    assert "leave --sysroot out" in ended.err
    assert tree(command.paths.root) == before


@pytest.mark.parametrize("arguments", CHANGING)
def test_an_ordinary_user_or_a_host_without_systemd(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ended = command(*arguments, root=False)
    assert (ended.code, ended.out) == (3, "")
    assert "run it with sudo" in ended.err or "systemd is not running" in ended.err


def test_status_needs_systemd(command: Command) -> None:
    ended = command("status")
    assert (ended.code, ended.out) == (3, "")
    assert "systemd is not running on this host" in ended.err


def test_a_bus_that_does_not_answer(command: Command) -> None:
    command.paths.at("/run/systemd/system").mkdir(parents=True)
    ended = command("status")
    assert (ended.code, ended.out) == (1, "")
    assert "Traceback" not in ended.err


def test_show(command: Command) -> None:
    assert command("show").out == "no endpoints\n"
    store(command.paths, planned())
    ended = command("show", "a")
    assert (ended.code, ended.err) == (0, "")
    assert "curl -s http://127.0.0.1:8000/v1/chat/completions" in ended.out
    (shown,) = command("show", "--json").answer["endpoints"]
    assert shown["connections"][0]["base_url"] == "http://127.0.0.1:8000/v1"


def test_verify(command: Command, server: Server, free_port: int) -> None:
    server.serve_model("m")
    store(command.paths, planned(served_model_name="m", port=server.port))
    ended = command("verify", "a")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[1] for line in ended.out.splitlines()] == [
        "health",
        "models",
        "completion",
    ]
    store(command.paths, planned(served_model_name="m", port=free_port))
    ended = command("verify", "--json")
    assert ended.code == 1
    assert ended.answer["instances"][0]["ok"] is False
    assert "does not answer: a-s0" in ended.err


def test_names_that_are_not_there(command: Command) -> None:
    store(command.paths, planned())
    ended = command("show", "a", "b", "c")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no endpoint b" in ended.err
    assert "endpoints here: a" in ended.err


def test_a_traceback_only_where_it_is_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["epyc-vllm", "--debug", "show", "absent"])
    with pytest.raises(ConfigError):
        main()


@pytest.mark.parametrize(
    ("arguments", "code"), [(["preflight"], 3), (["ready"], 1), (["stopping"], 0)]
)
def test_steps_of_a_unit(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    free_port: int,
    arguments: list[str],
    code: int,
) -> None:
    monkeypatch.setenv("INVOCATION_ID", "c0ffee")
    monkeypatch.setenv("MAINPID", str(2**22 + 1))
    store(command.paths, planned(port=free_port))
    ended = command("unit", *arguments, "a-s0")
    assert (ended.code, ended.out) == (code, "")
    mark = json.loads((command.paths.run / "a-s0.json").read_text())
    assert mark["invocation_id"] == "c0ffee"


def test_an_interrupt(command: Command, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setenv("INVOCATION_ID", "c0ffee")
    monkeypatch.setenv("MAINPID", str(os.getpid()))
    store(command.paths, replace(planned(port=free_port), start_timeout_seconds=30))
    # A shell's background job has SIGINT ignored, and so Python in it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    try:
        ended = command("unit", "ready", "a-s0")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.endswith("interrupted\n")
