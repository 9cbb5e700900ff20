"""apply: the host as its files say; what fails for one endpoint touches no other."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.apply import begun
from epyc_vllm_agent.apply.apply import Action, Applied, worst
from epyc_vllm_agent.apply.intents import Options
from epyc_vllm_agent.changes import running
from epyc_vllm_agent.changes.installed import installed, read_stored
from epyc_vllm_agent.cli.apply import automatically
from epyc_vllm_agent.config.config import load
from epyc_vllm_agent.errors import ConfigError, ExitCode
from epyc_vllm_agent.facts.gather import gather
from epyc_vllm_agent.report import apply as report
from epyc_vllm_agent.watch.drift import drift
from tests.applying import Host, host
from tests.fakes import FakeSystemd
from tests.guest import models
from tests.hosts import GENERATIONS, HOSTS, build
from tests.hubserver import HubServer


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root would ask `test` as vLLM's user
    return host(tmp_path)


@pytest.fixture
def systemd(box: Host) -> FakeSystemd:
    made = FakeSystemd(box.paths)
    made.on_start = lambda unit, invocation: running.note(
        box.paths, unit.removeprefix("epyc-vllm-").removesuffix(".service"), invocation
    )
    return made


def actions(applied: dict[str, Applied]) -> dict[str, Action]:
    return {name: one.action for name, one in applied.items()}


def codes(applied: dict[str, Applied]) -> dict[str, str]:
    return {name: one.error.code for name, one in applied.items() if one.error}


def runs(systemd: FakeSystemd, *instances: str) -> bool:
    return {f"epyc-vllm-{name}.service" for name in instances} <= systemd.active()


def test_new_endpoints_come_up_with_one_reload(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", cores=2)
    box.write("b", cores=2)
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.CREATE, "b": Action.CREATE}
    assert done["a"].started == ("epyc-vllm-a-s0.service", "epyc-vllm-a-s1.service")
    assert runs(systemd, "a-s0", "a-s1", "b-s0", "b-s1")
    assert systemd.enabled == {"epyc-vllm-a.target", "epyc-vllm-b.target"}
    assert systemd.made("reload") == [("reload", "")]
    ports = {i.port for plan in read_stored(box.paths).plans.values() for i in plan.instances}
    assert len(ports) == 4


def test_the_second_time_there_is_nothing_to_do(box: Host, systemd: FakeSystemd) -> None:
    for name in ("a", "b", "c"):
        box.write(name, cores=2)
    box.apply(systemd)
    before = box.files()
    systemd.calls.clear()
    done = box.apply(systemd)
    assert set(actions(done).values()) == {Action.NONE}
    assert systemd.made("reload", "start", "stop", "enable") == []
    assert box.files() == before
    assert report.text(list(done.values()), is_check=False) == "no changes"
    assert not begun.read(box.paths)


def test_what_is_new_leaves_the_others_plans_alone(box: Host, systemd: FakeSystemd) -> None:
    box.write("m", cores=2)
    box.apply(systemd)
    box.write("a", cores=2)
    box.write("z", cores=2)
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.CREATE, "m": Action.NONE, "z": Action.CREATE}


def test_the_file_itself_is_never_written(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", "# a note")
    before = (box.paths.endpoints / "a.toml").stat()
    box.apply(systemd)
    after = (box.paths.endpoints / "a.toml").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_change_waits_for_the_next_start(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    invocation = systemd.state("epyc-vllm-a-s0.service").invocation_id
    box.write("a", sockets=[0], max_model_len=2048)
    pending = ("epyc-vllm-a-s0.service",)
    done = box.apply(systemd)
    assert (done["a"].action, done["a"].pending, done["a"].started) == (Action.CHANGE, pending, ())
    assert "2048" in box.unit("a-s0.service").read_text()
    assert systemd.state("epyc-vllm-a-s0.service").invocation_id == invocation
    assert not systemd.state("epyc-vllm-a-s0.service").needs_reload
    done = box.apply(systemd)  # and it is told until it is done
    assert (done["a"].action, done["a"].pending) == (Action.NONE, pending)
    systemd.restart("epyc-vllm-a-s0.service")
    assert box.apply(systemd)["a"].pending == ()


def test_a_change_that_is_undone_is_not_pending(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    box.write("a", sockets=[0], max_model_len=2048)
    box.apply(systemd)
    box.write("a", sockets=[0])
    done = box.apply(systemd)
    assert (done["a"].action, done["a"].pending) == (Action.CHANGE, ())


@pytest.mark.parametrize("how", ["flag", "file", "host"])
def test_a_change_is_restarted_where_that_is_wanted(
    box: Host, systemd: FakeSystemd, how: str
) -> None:
    if how == "host":
        text = box.paths.config_file.read_text()
        box.paths.config_file.write_text(text + '[defaults]\non_change = "restart"\n')
    keys: dict[str, Any] = {"on_change": "restart"} if how == "file" else {}
    box.write("a", sockets=[0], **keys)
    box.apply(systemd)
    invocation = systemd.state("epyc-vllm-a-s0.service").invocation_id
    box.write("a", sockets=[0], max_model_len=2048, **keys)
    done = box.apply(systemd, restart=how == "flag")
    assert done["a"].started == ("epyc-vllm-a-s0.service",)
    assert done["a"].pending == ()
    assert systemd.state("epyc-vllm-a-s0.service").invocation_id != invocation


def test_what_waits_is_restarted_later(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    box.write("a", sockets=[0], max_model_len=2048)
    box.apply(systemd)
    assert box.check(systemd, restart=True)["a"].action is Action.START
    done = box.apply(systemd, restart=True)
    assert (done["a"].action, done["a"].started) == (Action.START, ("epyc-vllm-a-s0.service",))
    assert box.apply(systemd, restart=True)["a"].action is Action.NONE


def test_what_somebody_stopped_stays_stopped(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    systemd.stop("epyc-vllm-a.target")
    systemd.disable("epyc-vllm-a.target")
    box.write("a", sockets=[0], max_model_len=2048)
    done = box.apply(systemd)
    assert (done["a"].action, done["a"].started, done["a"].pending) == (Action.CHANGE, (), ())
    assert not runs(systemd, "a-s0")
    assert systemd.enabled == set()


def test_what_failed_is_tried_again_only_with_a_new_unit(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    systemd.end("epyc-vllm-a-s0.service")
    assert box.apply(systemd)["a"].action is Action.NONE
    box.write("a", sockets=[0], max_model_len=2048)
    assert box.apply(systemd)["a"].started == ("epyc-vllm-a-s0.service",)


def test_a_socket_more_starts_its_instance_alone(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    invocation = systemd.state("epyc-vllm-a-s0.service").invocation_id
    box.write("a", sockets=[0, 1])
    assert box.apply(systemd)["a"].started == ("epyc-vllm-a-s1.service",)
    assert systemd.state("epyc-vllm-a-s0.service").invocation_id == invocation


def test_a_socket_more_that_fails_leaves_the_other_running(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    before = systemd.state("epyc-vllm-a-s0.service").invocation_id
    box.write("a", sockets=[0, 1])
    systemd.failing = {"epyc-vllm-a-s1.service"}
    done = box.apply(systemd)
    assert codes(done) == {"a": "start-failed"}
    assert systemd.state("epyc-vllm-a-s0.service").invocation_id == before
    assert runs(systemd, "a-s0")
    assert not box.unit("a-s1.service").exists()


def test_a_file_that_goes_takes_the_endpoint_down(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", cores=2)
    box.write("b", cores=2)
    box.apply(systemd)
    box.remove("a")
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.REMOVE, "b": Action.NONE}
    assert systemd.active() == {
        "epyc-vllm-b.target",
        *(f"epyc-vllm-b-s{n}.service" for n in (0, 1)),
    }
    assert not any("a-s" in path or "/a.json" in path for path in box.files())
    assert Path(box.model).is_dir()


def test_only_what_carries_our_mark_is_removed(box: Host, systemd: FakeSystemd) -> None:
    box.paths.units.mkdir(parents=True)
    foreign = box.unit("other-s0.service")
    foreign.write_text("[Service]\nExecStart=/bin/true\n")
    box.write("a")
    box.apply(systemd)
    assert "other" not in box.apply(systemd)
    assert foreign.read_text().startswith("[Service]")


def test_a_missing_folder_takes_nothing_down(box: Host, systemd: FakeSystemd) -> None:
    box.write("a")
    box.apply(systemd)
    box.paths.endpoints.rename(box.paths.endpoints.with_name("away"))
    with pytest.raises(ConfigError, match="is missing, and endpoints are installed"):
        box.apply(systemd)
    assert runs(systemd, "a-s0", "a-s1")


def test_a_mask_takes_down_and_stays(box: Host, systemd: FakeSystemd) -> None:
    box.write("a")
    box.apply(systemd)
    box.drop("a.toml", "")
    assert box.apply(systemd)["a"].action is Action.REMOVE
    assert (box.paths.endpoints / "a.toml").read_text() == ""
    assert box.apply(systemd) == {}


def test_a_packages_endpoint_and_its_drop_in(box: Host, systemd: FakeSystemd) -> None:
    shipped = box.paths.shipped_endpoints
    shipped.mkdir(parents=True)
    box.write("a", sockets=[0])
    (box.paths.endpoints / "a.toml").rename(shipped / "a.toml")
    box.drop("a.toml.d/10-len.toml", "max_model_len = 1234\n")
    assert box.apply(systemd)["a"].action is Action.CREATE
    assert "1234" in box.unit("a-s0.service").read_text()
    assert not (box.paths.endpoints / "a.toml").exists()


@pytest.mark.parametrize(
    "text",
    ["model = \n", "colour = 'x'\n", "model = 1\n", "# nothing\n", "\udcff", 'model="m"\nport=1'],
)
def test_a_broken_file_leaves_its_endpoint_and_the_others(
    box: Host, systemd: FakeSystemd, text: str
) -> None:
    box.write("a", cores=2)
    box.write("b", cores=2)
    box.apply(systemd)
    before = {unit: systemd.state(unit).invocation_id for unit in systemd.active()}
    installed = {path: text for path, text in box.files().items() if "endpoints.d" not in path}
    (box.paths.endpoints / "a.toml").write_bytes(text.encode(errors="surrogateescape"))
    box.write("c", cores=2)
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.ERROR, "b": Action.NONE, "c": Action.CREATE}
    assert codes(done) == {"a": "config-invalid"}
    assert worst(list(done.values()), is_check=False) is ExitCode.USAGE
    assert all(systemd.state(unit).invocation_id == had for unit, had in before.items())
    assert installed.items() <= box.files().items()


def test_the_same_port_twice_touches_neither(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0], cores=2, port=9000)
    box.apply(systemd)
    box.write("b", sockets=[0], cores=2, port=9000)
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.ERROR, "b": Action.ERROR}
    message = str(done["b"].error)
    assert "b.toml:6: port 9000 is given to another endpoint too" in message
    assert "a.toml:6" in message
    assert runs(systemd, "a-s0")
    assert not box.unit("b.target").exists()


@pytest.mark.parametrize(
    ("keys", "code", "exit_code"),
    [
        ({"model": "/nonexistent"}, None, None),
        ({"address": "0.0.0.0"}, "gate-closed", ExitCode.REFUSED),
        ({"cores": 99}, "not-enough-cores", ExitCode.REFUSED),
        ({"environment": "/nonexistent"}, "no-environment", ExitCode.REFUSED),
        ({"api_key_file": "/nonexistent"}, "key-unreadable", ExitCode.FAILED),
    ],
)
def test_one_that_cannot_be_does_not_stop_the_others(
    box: Host,
    systemd: FakeSystemd,
    keys: dict[str, object],
    code: str | None,
    exit_code: ExitCode | None,
) -> None:
    box.write("a", **keys)
    box.write("b", cores=2)
    checked, done = box.check(systemd), box.apply(systemd)
    for found in (checked, done):
        assert actions(found) == {"a": Action.ERROR, "b": Action.CREATE}
        assert code is None or exit_code is worst(list(found.values()), is_check=False)
        assert code in (None, codes(found)["a"]) or code == "not-enough-cores"
    assert runs(systemd, "b-s0", "b-s1")
    assert not box.unit("a.target").exists()


def test_a_failed_start_is_taken_back_and_the_others_go_on(box: Host, systemd: FakeSystemd) -> None:
    for name in ("a", "b", "c"):
        box.write(name, sockets=[0], cores=2)
    systemd.failing = {"epyc-vllm-b-s0.service"}
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.CREATE, "b": Action.ERROR, "c": Action.CREATE}
    assert worst(list(done.values()), is_check=False) is ExitCode.FAILED
    assert not box.unit("b.target").exists()
    assert runs(systemd, "a-s0", "c-s0")
    assert systemd.enabled == {"epyc-vllm-a.target", "epyc-vllm-c.target"}


def test_the_starts_go_side_by_side(box: Host, systemd: FakeSystemd) -> None:
    for name in ("a", "b"):
        box.write(name, sockets=[0], cores=2)
    box.apply(systemd)
    begun = systemd.made("start", "wait")[:4]
    assert begun == [(do, f"epyc-vllm-{n}.target") for do in ("start", "wait") for n in "ab"]


def test_an_interrupt_takes_back_what_is_not_done(box: Host, systemd: FakeSystemd) -> None:
    for name in ("a", "b", "c"):
        box.write(name, sockets=[0], cores=2)

    def interrupt(method: str, unit: str) -> None:
        if (method, unit) == ("wait", "epyc-vllm-b.target"):
            raise KeyboardInterrupt

    systemd.when = interrupt
    with pytest.raises(KeyboardInterrupt):
        box.apply(systemd)
    assert runs(systemd, "a-s0")
    assert not box.unit("b.target").exists()
    assert not box.unit("c.target").exists()
    systemd.when = None
    done = box.apply(systemd)
    assert actions(done) == {"a": Action.NONE, "b": Action.CREATE, "c": Action.CREATE}


@pytest.mark.parametrize("prepare", [lambda box: None, lambda box: box.write("b", cores=4)])
def test_a_check_changes_nothing_and_tells_what_apply_does(
    box: Host, systemd: FakeSystemd, prepare: Callable[[Host], None]
) -> None:
    for name in ("a", "b", "gone"):
        box.write(name, sockets=[0], cores=2)
    box.apply(systemd)
    box.write("a", sockets=[0], cores=2, max_model_len=2048)
    box.write("new", sockets=[1], cores=2)
    box.remove("gone")
    prepare(box)
    before = box.files()
    systemd.calls.clear()
    checked = box.check(systemd)
    assert box.files() == before
    assert {method for method, _ in systemd.calls} == {"list_units"}
    assert worst(list(checked.values()), is_check=True) is ExitCode.CHANGES
    assert box.apply(systemd) == checked
    again = box.check(systemd)
    assert worst(list(again.values()), is_check=True) is ExitCode.DONE


@pytest.mark.parametrize("file", ["a-s0.service", "a.target"])
@pytest.mark.parametrize("how", ["edited", "removed"])
def test_drift_is_restored(box: Host, systemd: FakeSystemd, file: str, how: str) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    before = box.files()
    if how == "edited":
        box.unit(file).write_text(box.unit(file).read_text() + "# by hand\n")
    else:
        box.unit(file).unlink()
    done = box.apply(systemd)
    assert done["a"].action is Action.CHANGE
    assert box.files() == before
    assert done["a"].pending == ()  # it runs with just this text
    assert box.apply(systemd)["a"].action is Action.NONE


def test_cpus_that_went_are_planned_without(box: Host, systemd: FakeSystemd) -> None:
    box.write("a")
    box.apply(systemd)
    (before,) = read_stored(box.paths).plans.values()
    gone = before.instances[0].cpus[3]
    shutil.rmtree(box.paths.root / "sys")
    build(replace(HOSTS["genoa-2s-nps1"], offline=str(gone)), box.paths.root)

    def drifted() -> list[str]:
        facts = gather(box.paths, GENERATIONS)
        (plan,) = read_stored(box.paths).plans.values()
        told = drift(plan, installed(box.paths, "a"), load(box.paths), facts)
        return [item.code for item in told]

    assert drifted() == ["cpus-gone"]
    assert box.check(systemd)["a"].action is Action.CHANGE
    assert box.apply(systemd, restart=True)["a"].action is Action.CHANGE
    assert drifted() == []
    (after,) = read_stored(box.paths).plans.values()
    assert [gone in instance.cpus for instance in after.instances] == [False, False]
    assert box.check(systemd)["a"].action is Action.NONE


def test_a_port_that_was_taken_is_changed_unless_the_file_says_it(
    box: Host, systemd: FakeSystemd
) -> None:
    box.write("a", sockets=[0], cores=2)
    box.write("b", sockets=[0], cores=2, port=9000)
    box.apply(systemd)
    for name in ("a", "b"):
        systemd.end(f"epyc-vllm-{name}-s0.service")  # its start was refused for the port
    listen(box, 8000, 9000)
    done = box.apply(systemd)
    assert (done["a"].action, done["a"].started) == (Action.CHANGE, ("epyc-vllm-a-s0.service",))
    assert "--port 8001" in box.unit("a-s0.service").read_text()
    assert codes(done) == {"b": "port-busy"}


def test_a_running_instances_own_port_is_kept(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0], cores=2)
    box.apply(systemd)
    listen(box, 8000)
    assert box.apply(systemd)["a"].action is Action.NONE


def two_running(box: Host, systemd: FakeSystemd, **keys: object) -> None:
    """a on port 9000 and b on 9001, and their files now the other way round, with `keys`."""
    box.write("a", sockets=[0], cores=2, port=9000)
    box.write("b", sockets=[0], cores=2, port=9001)
    box.apply(systemd)
    listen(box, 9000, 9001)
    box.write("a", sockets=[0], cores=2, port=9001, **keys)
    box.write("b", sockets=[0], cores=2, port=9000, **keys)


def ports(box: Host) -> dict[str, int]:
    stored = read_stored(box.paths).plans.values()
    return {plan.name: plan.instances[0].port for plan in stored}


@pytest.mark.parametrize("how", ["flag", "file", "stopped"])
def test_ports_are_swapped_where_both_are_started_anew(
    how: str, box: Host, systemd: FakeSystemd
) -> None:
    two_running(box, systemd, **({"on_change": "restart"} if how == "file" else {}))
    if how == "stopped":
        listen(box)
        for name in ("a", "b"):
            systemd.end(f"epyc-vllm-{name}-s0.service")
    systemd.calls.clear()
    assert actions(box.check(systemd, restart=how == "flag")) == dict.fromkeys("ab", Action.CHANGE)
    done = box.apply(systemd, restart=how == "flag")
    assert codes(done) == {}
    assert ports(box) == {"a": 9001, "b": 9000}
    if how == "stopped":
        return
    verbs = [verb for verb, unit in systemd.made("stop", "start") if "vllm-" in unit]
    assert verbs == ["stop", "stop", "start", "start"]  # both are down before one comes up
    assert runs(systemd, "a-s0", "b-s0")
    listen(box, 9000, 9001)
    assert box.apply(systemd)["a"].action is Action.NONE


def test_ports_are_not_swapped_under_what_runs_on(box: Host, systemd: FakeSystemd) -> None:
    two_running(box, systemd)
    before = box.files()
    done = box.apply(systemd)
    assert codes(done) == {"a": "port-reserved", "b": "port-reserved"}
    error = done["a"].error
    assert error is not None
    assert "`epyc-vllm apply --restart` moves both" in str(error.hint)
    assert box.files() == before


def test_a_port_is_not_taken_of_one_that_cannot_leave_it(box: Host, systemd: FakeSystemd) -> None:
    """b's own file asks for what it cannot have: so it stays where it is, and a with it."""
    two_running(box, systemd)
    box.write("b", sockets=[0], cores=2, port=9000, kv_gib=4000)
    before = box.files()
    done = box.apply(systemd, restart=True)
    assert codes(done) == {"a": "port-reserved", "b": "does-not-fit"}
    assert box.files() == before
    assert runs(systemd, "a-s0", "b-s0")


