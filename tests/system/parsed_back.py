"""Runs in the booted host: what systemd and podman make of unit files, told as JSON.

Reads {"units": {name: text}, "quadlets": {name: text}, "folders": [path]} and prints, for each
service, what systemd read, and what `podman create` understood of its command. Leaves no unit.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydbus import SystemBus

UNITS = Path("/run/systemd/system")
QUADLETS = Path("/run/parsed-back")
GENERATOR = "/usr/lib/systemd/system-generators/podman-system-generator"
STEPS = ("ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")


def generate(quadlets: dict[str, str]) -> list[str]:
    """The services that the generator makes, by name."""
    QUADLETS.mkdir()
    for name, text in quadlets.items():
        (QUADLETS / name).write_text(text, encoding="utf-8")
    before = set(UNITS.iterdir())
    subprocess.run(
        [GENERATOR, UNITS], env={**os.environ, "QUADLET_UNIT_DIRS": str(QUADLETS)}, check=True
    )
    return sorted(path.name for path in set(UNITS.iterdir()) - before)


def read(bus: Any, name: str) -> dict[str, Any]:
    manager = bus.get("org.freedesktop.systemd1")
    unit = bus.get("org.freedesktop.systemd1", manager.LoadUnit(name))
    of_unit = {"Description": unit.Description, "RequiresMountsFor": unit.RequiresMountsFor}
    if not name.endswith(".service"):
        return {**of_unit, "LoadState": unit.LoadState}
    steps = {step: [command[1] for command in getattr(unit, step)] for step in STEPS}
    return {
        **of_unit,
        **steps,
        "LoadState": unit.LoadState,
        "Environment": unit.Environment,
        "LoadCredential": unit.LoadCredential,
        "User": unit.User,
    }


def create(argv: list[str]) -> Any:
    """`podman create` with the arguments of a `podman run`, as inspect shows the container.

    systemd puts "$" in for "$$" only when it runs the command.
    """
    words = [word.replace("$$", "$") for word in argv[2:] if word not in ("-d", "--rm")]
    done = subprocess.run([argv[0], "create", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"refused": done.stderr}
    identity = done.stdout.split()[-1]
    shown = subprocess.run([argv[0], "inspect", identity], capture_output=True, check=True).stdout
    subprocess.run([argv[0], "rm", "--force", identity], capture_output=True, check=True)
    return json.loads(shown)[0]


def main() -> None:
    given = json.load(sys.stdin)
    for folder in given["folders"]:
        Path(folder).mkdir(parents=True, exist_ok=True)
    made = [UNITS / name for name in given["units"]]
    for path in made:
        path.write_text(given["units"][path.name], encoding="utf-8")
    try:
        generated = generate(given["quadlets"])
        made += [UNITS / name for name in generated]
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        bus = SystemBus()
        found = {path.name: read(bus, path.name) for path in made if path.is_file()}
        for name, properties in found.items():
            argv = properties.get("ExecStart", [[]])[0]
            if argv[:1] == ["/usr/bin/podman"]:
                quadlet = name in generated
                said = argv if quadlet else [word.replace("$", "$$") for word in argv]
                properties["created"] = create(said)
        sys.stdout.write(json.dumps(found))
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        for path in QUADLETS.iterdir():
            path.unlink()
        QUADLETS.rmdir()
        subprocess.run(["systemctl", "daemon-reload"], check=True)


if __name__ == "__main__":
    main()
