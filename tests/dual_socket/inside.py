"""Runs in the emulated host at each boot: enables, tells what runs, reboots once, sets the clock.

What it sees goes as one line of JSON to the second serial port.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ASKED = json.loads(Path("/etc/dual-socket.json").read_text())
ENABLE = ("epyc-vllm", "enable", *ASKED["enable"], "--name", "tiny", "--yes")
PLAN = Path("/var/lib/epyc-vllm/plans/tiny.json")
REPORTS = Path("/var/lib/epyc-vllm/reports")
WATCHDOG = "epyc-vllm-watchdog.service"
BOOTS = Path("/var/lib/dual-socket-boots")


STEPS: list[str] = []  # what was run, with the time since boot at which it had ended


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def run(*words: str) -> subprocess.CompletedProcess[str]:
    began = uptime()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    STEPS.append(f"{uptime():7.1f} s {uptime() - began:7.1f} s  {' '.join(words)[:60]}")
    sys.stdout.write(f"# {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}\n")
    sys.stdout.flush()
    return done


def fields(process: int) -> dict[str, str]:
    text = Path(f"/proc/{process}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def family(process: int) -> list[int]:
    found = [process]
    for parent in found:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        found += map(int, children.split())
    return found


def process(number: int) -> dict[str, Any]:
    """One process of a server: its name, and what the kernel lets it and its threads use."""
    known = fields(number)
    threads = sorted(
        fields_of_thread["Cpus_allowed_list"]
        for fields_of_thread in (fields_of(path) for path in tasks(number))
    )
    raw = Path(f"/proc/{number}/environ").read_bytes().decode().split("\0")
    environ = dict(entry.split("=", 1) for entry in raw if "=" in entry)
    return {
        "name": known["Name"],
        "argv": Path(f"/proc/{number}/cmdline").read_bytes().decode().split("\0"),
        "cpus": known["Cpus_allowed_list"],
        "nodes": known["Mems_allowed_list"],
        "threads": threads,
        "environ": {key: value for key, value in environ.items() if key.startswith("VLLM_")},
        "heap": [line for line in numa_maps(number) if " heap" in line],
    }


def numa_maps(number: int) -> list[str]:
    return Path(f"/proc/{number}/numa_maps").read_text().splitlines()


def tasks(number: int) -> list[Path]:
    return list(Path(f"/proc/{number}/task").iterdir())


def fields_of(task: Path) -> dict[str, str]:
    text = (task / "status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def instance(name: str) -> dict[str, Any]:
    unit = f"epyc-vllm-{name}"
    state = run("systemctl", "is-active", f"{unit}.service").stdout.strip()
    first = run("podman", "inspect", "--format", "{{.State.Pid}}", unit).stdout.strip()
    first = first or run("systemctl", "show", "-P", "MainPID", unit).stdout.strip()
    numbers = family(int(first)) if first.isdigit() else []
    return {
        "name": name,
        "state": state,
        "invocation": run("systemctl", "show", "-P", "InvocationID", unit).stdout.strip(),
        "processes": [process(number) for number in numbers],
        "log": run("journalctl", "--unit", unit, "--boot", "--output=cat").stdout[-40000:],
    }


def observe(boot: int) -> dict[str, Any]:
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {"instances": []}
    status = run("epyc-vllm", "status", "--json")
    return {
        "boot": boot,
        "detect": json.loads(run("epyc-vllm", "detect", "--json").stdout),
        "instances": [instance(planned["name"]) for planned in plan["instances"]],
        "plan": plan,
        "status": json.loads(status.stdout) if status.returncode == 0 else None,
        "verified": json.loads(run("epyc-vllm", "verify", "--json").stdout or "null"),
        "controllers": Path("/sys/fs/cgroup/cgroup.controllers").read_text().split(),
        "runtime": run("podman", "info", "--format", "{{.Host.OCIRuntime.Path}}").stdout.strip(),
        "steps": STEPS,
    }


def observe_over_jumps(boot: int) -> dict[str, Any]:
    """The same with the clock set a day ahead before, which takes a while, and back after it."""
    dates = [time.time()]
    run("date", "--set", "+1 day")
    dates.append(time.time())
    told = observe(boot)
    run("date", "--set", "-1 day")
    dates.append(time.time())
    time.sleep(40)  # longer than the verdict of a sick server takes
    return {**told, "jumped": after_jumps(dates)}


def after_jumps(dates: list[float]) -> dict[str, Any]:
    show = ("systemctl", "show", "-P")
    return {
        "dates": dates,
        "watchdog": [
            run(*show, name, WATCHDOG).stdout.strip() for name in ("ActiveState", "StatusText")
        ],
        "states": [
            run(*show, "ActiveState", f"epyc-vllm-{planned['name']}.service").stdout.strip()
            for planned in json.loads(PLAN.read_text())["instances"]
        ],
        "reports": [path.name for path in REPORTS.iterdir()],
    }


def starved(names: list[str]) -> dict[str, Any]:
    """The first container with less memory than it holds: the kernel kills its processes. No
    other test host has a memory controller."""
    unit = f"epyc-vllm-{names[0]}.service"
    (group,) = Path("/sys/fs/cgroup/system.slice", unit).glob("libpod-payload-*")
    (group / "memory.max").write_text("16M")
    for _ in range(300):
        if run("systemctl", "is-active", unit).stdout.strip() in ("failed", "inactive"):
            break
        time.sleep(2)
    states = [run("systemctl", "is-active", f"epyc-vllm-{name}.service") for name in names]
    return {
        "states": [state.stdout.strip() for state in states],
        "reports": json.loads(run("epyc-vllm", "report", names[0], "--json").stdout)["reports"],
        "tasks": run("systemctl", "show", "-P", "TasksCurrent", unit).stdout.strip(),
        "containers": run("podman", "ps", "--all", "--format={{.Names}}").stdout.split(),
    }


def wait_for_jobs() -> None:
    """Until the boot's own start jobs have ended; this service is one of them no more."""
    for _ in range(3600):
        waiting = run("systemctl", "list-jobs", "--no-legend", "epyc-vllm*").stdout.strip()
        if not waiting:
            return
        time.sleep(5)


def main() -> None:
    boot = int(BOOTS.read_text()) + 1 if BOOTS.exists() else 1
    BOOTS.write_text(str(boot))
    failed = None
    if boot == 1:
        done = run(*ENABLE)
        failed = done.stderr if done.returncode else None
    else:
        wait_for_jobs()
    seen = observe(boot) if boot == 1 else observe_over_jumps(boot)
    told = {"enable_failed": failed, **seen}
    if boot == 2:
        told["starved"] = starved([one["name"] for one in told["instances"]])
    if failed or any(one["state"] != "active" for one in told["instances"]):
        log = run("journalctl", "--no-pager", "--lines=200", "--output=cat").stdout
        told["log"] = log[-20000:]
    with Path("/dev/ttyS1").open("w") as port:
        port.write(json.dumps(told) + "\n")
    again = boot < ASKED["boots"] and not failed
    run("systemctl", "reboot" if again else "poweroff", *(() if again else ("--force", "--force")))


if __name__ == "__main__":
    main()