def test_a_new_endpoint_takes_the_port_of_one_that_is_removed(
    box: Host, systemd: FakeSystemd
) -> None:
    box.write("a", sockets=[0], cores=2, port=9000)
    box.apply(systemd)
    listen(box, 9000)
    box.remove("a")
    box.write("b", sockets=[0], cores=2, port=9000)
    assert actions(box.apply(systemd)) == {"a": Action.REMOVE, "b": Action.CREATE}
    assert ports(box) == {"b": 9000}


def listen(box: Host, *ports: int) -> None:
    """Programs that listen on `ports`, as the kernel lists them."""
    lines = [f"{n}: 0100007F:{port:04X} 00000000:0000 0A 0:0" for n, port in enumerate(ports)]
    path = box.paths.proc / "net/tcp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["sl local_address rem_address st", *lines]) + "\n")


def test_a_plan_that_cannot_be_read_is_made_anew(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0])
    box.apply(systemd)
    before = box.files()
    (box.paths.plans / "a.json").write_text("{")
    assert box.apply(systemd)["a"].action is Action.CHANGE
    assert box.files() == before


def test_new_endpoints_are_left_unstarted_where_that_is_wanted(
    box: Host, systemd: FakeSystemd
) -> None:
    box.write("a")
    done = box.apply(systemd, start=False)
    assert (done["a"].action, done["a"].started) == (Action.CREATE, ())
    assert systemd.active() == set()
    assert systemd.enabled == {"epyc-vllm-a.target"}
    assert box.apply(systemd)["a"].action is Action.NONE


