"""Which runtime an endpoint gets: every combination of what is there and what was asked."""

from dataclasses import replace
from itertools import product

import pytest

from epyc_vllm_agent.plan.runtime import Choice, Engine, Runtimes, choose
from epyc_vllm_agent.plan.throughput import switches
from epyc_vllm_agent.plan.values import Container, Launch, Refusal
from tests.hosts import HOSTS, facts_of
from tests.plans import RECIPE, STOCK, ZEN, endpoint, plan

QUADLET = Engine("/usr/bin/podman", "5.4.2", "/usr/lib/systemd/system-generators/podman")
OLD_PODMAN = Engine("/usr/bin/podman", "4.3.1")
DOCKER = Engine("/usr/bin/docker", "26.1.5")
SILENT = Engine(
    "/usr/bin/docker", None, fault="docker's daemon does not answer: x", fix="start it once"
)
IMAGE = "docker.io/org/vllm:1"


def runtime(
    podman: Engine | None = None,
    docker: Engine | None = None,
    made: bool = False,
    images: tuple[str, ...] = (),
    **keys: str,
) -> str | None:
    """The runtime chosen; None where it is refused. `made`: /opt/vllm is there."""
    there = Runtimes(podman, docker, made, frozenset(images))
    found = choose(endpoint(**keys), there, None)
    return found.runtime if isinstance(found, Choice) else None


@pytest.mark.parametrize(
    ("podman", "docker", "environment", "images", "expected"),
    [
        (QUADLET, DOCKER, False, (), "podman"),
        (QUADLET, None, False, (), "podman"),
        (None, DOCKER, False, (), "docker"),
        (OLD_PODMAN, DOCKER, False, (), "docker"),
        (OLD_PODMAN, SILENT, False, (), "podman"),
        (OLD_PODMAN, None, True, ("podman",), "host"),
        (QUADLET, SILENT, False, (), "podman"),
        (None, SILENT, True, (), "host"),
        (None, None, True, (), "host"),
        # somebody made that environment, and an image would have to be fetched
        (QUADLET, DOCKER, True, (), "host"),
        (QUADLET, DOCKER, True, ("podman",), "podman"),
        (QUADLET, DOCKER, True, ("docker",), "podman"),
        (None, None, False, (), None),
        (None, SILENT, False, (), None),
    ],
)
def test_auto(
    podman: Engine | None,
    docker: Engine | None,
    environment: bool,
    images: tuple[str, ...],
    expected: str | None,
) -> None:
    assert runtime(podman, docker, environment, images) == expected


def test_an_environment_that_is_named_means_the_host() -> None:
    for podman, docker in product((QUADLET, None), (DOCKER, SILENT, None)):
        assert runtime(podman, docker, True, ("podman",), environment="/opt/mine") == "host"


def test_an_image_that_is_named_means_a_container() -> None:
    assert runtime(QUADLET, None, True, image=IMAGE) == "podman"
    assert runtime(None, DOCKER, True, image=IMAGE) == "docker"
    assert runtime(None, None, True, image=IMAGE) is None


@pytest.mark.parametrize("name", ["podman", "docker", "host"])
def test_an_explicit_choice_is_taken_or_refused_but_never_replaced(name: str) -> None:
    engines = ((QUADLET, OLD_PODMAN, None), (DOCKER, SILENT, None), (True, False))
    for podman, docker, environment in product(*engines):
        found = runtime(podman, docker, environment, runtime=name)
        there = {"podman": podman, "docker": docker if docker is not SILENT else None, "host": True}
        assert found == (name if there[name] else None)


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        (Runtimes(None, None, False), "docker", ("docker is not installed", "docker.io")),
        (Runtimes(None, SILENT, False), "docker", ("does not answer", "start it once")),
        (Runtimes(None, SILENT, False), "auto", ("nothing here can run vLLM", "start it once")),
        (Runtimes(None, None, False), "auto", ("nothing here can run vLLM", "apt-get install")),
    ],
)
def test_a_refusal_names_what_to_do_once(
    there: Runtimes, asked: str, words: tuple[str, str]
) -> None:
    found = choose(endpoint(runtime=asked), there, None)
    assert isinstance(found, Refusal)
    assert words[0] in found.message
    assert words[1] in found.hint


def test_auto_stays_with_what_the_endpoint_runs_on() -> None:
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint())
    on_host = replace(made, launch=replace(made.launch, reason="because"))
    there = Runtimes(QUADLET, DOCKER, True, frozenset({"podman"}))
    assert choose(endpoint(), there, on_host) == Choice("host", "because")
    asked = choose(endpoint(image=IMAGE), there, on_host)
    assert isinstance(asked, Choice)
    assert asked.runtime == "podman"
    gone = choose(endpoint(), replace(there, environment=False), on_host)
    assert isinstance(gone, Choice)
    assert gone.runtime == "podman"


def test_the_same_again_has_the_same_reason() -> None:
    """A plan that is made again must not differ from the stored one."""
    there = Runtimes(QUADLET, None, False)
    first = choose(endpoint(), there, None)
    assert isinstance(first, Choice)
    container = Container("/usr/bin/podman", "5.4.2", "/g", IMAGE, None, serves=False, cpuset=True)
    made = Launch(None, None, None, (), "root", "/a", container, reason=first.reason)
    before = plan(facts_of(HOSTS["genoa-1s"]), endpoint(), launch=made)
    assert before.runtime == "podman"
    assert choose(endpoint(), there, before) == first


def test_throughput_is_all_of_it_or_nothing() -> None:
    rule = RECIPE.throughput
    in_tree = dict(switches(ZEN, rule))
    assert in_tree == {**dict(rule.env), "VLLM_ZENTORCH_WEIGHT_PREPACK": "1"}
    plugin = dict(switches(replace(ZEN, platform="zentorch.vllm.ZenCPUPlatform"), rule))
    assert plugin == {**dict(rule.env), "ZENTORCH_WEIGHT_PREPACK": "1"}
    assert switches(STOCK, rule) == ()
    assert {"TORCHINDUCTOR_FREEZING", "VLLM_USE_AOT_COMPILE"} <= set(in_tree)
