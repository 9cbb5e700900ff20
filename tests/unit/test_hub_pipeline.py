"""From the hub to a plan: which revision an endpoint gets, and how often the hub is asked."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doors import environment, probed
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.facts.model import ModelFacts
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import Survey
from tests.guest import models
from tests.hosts import HOSTS, build
from tests.hubserver import HubServer
from tests.plans import ZEN, endpoint

MODEL = "org/tiny"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "hub/org__tiny"
    models.write(folder, models.TEMPLATE, models.Shape(1, 8, 16, 2, 1, 4))
    return folder


@pytest.fixture
def server(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer(repository.parent) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


@pytest.fixture
def box(server: HubServer, tmp_path: Path) -> Paths:
    return build(HOSTS["genoa-1s"], tmp_path / "host")


def survey(box: Paths) -> Survey:
    """Of another machine, so that neither runtimes nor stacks are asked for."""
    return pipeline.survey(box, far="box")


def resolve(box: Paths, wanted: EndpointConfig, new_revision: bool = False) -> ModelFacts:
    return pipeline.resolve(survey(box), wanted, new_revision=new_revision).model


def config(revision: str | None = None) -> EndpointConfig:
    return endpoint("tiny", model=MODEL, **({"revision": revision} if revision else {}))


def store(box: Paths, made: EndpointConfig) -> str:
    """Stores the plan of `made` as enable does; its revision."""
    plan = pipeline.make_plan(survey(box), pipeline.resolve(survey(box), made))
    box.plans.mkdir(parents=True, exist_ok=True)
    (box.plans / "tiny.json").write_text(encode_plan(plan))
    assert plan.model.revision
    return plan.model.revision


def move(repository: Path) -> None:
    """A commit on the branch."""
    (repository / "generation_config.json").write_text(json.dumps({"temperature": 0.1}))


def test_an_endpoint_keeps_its_revision_and_asks_no_hub(
    box: Paths, server: HubServer, repository: Path
) -> None:
    first = store(box, config())
    move(repository)
    asked = len(server.log)
    assert resolve(box, config()).revision == first
    assert len(server.log) == asked


def test_a_revision_that_is_asked_for_is_looked_up(
    box: Paths, server: HubServer, repository: Path
) -> None:
    first = store(box, config())
    move(repository)
    found = resolve(box, config("main"), new_revision=True).revision
    assert found not in (None, first)
    second = store(box, config("main"))
    assert second == found
    assert resolve(box, config("main")).revision == second


def test_another_model_or_revision_is_looked_up(
    box: Paths, server: HubServer, repository: Path
) -> None:
    first = store(box, config())
    move(repository)
    # As edited into the endpoint's file.
    assert resolve(box, config("main")).revision != first
    assert resolve(box, config(first)).revision == first


@pytest.fixture
def venv(tmp_path: Path) -> str:
    for name in ("python", "vllm"):
        (tmp_path / "venv/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "venv/bin" / name).touch()
    return str(tmp_path / "venv")


@pytest.mark.parametrize(
    ("names", "codes"),
    [(["Qwen3ForCausalLM"], []), (["Qwen4ForCausalLM"], ["unsupported-model"])],
)
def test_a_model_is_judged_by_what_the_probed_vllm_lists(
    server: HubServer, tmp_path: Path, venv: str, names: list[str], codes: list[str]
) -> None:
    here = pipeline.survey(build(HOSTS["genoa-1s"], tmp_path / "host"))
    table = json.loads(read_data("registry-vllm-0.32.0.json")) | {"vllm": "0.40.0"}
    table["categories"] = {name: [] for name in table["categories"]} | {"text_generation": names}
    stack = to_plain(replace(ZEN, vllm="0.40.0+cpu"))
    file = here.paths.cache / "probes" / f"{environment._fingerprint(venv)}.json"
    probed.remember(file, json.dumps({"stack": stack, "registry": table}))
    made = endpoint("tiny", model=MODEL, environment=venv)
    plan = pipeline.make_plan(here, pipeline.resolve(here, made))
    assert [refusal.code for refusal in plan.refusals] == codes
    if codes:
        assert "vLLM 0.40.0 knows no architecture Qwen3ForCausalLM" in plan.refusals[0].message


def test_a_model_that_is_not_there_is_told_before_a_stack_is_asked(
    server: HubServer, tmp_path: Path, venv: str
) -> None:
    """A unit test that starts a program fails, and asking would."""
    here = pipeline.survey(build(HOSTS["genoa-1s"], tmp_path / "host"))
    with pytest.raises(ConfigError) as failed:
        pipeline.resolve(here, endpoint("tiny", model="org/absent", environment=venv))
    assert failed.value.code == "unknown-model"


def test_how_often_the_hub_is_asked(box: Paths, server: HubServer) -> None:
    seen = survey(box)
    pipeline.resolve(seen, config())
    first = len(server.log)
    pipeline.resolve(seen, config())
    assert len(server.log) == first  # a run asks once, for however many endpoints
    resolve(box, config())
    # Once for the branch, once for the header of a model in one file.
    assert (first <= 8, len(server.log) - first) == (True, 2)


NO_URL, NO_TOKEN = "in HF_ENDPOINT is no URL of a model hub", "in HF_TOKEN has characters"
NO_URLS = (
    *("http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "not a url", "ftp://x/"),
    *("http://", "/", "http://ex ample/", "http://a\x1b[2J/", "http://x:0/"),
)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        *(("HF_ENDPOINT", value, NO_URL) for value in NO_URLS),
        *(("HF_TOKEN", value, NO_TOKEN) for value in ("hf_äö", "hf_a\nb", "hf a", "hf_\x1b")),
    ],
)
def test_what_no_hub_can_be_asked_with(
    box: Paths,
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told) as caught:
        resolve(box, config())
    assert caught.value.message.isprintable()
    assert "hf_" not in caught.value.message


@pytest.mark.parametrize("token", [" ", "\n", "hf_licensed\n"])
def test_blanks_around_a_token_are_none_of_it(
    box: Paths, server: HubServer, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert resolve(box, config()).revision


def test_a_hub_that_is_gone_is_told(box: Paths, server: HubServer) -> None:
    assert resolve(box, config()).revision
    server.fault("503")
    host = survey(box)
    (warning,) = pipeline.resolve(host, config()).warnings
    assert pipeline.resolve(host, config()).warnings == (warning,)  # of a second endpoint too
    assert "failed with HTTP status 503" in warning
    assert f"{MODEL} is taken as it was" in warning
