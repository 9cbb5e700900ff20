"""`disable`: what enable made goes, and nothing else, whatever name is given."""

from pathlib import Path

import pytest

from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.apply.take_down import take_down, withdraw
from epyc_vllm_agent.changes.changes import to_enable
from epyc_vllm_agent.changes.installed import installed
from epyc_vllm_agent.errors import ConfigError, Locked
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.units.names import ALL_TARGET, WATCHDOG, service_name
from epyc_vllm_agent.units.render import render
from tests.fakes import FakeSystemd
from tests.hosts import HOSTS, facts_of
from tests.plans import endpoint, plan

NAME = "qwen3-8b"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


@pytest.fixture
def systemd(paths: Paths) -> FakeSystemd:
    return FakeSystemd(paths)


def weights(paths: Paths) -> Path:
    return paths.models / "models--Qwen--Qwen3-8B"


def enable(paths: Paths, systemd: FakeSystemd, name: str = NAME, path: Path | None = None) -> None:
    """An endpoint with weights, a compile cache and a mark."""
    snapshot = path or weights(paths) / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot / "config.json").write_text("{}")
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint(name, cores=1), model_path=str(snapshot))
    changes = to_enable(made, "model = 1\n", render(made), installed(paths, name))
    converge.enable(paths, changes, [service_name(i.name) for i in made.instances], systemd)
    (paths.cache / f"{name}-s0" / "torch").mkdir(parents=True)
    (paths.run / f"{name}-s0.json").parent.mkdir(parents=True, exist_ok=True)
    (paths.run / f"{name}-s0.json").write_text("{}")


def left(paths: Paths) -> set[str]:
    return {
        str(path.relative_to(paths.root))
        for path in paths.root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


CONFIG = "var/lib/epyc-vllm/models/models--Qwen--Qwen3-8B/snapshots/c0ffee/config.json"


def test_all_but_the_weights(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    done = take_down(paths, NAME, systemd, purge=False)
    assert left(paths) == {CONFIG}
    assert not (paths.cache / f"{NAME}-s0").exists()
    assert done.kept_weights == str(weights(paths))
    assert f"/etc/epyc-vllm/endpoints.d/{NAME}.toml" in done.removed
    assert systemd.active() == set()


def test_the_weights_too(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    done = take_down(paths, NAME, systemd, purge=True)
    assert left(paths) == set()
    assert (done.kept_weights, done.removed[-1]) == (None, str(weights(paths)))


def test_weights_that_another_endpoint_uses_stay(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd, "other")
    enable(paths, systemd)
    done = take_down(paths, NAME, systemd, purge=True)
    assert done.kept_weights is None
    assert weights(paths).is_dir()
    take_down(paths, "other", systemd, purge=True)
    assert not weights(paths).exists()


def test_weights_that_an_unreadable_plan_may_use_stay(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    (paths.plans / "broken.json").write_text("{")
    take_down(paths, NAME, systemd, purge=True)
    assert weights(paths).is_dir()
    assert left(paths) == {CONFIG, "var/lib/epyc-vllm/plans/broken.json"}


def test_a_directory_of_the_users_is_never_deleted(
    paths: Paths, systemd: FakeSystemd, tmp_path: Path
) -> None:
    own = tmp_path / "srv/model"
    enable(paths, systemd, path=own)
    done = take_down(paths, NAME, systemd, purge=True)
    assert done.kept_weights is None
    assert (own / "config.json").is_file()


@pytest.mark.parametrize("text", ["{", "{}"])
def test_an_endpoint_whose_plan_cannot_be_read(
    paths: Paths, systemd: FakeSystemd, text: str
) -> None:
    enable(paths, systemd)
    (paths.plans / f"{NAME}.json").write_text(text)
    take_down(paths, NAME, systemd, purge=True)
    assert left(paths) == {CONFIG}


def test_a_name_that_nothing_has(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    with pytest.raises(ConfigError) as caught:
        take_down(paths, "absent", systemd, purge=True)
    assert caught.value.hint == f"endpoints here: {NAME}"
    with pytest.raises(ConfigError):
        take_down(paths, "absent", systemd, purge=True)


@pytest.mark.parametrize("name", ["../epyc-vllm", "../../other", "", ".", "/etc/other", "x" * 300])
def test_a_name_that_is_a_path_removes_nothing(
    paths: Paths, systemd: FakeSystemd, name: str
) -> None:
    paths.endpoints.mkdir(parents=True)
    paths.config_file.write_text('user = "vllm"\n')
    (paths.root / "etc/other.toml").write_text("x = 1\n")
    before = left(paths)
    with pytest.raises(ConfigError, match="must be lower-case letters"):
        take_down(paths, name, systemd, purge=True)
    assert left(paths) == before


def test_a_file_that_was_never_brought_up(paths: Paths, systemd: FakeSystemd) -> None:
    paths.endpoints.mkdir(parents=True)
    (paths.endpoints / "a.toml").write_text("")
    assert take_down(paths, "a", systemd, purge=False).removed == (
        "/etc/epyc-vllm/endpoints.d/a.toml",
    )


def test_not_while_another_run_works(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    before = left(paths)
    with locked(paths), pytest.raises(Locked):
        take_down(paths, NAME, systemd, purge=False)
    assert left(paths) == before


def test_withdrawn_are_units_and_nothing_else(paths: Paths, systemd: FakeSystemd) -> None:
    for unit in (ALL_TARGET, WATCHDOG):
        paths.units.mkdir(parents=True, exist_ok=True)
        (paths.units / unit).write_text("[Install]\nWantedBy=multi-user.target\n")
    enable(paths, systemd)
    systemd.start(ALL_TARGET)
    (paths.plans / "broken.json").write_text("{")
    foreign = paths.units / "epyc-vllm-foreign.service"
    foreign.write_text("# Somebody's own\n")
    converge.stand_by(systemd)
    before = left(paths)
    removed = withdraw(paths, systemd)
    assert {path.rpartition("/")[2] for path in removed} == {
        f"epyc-vllm-{NAME}-s0.service",
        f"epyc-vllm-{NAME}.target",
    }
    assert left(paths) == before - {path.lstrip("/") for path in removed}
    assert systemd.active() == {WATCHDOG}  # the package's own, which its script stops
    assert systemd.enabled == set()
    assert withdraw(paths, systemd) == ()


def test_nothing_is_withdrawn_while_another_run_works(paths: Paths, systemd: FakeSystemd) -> None:
    enable(paths, systemd)
    before = left(paths)
    with locked(paths), pytest.raises(Locked):
        withdraw(paths, systemd)
    assert left(paths) == before


class TestStandBy:
    def test_it_enables_what_is_off_and_starts_the_watchdog(
        self, paths: Paths, systemd: FakeSystemd
    ) -> None:
        paths.units.mkdir(parents=True)
        for unit in (ALL_TARGET, WATCHDOG):
            (paths.units / unit).write_text("")
        converge.stand_by(systemd)
        made = systemd.made("enable", "start")
        assert made == [("enable", ALL_TARGET), ("enable", WATCHDOG), ("start", WATCHDOG)]
        converge.stand_by(systemd)
        assert systemd.made("enable", "start") == made

    def test_units_that_are_not_installed_are_no_failure(self, systemd: FakeSystemd) -> None:
        converge.stand_by(systemd)
        assert systemd.made("enable", "start") == []
