"""Endpoints in quadlets on three kinds of host, for any podman."""

from dataclasses import replace

from epyc_vllm_agent.plan.throughput import switches
from epyc_vllm_agent.plan.values import Container, EndpointPlan, Launch
from epyc_vllm_agent.units.names import UnitFile
from epyc_vllm_agent.units.render import render
from tests.hosts import HOSTS, facts_of
from tests.plans import RECIPE, STOCK, ZEN, endpoint, model_facts, plan

VERSIONS = ("4.4.0", "4.6.2", "4.9.4", "5.4.2", "5.8.2")
DIGEST = "sha256:" + "5a" * 32
ZENTORCH_IMAGE = "docker.io/amdih/zendnn_zentorch:vllm_v0.25.1"
STOCK_IMAGE = "docker.io/vllm/vllm-openai-cpu:latest-x86_64"


def launch(version: str, image: str, *, serves: bool = False, cpuset: bool = True) -> Launch:
    made = Container(
        program="/usr/bin/podman",
        version=version,
        generator="/usr/lib/systemd/system-generators/podman-system-generator",
        image=image,
        pinned=f"{image.rpartition(':')[0]}@{DIGEST}",
        serves=serves,
        cpuset=cpuset,
    )
    return Launch(None, None, None, (), "root", "/usr/bin/epyc-vllm", made)


def genoa(version: str) -> EndpointPlan:
    made = launch(version, ZENTORCH_IMAGE)
    return plan(facts_of(HOSTS["genoa-2s-nps1"]), launch=made)


def turin(version: str) -> EndpointPlan:
    config = endpoint("large", model="org/Large", port=9000, max_model_len=32768, throughput=True)
    made = replace(launch(version, ZENTORCH_IMAGE), switches=switches(ZEN, RECIPE.throughput))
    model = model_facts(id="org/Large")
    return plan(facts_of(HOSTS["turin-2s-nps4"]), config, model, launch=made)


def milan(version: str) -> EndpointPlan:
    config = endpoint(
        "stock", accept=["stock-cpu"], address="::", api_key_file="/etc/epyc-vllm/api-key"
    )
    made = launch(version, STOCK_IMAGE, serves=True)
    return plan(facts_of(HOSTS["milan-1s"]), config, launch=made, stack=STOCK)


HOSTS_BY_NAME = {"genoa-2s-nps1": genoa, "turin-2s-nps4": turin, "milan-1s": milan}


def quadlets(made: EndpointPlan) -> list[UnitFile]:
    return [unit for unit in render(made) if unit.name.endswith(".container")]
