"""A systemd for tests: units are files below a root, jobs end at once, starts fail when told."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from epyc_vllm_agent.doors.systemd import Listed, UnitState, Watcher
from epyc_vllm_agent.errors import ActionFailed
from epyc_vllm_agent.paths import Paths


class KilledError(BaseException):
    """The end of the agent's process in the middle of a call: nothing of ours may catch it."""


@dataclass
class _Unit:
    active: str = "inactive"
    invocation: int = 0
    text: str | None = None  # as loaded; None: not found


@dataclass
class FakeSystemd:
    """Implements doors.systemd.Systemd and Watching.

    Like the real one it knows a unit's text as of the last reload, starts what a target wants, and
    stops what is part of one. `failing` are services whose start fails, `refusing` methods that
    raise, `when` is called before each call and may raise; `on_start` and `on_failed_start` get the
    service and its invocation.
    """

    paths: Paths
    failing: set[str] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)
    when: Callable[[str, str], None] | None = None
    on_failed_start: Callable[[str, str], None] | None = None
    on_start: Callable[[str, str], None] | None = None  # as a unit's own first step
    calls: list[tuple[str, str]] = field(default_factory=list)
    enabled: set[str] = field(default_factory=set)
    jobs: dict[str, str] = field(default_factory=dict)
    _units: dict[str, _Unit] = field(default_factory=dict)

    def reload(self) -> None:
        self._called("reload", "")
        for name, unit in self._units.items():
            unit.text = self._on_disk(name)

    def state(self, unit: str) -> UnitState:
        known = self._unit(unit)
        return UnitState(
            name=unit,
            load_state="loaded" if known.text is not None else "not-found",
            active_state=known.active,
            sub_state="dead" if known.active == "inactive" else known.active,
            enabled=self._enabled(unit),
            since=1_700_000_000.0 + known.invocation if known.invocation else None,
            needs_reload=known.text != self._on_disk(unit),
            job=self.jobs.get(unit),
            invocation_id=self._invocation(unit) if known.invocation else None,
            result="exit-code" if known.active == "failed" else "success",
            main_pid=4000 + known.invocation if known.active == "active" else None,
        )

    def start(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self.queue_start(unit)
        return self.wait(unit, watch)

    def queue_start(self, unit: str) -> None:
        self._called("start", unit)
        if self._unit(unit).text is None:
            raise ActionFailed("systemd-refused", f"Unit {unit} not found.", None)
        for wanted in (*self._wants(unit), unit):
            if self._unit(wanted).active != "active":
                self.jobs[wanted] = "start"

    def wait(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._called("wait", unit)
        for wanted in (*self._wants(unit), unit):
            if self.jobs.get(wanted) == "start":
                self._start_one(wanted, watch)
        return self.state(unit)

    def restart(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._called("restart", unit)
        self._stop_one(unit)
        self._start_one(unit, watch)
        return self.state(unit)

    def stop(self, unit: str) -> UnitState:
        self._called("stop", unit)
        for part in self._parts_of(unit):
            self._stop_one(part)
        self._stop_one(unit)
        return self.state(unit)

    def enable(self, unit: str) -> bool:
        self._called("enable", unit)
        if self._on_disk(unit) is None:
            raise ActionFailed("systemd-refused", f"Unit file {unit} does not exist.", None)
        is_new = unit not in self.enabled
        self.enabled.add(unit)
        return is_new

    def disable(self, unit: str) -> None:
        self._called("disable", unit)
        self.enabled.discard(unit)

    def reset_failed(self, unit: str) -> None:
        self._called("reset_failed", unit)
        if self._unit(unit).active == "failed":
            self._unit(unit).active = "inactive"

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        self._called("list_units", pattern)
        return self._listed(name for name in sorted(self._units) if fnmatch(name, pattern))

    def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]:
        self._called("load_units", " ".join(names))
        return self._listed(names)

    def _listed(self, names: Iterable[str]) -> tuple[Listed, ...]:
        return tuple(
            Listed(state.name, state.load_state, state.active_state, state.sub_state, state.job)
            for state in map(self.state, names)
        )

    def queue_stop(self, unit: str) -> None:
        self._called("queue_stop", unit)
        self.jobs[unit] = "stop"

    def end(self, unit: str, active: str = "failed") -> None:
        """The unit's processes are gone, and with them any job."""
        self.jobs.pop(unit, None)
        self._unit(unit).active = active

    def active(self) -> set[str]:
        return {name for name, unit in self._units.items() if unit.active == "active"}

    def made(self, *methods: str) -> list[tuple[str, str]]:
        """The calls of `methods` so far."""
        return [call for call in self.calls if call[0] in methods]

    def _called(self, method: str, unit: str) -> None:
        if self.when:
            self.when(method, unit)
        self.calls.append((method, unit))
        if method in self.refusing:
            raise ActionFailed("systemd-refused", f"systemd did not {method} {unit}", None)

    def _file(self, unit: str) -> Path:
        quadlet = self.paths.quadlets / f"{unit.removesuffix('.service')}.container"
        return quadlet if quadlet.is_file() else self.paths.units / unit

    def _on_disk(self, unit: str) -> str | None:
        path = self._file(unit)
        return path.read_text() if path.is_file() else None

    def _unit(self, unit: str) -> _Unit:
        if unit not in self._units:
            self._units[unit] = _Unit(text=self._on_disk(unit))
        return self._units[unit]

    def _wants(self, unit: str) -> Iterator[str]:
        for line in (self._unit(unit).text or "").splitlines():
            if line.startswith("Wants="):
                yield from line.removeprefix("Wants=").split()

    def _parts_of(self, unit: str) -> list[str]:
        return [
            name
            for name, known in self._units.items()
            for line in (known.text or "").splitlines()
            if line.startswith("PartOf=") and unit in line.removeprefix("PartOf=").split()
        ]

    def _start_one(self, unit: str, watch: Watcher | None) -> None:
        known = self._unit(unit)
        if known.active == "active" or known.text is None:
            self.jobs.pop(unit, None)
            return
        known.invocation += 1
        known.active = "activating"
        self.jobs[unit] = "start"
        if self.on_start and unit.endswith(".service"):
            self.on_start(unit, self._invocation(unit))
        if watch:
            watch(self.state(unit))
        del self.jobs[unit]
        known.active = "failed" if unit in self.failing else "active"
        if known.active == "failed" and self.on_failed_start:
            self.on_failed_start(unit, self._invocation(unit))

    def _stop_one(self, unit: str) -> None:
        known = self._unit(unit)
        self.jobs.pop(unit, None)
        if known.active in ("active", "activating"):
            known.active = "inactive"

    def _enabled(self, unit: str) -> str:
        if unit in self.enabled:
            return "enabled"
        return "disabled" if self._on_disk(unit) is not None else ""

    def _invocation(self, unit: str) -> str:
        return f"{sum(unit.encode()):024x}{self._unit(unit).invocation:08x}"[::-1]
