"""doctor: each finding from a survey made for it, the verdicts, the recipe's field names."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.config.config import Config, Fault
from epyc_vllm_agent.doctor.diagnose import diagnose
from epyc_vllm_agent.doctor.finding import Severity
from epyc_vllm_agent.doctor.look import limits_of, look
from epyc_vllm_agent.doctor.seen import Cache, Environment, Programs, Runtime, Seen, System, Token
from epyc_vllm_agent.facts.mounts import filesystem_of
from epyc_vllm_agent.pipeline import survey
from epyc_vllm_agent.plan.platform import predict
from epyc_vllm_agent.plan.values import Stack
from epyc_vllm_agent.report import answer
from epyc_vllm_agent.report import doctor as report
from epyc_vllm_agent.watch.drift import Drift
from tests.hosts import DATA, HOSTS, HostDescription, build, facts_of
from tests.jsonschema import faults
from tests.plans import LAUNCH, STACKS, STOCK, ZEN, endpoint, shipped_for

SCHEMA = json.loads((DATA / "doctor.schema.json").read_text())
# serving-llms-on-epyc, step 2: "Returns ...".
RECIPE_FIELDS = {
    *("ready", "requires_confirmation", "zentorch_capable", "runtime", "runtime_detail"),
    *("conda_path_available", "stack", "compatibility", "hf_cache", "ram_gb"),
    *("errors", "warnings", "advisories"),
}
LIMITS = limits_of((DATA / "doctor.json").read_text(), (DATA / "quadlet.json").read_text())
PODMAN = Runtime("podman", "5.8.2", None, None, image_present=True)
NO_PODMAN, NO_DOCKER = (Runtime(name, None, None, None, None) for name in ("podman", "docker"))
DOCKER = Runtime("docker", "28.2.2", None, None, image_present=True)
CACHE = Cache(
    *("/var/lib/epyc-vllm/models", "/srv/models"),
    exists=True,
    filesystem="ext4",
    free_bytes=500_000_000_000,
    is_writable=True,
)
FINE = System(True, 257, ("cpuset", "cpu", "memory"), False, 1073741816, True)


def environment(stack: Stack | None) -> Environment:
    if stack is None:
        return Environment("/opt/vllm", None, "/opt/vllm is none", "make one")
    return Environment("/opt/vllm", stack, preload=LAUNCH.preload)


def seen(host: str | HostDescription = "genoa-1s", **changes: Any) -> Seen:
    """A host on which nothing is to be found, but for `changes`."""
    facts = facts_of(HOSTS[host] if isinstance(host, str) else host)
    stack = changes.pop("stack", ZEN if facts.cpu.avx512_bf16 else STOCK)
    values: dict[str, Any] = {
        "facts": facts,
        "config": Config((), ()),
        "shipped": shipped_for(facts),
        "limits": LIMITS,
        "accepted": (),
        "image": "docker.io/org/image:tag",
        "runtimes": (PODMAN, NO_DOCKER),
        "environment": environment(stack),
        "prediction": predict(facts.cpu, stack, STACKS.platforms) if stack else None,
        "cache": CACHE,
        "token": None,
        "programs": Programs("/usr/bin/g++", "/usr/bin/numactl", "/usr/bin/taskset"),
        "system": FINE,
    }
    return Seen(**(values | changes))


def codes(found: Seen) -> dict[str, Severity]:
    return {finding.code: finding.severity for finding in diagnose(found).findings}


@pytest.mark.parametrize("host", ["genoa-1s", "turin-2s-nps1", "turin-dense-2s"])
def test_a_good_host_has_nothing_to_tell(host: str) -> None:
    assert codes(seen(host)) == {}
    found = diagnose(seen(host))
    assert (found.is_ready, found.closed_gates) == (True, ())
    assert str(found.compatibility.status) == "proceed"


E, W, A = Severity.ERROR, Severity.WARNING, Severity.ADVICE
GENOA2 = HOSTS["genoa-2s-nps1"]
OLD_PODMAN = replace(PODMAN, version="4.9.3")
BROKEN_DOCKER = replace(DOCKER, fault="its daemon does not run", fix="systemctl start docker")


@pytest.mark.parametrize(
    ("found", "code", "severity"),
    [
        (seen("xeon-2s"), "not-epyc", E),
        (seen("xeon-2s", accepted=("not-epyc",)), "not-epyc", W),
        (seen("milan-1s"), "stock-cpu", W),
        (seen("milan-1s", accepted=("stock-cpu",)), "stock-cpu", A),
        (seen("bergamo-2s"), "unvalidated-cpu", W),
        (seen("genoa-guest-masked"), "avx512-masked", W),
        (seen("venice-1s"), "unvalidated-stack", W),
        (seen(stack=replace(ZEN, zentorch="2.13.0.2")), "unvalidated-stack", W),
        (seen(stack=replace(STOCK, name="zentorch")), "zentorch-not-active", E),
        (seen(stack=replace(ZEN, platform=STOCK.platform)), "platform-mismatch", E),
        (seen(stack=replace(ZEN, torch="2.10.0")), "torch-cache-key", W),
        (seen(replace(GENOA2, offline="3")), "cpus-offline", A),
        (seen(replace(GENOA2, isolated="3")), "cpus-isolated", A),
        (seen(replace(GENOA2, cpuset_cpus="0-7")), "cpuset-restricted", W),
        (seen(replace(GENOA2, memory_gib=(384, 0))), "node-without-memory", W),
        (seen(replace(GENOA2, memory_gib=(384, 192))), "nodes-unequal", A),
        (seen(replace(GENOA2, node_directory=False)), "numa-unknown", W),
        (seen(replace(GENOA2, used_gib=383)), "memory-low", W),
        (seen("genoa-2s-nps4"), "several-nodes", A),
        (seen(runtimes=(NO_PODMAN, NO_DOCKER), stack=None), "no-runtime", E),
        (seen(runtimes=(NO_PODMAN, NO_DOCKER), stack=None), "environment-unusable", W),
        (seen(stack=None), "environment-unusable", A),
        (seen(runtimes=(OLD_PODMAN, NO_DOCKER)), "quadlet-old", A),
        (seen(runtimes=(NO_PODMAN, BROKEN_DOCKER)), "docker-unusable", A),
        (seen(runtimes=(NO_PODMAN, BROKEN_DOCKER), stack=None), "docker-unusable", W),
        (seen(runtimes=(replace(PODMAN, image_present=False), NO_DOCKER)), "image-absent", A),
        (seen(runtimes=(replace(PODMAN, image_present=False), NO_DOCKER), stack=None),
         "image-absent", W),
        (seen(programs=Programs(None, "/n", "/t")), "no-compiler", W),
        (seen(programs=Programs(None, "/n", "/t"), runtimes=()), "no-compiler", E),
        (seen(programs=Programs("/g", None, "/t")), "no-numactl", W),
        (seen(environment=replace(environment(ZEN), preload=())), "no-tcmalloc", W),
        (seen(environment=replace(environment(ZEN), preload=("/libtcmalloc.so",))),
         "no-openmp", W),
        (seen(system=replace(FINE, user_exists=False)), "no-user", W),
        (seen(system=replace(FINE, runs_systemd=False)), "no-systemd", E),
        (seen(system=replace(FINE, systemd=246)), "systemd-old", E),
        (seen(system=replace(FINE, controllers=("cpu", "memory"))), "controllers-missing", W),
        (seen(system=replace(FINE, controllers=None, is_cgroup_v1=True)), "cgroup-v1", A),
        (seen(system=replace(FINE, open_files=65536)), "open-files", E),
        (seen(cache=replace(CACHE, filesystem="nfs4")), "cache-on-network", W),
        (seen(cache=replace(CACHE, filesystem="nfs4", is_writable=False)),
         "cache-root-squash", E),
        (seen(cache=replace(CACHE, is_writable=False)), "cache-read-only", E),
        (seen(cache=replace(CACHE, free_bytes=10**9)), "cache-full", W),
        (seen(token=Token("/t", "No such file or directory", False)), "token-unreadable", E),
        (seen(token=Token("/t", None, True)), "token-public", W),
        (seen(drift=(Drift("a", "unit-changed", "its unit was edited"),)), "unit-changed", W),
        (seen(config=Config((), (Fault("a", "a.toml: unknown key 'x'"),))), "config-invalid", E),
        (seen(config=Config((endpoint(env={"TORCHINDUCTOR_FREEZING": "1"}),), ())),
         "freezing-alone", E),
        (seen(config=Config((endpoint(dtype="float16"),), ())), "dtype-unsupported", E),
    ],
)  # fmt: skip
def test_each_finding(found: Seen, code: str, severity: Severity) -> None:
    diagnosis = diagnose(found)
    (match,) = [finding for finding in diagnosis.findings if finding.code == code]
    assert match.severity is severity
    assert match.seen
    assert match.fix
    assert diagnosis.is_ready == (E not in {f.severity for f in diagnosis.findings})
    order = [finding.severity for finding in diagnosis.findings]
    assert order == sorted(order, key=list(Severity).index)
    assert list(faults(answered(found), SCHEMA)) == []
    assert f"{severity:<8} {code}: {match.seen}" in report.text(found, diagnosis)


PINNED = replace(ZEN, vllm="0.25.1", zentorch="2.11.0.3", plugins=("zentorch",),
                 platform="zentorch.vllm.ZenPlatform")  # fmt: skip


@pytest.mark.parametrize(
    ("found", "status", "part", "confirm"),
    [
        (seen(), "proceed", "vLLM 0.32.0+cpu with zentorch 2.13.0.1", False),
        (seen("venice-1s"), "confirmation_required", "use the pinned vLLM 0.25.1", True),
        (seen("venice-1s", stack=PINNED), "proceed", "vLLM 0.25.1", False),
        (seen("venice-1s", accepted=("unvalidated-stack",)), "proceed", "0.32.0", False),
        (seen("milan-1s"), "confirmation_required", "unaccelerated", True),
        (seen("milan-1s", accepted=("stock-cpu",)), "proceed", "CpuPlatform", False),
        (seen("siena-1s"), "confirmation_required", "not been validated", True),
        (seen(stack=replace(STOCK, name="zentorch")), "blocked", "zentorch is not active", False),
        (seen("xeon-2s"), "blocked", "no AMD EPYC", False),
        (seen("xeon-2s", accepted=("not-epyc",)), "proceed", "CpuPlatform", False),
        (seen(stack=None), None, "no stack was probed", False),
        (seen("milan-1s", stack=None), None, "no stack was probed", True),
    ],
)
def test_verdicts(found: Seen, status: str | None, part: str, confirm: bool) -> None:
    values = answered(found)
    assert values["compatibility"]["status"] == status
    assert part in values["compatibility"]["message"]
    assert values["requires_confirmation"] == confirm


@pytest.mark.parametrize("host", [name for name in HOSTS if "largest" not in name])
def test_an_epyc_is_never_a_dead_end(host: str) -> None:
    """Whatever generation: no error, and where it is not validated, a gate that opens it."""
    stack = replace(ZEN if facts_of(HOSTS[host]).cpu.avx512_bf16 else STOCK)
    found = diagnose(seen(host, stack=stack))
    assert found.is_ready == facts_of(HOSTS[host]).cpu.is_amd_epyc
    opened = diagnose(seen(host, stack=stack, accepted=found.closed_gates))
    assert (opened.is_ready, opened.closed_gates) == (True, ())


def answered(found: Seen) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(answer.dump(report.plain(found, diagnose(found))))
    return values


def test_the_recipes_names_are_there_and_required() -> None:
    values = answered(seen())
    assert values.keys() >= RECIPE_FIELDS
    assert set(SCHEMA["required"]) >= RECIPE_FIELDS
    assert values["hf_cache"]["path"] == "/srv/models"
    assert values["hf_cache"]["mount"] == "-v /srv/models:/root/.cache/huggingface/hub"
    assert {"status", "message"} == values["compatibility"].keys()


@pytest.mark.parametrize(
    ("changes", "runtime", "conda", "detail"),
    [
        ({}, "podman", True, "podman 5.8.2, the image is there; docker is not installed"),
        ({"runtimes": (NO_PODMAN, DOCKER)}, "docker", True, "docker 28.2.2"),
        ({"runtimes": (NO_PODMAN, BROKEN_DOCKER)}, None, True, "its daemon does not run"),
        ({"runtimes": (NO_PODMAN, NO_DOCKER), "stack": None}, None, False, "not installed"),
    ],
)
def test_runtime_fields(
    changes: dict[str, Any], runtime: str | None, conda: bool, detail: str
) -> None:
    values = answered(seen(**changes))
    assert (values["runtime"], values["conda_path_available"]) == (runtime, conda)
    assert detail in values["runtime_detail"]
    assert (values["stack"] is None) == (not conda)


def test_switches_count_as_the_endpoints_own() -> None:
    config = Config((endpoint(throughput=True),), ())
    freezing = ("TORCHINDUCTOR_FREEZING", "1")
    assert codes(seen(config=config, switches=(freezing, ("VLLM_USE_AOT_COMPILE", "0")))) == {}
    assert codes(seen(config=config, switches=(freezing,))) == {"freezing-alone": E}


def test_every_code_is_documented() -> None:
    """Those of the sources, whether or not a test brings them about."""
    root = Path(__file__).parents[2]
    page = (root / "docs/doctor.md").read_text()
    rooms = [
        *(root / "epyc_vllm_agent/doctor").glob("*.py"),
        root / "epyc_vllm_agent/plan/gates.py",
    ]
    text = "".join(path.read_text() for path in rooms)
    found = set(re.findall(r"(?:error|warning|advice|kind|Refusal)\(\s*\"([a-z0-9-]+)\"", text))
    found |= {bad.code for bad in STACKS.known_bad} | {"platform-mismatch", "podman-unusable"}
    assert len(found) > 35
    assert {code for code in found if not re.search(rf"[| ]{code}[, |]", page)} == set()


class TestLook:
    """Of another host only the files are read."""

    def seen_at(self, root: Path, host: str = "genoa-2s-nps1") -> Seen:
        paths = build(HOSTS[host], root)
        for name in ("usr/bin/podman", "usr/bin/numactl", "run/systemd/system/x"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("")
        cgroup = root / "sys/fs/cgroup/cgroup.controllers"
        cgroup.parent.mkdir(parents=True, exist_ok=True)
        cgroup.write_text("cpuset cpu memory\n")
        mounts = root / "proc/self/mountinfo"
        mounts.parent.mkdir(parents=True, exist_ok=True)
        mounts.write_text("1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /var rw - nfs4 box:/ rw\n")
        return look(survey(paths), (), None, None)

    def test_what_files_tell(self, tmp_path: Path) -> None:
        found = self.seen_at(tmp_path)
        assert found.far == str(tmp_path)
        assert found.environment is None
        assert found.cache.filesystem == "nfs4"
        assert (found.cache.free_bytes, found.cache.is_writable) == (None, None)
        assert [r.version for r in found.runtimes] == ["", None]
        assert found.system.runs_systemd
        assert set(codes(found)) == {"podman-unusable", "cache-on-network"}

    def test_it_fits_the_schema_and_is_ready(self, tmp_path: Path) -> None:
        values = answered(self.seen_at(tmp_path))
        assert list(faults(values, SCHEMA)) == []
        assert values["ready"] is True
        assert (values["runtime"], values["stack"]) == (None, None)
        assert "on another host nothing is run" in values["compatibility"]["message"]

    def test_of_hardware_alone_nothing_is_said_beside_it(self, tmp_path: Path) -> None:
        """A capture holds /proc and /sys: what is not in it is not missing on that host."""
        found = look(survey(build(HOSTS["genoa-2s-nps1"], tmp_path)), (), None, None)
        assert codes(found) == {}
        assert answered(found)["runtime_detail"] == "not looked at"

    def test_a_host_with_cgroup_v1(self, tmp_path: Path) -> None:
        paths = build(HOSTS["milan-1s"], tmp_path)
        (tmp_path / "sys/fs/cgroup/cpuset").mkdir(parents=True)
        assert codes(look(survey(paths), ("stock-cpu",), None, None)) == {
            "stock-cpu": A,
            "cgroup-v1": A,
        }


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /var/lib rw - xfs /dev/sdb rw
31 30 0:31 / /var/lib/epyc-vllm/models\\040big rw master:1 - nfs4 box:/models rw
32 30 0:32 / /var/lib/over rw - ext4 /dev/sdc rw
33 32 0:33 / /var/lib/over rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/library", "ext4"),
        ("/var/lib/epyc-vllm/models", "xfs"),
        ("/var/lib/epyc-vllm/models big/x", "nfs4"),
        ("/var/lib/over/x", "tmpfs"),
    ],
)
def test_file_systems(path: str, kind: str) -> None:
    assert filesystem_of(MOUNTS, path) == kind


def test_no_mounts() -> None:
    assert filesystem_of("", "/x") is None
