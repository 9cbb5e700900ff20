"""Reports of failed runs: what is in them, how they are kept and found again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.watch import failure, marks, unit_steps
from epyc_vllm_agent.watch.failure import Exit, FailureReport
from epyc_vllm_agent.watch.marks import Mark
from tests.hosts import HOSTS, build, facts_of
from tests.plans import SIGNATURES, endpoint, plan

EXITED = Exit("exit-code", "exited", "1")


def composed(
    mark: Mark | None = None,
    end: Exit = EXITED,
    log: Sequence[str] = (),
    instance: str = "a-s0",
    invocation_id: str = "c0ffee" * 5 + "12",
    now: float = 1000.0,
    made: EndpointPlan | None = None,
) -> FailureReport:
    return failure.compose("a", instance, invocation_id, now, mark, end, log, made, SIGNATURES)


def mark(phase: str, fault: str | None = None, hint: str | None = None) -> Mark:
    return Mark("c0ffee", phase, fault, hint)


@pytest.mark.parametrize(
    ("left", "end", "log", "phase", "code", "cause"),
    [
        # The server's own words explain more than what readiness saw of it.
        (
            mark("health", "the server exited while loading"),
            EXITED,
            ["OSError: [Errno 98] Address already in use"],
            "health",
            "port-busy",
            "the port is in use by another program (Errno 98)",
        ),
        (
            mark("health", "the server exited while loading"),
            EXITED,
            ["nothing known"],
            "health",
            "health",
            "the server exited while loading (exit status 1)",
        ),
        # A preflight that said no knows why; the log is of nothing that ran.
        (
            mark("preflight", "port 8000 is in use by another program", "stop it"),
            EXITED,
            ["PermissionError: x"],
            "preflight",
            "preflight",
            "port 8000 is in use by another program",
        ),
        (
            mark("completion", "HTTP 500: boom"),
            Exit("exit-code", "exited", "1"),
            [],
            "completion",
            "completion",
            "HTTP 500: boom",
        ),
        (
            mark("serving"),
            Exit("success", "exited", "0"),
            [],
            "serving",
            "unknown",
            "the server ended unasked (exit status 0)",
        ),
        (
            mark("serving"),
            Exit("oom-kill", "killed", "9"),
            [],
            "serving",
            "out-of-memory",
            "the kernel killed it for lack of memory",
        ),
        (
            mark("serving"),
            Exit("signal", "killed", "11"),
            [],
            "serving",
            "unknown",
            "the server ended unasked (killed by signal 11)",
        ),
        (
            None,
            Exit("resources", None, None),
            [],
            "start",
            "unknown",
            "the start failed (result resources)",
        ),
    ],
)
def test_the_cause(
    left: Mark | None, end: Exit, log: list[str], phase: str, code: str, cause: str
) -> None:
    report = composed(left, end, log)
    assert (report.phase, report.cause_code, report.cause) == (phase, code, cause)
    assert report.hint
    assert report.log == tuple(log)


def test_stored_and_found(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint("a"))
    report = composed(mark("health", "x"), log=["größe \ud7ff", "line"], made=made)
    failure.store(paths, report)
    assert failure.find(paths, "a-s0", report.invocation_id) == report
    assert failure.find(paths, "a-s0", "d" * 32) is None
    assert failure.find(paths, "a-s1", report.invocation_id) is None
    assert report.log_text.splitlines() == [
        "--- last 2 log lines of a-s0 (exit status 1)",
        "größe \ud7ff",
        "line",
        "---",
    ]


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    ids = [f"{number:032x}"[::-1] for number in range(failure.KEPT + 5)]
    for number, invocation_id in enumerate(ids):
        failure.store(paths, composed(invocation_id=invocation_id, now=1000.0 + number))
    failure.store(paths, composed(instance="a-s0-s0", invocation_id="e" * 32))
    assert len(list(paths.reports.glob("a-s0-[0-9]*"))) == failure.KEPT
    assert failure.find(paths, "a-s0", ids[4]) is None
    assert failure.find(paths, "a-s0", ids[5]) is not None
    assert failure.find(paths, "a-s0-s0", "e" * 32) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_report_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    paths = Paths(tmp_path)
    failure.store(paths, composed())
    (path,) = paths.reports.iterdir()
    path.write_text(text)
    assert failure.find(paths, "a-s0", composed().invocation_id) is None


def test_a_mark_is_of_one_invocation(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert marks.read(paths, "a-s0", "1") is None
    marks.write(paths, "a-s0", Mark("1", "health", "fault", "hint"))
    assert marks.read(paths, "a-s0", "1") == Mark("1", "health", "fault", "hint")
    assert marks.read(paths, "a-s0", "2") is None
    marks.ask_stop(paths, "a-s0", "1")
    assert marks.read(paths, "a-s0", "1") == Mark("1", "health", "fault", "hint", True)
    marks.ask_stop(paths, "a-s0", "2")
    assert marks.read(paths, "a-s0", "2") == Mark("2", "start", stop_asked=True)
    (paths.run / "a-s0.json").write_text("{")
    assert marks.read(paths, "a-s0", "2") is None


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A host with the endpoint "a" planned on it."""
    paths = build(HOSTS["genoa-1s"], tmp_path)
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint("a"))
    paths.plans.mkdir(parents=True)
    (paths.plans / "a.json").write_text(encode_plan(made))
    return paths


