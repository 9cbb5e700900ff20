"""Which CPUs and nodes the services of this system may use; knows nothing of what exists.

Services get the cpuset of their cgroup, not of the process that asks: a login session may be
pinned by taskset or a user slice while the services beside it are not. So this process's own
affinity is never read.
https://docs.kernel.org/admin-guide/cgroup-v2.html, "Cpuset Interface Files".
"""

from dataclasses import dataclass

from epyc_vllm_agent.facts.files import parse_list, read_list, read_text
from epyc_vllm_agent.paths import Paths

# The first that tells is right. system.slice is where systemd puts services (an admin may narrow it
# with AllowedCPUs=); it has the files only while the controller is enabled for the slices. The root
# has them since Linux 5.0: in a container it is the container's own cgroup. In cgroup v1 systemd
# leaves services in the root of the cpuset hierarchy.
_CGROUPS = (
    ("system.slice/cpuset.cpus.effective", "system.slice/cpuset.mems.effective"),
    ("cpuset.cpus.effective", "cpuset.mems.effective"),
    ("cpuset/cpuset.effective_cpus", "cpuset/cpuset.effective_mems"),
)


@dataclass(frozen=True, slots=True)
class Cpuset:
    """Numbers that may include offline and absent ones; None: nothing restricts them."""

    cpus: tuple[int, ...] | None
    nodes: tuple[int, ...] | None


def read_cpuset(paths: Paths) -> Cpuset:
    for cpus_file, nodes_file in _CGROUPS:
        cpus = read_list(paths.at(f"/sys/fs/cgroup/{cpus_file}"))
        if cpus:
            return Cpuset(cpus, read_list(paths.at(f"/sys/fs/cgroup/{nodes_file}")) or None)
    return _of_init(paths)


def _of_init(paths: Paths) -> Cpuset:
    """What PID 1 may use, which its services inherit: the only mark of an outer cpuset in a
    container without the cpuset controller.

    Not looked at where a cgroup tells: it also holds systemd's CPUAffinity= and leaves out isolated
    CPUs, which are defaults that a service may override.
    """
    status = read_text(paths.at("/proc/1/status")) or ""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return Cpuset(
        parse_list(fields.get("Cpus_allowed_list", "")) or None,
        parse_list(fields.get("Mems_allowed_list", "")) or None,
    )
