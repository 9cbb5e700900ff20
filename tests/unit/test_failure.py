"""Reports of failed runs: what is in them, how they are kept and found again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.cli import group
from epyc_vllm_agent.config.config import Watch
from epyc_vllm_agent.errors import ActionFailed, AgentError, Refused
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.report.failure import listing, text
from epyc_vllm_agent.watch import ending, evidence, failure, marks, unit_steps
from epyc_vllm_agent.watch.decide import Verdict
from epyc_vllm_agent.watch.evidence import Evidence, NodeMemory, Seen
from epyc_vllm_agent.watch.failure import Exit, FailureReport
from epyc_vllm_agent.watch.marks import Mark
from tests.hosts import HOSTS, build, facts_of
from tests.plans import SIGNATURES, endpoint, plan
from tests.unit.conftest import OutsideError

EXITED = Exit("exit-code", "exited", "1")


def composed(
    mark: Mark | None = None,
    end: Exit = EXITED,
    log: Sequence[str] = (),
    instance: str = "a-s0",
    invocation_id: str = "c0ffee" * 5 + "12",
    now: float = 1000.0,
    made: EndpointPlan | None = None,
    evidence: Evidence | None = None,
) -> FailureReport:
    return failure.compose(
        "a", instance, invocation_id, now, mark, end, log, made, SIGNATURES, evidence
    )


def seen(verdict: Verdict, oom_kills: int | None = None) -> Evidence:
    what = Seen("1", 5.0, verdict, f"the reason for {verdict}")
    return Evidence(what, oom_kills, (NodeMemory(0, 8 << 30, 1 << 30),), "0.1.0")


OOM = "out-of-memory"


def mark(phase: str, fault: str | None = None, hint: str | None = None, stop: bool = False) -> Mark:
    return Mark("c0ffee", phase, fault, hint, stop)


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
            Exit("signal", "killed", "SEGV"),
            [],
            "serving",
            "signal",
            "a signal ended the server (killed by signal SEGV)",
        ),
        (
            mark("serving"),
            Exit("exit-code", "exited", "137"),
            [],
            "serving",
            "signal",
            "a signal ended the server (exit status 137)",
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


def test_a_clock_that_was_set_back_costs_no_new_report(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for number in range(failure.KEPT):
        failure.store(paths, composed(invocation_id=f"{number:032x}"[::-1], now=9000.0 + number))
    path = failure.store(paths, composed(invocation_id="e" * 32, now=1000.0))
    assert path.exists()
    assert len(list(paths.reports.iterdir())) == failure.KEPT
    assert failure.find(paths, "a-s0", f"{0:032x}") is None


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
    ("left", "result", "status"),
    [
        (Mark("1", "serving", stop_asked=True), "success", None),
        (Mark("1", "serving", stop_asked=True), "timeout", "KILL"),  # asked for, killed in the end
        (Mark("1", "health", stop_asked=True), "success", "VTALRM"),  # stopped while it loaded
        (Mark("1", "preflight"), "success", None),
        (Mark("1", "preflight"), "success", "TERM"),
        (Mark("1", "preflight", stop_asked=True), "success", "VTALRM"),  # before its first phase
    ],
)
def test_an_end_that_was_asked_for_makes_no_report(
    paths: Paths, left: Mark, result: str, status: str | None
) -> None:
    marks.write(paths, "a-s0", left)
    variables = {"INVOCATION_ID": "1", "SERVICE_RESULT": result}
    variables |= {"EXIT_CODE": "killed", "EXIT_STATUS": status} if status else {}
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


ENGINE = ["vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
PORT = ["OSError: [Errno 98] Address already in use"]


@pytest.mark.parametrize(
    ("left", "end", "log", "found", "verdict", "code"),
    [
        (mark("serving"), EXITED, [], None, Verdict.DEAD, "unknown"),
        (mark("serving"), EXITED, ENGINE, None, Verdict.DEAD, "engine-died"),
        (mark("health", "x"), EXITED, PORT, None, Verdict.START_FAILED, "port-busy"),
        (None, EXITED, [], None, Verdict.START_FAILED, "unknown"),
        (mark("serving"), EXITED, [], seen(Verdict.HEALTHY), Verdict.DEAD, "unknown"),
        (mark("serving"), EXITED, [], seen(Verdict.STOPPED), Verdict.DEAD, "unknown"),
        (mark("serving", stop=True), EXITED, [], seen(Verdict.HUNG), Verdict.HUNG, "hung"),
        # What a hung server writes when it is stopped is not why it hung.
        (mark("serving"), EXITED, ENGINE, seen(Verdict.HUNG), Verdict.HUNG, "hung"),
        (mark("serving"), EXITED, [], seen(Verdict.SICK), Verdict.SICK, "sick"),
        (mark("serving"), EXITED, ENGINE, seen(Verdict.SICK), Verdict.SICK, "engine-died"),
        # The kernel's word is certain, whatever else was seen.
        (mark("serving"), EXITED, ENGINE, seen(Verdict.SICK, 1), Verdict.OUT_OF_MEMORY, OOM),
        (mark("serving"), EXITED, [], seen(Verdict.HEALTHY, 2), Verdict.OUT_OF_MEMORY, OOM),
        (mark("serving"), EXITED, [], seen(Verdict.HEALTHY, 0), Verdict.DEAD, "unknown"),
        (mark("health", "x"), EXITED, ["MemoryError"], None, Verdict.OUT_OF_MEMORY, OOM),
        (mark("serving"), Exit("oom-kill", "killed", "9"), [], None, Verdict.OUT_OF_MEMORY, OOM),
    ],
)
def test_verdict_and_cause(
    left: Mark | None,
    end: Exit,
    log: list[str],
    found: Evidence | None,
    verdict: Verdict,
    code: str,
) -> None:
    report = composed(left, end, log, evidence=found)
    assert (report.verdict, report.cause_code) == (verdict, code)
    assert report.hint


def test_the_cause_is_looked_for_beyond_the_lines_that_are_kept() -> None:
    report = composed(mark("health"), log=[*PORT, *[f"line {n}" for n in range(300)]])
    assert report.cause_code == "port-busy"
    assert len(report.log) == failure.LOG_LINES
    assert report.log[-1] == "line 299"


def test_a_report_of_an_older_version_is_read(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    path = failure.store(paths, composed(mark("serving")))
    old = json.loads(path.read_text())
    del old["verdict"], old["evidence"]
    path.write_text(json.dumps(old))
    (report,) = failure.stored(paths)
    assert (report.verdict, report.evidence) == (Verdict.DEAD, None)


def test_stored_reports_newest_first_of_all_or_one(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert failure.stored(paths) == ()
    for number, instance in enumerate(("a-s0", "a-s1", "a-s0")):
        failure.store(paths, composed(instance=instance, now=1000.0 + number))
    (paths.reports / "broken.json").write_text("{")
    (paths.reports / "README").write_text("not one")
    assert [one.time for one in failure.stored(paths)] == [1002, 1001, 1000]
    assert [one.time for one in failure.stored(paths, "a-s0")] == [1002, 1000]
    assert len(failure.stored(paths, "a")) == 3
    assert failure.stored(paths, "b") == ()


def test_the_journals_entry(tmp_path: Path) -> None:
    report = composed(mark("serving"), evidence=seen(Verdict.HUNG))
    fields = ending.entry(report, tmp_path / "r.json")
    assert len(fields["MESSAGE_ID"]) == 32
    assert fields["MESSAGE"] == "a-s0 failed in phase serving (hung): the reason for hung"
    assert fields["EPYC_VLLM_ENDPOINT"] == "a"
    assert fields["EPYC_VLLM_INSTANCE"] == "a-s0"
    assert fields["EPYC_VLLM_VERDICT"] == "hung"
    assert fields["EPYC_VLLM_CAUSE"] == "hung"
    assert fields["EPYC_VLLM_REPORT"] == str(tmp_path / "r.json")
    assert "EPYC_VLLM_REPORT" not in ending.entry(report, None)


def test_the_hook_is_a_unit_of_its_own_with_a_time_limit(tmp_path: Path) -> None:
    watch = Watch(on_failure=("/usr/bin/tell", "--who", "a b"), on_failure_timeout=7)
    command = ending.hook_command(watch, composed(), tmp_path / "r.json")
    assert command[0] == "systemd-run"
    assert "--property=RuntimeMaxSec=7" in command
    assert command[command.index("--") + 1 :] == [
        "/usr/bin/tell",
        "--who",
        "a b",
        str(tmp_path / "r.json"),
    ]


def test_a_stop_that_the_watchdog_asked_for_is_a_failure(paths: Paths) -> None:
    """systemd calls the same steps whoever asked: the verdict that was left tells them apart."""
    marks.write(paths, "a-s0", Mark("1", "serving", stop_asked=True))
    variables = {"INVOCATION_ID": "1", "SERVICE_RESULT": "success"}
    evidence.leave(paths, "a-s0", Seen("1", 0.0, Verdict.HEALTHY, "well"))
    assert unit_steps.stopped(paths, "a-s0", variables) is None
    evidence.leave(paths, "a-s0", Seen("0", 0.0, Verdict.HUNG, "another run"))
    assert unit_steps.stopped(paths, "a-s0", variables) is None
    evidence.leave(paths, "a-s0", Seen("1", 0.0, Verdict.HUNG, "it hung"))
    with pytest.raises(OutsideError):  # it goes on to read the journal
        unit_steps.stopped(paths, "a-s0", variables)


def test_a_person_reads_the_cause_last(tmp_path: Path) -> None:
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint("a"))
    report = composed(mark("serving"), log=["a line"], made=made, evidence=seen(Verdict.HUNG))
    shown = text(report, earlier=3)
    assert shown.index("a line") < shown.index("1.0 GiB of 8.0 GiB free") < shown.index("Cause")
    assert "the reason for hung [hung]" in shown
    assert "systemctl start epyc-vllm-a-s0.service" in shown
    assert "3 earlier" in shown
    assert "Qwen/Qwen3-8B" in shown
    assert text(composed(), earlier=0)  # without anything that may be missing
    (header, row) = listing([report]).splitlines()
    assert header.split() == ["WHEN", "INSTANCE", "PHASE", "VERDICT", "CODE", "CAUSE"]
    assert "hung" in row


def report_verb(root: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(group, ["--sysroot", str(root), "report", *arguments])
    if isinstance(done.exception, AgentError):
        return int(done.exception.exit_code), done.exception.message
    return done.exit_code, done.stdout


def test_the_verb_shows_the_newest(paths: Paths) -> None:
    root = paths.root
    assert report_verb(root) == (0, "no failure is reported\n")
    assert report_verb(root, "a") == (0, "no failure of a is reported\n")
    assert report_verb(root, "a-s0") == (0, "no failure of a-s0 is reported\n")
    assert report_verb(root, "b")[0] == 2
    for number in range(3):
        failure.store(paths, composed(mark("health", f"fault {number}"), now=1000.0 + number))
    code, shown = report_verb(root)
    assert code == 0
    assert "fault 2" in shown
    assert "fault 1" not in shown
    assert "2 earlier" in shown
    assert len(report_verb(root, "a", "--list")[1].splitlines()) == 4
    stored = json.loads(report_verb(root, "a-s0", "--json")[1])
    assert stored["schema"] == 1
    assert [one["cause"] for one in stored["reports"]] == ["fault 2"]
    assert len(json.loads(report_verb(root, "--list", "--json")[1])["reports"]) == 3