def test_the_worst_ends_the_run() -> None:
    def one(code: ExitCode | None) -> Applied:
        error = None
        if code is not None:
            error = ConfigError("x", "x")
            error.exit_code = code
        return Applied("a", Action.ERROR if error else Action.CHANGE, error=error)

    rows: list[tuple[list[ExitCode | None], bool, ExitCode]] = [
        ([None], False, ExitCode.DONE),
        ([None], True, ExitCode.CHANGES),
        ([None, ExitCode.USAGE], True, ExitCode.USAGE),
        ([ExitCode.USAGE, ExitCode.REFUSED], False, ExitCode.REFUSED),
        ([ExitCode.FAILED, ExitCode.REFUSED, ExitCode.USAGE], False, ExitCode.FAILED),
    ]
    for codes_given, is_check, wanted in rows:
        assert worst([one(code) for code in codes_given], is_check) is wanted


def test_answers_and_differences(box: Host, systemd: FakeSystemd) -> None:
    box.write("a", sockets=[0], cores=2)
    box.write("bad", cores=99)
    box.apply(systemd)
    box.write("a", sockets=[0], cores=2, max_model_len=2048)
    box.write("new", sockets=[1], cores=2)
    checked = list(box.check(systemd).values())
    answer = report.plain(checked, is_check=True, with_diff=True)
    assert (answer["check"], answer["changed"]) == (True, True)
    by_name = {one["name"]: one for one in answer["endpoints"]}
    assert {name: one["action"] for name, one in by_name.items()} == {
        "a": "change",
        "bad": "error",
        "new": "create",
    }
    assert by_name["bad"]["error"]["exit_code"] == 3
    assert by_name["a"]["pending"] == ["epyc-vllm-a-s0.service"]
    unit = f"/etc/systemd/system/{box.unit('a-s0.service').name}"
    assert {"path": unit, "action": "change"} in by_name["a"]["files"]
    for line in (f"--- {unit}\n+++ {unit}\n", "\n-ExecStart=", "\n+ExecStart=", "2048"):
        assert line in by_name["a"]["diff"]
    assert "--- /dev/null\n+++ /etc/systemd/system/epyc-vllm-new.target\n" in by_name["new"]["diff"]
    assert report.diff(checked) == "".join(one["diff"] for one in by_name.values())
    told = report.text(checked, is_check=True)
    assert "change   a: 2 files\n" in told
    assert "pending  a: epyc-vllm-a-s0.service with the next start" in told
    assert "error    bad: socket 0 has" in told
    assert "create   new: 3 files, start epyc-vllm-new-s1.service" in told


