"""What the watchdog follows without a restart: the stored plans and [watch]. Reads only."""

import os
from collections.abc import Callable
from pathlib import Path

from epyc_vllm_agent.changes.installed import stored_plan
from epyc_vllm_agent.config.config import Watch, load
from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.plan.values import EndpointPlan

_Stamps = dict[str, tuple[int, int]]  # of each plan's file: inode and time


class Followed:
    """The plans and the policy as they are now; a file is read again only when it has changed."""

    def __init__(self, paths: Paths, say: Callable[[str], None]) -> None:
        self.policy = Watch()
        self._paths = paths
        self._say = say
        self._stamps: _Stamps | None = None
        self._plans: dict[str, EndpointPlan] = {}
        self._config: tuple[int, int] | None = None

    def plans(self) -> tuple[EndpointPlan, ...] | None:
        """Every stored plan; None where none of them has changed. Takes in [watch] as well.

        A plan or a configuration that cannot be read leaves what was there before.
        """
        self._follow_config()
        stamps = {
            entry.name.removesuffix(".json"): stamp
            for entry in _files(self._paths.plans)
            if (stamp := _stamp(entry)) is not None
        }
        if stamps == self._stamps:
            return None
        before, self._stamps = self._stamps or {}, stamps
        self._plans = {name: plan for name, plan in self._plans.items() if name in stamps}
        for name, stamp in stamps.items():
            if before.get(name) != stamp:
                self._read(name)
        return tuple(self._plans.values())

    def _read(self, name: str) -> None:
        try:
            plan = stored_plan(self._paths, name)
        except AgentError as error:
            self._say(error.message)
            return
        if plan is not None:
            self._plans[name] = plan

    def _follow_config(self) -> None:
        stamp = _stamp(self._paths.config_file)
        if stamp == self._config:
            return
        self._config = stamp
        try:
            self.policy = load(self._paths).watch
        except AgentError as error:
            self._say(f"the settings stay as they were: {error.message}")


def _files(folder: Path) -> list[os.DirEntry[str]]:
    """The plans' files, each second: a Path of each would cost more than to look at it."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.endswith(".json")]
    except OSError:
        return []


def _stamp(path: Path | os.DirEntry[str]) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
