"""Any text in an endpoint's file: systemd and podman read back what was meant, or it is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from epyc_vllm_agent.config.config import parse_endpoint
from epyc_vllm_agent.config.layers import origin
from epyc_vllm_agent.doors.hubcache import check_model_id, check_revision
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Launch
from epyc_vllm_agent.units import container
from epyc_vllm_agent.units.names import service_name, target_name
from epyc_vllm_agent.units.render import command, environment, render
from tests.guest import image, parts
from tests.guest.boot import Guest
from tests.hosts import HOSTS, facts_of
from tests.plans import LAUNCH, model_facts, plan

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("parsed_back.py")
PYTHON = "/opt/epyc-vllm/bin/python"  # where packaging/install puts the project: it has pydbus
PODMAN = Container(
    program="/usr/bin/podman",
    version="5.4.2",
    generator="/usr/lib/systemd/system-generators/podman-system-generator",
    image=image.NAME,
    pinned=image.NAME,
    serves=False,
    cpuset=False,  # the booted host's own limits are not what is read here
)
IN_PODMAN = Launch(None, None, None, (), "root", LAUNCH.agent, PODMAN)
LAUNCHES = {
    "host": LAUNCH,
    "podman": IN_PODMAN,
    "service": replace(IN_PODMAN, container=replace(PODMAN, generator=None)),
}

ANYTHING = st.text(max_size=12)
NASTY = st.text("ab \"'\\%$;#{}`~*?[]|&<>=-+@!:,./é\u2028\u00a0𝄞", max_size=10)
BROKEN = st.sampled_from(["a\nb", "\0", "x\ty", "\x1b[0m", "a\\\n[Service]\nUser=root"])
TEXT = NASTY | ANYTHING | BROKEN
PATH = st.builds("/srv/parsed-back/{}".format, NASTY | ANYTHING) | TEXT
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "served_model_name": TEXT,
    "revision": st.sampled_from(["main", "v1.0"]) | TEXT,
    "environment": PATH,
    "image": st.just(image.NAME) | TEXT,
    "model_dir": PATH,
    "address": st.sampled_from(["127.0.0.1", "::1", "0.0.0.0"]) | TEXT,
    "chat_template": PATH,
    "api_key_file": PATH,
    "vllm_args": st.lists(TEXT, max_size=4),
    "env": st.dictionaries(st.sampled_from(["ODD", "ODD_2"]) | TEXT, TEXT, max_size=3),
}
ENDPOINTS = st.fixed_dictionaries({"model": st.just("example/tiny-chat") | PATH}, optional=FIELDS)
# Most of those are refused: these hold little that can be.
CARRIED = st.fixed_dictionaries(
    {"model": st.just("example/tiny-chat")},
    optional={
        "served_model_name": NASTY.filter(lambda text: text[:1] != "-"),
        "model_dir": st.builds("/srv/parsed-back/{}".format, NASTY),
        "chat_template": st.builds("/srv/parsed-back/t{}".format, NASTY),
        "vllm_args": st.lists(NASTY.filter(bool).map("x{}".format), max_size=4),
        "env": st.dictionaries(st.sampled_from(["ODD", "ODD_2"]), NASTY.map("y{}".format)),
    },
)


def planned(number: int, values: dict[str, Any], launch: Launch) -> EndpointPlan | None:
    """The endpoint's plan; None where one of its values is refused, in a sentence."""
    try:
        config = parse_endpoint(f"odd-{number}", values, {}, origin("odd.toml"))
        if not config.model.startswith("/"):
            check_model_id(config.model)
        check_revision(config.revision or "main")
    except ConfigError as error:
        fault = error.message
    else:
        fault = ""
    if fault:
        assert fault.isprintable()
        return None
    if launch.environment:
        launch = replace(launch, environment=config.environment or launch.environment)
    path = config.model_dir or (config.model if config.model.startswith("/") else None)
    model = model_facts(id=config.model, **({"revision": None} if path else {}))
    host = facts_of(HOSTS["genoa-1s"])
    made = plan(host, config, model, launch=launch, model_path=path)
    return None if made.refusals else made


def folders(made: EndpointPlan) -> list[str]:
    """What has to be there before a container is made with it."""
    if made.launch.container is None:
        return []
    found = [volume.split(":")[0] for volume in container.volumes(made, made.instances[0])]
    return [path for path in found if not path.startswith("/run/")]


