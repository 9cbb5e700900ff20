"""Whether the kernel's cpuset controller can pin containers here; reads only.

https://docs.kernel.org/admin-guide/cgroup-v2.html, "Controllers".
"""

from epyc_vllm_agent.paths import Paths


def has_cpuset(paths: Paths) -> bool:
    """In cgroup v2 the root tells; in v1, and in hybrids of both, a mounted hierarchy."""
    try:
        controllers = paths.at("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        controllers = []
    return "cpuset" in controllers or _has_hierarchy(paths)


def _has_hierarchy(paths: Paths) -> bool:
    try:
        lines = paths.at("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    mounts = [line.split() for line in lines]
    return any(m[2] == "cgroup" and "cpuset" in m[3].split(",") for m in mounts if len(m) > 3)
