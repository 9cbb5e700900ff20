"""Which stack an endpoint stays on, what it could move to, and the way back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent.apply import converge
from epyc_vllm_agent.changes.changes import to_enable
from epyc_vllm_agent.changes.installed import encode_plan, installed
from epyc_vllm_agent.doctor import look
from epyc_vllm_agent.doctor.diagnose import diagnose
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import survey
from epyc_vllm_agent.plan.upgrade import available, kept_image, may_move
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Launch
from epyc_vllm_agent.units.names import service_name
from epyc_vllm_agent.units.render import render
from tests.fakes import FakeSystemd
from tests.hosts import HOSTS, build, facts_of
from tests.plans import LAUNCH, RECIPE, ZEN, endpoint, plan

OLD = "docker.io/org/vllm:1"
PINNED = RECIPE.images.zentorch.image
NEWER = replace(RECIPE, environment=replace(RECIPE.environment, vllm_version="0.33.1+cpu"))
GENOA = facts_of(HOSTS["genoa-1s"])


def contained(image: str = OLD, named: bool = False) -> EndpointPlan:
    """An endpoint that was planned with `image`, which its file has `named` or not."""
    keys = {"image": image} if named else {}
    digest = f"{image.partition(':')[0]}@sha256:{'0a' * 32}"
    container = Container("/usr/bin/podman", "5.4.2", "/quadlet", image, digest, False, True)
    launch = Launch(None, None, None, (), "root", "/usr/bin/epyc-vllm", container)
    return plan(GENOA, endpoint("a", **keys), launch=launch)


class TestAvailable:
    def test_an_image_that_is_no_longer_the_pinned_one(self) -> None:
        assert available(contained(), RECIPE) == PINNED
        assert available(contained(PINNED), RECIPE) is None

    def test_not_where_the_administrator_chose_it(self) -> None:
        assert available(contained(named=True), RECIPE) is None

    @pytest.mark.parametrize(
        ("vllm", "expected"),
        [("0.32.0+cpu", "0.33.1+cpu"), ("0.33.1", None), ("0.34.0", None), ("0.33", "0.33.1+cpu")],
    )
    def test_an_environment_that_is_older(self, vllm: str, expected: str | None) -> None:
        made = plan(GENOA, endpoint("a"), stack=replace(ZEN, vllm=vllm))
        assert available(made, NEWER) == expected


class TestKept:
    def test_the_plans_image_stays(self) -> None:
        assert kept_image(contained(), "zentorch") == OLD

    @pytest.mark.parametrize(
        ("previous", "stack"),
        [
            (None, "zentorch"),
            (plan(GENOA, endpoint("a")), "zentorch"),  # of the host runtime
            (contained(named=True), "zentorch"),  # its file says no longer so
            (contained(), "stock"),  # the CPU is another one
        ],
    )
    def test_nothing_is_kept(self, previous: EndpointPlan | None, stack: str) -> None:
        assert kept_image(previous, stack) is None


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (PINNED, False),  # the recipe tells its versions
        (RECIPE.images.stock.image, True),  # "latest"
        (OLD, True),
        (f"docker.io/org/vllm@sha256:{'0a' * 32}", False),
    ],
)
def test_a_tag_may_stand_for_another_image(image: str, expected: bool) -> None:
    assert may_move(image, RECIPE) is expected


class TestWayBack:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> Paths:
        return Paths(tmp_path)

    @pytest.fixture
    def systemd(self, paths: Paths) -> FakeSystemd:
        return FakeSystemd(paths)

    def converge(
        self, paths: Paths, systemd: FakeSystemd, made: EndpointPlan, fault: str | None = None
    ) -> converge.Converged:
        def prove() -> None:
            if fault:
                raise ActionFailed("verify-failed", fault, None)

        changes = to_enable(made, "model = 1\n", render(made), installed(paths, made.name))
        services = [service_name(instance.name) for instance in made.instances]
        changes = replace(changes, restart=tuple(services))
        return converge.enable(paths, changes, services, systemd, prove=prove)

    def test_what_does_not_verify_brings_the_old_one_back(
        self, paths: Paths, systemd: FakeSystemd
    ) -> None:
        old = plan(GENOA, endpoint("a"), launch=LAUNCH)
        new = plan(GENOA, endpoint("a"), launch=replace(LAUNCH, environment="/opt/vllm-new"))
        self.converge(paths, systemd, old)
        before = installed(paths, "a")
        with pytest.raises(ActionFailed, match="no answer") as caught:
            self.converge(paths, systemd, new, "no answer")
        assert caught.value.outcome == (
            "the earlier files are back, and the endpoint runs as before"
        )
        assert installed(paths, "a") == before
        (service,) = (service_name(instance.name) for instance in old.instances)
        assert service in systemd.active()
        assert systemd.made("start", "stop")[-1] == ("start", "epyc-vllm-a.target")

    def test_what_verifies_stays(self, paths: Paths, systemd: FakeSystemd) -> None:
        old = plan(GENOA, endpoint("a"), launch=LAUNCH)
        new = plan(GENOA, endpoint("a"), launch=replace(LAUNCH, environment="/opt/vllm-new"))
        self.converge(paths, systemd, old)
        done = self.converge(paths, systemd, new)
        assert done.started == (service_name("a-s0"),)
        assert installed(paths, "a").plan_file == encode_plan(new)


def test_doctor_tells_of_it(tmp_path: Path) -> None:
    paths = build(HOSTS["genoa-1s"], tmp_path)
    paths.plans.mkdir(parents=True)
    for made in (contained(), replace(contained(PINNED), name="b")):
        (paths.plans / f"{made.name}.json").write_text(encode_plan(made))
    (paths.plans / "broken.json").write_text(json.dumps({}))
    seen = look.look(survey(paths), (), None, None)
    found = [item for item in diagnose(seen).findings if item.code == "stack-outdated"]
    assert [item.fix for item in found] == ["epyc-vllm upgrade a"]
    assert OLD in found[0].seen
    assert PINNED in found[0].seen