def read_back(guest: Guest, plans: Sequence[EndpointPlan]) -> dict[str, Any]:
    units = {unit.name: unit.text for made in plans for unit in render(made)}
    given = {
        "units": {name: text for name, text in units.items() if not name.endswith(".container")},
        "quadlets": {name: text for name, text in units.items() if name.endswith(".container")},
        "folders": [path for made in plans for path in folders(made)],
    }
    done = guest.run(
        [PYTHON, "-c", SCRIPT.read_text()], stdin=json.dumps(given, ensure_ascii=True), timeout=600
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def as_meant(made: EndpointPlan, found: dict[str, Any]) -> None:
    (instance,) = made.instances
    service, target = found[service_name(instance.name)], found[target_name(made.name)]
    assert (service["LoadState"], target["LoadState"]) == ("loaded", "loaded")
    assert service["Description"] == f"vLLM endpoint {made.name}, socket 0"
    assert target["Description"] == f"vLLM endpoint {made.name}: {made.model.id}".strip()
    assert normpath(made.model.path) in map(normpath, service["RequiresMountsFor"])
    agent = made.launch.agent
    assert service["ExecStartPre"] == [[agent, "unit", "preflight", instance.name]]
    assert [agent, "unit", "stopped", instance.name] in service["ExecStopPost"]
    if made.launch.container is None:
        assert service["ExecStart"] == [list(command(made, instance))]
        assert service["Environment"] == [f"{k}={v}" for k, v in environment(made, instance)]
        key = made.config.api_key_file
        assert service["LoadCredential"] == ([["api-key", normpath(key)]] if key else [])
        assert service["User"] == made.launch.user
        return
    if made.launch.container.generator is None:
        assert service["ExecStart"] == [list(command(made, instance))]
    as_contained(made, service["created"])


def as_contained(made: EndpointPlan, created: dict[str, Any]) -> None:
    """What podman understood of its arguments."""
    assert "refused" not in created, created
    (instance,) = made.instances
    assert created["Name"] == f"epyc-vllm-{instance.name}"
    assert created["Config"]["Labels"][container.LABEL] == instance.name
    wanted = {f"{key}={value}" for key, value in container.environment(made, instance)}
    assert wanted <= set(created["Config"]["Env"])
    said = created["Config"]["Cmd"]
    serve = said[said.index("serve") + 1 :]
    assert serve[0] == container.served_path(made)
    assert serve[len(serve) - len(made.config.vllm_args) :] == list(made.config.vllm_args)
    assert serve[serve.index("--served-model-name") + 1] == made.config.client_name
    mounts = {mount["Destination"]: mount["Source"] for mount in created["Mounts"]}
    for volume in container.volumes(made, instance):
        source, destination = volume.split(":")[:2]
        assert normpath(mounts[destination]) == normpath(source)


def judge(guest: Guest, batch: Sequence[dict[str, Any]], runtime: str) -> int:
    plans = [planned(n, values, LAUNCHES[runtime]) for n, values in enumerate(batch)]
    kept = [made for made in plans if made is not None]
    if kept:
        found = read_back(guest, kept)
        for made in kept:
            note(repr(made.config))
            as_meant(made, found)
    return len(kept)


ROUNDS = settings(
    max_examples=3,
    deadline=None,  # a batch takes as long as the booted host does
    phases=(Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=list(HealthCheck),  # the guest is one for all examples, on purpose
)


@pytest.fixture
def loaded(guest: Guest) -> Guest:
    guest.run(["podman", "load", "--quiet", "--input", f"{parts.IMAGES}/standin.tar"], timeout=300)
    return guest


@pytest.mark.parametrize("runtime", LAUNCHES)
def test_what_can_be_carried_is(loaded: Guest, runtime: str) -> None:
    carried = 0

    @ROUNDS
    @given(st.lists(CARRIED, min_size=6, max_size=6))
    def rounds(batch: list[dict[str, Any]]) -> None:
        nonlocal carried
        carried += judge(loaded, batch, runtime)

    rounds()
    assert carried >= 5  # it was not all refused


@pytest.mark.parametrize("runtime", LAUNCHES)
def test_anything_is_carried_or_refused(loaded: Guest, runtime: str) -> None:
    @ROUNDS
    @given(st.lists(ENDPOINTS, min_size=12, max_size=12))
    def rounds(batch: list[dict[str, Any]]) -> None:
        judge(loaded, batch, runtime)

    rounds()
