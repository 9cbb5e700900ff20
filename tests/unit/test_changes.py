"""What differs between what is installed and what is wanted, and what is ours at all."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from epyc_vllm_agent.changes.changes import ChangeSet, to_disable, to_enable
from epyc_vllm_agent.changes.installed import Installed, installed, names, stored_plan, stored_plans
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.names import UnitFile
from epyc_vllm_agent.units.render import render
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan

TOML = "/etc/epyc-vllm/endpoints.d/qwen3-8b.toml"
PLAN = "/var/lib/epyc-vllm/plans/qwen3-8b.json"
TARGET = "/etc/systemd/system/epyc-vllm-qwen3-8b.target"
FIRST = "/etc/systemd/system/epyc-vllm-qwen3-8b-s0.service"
SECOND = "/etc/systemd/system/epyc-vllm-qwen3-8b-s1.service"
NOTHING = Installed("qwen3-8b", None, None, ())


def planned(config: EndpointConfig | None = None) -> EndpointPlan:
    return plan(facts_of(HOSTS["genoa-2s-nps1"]), config)


def write(paths: Paths, files: Iterable[tuple[str, str | None]]) -> None:
    for name, text in files:
        path = paths.at(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or "")


def wanted(made: EndpointPlan, found: Installed, text: str = "model = 1\n") -> ChangeSet:
    return to_enable(made, text, render(made), found)


def enabled(paths: Paths, made: EndpointPlan) -> Installed:
    """`made` as it is installed once its changes are written."""
    write(paths, [(change.path, change.new) for change in wanted(made, NOTHING).files])
    return installed(paths, made.name)


def kinds(changes: ChangeSet) -> dict[str, str]:
    return {
        change.path: "new" if change.old is None else "gone" if change.new is None else "changed"
        for change in changes.files
    }


def test_a_new_endpoint() -> None:
    changes = wanted(planned(), NOTHING)
    assert kinds(changes) == dict.fromkeys((TOML, PLAN, TARGET, FIRST, SECOND), "new")
    assert changes.stop == ()
    assert changes.reload
    assert changes.target == "epyc-vllm-qwen3-8b.target"


def test_the_same_again_is_nothing(tmp_path: Path) -> None:
    made = planned()
    changes = wanted(made, enabled(Paths(tmp_path), made))
    assert (changes.files, changes.stop, changes.restart) == ((), (), ())
    assert not changes.reload


def test_a_change_of_one_instance_restarts_that_one(tmp_path: Path) -> None:
    made = planned()
    found = enabled(Paths(tmp_path), made)
    Paths(tmp_path).at(SECOND).write_text(Paths(tmp_path).at(SECOND).read_text() + "# edited\n")
    changes = wanted(made, installed(Paths(tmp_path), found.name))
    assert kinds(changes) == {SECOND: "changed"}
    assert changes.restart == ("epyc-vllm-qwen3-8b-s1.service",)


def test_a_comment_in_the_endpoints_file_restarts_nothing(tmp_path: Path) -> None:
    made = planned()
    changes = wanted(made, enabled(Paths(tmp_path), made), "# note\nmodel = 1\n")
    assert kinds(changes) == {TOML: "changed"}
    assert (changes.restart, changes.reload) == ((), False)


def test_a_socket_less(tmp_path: Path) -> None:
    found = enabled(Paths(tmp_path), planned())
    changes = wanted(planned(endpoint(sockets=[1])), found)
    assert kinds(changes)[FIRST] == "gone"
    assert changes.stop == ("epyc-vllm-qwen3-8b-s0.service",)
    assert SECOND in kinds(changes)  # its port stays, its share of the plan does not matter


def test_what_enable_brought_disable_takes(tmp_path: Path) -> None:
    changes = to_disable(enabled(Paths(tmp_path), planned()))
    assert kinds(changes) == dict.fromkeys((TOML, PLAN, TARGET, FIRST, SECOND), "gone")
    assert list(kinds(changes))[-1] == TOML  # what the admin wrote goes last
    assert changes.stop == (
        "epyc-vllm-qwen3-8b.target",
        "epyc-vllm-qwen3-8b-s0.service",
        "epyc-vllm-qwen3-8b-s1.service",
    )


def test_only_files_with_our_mark_are_ours(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    enabled(paths, planned())
    units = paths.units
    (units / "epyc-vllm-qwen3-8b-extra.service").write_text("qwen3-8b. Not written by us\n")
    (units / "epyc-vllm-other.service").write_bytes(b"# \xe9crit par nous\n")
    (units / "epyc-vllm-qwen3-8b-s0.service.d").mkdir()
    (units / "epyc-vllm-qwen3-8b-s0.service.d" / "o.conf").write_text("[Service]\n")
    (units / "epyc-vllm-link.service").symlink_to(units / "epyc-vllm-qwen3-8b-s0.service")
    (units / "copy.service").write_text((units / "epyc-vllm-qwen3-8b-s0.service").read_text())
    found = installed(paths, "qwen3-8b")
    assert {unit.path for unit in found.units} == {TARGET, FIRST, SECOND}
    assert names(paths) == ("qwen3-8b",)


def test_endpoints_whose_names_begin_alike(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for name in ("a", "a-s0", "a-s0-s0"):
        enabled(paths, planned(endpoint(name)))
    assert {unit.name for unit in installed(paths, "a-s0").units} == {
        "epyc-vllm-a-s0.target",
        "epyc-vllm-a-s0-s0.service",
        "epyc-vllm-a-s0-s1.service",
    }
    assert names(paths) == ("a", "a-s0", "a-s0-s0")


@pytest.mark.parametrize("left", [TOML, PLAN, TARGET, FIRST])
def test_a_remnant_is_an_endpoint_still(tmp_path: Path, left: str) -> None:
    paths = Paths(tmp_path)
    enabled(paths, planned())
    for name in {TOML, PLAN, TARGET, FIRST, SECOND} - {left}:
        paths.at(name).unlink()
    found = installed(paths, "qwen3-8b")
    assert found.exists
    assert names(paths) == ("qwen3-8b",)
    assert list(kinds(to_disable(found))) == [left]


@pytest.mark.parametrize("name", [TOML, PLAN])
def test_an_empty_file_is_there(tmp_path: Path, name: str) -> None:
    write(Paths(tmp_path), [(name, "")])
    assert installed(Paths(tmp_path), "qwen3-8b").exists


def test_nothing_at_all(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert not installed(paths, "a").exists
    assert names(paths) == ()
    assert stored_plans(paths) == ()
    assert stored_plan(paths, "a") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": 3}', "\ud800"])
def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    paths = Paths(tmp_path)
    paths.plans.mkdir(parents=True)
    (paths.plans / "a.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ActionFailed, match=r"a\.json"):
        stored_plan(paths, "a")
    with pytest.raises(ActionFailed):
        stored_plans(paths)
    assert stored_plans(paths, but=["a"]) == ()


def test_a_stored_plan_is_the_plan(tmp_path: Path) -> None:
    made = planned(endpoint(env={"A": "ü"}, sockets="auto"))
    enabled(Paths(tmp_path), made)
    assert stored_plan(Paths(tmp_path), made.name) == made


def test_the_name_of_a_unit_file() -> None:
    assert UnitFile(TARGET, "").name == "epyc-vllm-qwen3-8b.target"
