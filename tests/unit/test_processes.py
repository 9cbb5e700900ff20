"""Processes of a control group, from trees of files as the kernel shows them."""

from pathlib import Path

import pytest

from epyc_vllm_agent.facts.processes import Process, group_of, oom_kills, own_service, processes
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.watch.decide import Worker
from epyc_vllm_agent.watch.evidence import workers_of

GROUP = "/system.slice/epyc-vllm-a-s0.service"


def stat(paths: Paths, pid: int, name: str, user: int = 0, system: int = 0) -> None:
    file = paths.proc / str(pid) / "stat"
    file.parent.mkdir(parents=True)
    fields = ["R", *["0"] * 10, str(user), str(system), *["0"] * 7, "1000", "256", "0"]
    file.write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def group(paths: Paths, hierarchy: str, below: str, *pids: int) -> None:
    folder = paths.at(hierarchy) / GROUP.lstrip("/") / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


@pytest.mark.parametrize(
    "hierarchy", ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"]
)
def test_all_of_a_group_and_below_it(tmp_path: Path, hierarchy: str) -> None:
    paths = Paths(tmp_path)
    group(paths, hierarchy, "", 10, 11)
    group(paths, hierarchy, "libpod-payload-1", 12)
    stat(paths, 10, "vllm", 150, 50)
    stat(paths, 12, "VLLM::Worker (x) y", 1000, 0)  # 11 is gone between the two looks
    assert processes(paths, GROUP) == (
        Process(10, "vllm", "R", 2.0, 256 * 4096),
        Process(12, "VLLM::Worker (x) y", "R", 10.0, 256 * 4096),
    )


def test_a_group_that_is_gone_has_none(tmp_path: Path) -> None:
    assert processes(Paths(tmp_path), GROUP) == ()
    assert oom_kills(Paths(tmp_path), GROUP) is None


def test_a_truncated_stat_is_a_process_that_is_gone(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    group(paths, "/sys/fs/cgroup", "", 10)
    (paths.proc / "10").mkdir(parents=True)
    (paths.proc / "10/stat").write_text("10 (vllm) R 1 2")
    assert processes(paths, GROUP) == ()


def test_out_of_memory_kills(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    group(paths, "/sys/fs/cgroup", "")
    events = paths.at("/sys/fs/cgroup") / GROUP.lstrip("/") / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(paths, GROUP) == 2
    events.write_text("low 0\n")
    assert oom_kills(paths, GROUP) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::{GROUP}\n", GROUP),
        (f"0::{GROUP}/.control\n", GROUP),
        (f"3:cpuset:/\n1:name=systemd:{GROUP}\n0::/x\n", GROUP),
        ("0::/user.slice/user-0.slice/session-1.scope\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_the_service_that_this_process_is_of(tmp_path: Path, text: str, found: str | None) -> None:
    paths = Paths(tmp_path)
    file = paths.proc / "self/cgroup"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert own_service(paths) == found


def test_the_group_of_another_process(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    file = paths.proc / "12/cgroup"
    file.parent.mkdir(parents=True)
    file.write_text("0::/system.slice/docker-0123.scope\n")
    assert group_of(paths, 12) == "/system.slice/docker-0123.scope"
    assert group_of(paths, 13) is None


def named(*names: str) -> list[Process]:
    return [Process(pid, name, "S", float(pid), 0) for pid, name in enumerate(names)]


def test_workers_are_told_by_name() -> None:
    found = workers_of(named("vllm", "VLLM::EngineCor", "VLLM::Worker", "VLLM::Worker_TP"))
    assert found == (Worker(2, 2.0), Worker(3, 3.0))
    # One process does both where there is one rank and no multiprocessing.
    assert workers_of(named("vllm", "VLLM::EngineCor")) == (Worker(1, 1.0),)
    assert workers_of(named("conmon")) is None
    assert workers_of([]) is None
