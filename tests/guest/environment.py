"""The Python environments with real vLLM, made by packaging/make-environment on a copied Python.

The copy beside them makes them self-contained: bound into the guest they work for an unprivileged
user and beside another Python than the guest's own (builds of torch are not to be had for every
version). An environment names its own path, so each is made at the path that it has in the guest,
in a mount namespace, whatever the path of the cache: units with PrivateTmp= see no /var/tmp.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from tests.guest import cache
from tests.guest.outside import GuestError, output

REPOSITORY = Path(__file__).parents[2]
MAKE_ENVIRONMENT = REPOSITORY / "packaging/make-environment"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
NOT_NEEDED = ("site-packages", "dist-packages", "test", "config-*", "idlelib", "turtledemo")

# Where they are in the guest.
PYTHON = Path("/opt/vllm-python")
ZENTORCH = Path("/opt/vllm")
STOCK = Path("/opt/vllm-stock")

_MAKE = """\
set -e
mkdir -p "$2" "$4"
mount --bind "$1" "$2"
mount --bind "$3" "$4"
shift 4
exec "$@"
"""


def binds() -> dict[Path, Path]:
    """What to bind into the guest, and where: the Python, and vLLM with and without zentorch."""
    return {python(): PYTHON, zentorch(): ZENTORCH, stock(): STOCK}


def python() -> Path:
    """A copy of the running interpreter with its library and headers."""
    return cache.part("python", [sys.version, sys.base_prefix], _copy_interpreter)


def _copy_interpreter(target: Path) -> None:
    base = Path(sys.base_prefix)
    _copy_headers(base / "include", target / "include" / VERSION)
    shutil.copytree(
        base / "lib" / VERSION, target / "lib" / VERSION,
        ignore=shutil.ignore_patterns(*NOT_NEEDED),
    )  # fmt: skip
    (target / "bin").mkdir()
    binary = target / "bin" / VERSION
    shutil.copy2(base / "bin" / VERSION, binary)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        libraries = str(sysconfig.get_config_var("LIBDIR"))
        library = str(sysconfig.get_config_var("INSTSONAME"))
        shutil.copy2(Path(libraries) / library, target / "lib" / library)
        binary.write_bytes(with_run_path(binary.read_bytes(), libraries))
    output(binary, "-c", "import ssl, ensurepip, sysconfig")


def _copy_headers(include: Path, target: Path) -> None:
    if not (include / VERSION / "Python.h").is_file():
        raise GuestError(
            f"{include}/{VERSION}/Python.h is missing: torch compiles with python3-dev"
        )
    shutil.copytree(include / VERSION, target)
    # Debian's pyconfig.h includes the architecture's own, relative to /usr/include.
    own = include / str(sysconfig.get_config_var("MULTIARCH")) / VERSION / "pyconfig.h"
    if own.is_file():
        shutil.copy2(own, target / "pyconfig.h")


def with_run_path(binary: bytes, old: str) -> bytes:
    """An ELF file whose RUNPATH `old` is replaced by the lib folder beside its own."""
    before = b"\0" + old.encode() + b"\0"
    after = b"\0" + b"$ORIGIN/../lib".ljust(len(before) - 2, b"\0") + b"\0"
    return binary.replace(before, after) if len(after) == len(before) else binary


def _inputs() -> object:
    pins = json.loads((REPOSITORY / "data/epyc.json").read_text())["environment"]
    wanted = [pins[key] for key in ("requirements", "no_deps", "unused", "vllm_version")]
    return [wanted, str(python()), str(ZENTORCH), str(STOCK)]


def zentorch() -> Path:
    """The environment with vLLM and zentorch, as the outer machine sees it."""
    return cache.part("environment", _inputs(), _make)


def stock() -> Path:
    """The same without zentorch: hard links, so that it costs no second installation."""
    return cache.part("environment-stock", _inputs(), lambda target: _without(zentorch(), target))


def _make(target: Path) -> None:
    target.mkdir()
    places = [str(python()), str(PYTHON), str(target), str(ZENTORCH)]
    script = [sys.executable, str(MAKE_ENVIRONMENT), str(ZENTORCH)]
    interpreter = ["--python", str(PYTHON / "bin" / VERSION)]
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", _MAKE, "sh", *places]
    result = subprocess.run([*command, *script, *interpreter], check=False)
    for place in (PYTHON, ZENTORCH):
        with suppress(OSError):  # in use on this machine itself
            place.rmdir()
    if result.returncode != 0:
        raise GuestError("the environment with vLLM could not be made: see above")


def _without(whole: Path, target: Path) -> None:
    output("cp", "-al", whole, target)
    (target / ".epyc-vllm-environment.json").unlink()  # make-environment did not make this one
    for script in (target / "bin").iterdir():
        _move_script(script)
    for packages in target.glob("lib/python3.*/site-packages"):
        for found in packages.glob("zentorch*"):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def _move_script(script: Path) -> None:
    """Gives a script that names its environment the copy's name, without touching the first."""
    if script.is_symlink() or not script.is_file():
        return
    content, mode = script.read_bytes(), script.stat().st_mode
    if bytes(ZENTORCH / "bin") in content:
        script.unlink()
        script.write_bytes(content.replace(bytes(ZENTORCH / "bin"), bytes(STOCK / "bin")))
        script.chmod(mode)
