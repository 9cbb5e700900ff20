"""One look at an instance: its probes, its counters, its workers' CPU time. Judges nothing."""

from dataclasses import dataclass

from epyc_vllm_agent.config.config import Watch
from epyc_vllm_agent.doors import probe
from epyc_vllm_agent.doors.probe import Counters, Probe
from epyc_vllm_agent.facts.processes import processes
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.watch.decide import Worker
from epyc_vllm_agent.watch.evidence import workers_of
from epyc_vllm_agent.watch.lent import borrow
from epyc_vllm_agent.watch.readiness import url_of

_LEAST_SECONDS, _MOST_SECONDS = 2.0, 5.0  # for one answer


@dataclass(frozen=True, slots=True)
class Look:
    health: Probe
    counters: Counters | None
    workers: tuple[Worker, ...] | None


class Looker:
    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def look(
        self,
        plan: EndpointPlan,
        instance: Instance,
        control_group: str | None,
        policy: Watch,
        has_canary_out: bool,
    ) -> Look:
        """Takes two time-outs at most: an interval each, two to five seconds.

        The workers are evidence of a server that has work or does not answer. An idle one is
        spared them: the kernel adds up all threads of a process at each question.
        """
        url = url_of(plan, instance)
        most = min(_MOST_SECONDS, max(_LEAST_SECONDS, policy.interval_seconds))
        with probe.open_client() as client:
            health = probe.health(url, most, client)
            counters = probe.counters(url, client, most) if health.ok else None
        is_idle = counters is not None and not counters.requests and not has_canary_out
        found = processes(self._paths, control_group) if control_group and not is_idle else ()
        return Look(health, counters, workers_of(found))

    def canary(self, plan: EndpointPlan, instance: Instance, policy: Watch) -> Probe:
        """Asks for one token and waits for it longer than any verdict would."""
        return probe.completion(
            url_of(plan, instance),
            plan.config.client_name,
            plan.model.primary_endpoint,
            borrow(self._paths, instance.name),
            timeout_seconds=policy.prefill_seconds + policy.hung_seconds,
            max_tokens=1,
        )

    def may_ask(self, plan: EndpointPlan, instance: Instance) -> bool:
        """Whether there is a key to ask with, where one is needed."""
        return plan.config.api_key_file is None or borrow(self._paths, instance.name) is not None
