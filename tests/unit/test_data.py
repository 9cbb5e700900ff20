"""The shipped facts: each is read by its reader, and tells where it is from."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epyc_vllm_agent.config import settings
from epyc_vllm_agent.data import read_data
from epyc_vllm_agent.doctor.look import limits_of
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.facts.catalog import model_notes, parse_registry
from epyc_vllm_agent.facts.generations import Generations
from epyc_vllm_agent.plan.gates import GateTexts
from epyc_vllm_agent.plan.sizing import Figures
from epyc_vllm_agent.plan.stacks import Stacks
from epyc_vllm_agent.recipe import Recipe
from epyc_vllm_agent.units.quadlet import Keys
from epyc_vllm_agent.watch.diagnosis import Signatures
from tests.hosts import DATA

READERS: dict[str, Callable[[str], Any]] = {
    "detect.schema.json": json.loads,
    "doctor.json": lambda text: limits_of(text, read_data("quadlet.json")),
    "doctor.schema.json": json.loads,
    "endpoint.schema.json": json.loads,
    "epyc-vllm.schema.json": json.loads,
    "epyc.json": Recipe.from_json,
    "failures.json": Signatures.from_json,
    "gates.json": GateTexts.from_json,
    "generations.json": Generations.from_json,
    "models.json": lambda _: model_notes(),
    "quadlet.json": Keys.from_json,
    "registry-vllm-0.25.1.json": lambda text: parse_registry(json.loads(text)),
    "registry-vllm-0.32.0.json": lambda text: parse_registry(json.loads(text)),
    "sizing.json": Figures.from_json,
    "stacks.json": Stacks.from_json,
}


def table(name: str) -> Any:
    return json.loads((DATA / name).read_text())


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.name)
def test_every_file_is_read(path: Any) -> None:
    assert READERS[path.name](read_data(path.name))


@pytest.mark.parametrize("name", READERS)
def test_no_key_is_there_twice(name: str) -> None:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    assert json.loads((DATA / name).read_text(), object_pairs_hook=once)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ActionFailed, match=r"absent\.json cannot be read"):
        read_data("absent.json")


def test_every_gate_has_a_text_and_every_text_a_gate() -> None:
    texts = GateTexts.from_json(read_data("gates.json")).texts
    assert set(texts) == set(settings.GATES)
    assert all(len(text) > 20 for text in texts.values())


SIGNATURES = Signatures.from_json((DATA / "failures.json").read_text()).signatures


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.code)
def test_every_signature(signature: Any) -> None:
    assert re.compile(signature.pattern)
    assert not re.search(signature.pattern, "")
    assert signature.cause
    assert signature.cause == signature.cause.rstrip(".")
    assert signature.hint
    assert signature.source


def test_signatures_have_codes_of_their_own() -> None:
    codes = [signature.code for signature in SIGNATURES]
    assert len(codes) == len(set(codes))


def unsourced(value: Any, where: str = "", covered: bool = False) -> Iterator[str]:
    """Leaves that neither they, nor what they are in, tell the source of."""
    if isinstance(value, dict):
        covered = covered or bool(value.get("source") or value.get("sources"))
        for key, item in value.items():
            if key == "about" or "source" in key:
                continue
            own = any(other.removesuffix("_source") in key for other in value if "_source" in other)
            yield from unsourced(item, f"{where}.{key}", covered or own)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unsourced(item, f"{where}[{index}]", covered)
    elif not covered:
        yield where


SOURCED = ["doctor.json", "epyc.json", "failures.json", "sizing.json", "stacks.json"]


@pytest.mark.parametrize("name", SOURCED)
def test_every_figure_has_a_source(name: str) -> None:
    assert list(unsourced(table(name))) == []


def test_preloads_are_of_two_kinds_and_never_both_openmp_libraries() -> None:
    groups = Recipe.from_json(read_data("epyc.json")).environment.preload
    assert len(groups) == 2
    assert not any("gomp" in name for group in groups for name in group)


def test_figures_are_sane() -> None:
    figures = Figures.from_json(read_data("sizing.json"))
    assert 0 < figures.kv.share < 1
    assert 0 < figures.os_reserve.share < 0.5
    assert figures.kept_cores_per_rank >= 1
    assert figures.times.stop_seconds < 90  # systemd's own default, which it replaces
