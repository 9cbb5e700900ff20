"""Real vLLM with zentorch, from enable to a reboot: what the project is for, whole.

The tests of this file share one host and build on each other, in the order they stand here: a
server takes a minute to start.
"""

import json
import re
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.guest import hub
from tests.guest.boot import Guest
from tests.system.conftest import restore

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

CHAT, BASE = "example/tiny-chat", "example/tiny-base"
START = 900.0  # seconds; about 60 when nothing else runs


@pytest.fixture(scope="module")
def host(booted: Guest) -> Iterator[Guest]:
    restore(booted)
    yield booted
    restore(booted)


def run(host: Guest, *arguments: str, check: bool = True) -> CompletedProcess[str]:
    return host.run(["epyc-vllm", *arguments], check=check, timeout=START)


def answer(host: Guest, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(host, *arguments, "--json").stdout)
    return found


def connection(host: Guest, name: str) -> dict[str, Any]:
    found: dict[str, Any] = answer(host, "show", name)["endpoints"][0]["connections"][0]
    return found


def pasted(host: Guest, name: str) -> dict[str, Any]:
    """What the printed curl line brings when it is pasted into a shell."""
    found: dict[str, Any] = json.loads(host.sh(connection(host, name)["curl"], timeout=300))
    return found


def unit_state(host: Guest, unit: str) -> str:
    return host.run(["systemctl", "is-active", unit], check=False).stdout.strip()


def threads(host: Guest, unit: str) -> dict[str, list[str]]:
    """Allowed CPUs of every thread of the unit's processes, by the process's command name."""
    script = """
    import pathlib, json, sys
    group = pathlib.Path("/sys/fs/cgroup/system.slice", sys.argv[1])
    found = {}
    for pid in (group / "cgroup.procs").read_text().split():
        for task in pathlib.Path("/proc", pid, "task").iterdir():
            lines = (task / "status").read_text().splitlines()
            name = pathlib.Path("/proc", pid, "comm").read_text().strip()
            cpus = [x.split()[1] for x in lines if x.startswith("Cpus_allowed_list")]
            found.setdefault(name, []).extend(cpus)
    print(json.dumps(found))
    """
    lines = "\n".join(line[4:] for line in script.splitlines())
    done = host.run(["python3", "-c", lines, unit])
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_chat_model_comes_up_and_hands_over_chat(host: Guest) -> None:
    done = run(host, "enable", CHAT, "--yes")
    assert "/v1/chat/completions" in done.stdout
    assert "ZenCpuPlatform" in done.stderr
    reply = pasted(host, "tiny-chat")
    assert reply["object"] == "chat.completion"
    assert reply["usage"]["completion_tokens"] > 0


def test_worker_threads_sit_on_the_planned_cpus(host: Guest) -> None:
    (instance,) = answer(host, "plan", "tiny-chat")["instances"]
    found = threads(host, "epyc-vllm-tiny-chat-s0.service")
    (worker,) = [name for name in found if "Worker" in name]
    planned = {rank["cpus"] for rank in instance["ranks"]}
    assert planned == {"0"}  # two cores: one for threads, one kept for the server
    assert set(found[worker]) == planned
    for cpus in found.values():
        assert set(cpus) <= {"0", instance["cpus"]}


def test_second_enable_changes_nothing(host: Guest) -> None:
    before = host.sh("systemctl show -P InvocationID epyc-vllm-tiny-chat-s0.service")
    done = run(host, "enable", CHAT, "--yes")
    assert "no changes" in done.stderr
    assert answer(host, "enable", CHAT)["changed"] is False
    after = host.sh("systemctl show -P InvocationID epyc-vllm-tiny-chat-s0.service")
    assert after == before


def test_second_endpoint_is_refused_and_told_who_holds_the_socket(host: Guest) -> None:
    done = run(host, "enable", BASE, "--yes", check=False)
    assert done.returncode == 3
    assert "socket 0 is held by endpoint tiny-chat" in done.stderr
    assert host.sh("ls /etc/epyc-vllm/endpoints.d").split() == ["tiny-chat.toml"]


