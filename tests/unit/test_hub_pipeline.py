"""From the hub to a plan: which revision an endpoint gets, and how often the hub is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from epyc_vllm_agent import pipeline
from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.config.config import EndpointConfig
from epyc_vllm_agent.pipeline import Survey
from tests.guest import models
from tests.hosts import HOSTS, build
from tests.hubserver import HubServer
from tests.plans import endpoint

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
def survey(server: HubServer, tmp_path: Path) -> Survey:
    """Of another machine, so that neither runtimes nor stacks are asked for."""
    paths = build(HOSTS["genoa-1s"], tmp_path / "host")
    return pipeline.survey(paths, far="box")


def config(revision: str | None = None) -> EndpointConfig:
    return endpoint("tiny", model=MODEL, **({"revision": revision} if revision else {}))


def store(survey: Survey, made: EndpointConfig) -> str:
    """Stores the plan of `made` as enable does; its revision."""
    plan = pipeline.make_plan(survey, pipeline.resolve(survey, made))
    survey.paths.plans.mkdir(parents=True, exist_ok=True)
    (survey.paths.plans / "tiny.json").write_text(encode_plan(plan))
    assert plan.model.revision
    return plan.model.revision


def move(repository: Path) -> None:
    """A commit on the branch."""
    (repository / "generation_config.json").write_text(json.dumps({"temperature": 0.1}))


def test_an_endpoint_keeps_its_revision_and_asks_no_hub(
    survey: Survey, server: HubServer, repository: Path
) -> None:
    first = store(survey, config())
    move(repository)
    asked = len(server.log)
    assert pipeline.resolve(survey, config()).model.revision == first
    assert len(server.log) == asked


def test_a_revision_that_is_asked_for_is_looked_up(
    survey: Survey, server: HubServer, repository: Path
) -> None:
    first = store(survey, config())
    move(repository)
    found = pipeline.resolve(survey, config("main"), new_revision=True).model.revision
    assert found not in (None, first)
    second = store(survey, config("main"))
    assert second == found
    assert pipeline.resolve(survey, config("main")).model.revision == second


def test_another_model_or_revision_is_looked_up(
    survey: Survey, server: HubServer, repository: Path
) -> None:
    first = store(survey, config())
    move(repository)
    # As edited into the endpoint's file.
    assert pipeline.resolve(survey, config("main")).model.revision != first
    assert pipeline.resolve(survey, config(first)).model.revision == first


def test_how_often_the_hub_is_asked(survey: Survey, server: HubServer) -> None:
    pipeline.resolve(survey, config())
    first = len(server.log)
    pipeline.resolve(survey, config())
    # Once for the branch, once for the header of a model in one file.
    assert (first <= 8, len(server.log) - first) == (True, 2)
