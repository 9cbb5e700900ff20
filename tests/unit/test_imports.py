"""Rooms and doors: who imports what, read from the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "epyc_vllm_agent"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each library, or module of the standard one that reaches outside, has one door.
DOORS = {
    "pydbus": {"doors/systemd.py"},
    "gi": {"doors/systemd.py"},
    "httpx": {"doors/probe.py"},
    "huggingface_hub": {"doors/hub.py", "doors/huberrors.py", "doors/hubwork.py"},
    "subprocess": {"doors/command.py"},
    "psutil": {"doors/load.py"},
    "requests": set[str](),
    "urllib.request": set[str](),
    "socket": {"doors/journal.py", "doors/notify.py"},
    "ctypes": set[str](),
}
# What the pure rooms may take from a door: value types.
VALUE_TYPES = {
    "epyc_vllm_agent.doors.systemd": {"UnitState", "Systemd", "Watcher"},
    "epyc_vllm_agent.doors.probe": {"Counters", "Probe", "base_url"},
}
PURE = (
    "codec.py",
    "cpulist.py",
    "errors.py",
    "paths.py",
    "recipe.py",
    "config/checks.py",
    "config/schema.py",
    "config/settings.py",
    "config/toml_text.py",
    "plan",
    "units",
    "changes/changes.py",
    "report/handover.py",
    "report/text.py",
    "report/plain.py",
    "report/answer.py",
    "report/doctor.py",
    "report/drawing.py",
    "report/host.py",
    "doctor/configuration.py",
    "doctor/containers.py",
    "doctor/diagnose.py",
    "doctor/finding.py",
    "doctor/host_runtime.py",
    "doctor/models.py",
    "doctor/processor.py",
    "doctor/seen.py",
    "doctor/stack.py",
    "doctor/system.py",
    "doctor/topology.py",
    "watch/decide.py",
    "watch/diagnosis.py",
)
REACHING_OUT = {
    "os", "io", "shutil", "tempfile", "time", "random", "secrets", "socket", "subprocess", "signal",
    "pwd", "fcntl", "threading", "urllib.request", "psutil", "httpx", "pydbus", "huggingface_hub",
}  # fmt: skip


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Modules that a file imports, wherever in it, with the name taken from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                yield node.module or "", alias.name


def modules(path: Path) -> set[str]:
    """The modules imported, `from a import b` read as a and as a.b."""
    return {name for module, taken in imports(path) for name in (module, f"{module}.{taken}")}


def reaches(path: Path, library: str) -> bool:
    return any(name == library or name.startswith(f"{library}.") for name in modules(path))


def is_pure(path: Path) -> bool:
    return any(name_of(path) == room or name_of(path).startswith(f"{room}/") for room in PURE)


@pytest.mark.parametrize("library", DOORS)
def test_each_library_has_its_door(library: str) -> None:
    found = {name_of(path) for path in MODULES if reaches(path, library)}
    assert found <= DOORS[library]


@pytest.mark.parametrize("library", ["pydbus", "httpx", "huggingface_hub", "subprocess"])
def test_the_doors_are_in_use(library: str) -> None:
    assert any(reaches(PACKAGE / door, library) for door in DOORS[library])


@pytest.mark.parametrize("path", [path for path in MODULES if is_pure(path)], ids=name_of)
def test_pure_rooms_reach_nothing_outside(path: Path) -> None:
    assert not {library for library in REACHING_OUT if reaches(path, library)}
    for module, taken in imports(path):
        if module.startswith("epyc_vllm_agent.doors"):
            assert taken in VALUE_TYPES.get(module, set()), f"{module}.{taken}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_facts_know_only_facts_and_the_standard_library(path: Path) -> None:
    if path.parent.name != "facts":
        return
    for module, _ in imports(path):
        if module.startswith("epyc_vllm_agent"):
            room = module.split(".")[1] if "." in module else ""
            assert room in {"", "facts", "errors", "paths", "cpulist", "data", "codec"}, module
    assert not {library for library in DOORS if reaches(path, library)}


# A room may import from rooms before it, never after.
ORDER = (
    *("config", "facts", "plan", "units", "changes", "doors", "watch", "apply", "doctor", "report"),
    "cli",
)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_import_what_comes_before_them(path: Path) -> None:
    room = name_of(path).split("/")[0]
    if room not in ORDER:
        return
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] != "epyc_vllm_agent" or len(parts) < 2 or parts[1] not in ORDER:
            continue
        assert ORDER.index(parts[1]) <= ORDER.index(room), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)) or name_of(path).endswith("__init__.py")
    assert len(text.splitlines()) <= 500


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_function_is_long(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name
