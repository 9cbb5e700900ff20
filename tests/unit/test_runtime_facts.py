"""What is read of runtimes and placement without asking a runtime: names, controllers, /proc."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from epyc_vllm_agent.config import checks
from epyc_vllm_agent.doors import cgroups, command, containers, docker
from epyc_vllm_agent.doors.command import Finished
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.watch import placement
from epyc_vllm_agent.watch.placement import Seen
from tests.hosts import HOSTS, facts_of
from tests.plans import RECIPE, endpoint, plan
from tests.quadlets import STOCK_IMAGE, launch

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "name",
    [
        RECIPE.images.zentorch.image,
        RECIPE.images.stock.image,
        "localhost/mine",
        "localhost:5000/a/b:1",
        "registry.example.org:5000/a/b/c__d:V1.2-x@" + DIGEST,
        f"docker.io/a/b@{DIGEST}",
    ],
)
def test_full_image_names_are_taken(name: str) -> None:
    assert checks.image(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("vllm", "vllm/vllm-openai-cpu:latest", "docker.io/", "docker.io/A/b", "docker.io/a b"),
        *("docker.io/a/b:", "docker.io/a/b@sha256:12", "--rm", "docker.io/a/b:1\n", "$x/a", ""),
    ],
)
def test_short_or_odd_image_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        checks.image(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docker.io/a/b:1", "docker.io/a/b"),
        ("localhost:5000/a", "localhost:5000/a"),
        ("localhost:5000/a:1", "localhost:5000/a"),
        (f"docker.io/a/b:1@{DIGEST}", "docker.io/a/b"),
    ],
)
def test_the_name_without_tag_and_digest(name: str, expected: str) -> None:
    assert containers.repository(name) == expected


@pytest.mark.parametrize(
    ("controllers", "mounts", "expected"),
    [
        ("cpuset cpu io memory", "", True),
        ("cpu io memory", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", False),
        ("", "cpuset /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0", True),
        (None, "tmpfs /run tmpfs rw,cpuset 0 0", False),
    ],
)
def test_where_the_cpuset_controller_is(
    tmp_path: Path, controllers: str | None, mounts: str, expected: bool
) -> None:
    paths = Paths(tmp_path)
    for path, text in (("/sys/fs/cgroup/cgroup.controllers", controllers),
                       ("/proc/self/mounts", mounts)):  # fmt: skip
        if text is not None:
            paths.at(path).parent.mkdir(parents=True)
            paths.at(path).write_text(text + "\n")
    assert cgroups.has_cpuset(paths) is expected


def test_what_this_very_process_may_use_is_read_back() -> None:
    seen = placement.look([os.getpid()])
    assert seen is not None
    assert set(seen.cpus) == os.sched_getaffinity(0)
    assert placement.look([]) is None


@pytest.mark.parametrize(
    ("seen", "on_host", "in_container"),
    [
        (Seen((0, 1), (0,)), False, False),
        (Seen((0, 1, 16), (0,)), True, True),
        (Seen((0,), (0, 1)), False, True),  # numactl's policy shows in no list
    ],
)
def test_a_difference_is_told(seen: Seen, on_host: bool, in_container: bool) -> None:
    facts, config = facts_of(HOSTS["genoa-2s-nps1"]), endpoint(sockets=[0], cores=4)
    made = plan(facts, config)
    contained = plan(facts, config, launch=launch("5.4.2", STOCK_IMAGE))
    for value, expected in ((made, on_host), (contained, in_container)):
        found = placement.compare(value, value.instances[0], seen)
        assert (found is not None) == expected
        if found:
            assert "is not where the plan has it" in found


@pytest.mark.parametrize(
    ("said", "status", "version", "fault"),
    [
        ('26.1.5 ["name=seccomp,profile=builtin","name=cgroupns"]', 0, "26.1.5", None),
        ('26.1.5 ["name=seccomp","name=rootless"]', 0, "26.1.5", "is rootless"),
        (" null", 0, None, "docker's daemon does not answer"),
        ("permission denied while connecting", 1, None, "run this as root"),
    ],
)
def test_what_docker_says_of_itself(
    monkeypatch: pytest.MonkeyPatch, said: str, status: int, version: str | None, fault: str | None
) -> None:
    def run(words: Sequence[str], **_: object) -> Finished:
        return (
            Finished(status, said, "")
            if words[1] == "info"
            else Finished(0, "Docker version 26", "")
        )

    monkeypatch.setattr(docker, "tool", lambda _name: "/usr/bin/docker")
    monkeypatch.setattr(command, "run", run)
    engine = docker.look()
    assert engine
    assert engine.version == version
    assert (fault is None) == (engine.fault is None)
    if fault:
        assert fault in (engine.fault or "")
        assert engine.fix
