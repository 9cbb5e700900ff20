"""Routes, gates and platforms with real vLLM: what is predicted is what it chooses.

Whole answers with their exit codes, on a Genoa, a Milan and an Intel, with zentorch and without.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.guest.boot import Guest
from tests.guest.environment import REPOSITORY
from tests.system.conftest import EpycVllm

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

MODEL = "example/tiny-chat"
ZENTORCH, STOCK = "/opt/vllm", "/opt/vllm-stock"
ZEN_PLATFORM = "vllm.platforms.zen_cpu.ZenCpuPlatform"
CPU_PLATFORM = "vllm.platforms.cpu.CpuPlatform"
PROBE = 900.0  # seconds; importing vLLM takes about 10 alone
START = 1800.0


@dataclass(frozen=True, slots=True)
class Route:
    """A machine and an environment, and how `plan` ends there: at first, and with its gates."""

    processor: str
    environment: str
    stack: str
    platform: str
    gates: tuple[str, ...]
    refused: str | None
    codes: tuple[int, int]


ROUTES = (
    Route("genoa", ZENTORCH, "zentorch", ZEN_PLATFORM, (), None, (0, 0)),
    Route("genoa", STOCK, "zentorch", CPU_PLATFORM, (), "zentorch-not-active", (3, 3)),
    Route("milan", ZENTORCH, "stock", CPU_PLATFORM, ("stock-cpu",), None, (3, 0)),
    Route("milan", STOCK, "stock", CPU_PLATFORM, ("stock-cpu",), None, (3, 0)),
    Route("intel", ZENTORCH, "stock", CPU_PLATFORM, ("not-epyc",), None, (3, 0)),
    Route("intel", STOCK, "stock", CPU_PLATFORM, ("not-epyc",), None, (3, 0)),
)


@pytest.mark.parametrize(
    "route", ROUTES, ids=lambda r: f"{r.processor}-{r.environment.removeprefix('/opt/')}"
)
def test_routes(guest: Guest, epyc_vllm: EpycVllm, route: Route) -> None:
    guest.cpuinfo(route.processor)
    arguments = ["plan", MODEL, "--environment", route.environment, "--json"]
    done = epyc_vllm(*arguments, timeout=PROBE)
    answer = json.loads(done.stdout)
    assert answer["versions"]["probed"] is True
    assert answer["versions"]["platform"] == route.platform
    assert answer["prediction"]["platform"] == route.platform
    assert answer["stack"] == route.stack
    assert [gate["name"] for gate in answer["gates"]] == list(route.gates)
    refusals = [refusal["code"] for refusal in answer["refusals"]]
    assert refusals == ([route.refused] if route.refused else [])
    assert done.returncode == route.codes[0], done.stderr
    accepted = [word for gate in route.gates for word in ("--accept", gate)]
    done = epyc_vllm(*arguments, *accepted, timeout=PROBE)
    assert done.returncode == route.codes[1], done.stderr


@pytest.mark.parametrize(("processor", "gate"), [("milan", "stock-cpu"), ("intel", "not-epyc")])
def test_yes_opens_no_gate(guest: Guest, epyc_vllm: EpycVllm, processor: str, gate: str) -> None:
    guest.cpuinfo(processor)
    done = epyc_vllm("enable", MODEL, "--environment", ZENTORCH, "--yes", timeout=PROBE)
    assert done.returncode == 3
    assert f"--accept {gate}" in done.stderr
    other = "not-epyc" if gate == "stock-cpu" else "stock-cpu"
    arguments = ("enable", MODEL, "--environment", ZENTORCH, "--yes", "--accept", other)
    assert epyc_vllm(*arguments, timeout=PROBE).returncode == 3
    assert guest.sh("ls /etc/epyc-vllm/endpoints.d") == ""
    assert guest.sh("ls /etc/systemd/system | grep tiny || true") == ""


def test_precisions_are_checked_before_anything_is_loaded(
    guest: Guest, epyc_vllm: EpycVllm
) -> None:
    plan = ("plan", MODEL, "--environment", ZENTORCH, "--dtype", "float16")
    done = epyc_vllm(*plan, timeout=PROBE)
    assert done.returncode == 3
    assert "zentorch cannot serve float16: it has bfloat16, float32" in done.stderr
    guest.cpuinfo("milan")
    assert epyc_vllm(*plan, "--accept", "stock-cpu", timeout=PROBE).returncode == 0


def test_freezing_without_its_partner_is_refused(guest: Guest, epyc_vllm: EpycVllm) -> None:
    path = "/etc/epyc-vllm/endpoints.d/frozen.toml"
    text = f'model = "{MODEL}"\nenvironment = "{ZENTORCH}"\n'
    guest.write(path, text + 'env = { TORCHINDUCTOR_FREEZING = "1" }\n')
    done = epyc_vllm("plan", "frozen", timeout=PROBE)
    assert done.returncode == 3
    assert "without VLLM_USE_AOT_COMPILE=0" in done.stderr


@pytest.fixture
def laid_over(guest: Guest) -> Iterator[Guest]:
    """The environment with a layer over its packages, to which a test may write."""
    guest.sh(
        "mkdir -p /run/layer && mount -t tmpfs tmpfs /run/layer && cd /run/layer"
        " && mkdir upper work && site=$(echo /opt/vllm/lib/python3*/site-packages)"
        " && mount -t overlay overlay -o lowerdir=$site,upperdir=upper,workdir=work $site"
    )
    yield guest
    guest.sh("umount /opt/vllm/lib/python3*/site-packages; umount /run/layer")


def site(guest: Guest) -> str:
    return guest.sh("echo /opt/vllm/lib/python3*/site-packages").strip()


def planned(epyc_vllm: EpycVllm) -> dict[str, Any]:
    done = epyc_vllm("plan", MODEL, "--environment", ZENTORCH, "--json", timeout=PROBE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_plugin_precedes_the_platforms_built_in(laid_over: Guest, epyc_vllm: EpycVllm) -> None:
    packages = site(laid_over)
    laid_over.write(
        f"{packages}/elsewhere.py",
        "from vllm.platforms.cpu import CpuPlatform\n"
        "class ZenCPUPlatform(CpuPlatform):\n    pass\n"
        "def register():\n    return 'elsewhere.ZenCPUPlatform'\n",
    )
    info = f"{packages}/elsewhere-1.0.dist-info"
    laid_over.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    laid_over.write(
        f"{info}/entry_points.txt", "[vllm.platform_plugins]\nzentorch = elsewhere:register\n"
    )
    answer = planned(epyc_vllm)
    assert answer["versions"]["plugins"] == ["zentorch"]
    assert answer["versions"]["platform"] == "elsewhere.ZenCPUPlatform"
    assert answer["prediction"]["kind"] == "plugin"
    assert answer["refusals"] == []


def test_a_zentorch_that_cannot_be_imported(laid_over: Guest, epyc_vllm: EpycVllm) -> None:
    laid_over.write(
        f"{site(laid_over)}/zentorch/__init__.py", "raise OSError('undefined symbol: _ZN3c10')\n"
    )
    answer = planned(epyc_vllm)
    assert answer["versions"]["platform"] == answer["prediction"]["platform"] == CPU_PLATFORM
    assert "undefined symbol" in answer["prediction"]["why"]
    (refusal,) = answer["refusals"]
    assert refusal["code"] == "zentorch-not-active"
    assert "undefined symbol" in refusal["hint"]


def test_both_sides_of_a_disagreement_are_shown(laid_over: Guest, epyc_vllm: EpycVllm) -> None:
    """A vLLM that chooses otherwise than the one whose rules are known."""
    platforms = f"{site(laid_over)}/vllm/platforms/__init__.py"
    laid_over.sh(f'sed -i \'s/"AuthenticAMD" in cpuinfo/"Other" in cpuinfo/\' {platforms}')
    laid_over.sh(f"touch {site(laid_over)}")
    answer = planned(epyc_vllm)
    codes = [refusal["code"] for refusal in answer["refusals"]]
    assert codes == ["platform-mismatch", "zentorch-not-active"]
    message = answer["refusals"][0]["message"]
    assert ZEN_PLATFORM in message
    assert CPU_PLATFORM in message


def test_the_shipped_table_is_what_vllm_lists(guest: Guest, epyc_vllm: EpycVllm) -> None:
    guest.sh("rm -rf /var/cache/epyc-vllm/probes/*")
    assert planned(epyc_vllm)["refusals"] == []
    remembered = json.loads(guest.sh("cat /var/cache/epyc-vllm/probes/*.json"))
    shipped = REPOSITORY / f"data/registry-vllm-{remembered['registry']['vllm']}.json"
    assert remembered["registry"] == json.loads(shipped.read_text())


def test_a_model_is_judged_by_the_vllm_that_is_there(laid_over: Guest, epyc_vllm: EpycVllm) -> None:
    packages = site(laid_over)
    registry = f"{packages}/vllm/model_executor/models/registry.py"
    laid_over.sh(f"sed -i '/\"Qwen3ForCausalLM\":/d' {registry} && touch {packages}")
    (refusal,) = planned(epyc_vllm)["refusals"]
    assert refusal["code"] == "unsupported-model"
    assert "knows no architecture Qwen3ForCausalLM" in refusal["message"]


def test_the_stock_route_serves(guest: Guest, epyc_vllm: EpycVllm) -> None:
    """A Milan, plain vLLM, accepted by name: up, answering, and gone again."""
    guest.cpuinfo("milan")
    # A small KV cache: this host's memory is shared with whatever runs beside it.
    enable = ("enable", MODEL, "--environment", STOCK, "--kv-gib", "1", "--yes")
    done = epyc_vllm(*enable, "--accept", "stock-cpu", timeout=START)
    assert done.returncode == 0, done.stderr
    assert "unaccelerated" in done.stderr
    shown = json.loads(epyc_vllm("show", "--json").stdout)["endpoints"][0]
    reply = json.loads(guest.sh(shown["connections"][0]["curl"], timeout=600))
    assert reply["usage"]["completion_tokens"] > 0
    log = guest.sh("journalctl -u epyc-vllm-tiny-chat-s0.service -o cat")
    assert "zentorch_linear_unary" not in log
    seat = json.loads(epyc_vllm("detect", "--json").stdout)["instances"][0]
    assert (seat["endpoint"], seat["name"], seat["socket"]) == ("tiny-chat", "tiny-chat-s0", 0)
    terminal = guest.sh("script -qc 'epyc-vllm detect' /dev/null")
    assert "a  tiny-chat-s0 of endpoint tiny-chat" in terminal
    assert "aA" in terminal  # one core for threads, one kept for the server
    assert epyc_vllm("disable", "tiny-chat", timeout=600).returncode == 0
