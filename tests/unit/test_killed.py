"""kill -9 before any effect of `apply` and `enable`: the next run ends as an undisturbed one."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.apply import begun
from epyc_vllm_agent.apply.bring_up import bring_up
from epyc_vllm_agent.config.request import wanted
from epyc_vllm_agent.units.names import UnitFile
from epyc_vllm_agent.units.render import render
from epyc_vllm_agent.watch.drift import behind
from tests.applying import Host, host, telling
from tests.hosts import HOSTS, facts_of
from tests.killing import Counter, StoredSystemd, in_child, put_back, save
from tests.plans import plan

pytestmark = pytest.mark.forks

LEAST = 12  # points that each verb must have


@dataclass(frozen=True, slots=True)
class End:
    """All that a run leaves: files, what runs and with which text, what is started at boot."""

    files: dict[str, str]
    active: set[str]
    enabled: set[str]
    stale: set[str]  # runs with another unit than there is, or systemd knows an older text


def end_of(box: Host, file: Path) -> End:
    systemd = StoredSystemd(box.paths, file, Counter(None))
    active = systemd.fake.active()
    stale = {unit for unit in active if systemd.state(unit).needs_reload}
    for unit in active:
        path = box.paths.units / unit
        if path.is_file() and behind(box.paths, UnitFile(str(path), path.read_text()), systemd):
            stale.add(unit)
    return End(box.files(), active, set(systemd.fake.enabled), stale)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root would ask `test` as vLLM's user
    import httpx  # noqa: F401 - once here, and not in every child

    small = replace(HOSTS["genoa-2s-nps1"], cores_per_socket=6, threads=1)  # read many times
    render(plan(facts_of(small)))  # compiles the templates, likewise
    return host(tmp_path / "root", small)


def enable(box: Host, systemd: StoredSystemd, **flags: object) -> None:
    survey = pipeline.survey(box.paths)
    keys = {"environment": box.venv, "kv_gib": 1, "sockets": [0], "port": 64999, **flags}
    asked = wanted(box.paths, survey.config, box.model, "a", keys)
    resolved = pipeline.resolve(survey, asked.config)
    bring_up(box.paths, asked, resolved, systemd, telling("", ""), lambda _state: None)


def changed_host(box: Host, systemd: StoredSystemd) -> None:
    """Something of each kind for `apply` to do."""
    for name in ("changed", "edited", "gone"):
        box.write(name, sockets=[0], cores=2)
    box.apply(systemd)
    box.write("changed", sockets=[0, 1], cores=3, on_change="restart")
    box.write("new", sockets=[1], cores=2)
    box.unit("edited-s0.service").write_text("# Written by epyc-vllm for the endpoint edited.\n")
    box.remove("gone")


def nothing(_box: Host, _systemd: StoredSystemd) -> None:
    """A host without endpoints."""


CASES: dict[
    str, tuple[Callable[[Host, StoredSystemd], None], Callable[[Host, StoredSystemd], object]]
]
CASES = {
    "apply": (changed_host, lambda box, systemd: box.apply(systemd)),
    "first enable": (nothing, enable),
    "changing enable": (enable, lambda box, systemd: enable(box, systemd, max_model_len=2048)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_next_run_ends_as_an_undisturbed_one(box: Host, tmp_path: Path, case: str) -> None:
    prepare, run = CASES[case]
    file, kept, copy = tmp_path / "systemd", tmp_path / "kept", tmp_path / "copy"
    root = box.paths.root

    def in_own_process(kill_at: int | None = None) -> int | None:
        return in_child(box.paths, file, lambda systemd: run(box, systemd), kill_at)

    in_child(box.paths, file, lambda systemd: prepare(box, systemd))
    save(root, copy)
    if file.exists():
        shutil.copy(file, kept)
    effects = in_own_process()
    undisturbed = end_of(box, file)
    assert undisturbed.active
    assert not undisturbed.stale
    assert effects is not None
    assert effects >= LEAST
    for point in range(1, effects + 1, max(effects // 24, 1)):
        put_back(root, copy)
        file.unlink(missing_ok=True)
        if kept.exists():
            shutil.copy(kept, file)
        assert in_own_process(kill_at=point) is None
        assert in_own_process() is not None
        end = end_of(box, file)
        differ = end.files.items() ^ undisturbed.files.items()
        assert not differ, f"killed before effect {point} of {effects}"
        assert end == undisturbed, f"killed before effect {point} of {effects}"
        assert not begun.read(box.paths)
