"""The files that an endpoint is made of, in two layers, as systemd reads its units; reads only.

/usr/share/epyc-vllm/endpoints.d is a package's, /etc/epyc-vllm/endpoints.d the administrator's. A
file of the same name in /etc stands instead; an empty one, or a link to /dev/null, masks it.
NAME.toml.d/*.toml of both layers go over NAME.toml in the order of their names, masked likewise.
https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html
"""

import contextlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epyc_vllm_agent.config import toml_text
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths


@dataclass(frozen=True, slots=True)
class Source:
    """A file as read; `values` are what it sets."""

    path: str
    text: str = ""
    values: Mapping[str, Any] | None = None

    def place(self, key: str, table: str = "") -> str:
        """Where `key` stands, as "path:line" where the line can be told."""
        line = toml_text.line_of(self.text, key, table)
        return f"{self.path}:{line}" if line else self.path


@dataclass(frozen=True, slots=True)
class Origin:
    """The files of an endpoint, those that go over others last."""

    sources: tuple[Source, ...]

    def place(self, key: str) -> str:
        setting = [s for s in self.sources if s.values is not None and key in s.values]
        return (setting or list(self.sources[:1]))[-1].place(key)


def origin(path: str) -> Origin:
    """Of values that are in no file's text yet."""
    return Origin((Source(path),))


def names(paths: Paths) -> tuple[str, ...]:
    """Every endpoint that has a file which is not masked."""
    found = {path.stem for folder in _folders(paths) for path in _listed(folder)}
    return tuple(sorted(name for name in found if base(paths, name)))


def base(paths: Paths, name: str) -> Path | None:
    """The file NAME.toml that counts; None where there is none, or a masked one."""
    found = _in_force(folder / f"{name}.toml" for folder in _folders(paths))
    return next(iter(found), None)


def is_masked(paths: Paths, name: str) -> bool:
    return _is_mask(paths.endpoints / f"{name}.toml")


def is_shipped(paths: Paths, name: str) -> bool:
    """Whether a package brings the endpoint: only a mask keeps it away."""
    return os.path.lexists(paths.shipped_endpoints / f"{name}.toml")


def drop_ins(paths: Paths, name: str) -> tuple[Path, ...]:
    folders = [folder / f"{name}.toml.d" for folder in _folders(paths)]
    return _in_force(path for folder in folders for path in _listed(folder))


def stamp(paths: Paths) -> tuple[tuple[str, int, int], ...]:
    """Changes with every file of the configuration: name, time and size of each."""
    files = [paths.config_file]
    for folder in _folders(paths):
        files += [*_listed(folder), *sorted(folder.glob("*.toml.d/*.toml"))]
    found = []
    for path in files:
        with contextlib.suppress(OSError):  # not there, or gone just now
            status = path.lstat()
            found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)


def read(path: Path) -> Source:
    """Raises ConfigError, with the line where there is one, where the file is no TOML."""
    try:
        text = path.read_text(encoding="utf-8")
        return Source(str(path), text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+), ", str(error))
        where = f"{path}:{line[1]}" if line else str(path)
        fault = f"{where}: not valid TOML: {error}"
    except (UnicodeDecodeError, ValueError) as error:  # a null byte in a name is a ValueError too
        fault = f"{path}: not valid TOML: {error}"
    except RecursionError:
        fault = f"{path}: not valid TOML: nested too deeply"
    except OSError as error:
        fault = f"{path}: cannot be read ({error.strerror})"
    raise ConfigError("config-invalid", fault, "correct the file named")


def merged(values: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Later ones over earlier ones, key by key; a table is merged, a list replaced."""
    found: dict[str, Any] = {}
    for one in values:
        for key, value in one.items():
            old = found.get(key)
            both = isinstance(old, dict) and isinstance(value, dict)
            found[key] = {**old, **value} if both else value  # type: ignore[dict-item]
    return found


def _folders(paths: Paths) -> tuple[Path, Path]:
    return paths.shipped_endpoints, paths.endpoints


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def _in_force(paths: Iterable[Path]) -> tuple[Path, ...]:
    """One file of each name, the later folder's, in order of the names; without what is masked."""
    last = {path.name: path for path in paths if os.path.lexists(path)}
    return tuple(last[name] for name in sorted(last) if not _is_mask(last[name]))


def _is_mask(path: Path) -> bool:
    """Empty, or a link to /dev/null; below another root that link leads out of it."""
    try:
        if path.is_symlink() and str(path.readlink()) == "/dev/null":
            return True
        return path.is_file() and path.stat().st_size == 0
    except OSError:
        return False
