"""systemd over D-Bus: reload, jobs, unit states. The only importer of pydbus; decides nothing.

https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.interrupts import deferred
from epyc_vllm_agent.paths import Paths

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_UNIT = "org.freedesktop.systemd1.Unit"
_SERVICE = "org.freedesktop.systemd1.Service"
_JOB = "org.freedesktop.systemd1.Job"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_OF_UNITS = (
    *("LoadState", "ActiveState", "SubState", "UnitFileState", "StateChangeTimestamp"),
    *("NeedDaemonReload", "Job", "InvocationID"),
)
_OF_SERVICES = ("Result", "MainPID", "ControlGroup")
_LISTED = (0, 2, 3, 4, 8)  # of a unit in the list: name, load, active, sub state, type of its job
_POLL_SECONDS = 0.2
SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd sees it. `since` is seconds since the epoch, None if never changed."""

    name: str
    load_state: str  # "loaded", "not-found", ...
    active_state: str  # "active", "activating", "failed", "inactive", ...
    sub_state: str
    enabled: str  # "enabled", "disabled", "static", ""
    since: float | None
    needs_reload: bool
    job: str | None  # "start", "stop", "restart", ... while one is queued
    invocation_id: str | None
    result: str | None = None  # of a service: "success", "exit-code", "oom-kill", ...
    main_pid: int | None = None
    control_group: str | None = None  # of a service that runs

    @property
    def is_up(self) -> bool:
        return self.active_state == "active"


