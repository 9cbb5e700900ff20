"""Quadlets for each podman from 4.4 to 5.8: whole files, their keys, how values are carried."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epyc_vllm_agent import cpulist
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units import container, quadlet
from epyc_vllm_agent.units.names import MARK, QUADLETS, unit_of
from epyc_vllm_agent.units.render import arguments, command, render
from tests import golden
from tests.hosts import HOSTS, facts_of
from tests.plans import ZEN, endpoint, plan
from tests.quadlets import (
    HOSTS_BY_NAME,
    STOCK_IMAGE,
    VERSIONS,
    ZENTORCH_IMAGE,
    launch,
    milan,
    quadlets,
)
from tests.unitsyntax import split, words


def values(text: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.split("\n") if line.startswith(f"{key}=")]


def section(text: str, name: str) -> list[str]:
    """The lines of a section, without comments."""
    after = text.split(f"[{name}]\n", 1)[1].split("\n[", 1)[0]
    return [line for line in after.splitlines() if line and not line.startswith("#")]


def podman_arguments(text: str) -> list[str]:
    return [word for value in values(text, "PodmanArgs") for word in words(value)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", HOSTS_BY_NAME)
def test_the_whole_set(host: str, version: str) -> None:
    made = HOSTS_BY_NAME[host](version)
    assert not made.refusals
    golden.require_same(f"quadlet/{host}-podman-{version}", render(made))


def test_no_set_is_left_over() -> None:
    wanted = {f"{host}-podman-{version}" for host in HOSTS_BY_NAME for version in VERSIONS}
    assert {path.name for path in (golden.FOLDER / "quadlet").iterdir()} == wanted


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", HOSTS_BY_NAME)
def test_only_keys_that_this_podman_knows(host: str, version: str) -> None:
    first = quadlet.keys().first
    for unit in quadlets(HOSTS_BY_NAME[host](version)):
        used = {line.partition("=")[0] for line in section(unit.text, "Container")}
        if "[Quadlet]" in unit.text:
            used |= {line.partition("=")[0] for line in section(unit.text, "Quadlet")}
        assert {key for key in used if quadlet.numbers(first[key]) > quadlet.numbers(version)} == (
            set()
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_is_said_to_every_podman(version: str) -> None:
    """A key, or the argument that it stands for: podman is run with the same in the end."""
    made = milan(version)
    (unit,) = quadlets(made)
    wanted = {option.argument for option in container.options(made, made.instances[0])}
    said = set(podman_arguments(unit.text))
    for option in container.options(made, made.instances[0]):
        if option.key and option.value in [
            x for v in values(unit.text, option.key) for x in (v, *words(v))
        ]:
            said.add(option.argument)
    assert said == wanted


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", HOSTS_BY_NAME)
def test_what_every_quadlet_holds(host: str, version: str) -> None:
    made = HOSTS_BY_NAME[host](version)
    for unit, instance in zip(quadlets(made), made.instances, strict=True):
        assert unit.text.startswith(MARK)
        assert unit.path == str(QUADLETS / f"epyc-vllm-{instance.name}.container")
        assert unit.service == f"epyc-vllm-{instance.name}.service"
        assert values(unit.text, "Network") == ["host"]
        assert values(unit.text, "Image") == [container.of(made).pinned]
        said = podman_arguments(unit.text)
        assert "--ipc=host" in said
        assert not [word for word in said if word.startswith("--shm-size")]
        assert f"--cpuset-cpus={cpulist.format(instance.cpus)}" in said
        assert f"--cpuset-mems={cpulist.format(instance.nodes)}" in said
        assert "HF_TOKEN" not in unit.text
        assert values(unit.text, "WantedBy") == [f"epyc-vllm-{made.name}.target"]
        assert values(unit.text, "KillMode") == ["mixed"]
        assert not values(unit.text, "Type")  # quadlet's own: notify
        pairs = dict(words(value)[0].split("=", 1) for value in values(unit.text, "Environment"))
        assert pairs["VLLM_CPU_OMP_THREADS_BIND"] == instance.threads_bind
        assert pairs["VLLM_CPU_KVCACHE_SPACE"] == str(instance.kv_gib_per_rank)
        (cache,) = [v for v in values(unit.text, "Volume") if v.endswith(":/var/cache/epyc-vllm")]
        assert made.cache_key in cache
        hub = "/var/lib/epyc-vllm/models:/root/.cache/huggingface:ro"
        assert hub in values(unit.text, "Volume")


def test_a_missing_controller_leaves_the_cpuset_out() -> None:
    made = plan(facts_of(HOSTS["genoa-1s"]), launch=launch("5.4.2", ZENTORCH_IMAGE, cpuset=False))
    assert "--cpuset" not in quadlets(made)[0].text
    assert any("cpuset controller is not there" in warning for warning in made.warnings)


def test_an_entrypoint_that_serves_gets_arguments_only() -> None:
    served = plan(facts_of(HOSTS["genoa-1s"]), launch=launch("5.4.2", STOCK_IMAGE, serves=True))
    (value,) = values(quadlets(served)[0].text, "Exec")
    assert words(value)[0] == container.served_path(served)
    other = plan(facts_of(HOSTS["genoa-1s"]), launch=launch("5.4.2", ZENTORCH_IMAGE))
    (value,) = values(quadlets(other)[0].text, "Exec")
    assert words(value)[:2] == ["vllm", "serve"]


def test_a_directory_is_mounted_by_itself() -> None:
    made = plan(
        facts_of(HOSTS["genoa-1s"]),
        endpoint(model="/srv/models/mine"),
        launch=launch("5.4.2", ZENTORCH_IMAGE),
        model_path="/srv/models/mine",
    )
    assert "/srv/models/mine:/srv/model:ro" in container.volumes(made, made.instances[0])
    assert arguments(made, made.instances[0])[0] == "/srv/model"


@pytest.mark.parametrize(
    ("config", "path", "code"),
    [
        ({"vllm_args": ["--x", ";"]}, "/srv/m", "argument-not-carried"),
        ({}, "/srv/a:b", "path-not-mountable"),
        ({"chat_template": "/srv/a:b.jinja"}, "/srv/m", "path-not-mountable"),
    ],
)
def test_what_no_quadlet_can_carry_is_refused(config: dict[str, Any], path: str, code: str) -> None:
    made = plan(
        facts_of(HOSTS["genoa-1s"]),
        endpoint(model=path, **config),
        launch=launch("5.4.2", ZENTORCH_IMAGE),
        model_path=path,
    )
    assert [refusal.code for refusal in made.refusals] == [code]


TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40).filter(
    lambda text: text != ";"
)


@given(word=TEXTS, value=TEXTS)
def test_every_word_arrives_as_it_was_meant(word: str, value: str) -> None:
    """Two readings: the generator's, and systemd's of "$" and "%" in the service it makes."""
    assume(not word.startswith("-"))  # it may be an option that the plan sets, which is refused
    config = endpoint(vllm_args=["--odd", word], env={"ODD": value})
    made = plan(facts_of(HOSTS["genoa-1s"]), config, launch=launch("5.4.2", ZENTORCH_IMAGE))
    (unit,) = quadlets(made)
    (line,) = values(unit.text, "Exec")
    assert twice(line)[-2:] == ["--odd", word]
    pairs = [twice(text)[0] for text in values(unit.text, "Environment")]
    assert f"ODD={value}" in pairs


def twice(text: str) -> list[str]:
    """What reaches the server: unquoted by the generator, which quotes it anew for systemd."""
    return [_variables(word.replace("%%", "%")) for word in split(text)]


def _variables(word: str) -> str:
    assert "$" not in word.replace("$$", ""), word
    return word.replace("$$", "$")


@given(path=TEXTS)
def test_every_path_is_mounted_as_it_is(path: str) -> None:
    path = f"/srv/{path}"
    config = endpoint(model="/srv/m")
    made = plan(
        facts_of(HOSTS["genoa-1s"]),
        config,
        launch=launch("5.4.2", ZENTORCH_IMAGE),
        model_path=path,
    )
    if ":" in path:
        assert made.refusals
        return
    (unit,) = quadlets(made)
    volume = f"{container.volumes(made, made.instances[0])[0]}"
    said = [twice(value)[0] for value in values(unit.text, "PodmanArgs")]
    assert volume in values(unit.text, "Volume") or f"--volume={volume}" in said


class TestPlainService:
    @staticmethod
    def made(program: str, **keys: Any) -> EndpointPlan:
        base = launch("4.3.1", ZENTORCH_IMAGE)
        assert base.container is not None
        plain = replace(base.container, program=program, generator=None)
        config = endpoint(sockets=[0], **keys)
        return plan(facts_of(HOSTS["genoa-2s-nps1"]), config, launch=replace(base, container=plain))

    @pytest.mark.parametrize("program", ["/usr/bin/docker", "/usr/bin/podman"])
    def test_it_has_the_quadlets_options(self, program: str) -> None:
        made = self.made(program)
        (instance,) = made.instances
        run = list(command(made, instance))
        assert run[:3] == [program, "run", "--rm"]
        assert {option.argument for option in container.options(made, instance)} <= set(run)
        at = run.index(container.image(made))
        assert run[at + 1 : at + 3] == ["vllm", "serve"]

    @pytest.mark.parametrize("program", ["/usr/bin/docker", "/usr/bin/podman"])
    def test_the_unit(self, program: str) -> None:
        made = self.made(program, vllm_args=["--seed", "$x %n"])
        unit = render(made)[1]
        (line,) = values(unit.text, "ExecStart")
        assert line.startswith(":")
        assert tuple(words(line[1:])) == command(made, made.instances[0])
        stops = values(unit.text, "ExecStop")
        assert stops[1] == f"-:{program} stop epyc-vllm-qwen3-8b-s0"
        assert ("Requires=docker.service" in unit.text) == program.endswith("docker")
        assert unit_of(unit.path) == "epyc-vllm-qwen3-8b-s0.service"


def test_the_cache_is_another_for_another_stack_or_image() -> None:
    facts = facts_of(HOSTS["genoa-1s"])
    one = plan(facts, launch=launch("5.4.2", ZENTORCH_IMAGE))
    newer = plan(facts, launch=launch("5.4.2", ZENTORCH_IMAGE), stack=replace(ZEN, zentorch="9.9"))
    assert one.launch.container is not None
    rebuilt = replace(one.launch.container, pinned="docker.io/x@sha256:" + "7b" * 32)
    other = plan(facts, launch=replace(one.launch, container=rebuilt))
    assert len({one.cache_key, newer.cache_key, other.cache_key}) == 3
