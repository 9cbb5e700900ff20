"""Another host over ssh: what is run, what is taken of its answer, what each failure is called."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.config.config import Config
from epyc_vllm_agent.doors import ssh
from epyc_vllm_agent.doors.ssh import Target, arguments, classify, parse, read, script, unpack
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.facts.gather import FILES, gather
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.pipeline import _far_token
from tests.hosts import GENERATIONS, HOSTS, facts_of, files


@pytest.mark.parametrize(
    ("text", "user", "box", "port"),
    [
        ("box", None, "box", None),
        ("box.example.org:2222", None, "box.example.org", 2222),
        ("root@box", "root", "box", None),
        ("root@10.0.0.1:22", "root", "10.0.0.1", 22),
        ("::1", None, "::1", None),
        ("[::1]", None, "::1", None),
        ("[box]:22", None, "box", 22),
        ("root@[2001:db8::1]:2200", "root", "2001:db8::1", 2200),
        ("root@2001:db8::1", "root", "2001:db8::1", None),
        ("fe80::1%eth0", None, "fe80::1%eth0", None),
        ("jo@corp.example@box", "jo@corp.example", "box", None),
        ("CORP\\jo.doe@box:22", "CORP\\jo.doe", "box", 22),
        ("svc$@box", "svc$", "box", None),
        ("jo+test@box", "jo+test", "box", None),
        ("box_1.lan.", None, "box_1.lan.", None),
    ],
)
def test_targets(text: str, user: str | None, box: str, port: int | None) -> None:
    assert parse(text) == Target(user, box, port)


@pytest.mark.parametrize(
    "text",
    [
        "", "@box", "root@", ":22", "box:", "box:0", "box:65536", "box:22x", "box:-1", "box:٢٢",
        "-oProxyCommand=id", "root@-oProxyCommand=id", "-oProxyCommand=id@box", "-l@box",
        "[-oProxyCommand=id]:22", "box name", "box\nname", "box\n", "root\n@box",
        "r t@box", "root;id@box", "$(id)@box", "`id`@box", "box;id", "$(id)", "box/../x", "box-",
        "ssh://box", "[::1", "::1]", "[::1]x", "[::1]:", "fe80::1%eth0;id", "1::2::3", "'", '"',
    ],
)  # fmt: skip
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.code == "bad-host"
    assert caught.value.exit_code == 2


@given(st.text(max_size=30))
def test_no_target_is_taken_for_an_option(text: str) -> None:
    try:
        target = parse(text)
    except ConfigError:
        return
    words = arguments(target, "accept-new")
    after = words[words.index("--") + 1 :]
    assert after == [target.box]
    assert not target.box.startswith("-")
    assert not (target.user or "").startswith("-")
    assert parse(str(target)) == target


def test_the_command_asks_nothing_and_weakens_nothing() -> None:
    words = arguments(Target("root", "::1", 2222), "accept-new")
    assert words[0] == "ssh"
    for option in ("BatchMode=yes", "StrictHostKeyChecking=accept-new", "RemoteCommand=none"):
        assert f"-o{option}" in words
    assert any(word.startswith("-oConnectTimeout=") for word in words)
    assert not any("KnownHosts" in word for word in words)
    assert words[-6:] == ["-l", "root", "-p", "2222", "--", "::1"]


def test_a_user_of_ones_own_is_left_to_ssh() -> None:
    assert arguments(Target(None, "box", None), "yes")[-2:] == ["--", "box"]


def test_the_script_is_one_line_that_any_shell_passes_on() -> None:
    """csh and fish read single quotes as sh does, but for newlines and exclamation marks."""
    text = script(FILES, ["usr/bin/podman"])
    assert not set("\n!") & set(text)
    first, second, third, body = shlex.split(text)
    assert (first, second, third) == ("exec", "sh", "-c")
    assert "'" not in body


def test_a_path_that_a_shell_could_read_otherwise_is_not_looked_for() -> None:
    odd = ["opt/x;id/bin/vllm", "$(id)", "a b", "a\nb", "`id`", "*", "é"]
    assert script(FILES, odd) == script(FILES)
    assert "/opt/vllm-0.32+cpu/bin/vllm" in script(FILES, ["opt/vllm-0.32+cpu/bin/vllm"])


ANSWER = """\
Welcome to box
epyc-vllm-begin
/proc/cpuinfo:processor\t: 0
/proc/cpuinfo:vendor_id\t: AuthenticAMD
/proc/cpuinfo:
/sys/devices/system/cpu/online:0-3
/etc/passwd:root:x:0:0
/sys/devices/system/cpu/cpu0/../../../../../../etc/shadow:x
/sys/devices/system/cpu/cpu0/evil/online:1
nonsense
epyc-vllm-present
/usr/bin/podman
/etc/shadow
epyc-vllm-end
"""


def test_only_what_was_asked_for_is_taken() -> None:
    assert read(ANSWER, FILES, ["usr/bin/podman", "usr/bin/docker"]) == {
        "proc/cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\n\n",
        "sys/devices/system/cpu/online": "0-3\n",
        "usr/bin/podman": "",
    }


@pytest.mark.parametrize(
    "answer",
    ["", "This account is currently not available.\n", ANSWER.replace("epyc-vllm-end\n", ""),
     ANSWER.replace("epyc-vllm-begin\n", ""), ANSWER[: ANSWER.index("online")]],
)  # fmt: skip
def test_an_answer_that_is_not_whole(answer: str) -> None:
    assert read(answer, FILES) is None


@pytest.mark.parametrize(
    "name", ["genoa-2s-nps4", "milan-1s", "arm-1s", "xeon-2s", "venice-1s", "snowy-owl-1s"]
)
def test_a_host_read_over_ssh_has_the_same_facts(name: str, tmp_path: Path) -> None:
    """The answer as grep writes it, unpacked and gathered here."""
    lines = ["epyc-vllm-begin"]
    for path, text in files(HOSTS[name]).items():
        lines += [f"/{path}:{line}" for line in text.removesuffix("\n").split("\n")]
    found = read("\n".join([*lines, "epyc-vllm-present", "epyc-vllm-end", ""]), FILES)
    assert found is not None
    unpack(found, tmp_path)
    assert gather(Paths(tmp_path), GENERATIONS) == facts_of(HOSTS[name])


KEYS = "Permission denied (publickey,password)."
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Host key for [127.0.0.1]:2222 has changed and you have requested strict checking.
Host key verification failed."""


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        (f"root@box: {KEYS}", "ssh-denied"),
        ("Received disconnect: Too many authentication failures", "ssh-denied"),
        (CHANGED, "ssh-host-key-changed"),
        ("No ED25519 host key is known for box and you have requested strict checking.\n"
         "Host key verification failed.", "ssh-host-key-unknown"),
        ("ssh: Could not resolve hostname box: Name or service not known", "ssh-unknown-host"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", "ssh-timeout"),
        ("Timeout, server box not responding.", "ssh-timeout"),
        ("ssh: connect to host box port 22: Connection refused", "ssh-refused"),
    ],
)  # fmt: skip
def test_each_failure_has_its_name(stderr: str, code: str) -> None:
    found = classify(Target("root", "box", 2222), stderr)
    assert found is not None
    assert (found.code, found.exit_code) == (code, 1)
    assert found.message.startswith("root@box:2222 cannot be read over ssh: ")
    assert found.hint


def test_words_that_are_not_known_are_shown() -> None:
    assert classify(Target(None, "box", None), "kex_exchange: something new") is None
    found = ssh._unreachable(Target(None, "box", None), "first\nkex_exchange: something new\n")
    assert "kex_exchange: something new" in found.message


@pytest.mark.parametrize(
    ("named", "environment", "sent"),
    [
        (None, {"HF_TOKEN": "ours"}, "ours"),
        ("http://127.0.0.1:1", {"HF_TOKEN": "ours"}, None),
        ("http://127.0.0.1:1", {"HF_TOKEN": "ours", "HF_ENDPOINT": "http://127.0.0.1:2"}, "ours"),
        (None, {}, None),
    ],
)
def test_our_token_is_not_for_a_hub_that_another_host_names(
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    environment: dict[str, str],
    sent: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    elsewhere = "/nonexistent/of/that/host"
    config = Config((), (), hub_endpoint=named, hub_token_file=elsewhere)
    assert _far_token(config) == sent