def test_two_endpoints_share_the_socket_by_cores(host: Guest) -> None:
    run(host, "enable", CHAT, "--cores", "1", "--yes")
    done = run(host, "enable", BASE, "--cores", "1", "--yes")
    assert "/v1/completions" in done.stdout
    assert "/v1/chat/completions" not in done.stdout
    chat, base = connection(host, "tiny-chat"), connection(host, "tiny-base")
    assert chat["port"] != base["port"]
    assert pasted(host, "tiny-chat")["object"] == "chat.completion"
    assert pasted(host, "tiny-base")["object"] == "text_completion"
    for name, cpu in (("tiny-chat", "0"), ("tiny-base", "1")):
        for cpus in threads(host, f"epyc-vllm-{name}-s0.service").values():
            assert set(cpus) == {cpu}


def test_status_lists_both_as_healthy(host: Guest) -> None:
    endpoints = answer(host, "status")["endpoints"]
    assert [endpoint["name"] for endpoint in endpoints] == ["tiny-base", "tiny-chat"]
    for endpoint in endpoints:
        (instance,) = endpoint["instances"]
        assert (instance["state"], instance["health"]) == ("active", "healthy")
        assert endpoint["at_boot"] is True


def test_reboot_brings_them_back_without_the_hub(host: Guest) -> None:
    host.reboot()
    assert not hub.running(host)
    # Nobody asks for a start: this only waits for the jobs of the boot.
    host.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=START)
    for name in ("tiny-chat", "tiny-base"):
        assert unit_state(host, f"epyc-vllm-{name}-s0.service") == "active"
        assert pasted(host, name)["choices"]
    assert run(host, "verify").returncode == 0


def test_disable_leaves_nothing_but_the_weights(host: Guest) -> None:
    done = run(host, "disable", "tiny-base")
    assert "kept" in done.stdout
    assert "models--example--tiny-base" in host.sh("ls /var/lib/epyc-vllm/models")
    run(host, "disable", "tiny-chat", "--purge")
    assert "models--example--tiny-chat" not in host.sh("ls /var/lib/epyc-vllm/models")
    left = host.sh("ls /etc/systemd/system /var/cache/epyc-vllm /etc/epyc-vllm/endpoints.d")
    assert "tiny" not in left
    assert host.sh("pgrep -f '[v]llm serve|[V]LLM::' || true") == ""
    assert host.sh("ls /dev/shm | grep -v ^libpod_lock || true") == ""
    assert host.sh("ss -Hltn 'sport = :8000 or sport = :8001'") == ""


def test_a_context_over_the_models_is_refused_before_anything_starts(host: Guest) -> None:
    hub.start(host)
    done = run(host, "enable", CHAT, "--max-model-len", "4097", "--yes", check=False)
    assert done.returncode == 3
    assert f"4097 is more than the 4096 tokens that {CHAT} is made for" in done.stderr
    assert host.sh("ls /etc/epyc-vllm/endpoints.d") == ""


def test_a_server_that_exits_while_loading_is_told_with_its_cause(host: Guest) -> None:
    """The cause, the log, the unit failed, no files."""
    done = run(host, "enable", CHAT, "--vllm-arg=--no-such-argument", "--yes", check=False)
    assert done.returncode == 1
    assert "vLLM does not know one of its arguments" in done.stderr
    assert "--no-such-argument" in done.stderr
    assert re.search(r"last \d+ log lines", done.stderr)
    assert unit_state(host, "epyc-vllm-tiny-chat-s0.service") == "failed"
    assert (
        host.sh("ls /etc/epyc-vllm/endpoints.d /var/lib/epyc-vllm/plans | grep tiny || true") == ""
    )
    assert host.sh("ls /etc/systemd/system | grep tiny || true") == ""