def test_another_plan_that_cannot_be_read_stops_no_start(paths: Paths) -> None:
    (paths.plans / "0-broken.json").write_text("{")
    with pytest.raises(Refused, match="is missing"):  # the first step that looks at files
        unit_steps.preflight(paths, "a-s0", "1")


@pytest.mark.parametrize("name", ["b-s0", "a-s9", "a", "", "-s", "../plans/a-s0"])
def test_an_instance_without_a_plan(paths: Paths, name: str) -> None:
    with pytest.raises(ActionFailed, match="no stored plan"):
        unit_steps.preflight(paths, name.replace("/", "-"), "1")


def test_a_preflight_leaves_its_fault_for_the_report(paths: Paths) -> None:
    with pytest.raises(Refused) as caught:
        unit_steps.preflight(paths, "a-s0", "1")
    left = marks.read(paths, "a-s0", "1")
    assert left == Mark("1", "preflight", caught.value.message, caught.value.hint)


@pytest.mark.parametrize(
    ("left", "result"),
    [
        (Mark("1", "serving", stop_asked=True), "success"),
        (Mark("1", "serving", stop_asked=True), "timeout"),  # asked for, and killed in the end
        (Mark("1", "health", stop_asked=True), "success"),  # stopped while it loaded
        (Mark("1", "preflight"), "success"),
    ],
)
def test_an_end_that_was_asked_for_makes_no_report(paths: Paths, left: Mark, result: str) -> None:
    marks.write(paths, "a-s0", left)
    variables = {"INVOCATION_ID": "1", "SERVICE_RESULT": result}
    assert unit_steps.stopped(paths, "a-s0", variables) is None
    assert not paths.reports.exists()


@pytest.mark.parametrize("main_pid", [None, "", "4711"])
def test_a_stop_is_asked_for_only_while_there_is_a_process(
    paths: Paths, main_pid: str | None
) -> None:
    marks.write(paths, "a-s0", Mark("1", "serving"))
    unit_steps.stopping(paths, "a-s0", "1", main_pid)
    left = marks.read(paths, "a-s0", "1")
    assert left is not None
    assert left.stop_asked == bool(main_pid)


def test_reports_are_plain_json(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    failure.store(paths, replace(composed(mark("health", "x")), log=("ü",)))
    (path,) = paths.reports.iterdir()
    stored = json.loads(path.read_text())
    assert (stored["schema"], stored["cause"], stored["log"]) == (1, "x", ["ü"])
    assert path.name == "a-s0-000000001000000-c0ffeec0ffee.json"
