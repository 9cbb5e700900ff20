"""What enabling an endpoint would change of what is installed; reads only."""

from epyc_vllm_agent.changes.changes import ChangeSet, to_enable
from epyc_vllm_agent.changes.installed import installed
from epyc_vllm_agent.config.request import Wanted
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan
from epyc_vllm_agent.units.render import render


def change_set(paths: Paths, plan: EndpointPlan, wanted: Wanted) -> ChangeSet:
    return to_enable(plan, wanted.file_text, render(plan), installed(paths, plan.name))