def test_a_hub_that_is_gone_is_told(
    box: Host, systemd: FakeSystemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.write(tmp_path / "hub/org__tiny", models.TEMPLATE)
    with HubServer(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        box.write("a", model="org/tiny", sockets=[0])
        box.apply(systemd)
        hub.fault("503")
        box.write("new", model="org/tiny", sockets=[1])
        checked = report.plain(list(box.check(systemd).values()), is_check=True, with_diff=False)
        applied = list(box.apply(systemd).values())
    first, new = checked["endpoints"]
    assert (first["action"], first["warnings"], new["action"]) == ("none", [], "create")
    (warning,) = new["warnings"]
    assert "failed with HTTP status 503" in warning
    assert "org/tiny is taken as it was" in warning
    told = report.text(applied, is_check=False).splitlines()
    assert told[0] == f"warning  new: {warning}"
    assert told[1].startswith("create   new: 3 files, started ")


def test_what_changes_while_it_is_applied_by_itself_is_applied_too(
    box: Host, systemd: FakeSystemd
) -> None:
    box.write("a", sockets=[0], cores=2)

    def drop_another(method: str, unit: str) -> None:
        if (method, unit) == ("start", "epyc-vllm-a.target"):
            box.write("b", sockets=[0], cores=2)

    systemd.when = drop_another
    automatically(box.paths, systemd, Options())
    assert runs(systemd, "a-s0", "b-s0")


def test_a_switch_keeps_it_from_being_applied_by_itself(box: Host, systemd: FakeSystemd) -> None:
    text = box.paths.config_file.read_text()
    box.paths.config_file.write_text(f"auto_apply = false\n{text}")
    box.write("a")
    assert automatically(box.paths, systemd, Options()) == ()
    assert systemd.active() == set()


def test_what_cannot_be_applied_is_told_and_not_tried_twice(
    box: Host, systemd: FakeSystemd
) -> None:
    box.write("a", cores=99)
    (one,) = automatically(box.paths, systemd, Options())
    assert one.action is Action.ERROR
    assert systemd.made("list_units") == [("list_units", "epyc-vllm-*")]
