"""The linters, each as a test, over the whole tree."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def shell_scripts() -> list[str]:
    """Every file of the tree that a shell runs, found by its first line."""
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = []
    for name in tracked:
        path = ROOT / name
        if path.is_file():
            with path.open("rb") as file:
                first = file.readline()
            if first.startswith(b"#!") and first.strip().endswith((b"bash", b"/sh")):
                found.append(name)
    return found


def test_ruff_check() -> None:
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_ruff_format() -> None:
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".")


def test_mypy() -> None:
    run(sys.executable, "-m", "mypy", "--cache-dir=/dev/null")


def test_codespell() -> None:
    run(str(Path(sys.executable).parent / "codespell"))


def test_shellcheck() -> None:
    scripts = shell_scripts()
    assert "tests/run" in scripts
    run("shellcheck", *scripts)


def test_sizes() -> None:
    """House style: a function never passes 60 lines, a module is split by 500."""
    too_long = []
    for path in sorted((ROOT / "epyc_vllm_agent").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 500:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name} {length} lines")
    assert too_long == []