@dataclass(frozen=True, slots=True)
class Listed:
    """A unit in the list of many, which one question brings."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    job: str | None

    @property
    def runs(self) -> bool:
        """Up, or on its way there or down: anything but settled."""
        return self.active_state not in ("inactive", "failed") or self.job is not None


Watcher = Callable[[UnitState], None]


class Systemd(Protocol):
    """What the agent asks of systemd. Every method raises ActionFailed where it does not answer."""

    def reload(self) -> None: ...
    def state(self, unit: str) -> UnitState: ...
    def start(self, unit: str, watch: Watcher | None = None) -> UnitState: ...
    def queue_start(self, unit: str) -> None: ...
    def wait(self, unit: str, watch: Watcher | None = None) -> UnitState: ...
    def restart(self, unit: str, watch: Watcher | None = None) -> UnitState: ...
    def stop(self, unit: str) -> UnitState: ...
    def enable(self, unit: str) -> bool: ...
    def disable(self, unit: str) -> None: ...
    def reset_failed(self, unit: str) -> None: ...
    def list_units(self, pattern: str) -> tuple[Listed, ...]: ...
    def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]: ...


class Watching(Protocol):
    """What the watchdog asks of systemd; the same holds."""

    def list_units(self, pattern: str) -> tuple[Listed, ...]: ...
    def state(self, unit: str) -> UnitState: ...
    def queue_stop(self, unit: str) -> None: ...


def require_running(paths: Paths) -> None:
    """Refuses where systemd is not the running init (sd_booted(3): /run/systemd/system)."""
    if not paths.at("/run/systemd/system").is_dir():
        raise Refused(
            "no-systemd",
            "systemd is not running on this host, so it cannot keep an endpoint up",
            "run epyc-vllm on a host that was booted with systemd",
        )


class DBusSystemd:
    """`Systemd` and `Watching` on the system bus."""

    def __init__(self, address: str | None = None) -> None:
        """With an `address`, on a connection of its own.

        The shared one ends the process where the bus goes away, and is never made anew.
        """
        try:
            import pydbus
        except ImportError as error:
            raise ActionFailed(
                "no-pydbus",
                f"pydbus cannot be imported ({error})",
                "install python3-pydbus (and python3-gi) from the distribution",
            ) from error
        connect = pydbus.SystemBus if address is None else lambda: pydbus.connect(address)
        self._bus = self._asked(connect)
        self._manager = self._asked(self._bus.get, ".systemd1")
        self._last_list: tuple[Any, tuple[Listed, ...]] | None = None

    def reload(self) -> None:
        self._asked(self._manager.Reload)

    def state(self, unit: str) -> UnitState:
        (path,) = self._answer(_PATH, _MANAGER, "LoadUnit", "(s)", (unit,))
        values = self._properties(path.unpack(), _UNIT, _OF_UNITS)
        if unit.endswith(".service"):
            values |= self._properties(path.unpack(), _SERVICE, _OF_SERVICES)
        return _state(unit, values, self._job_type(values["Job"]))

    def start(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self.queue_start(unit)
        return self.wait(unit, watch)

    def queue_start(self, unit: str) -> None:
        """Asks for a start; a job already queued is joined, not doubled."""
        self._asked(self._manager.StartUnit, unit, "replace")

    def restart(self, unit: str, watch: Watcher | None = None) -> UnitState:
        self._asked(self._manager.RestartUnit, unit, "replace")
        return self.wait(unit, watch)

    def stop(self, unit: str) -> UnitState:
        self.queue_stop(unit)
        return self.wait(unit)

    def queue_stop(self, unit: str) -> None:
        """Asks for a stop and does not wait for it."""
        self._asked(self._manager.StopUnit, unit, "replace")

    def wait(self, unit: str, watch: Watcher | None = None) -> UnitState:
        """Until the unit has no job; `watch` is shown it meanwhile."""
        while True:
            state = self.state(unit)
            if state.job is None:
                return state
            if watch:
                watch(state)
            time.sleep(_POLL_SECONDS)

    def list_units(self, pattern: str) -> tuple[Listed, ...]:
        """Loaded units whose name matches: cheaper than one `state`, however many they are."""
        return self._listed("ListUnitsByPatterns", "(asas)", ([], [pattern]))

    def load_units(self, names: Sequence[str]) -> tuple[Listed, ...]:
        """The units of these names in that order, loaded for it where they can be."""
        return self._listed("ListUnitsByNames", "(as)", (list(names),)) if names else ()

    def enable(self, unit: str) -> bool:
        """Whether it was not enabled before."""
        _, changes = self._asked(self._manager.EnableUnitFiles, [unit], False, True)
        return bool(changes)

    def disable(self, unit: str) -> None:
        self._asked(self._manager.DisableUnitFiles, [unit], False)

    def reset_failed(self, unit: str) -> None:
        if self.state(unit).active_state == "failed":
            self._asked(self._manager.ResetFailedUnit, unit)

    def _listed(
        self, method: str, signature: str, arguments: tuple[Any, ...]
    ) -> tuple[Listed, ...]:
        """Reading an answer takes most of the time, so one that is the last one again is not."""
        (rows,) = self._answer(_PATH, _MANAGER, method, signature, arguments)
        if self._last_list is None or not rows.equal(self._last_list[0]):
            each = map(rows.get_child_value, range(rows.n_children()))
            self._last_list = rows, tuple(map(_row, each))
        return self._last_list[1]

    def _properties(self, path: str, interface: str, names: Sequence[str]) -> dict[str, Any]:
        (values,) = self._answer(path, _PROPERTIES, "GetAll", "(s)", (interface,))
        found = {name: values.lookup_value(name, None) for name in names}
        return {name: value.unpack() for name, value in found.items() if value is not None}

    def _answer(
        self, path: str, interface: str, method: str, signature: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        """The values of a reply, still packed. Asked straight: pydbus has each object described
        first and unpacks a whole reply, of which a few values are wanted; either takes several
        times as long as the answer."""
        from gi.repository import Gio, GLib

        packed = GLib.Variant(signature, arguments)
        none = Gio.DBusCallFlags.NONE
        question = (_NAME, path, interface, method, packed, None, none, -1, None)
        reply = self._asked(self._bus.con.call_sync, *question)
        return [reply.get_child_value(number) for number in range(reply.n_children())]

    def _job_type(self, job: tuple[int, str]) -> str | None:
        if not job[0]:
            return None
        try:
            return str(self._properties(job[1], _JOB, ("JobType",))["JobType"])
        except ActionFailed:  # it ended between the two questions
            return None

    def _asked(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with deferred():
                return method(*arguments)
        except _bus_error() as error:
            text = str(getattr(error, "message", error)).removeprefix("GDBus.Error:")
            raise ActionFailed(
                "systemd-refused",
                f"systemd did not do what was asked: {text}",
                "look at `systemctl status` and `journalctl -b _PID=1`",
            ) from error


def _bus_error() -> type[Exception]:
    from gi.repository import GLib

    found: type[Exception] = GLib.Error
    return found


def _row(row: Any) -> Listed:
    name, load, active, sub, job = (row.get_child_value(i).get_string() for i in _LISTED)
    return Listed(name, load, active, sub, job or None)


def _state(unit: str, values: dict[str, Any], job: str | None) -> UnitState:
    invocation = bytes(values["InvocationID"]).hex()
    changed = values["StateChangeTimestamp"]
    return UnitState(
        name=unit,
        load_state=values["LoadState"],
        active_state=values["ActiveState"],
        sub_state=values["SubState"],
        enabled=values["UnitFileState"],
        since=changed / 1e6 if changed else None,
        needs_reload=values["NeedDaemonReload"],
        job=job,
        invocation_id=invocation or None,
        result=values.get("Result"),
        main_pid=values.get("MainPID") or None,
        control_group=values.get("ControlGroup") or None,
    )
