"""A host from installation to purge. The tests build on each other, in the order they stand."""

import json
import re
import subprocess
import time
from pathlib import Path

import click
import pytest

from epyc_vllm_agent.cli import endpoint
from tests.guest import hub, parts, sshd
from tests.guest.boot import Guest
from tests.package import build

pytestmark = pytest.mark.timeout(900)

MODEL, NAME = "example/tiny-chat", "tiny-chat"
SERVICE = "epyc-vllm-tiny-chat-s0.service"
WATCHDOG = "epyc-vllm-watchdog.service"
ENDPOINT = f"/etc/epyc-vllm/endpoints.d/{NAME}.toml"
TOKENS = 4000
CLIENT = f"""\
import json, sys, urllib.request
body = {{"model": "{MODEL}", "stream": True, "max_tokens": {TOKENS},
        "messages": [{{"role": "user", "content": "count"}}]}}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions",
    json.dumps(body).encode(), {{"Content-Type": "application/json"}})
with urllib.request.urlopen(request) as answer:
    for line in answer:
        if line.startswith(b"data: {{"):
            print(json.loads(line[6:])["choices"][0]["delta"]["content"], end="", flush=True)
        elif line.startswith(b"data: [DONE]"):
            print(" done")
"""
OPTIONS = {
    option: parameter.help or ""
    for parameter in endpoint.enable.params
    for option in (*parameter.opts, *parameter.secondary_opts)
    if isinstance(parameter, click.Option)
} | {"--help": "Show this message and exit."}
ZSHRC = """\
stty rows 100 columns 160
PROMPT="> "
autoload -Uz compinit; compinit -u
say() { print -rn -- "LINE:$BUFFER"$'\\0' }
zle -N say
bindkey "^B" say
"""
PRESS = """\
zmodload zsh/zpty
zpty shell ZDOTDIR=/run/zsh TERM=dumb zsh -i
for line in "$@"; do
  zpty -w -n shell $'\\x15'"$line"$'\\t\\x02'
  zpty -r shell REPLY $'*LINE:*\\0'
  print -rn -- "$REPLY"
done
"""


def apt(host: Guest, *words: str) -> str:
    done = host.run(
        ["apt-get", "-y", "-q", "-o", "Dpkg::Use-Pty=0", *words],
        environment={"DEBIAN_FRONTEND": "noninteractive"},
        timeout=600,
    )
    return done.stdout + done.stderr


def state(host: Guest, unit: str, verb: str = "is-active") -> str:
    return host.run(["systemctl", verb, unit], check=False).stdout.strip()


def invocation(host: Guest) -> str:
    return host.sh(f"systemctl show --property=InvocationID,MainPID {SERVICE}")


def version(host: Guest) -> str:
    return host.sh("dpkg-query -W -f '${Version}' epyc-vllm")


def verify(host: Guest) -> bool:
    return host.run(["epyc-vllm", "verify", NAME], check=False).returncode == 0


def enable(host: Guest) -> str:
    flags = ("--yes", "--kv-gib", "1", "--runtime", "host", "--environment", str(parts.STANDIN))
    done = host.run(["epyc-vllm", "enable", MODEL, *flags], check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def left(host: Guest) -> list[str]:
    """Files of the host, beside what is bound into it, that have our name."""
    pruned = " -o ".join(
        f"-path {path}" for path in ("/proc", "/sys", "/srv", "/opt", "/mnt", "/var/log")
    )
    return host.sh(f"find / \\( {pruned} \\) -prune -o -name '*epyc-vllm*' -print").split()


def test_a_fresh_host_has_nothing_of_it(host: Guest) -> None:
    assert left(host) == []
    assert host.run(["python3", "-c", "import click"], check=False).returncode != 0


def test_it_installs_with_what_it_depends_on(host: Guest) -> None:
    apt(host, "install", f"epyc-vllm={_version(build.deb(build.package()))}")
    assert host.sh("epyc-vllm --version").split()[-1] == version(host)
    for user in ("_epyc-vllm", "_epyc-vllm-watch"):
        host.sh(f"getent passwd {user}")
    for folder in ("/etc/epyc-vllm/endpoints.d", "/var/lib/epyc-vllm/plans", "/run/epyc-vllm"):
        host.sh(f"test -d {folder}")
    loaded = host.sh("systemctl list-units --plain --no-legend 'epyc-vllm*'").splitlines()
    assert [line.split()[0] for line in loaded] == ["epyc-vllm-apply.path"]  # waits for files
    assert state(host, WATCHDOG, "is-enabled") == "disabled"
    assert state(host, "epyc-vllm.target", "is-enabled") == "disabled"
    host.sh("systemd-analyze verify --man=no /usr/lib/systemd/system/epyc-vllm*")
    found = json.loads(host.sh("epyc-vllm detect --json"))
    assert found["is_amd_epyc"] is True


def test_the_private_library_serves_it_alone(host: Guest) -> None:
    assert host.run(["python3", "-c", "import huggingface_hub"], check=False).returncode != 0
    hub.start(host)  # an administrator's change of the shipped file
    found = json.loads(host.sh(f"epyc-vllm plan {MODEL} --environment {parts.STANDIN} --json"))
    assert found["model"]["id"] == MODEL


def test_bash_completes(host: Guest) -> None:
    offered = host.sh(
        "source /usr/share/bash-completion/completions/epyc-vllm; COMP_WORDS=(epyc-vllm doc) "
        "COMP_CWORD=1; _epyc_vllm_completion epyc-vllm doc epyc-vllm; echo ${COMPREPLY[@]}"
    )
    assert offered.split() == ["doctor"]


def test_fish_completes(host: Guest) -> None:
    apt(host, "install", "--no-install-recommends", "fish")

    def offered(line: str) -> dict[str, str]:
        """What is offered behind `line`, with the words beside it."""
        told = host.run(["fish", "-c", f'complete -C "{line}"']).stdout.splitlines()
        return {words[0]: words[2] for words in (one.partition("\t") for one in told)}

    assert offered("epyc-vllm enable --") == OPTIONS
    assert list(offered("epyc-vllm doc")) == ["doctor"]


def test_zsh_completes(host: Guest) -> None:
    """Keys pressed in a real one, several times: its first completion loads the file."""
    apt(host, "install", "--no-install-recommends", "zsh")
    host.write("/run/zsh/.zshrc", ZSHRC)
    host.write("/run/zsh/press", PRESS)

    def pressed(*lines: str) -> list[str]:
        """The terminal after a tab behind each line, up to the line as it stands then."""
        return host.run(["zsh", "/run/zsh/press", *lines]).stdout.split("\0")

    completed = pressed("epyc-vllm doc", "epyc-vllm enable --cor", "epyc-vllm enable --yes --acc")
    assert [text.rpartition("LINE:")[2].strip() for text in completed[:-1]] == [
        *("epyc-vllm doctor", "epyc-vllm enable --cores", "epyc-vllm enable --yes --accept"),
    ]
    (listed, _) = pressed("epyc-vllm enable --")
    for option, words in OPTIONS.items():
        assert re.search(rf"^(.* )?{option}(?![\w-]).*{re.escape(words)}", listed, re.M), option


def test_the_first_enable_brings_the_watchdog(host: Guest) -> None:
    enable(host)
    assert state(host, WATCHDOG) == "active"
    assert state(host, WATCHDOG, "is-enabled") == "enabled"
    assert state(host, "epyc-vllm.target", "is-enabled") == "enabled"
    assert "no changes" in enable(host)
    assert verify(host)
    host.reboot()
    hub.start(host)
    host.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=300)
    assert verify(host)
    assert state(host, WATCHDOG) == "active"


def test_an_upgrade_loses_no_token(host: Guest) -> None:
    configured = host.read(hub.CONFIG)
    host.sh(f"sed -i '1i # by hand' {ENDPOINT}")
    endpoint, before = host.read(ENDPOINT), invocation(host)
    watched = host.sh(f"systemctl show --property=MainPID {WATCHDOG}")
    host.write("/run/vllm-standin.json", '{"token_seconds": 0.02}')
    client = host.popen(["python3", "-c", CLIENT])
    time.sleep(1)
    said = apt(host, "install", f"epyc-vllm={build.NEWER}")
    streaming = client.poll() is None
    out, errors = client.communicate(timeout=600)
    assert streaming, "the upgrade outlived the stream: nothing is proven"
    assert errors == ""
    assert out.split() == [*map(str, range(TOKENS)), "done"]
    assert version(host) == build.NEWER
    assert "Traceback" not in said
    assert invocation(host) == before
    assert (host.read(hub.CONFIG), host.read(ENDPOINT)) == (configured, endpoint)
    assert state(host, WATCHDOG) == "active"
    assert host.sh(f"systemctl show --property=MainPID {WATCHDOG}") != watched
    assert verify(host)


def test_a_stopped_endpoint_stays_stopped_over_an_upgrade(host: Guest) -> None:
    host.run(["systemctl", "stop", SERVICE])
    apt(host, "install", "--reinstall", f"epyc-vllm={build.NEWER}")
    assert state(host, SERVICE) == "inactive"
    host.run(["systemctl", "start", SERVICE])
    assert verify(host)


def test_a_removal_takes_the_units_and_leaves_the_files(host: Guest) -> None:
    weights = "/var/lib/epyc-vllm/models/models--example--tiny-chat"
    host.sh(f"test -d {weights}")
    apt(host, "remove", "epyc-vllm")
    assert state(host, SERVICE) == "inactive"
    assert host.sh("pgrep -f '[v]llm serve' || true") == ""
    units = host.sh("find /etc/systemd /etc/containers -name 'epyc-vllm*'").split()
    # Debian's helper keeps until the purge whether the administrator had it enabled.
    assert units == ["/etc/systemd/system/multi-user.target.wants/epyc-vllm-apply.path"]
    assert host.read(ENDPOINT).startswith("# by hand")
    host.sh(f"test -d {weights} -a -f /var/lib/epyc-vllm/plans/{NAME}.json -a -f {hub.CONFIG}")


def test_an_installation_after_it_finds_the_endpoint(host: Guest) -> None:
    apt(host, "install", f"epyc-vllm={build.NEWER}")
    done = host.run(["epyc-vllm", "enable", NAME, "--yes"], check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert verify(host)
    assert host.read(ENDPOINT).startswith("# by hand")


def test_a_removal_waits_for_nobody_who_changes_the_host(host: Guest) -> None:
    """It is refused, not half done, and can be tried again."""
    host.popen(["flock", "/run/epyc-vllm/lock", "sleep", "600"], unit="holder")
    time.sleep(1)
    done = host.run(["apt-get", "-y", "-q", "remove", "epyc-vllm"], check=False, timeout=300)
    host.run(["systemctl", "stop", "holder"])
    assert done.returncode != 0
    assert "another epyc-vllm run is changing this host" in done.stdout + done.stderr
    assert state(host, SERVICE) == "active"
    assert host.sh("dpkg-query -W -f '${db:Status-Status}' epyc-vllm") == "installed"


def test_a_purge_leaves_the_users_and_foreign_weights(host: Guest) -> None:
    host.sh(
        "mv /var/lib/epyc-vllm/models /mnt/weights && ln -s /mnt/weights /var/lib/epyc-vllm/models"
    )
    apt(host, "purge", "epyc-vllm")
    assert left(host) == []
    host.sh("test -d /mnt/weights/models--example--tiny-chat && rm -r /mnt/weights")
    users = host.sh("getent passwd | cut -d: -f1 | grep epyc-vllm").split()
    assert sorted(users) == ["_epyc-vllm", "_epyc-vllm-watch"]
    assert host.sh("systemctl list-units --all --plain --no-legend 'epyc-vllm*'") == ""


def test_a_purge_at_once_leaves_nothing_but_the_users(host: Guest) -> None:
    """Installed, used and purged in one step, with the cache where it is by itself."""
    apt(host, "install", f"epyc-vllm={build.NEWER}")
    hub.start(host)
    enable(host)
    apt(host, "purge", "epyc-vllm")
    assert left(host) == []
    assert host.sh("pgrep -f '[v]llm serve' || true") == ""


def test_autopkgtest(host: Guest) -> None:
    """debian/tests of the source package by Debian's own runner, in this host over ssh.

    It is told that the host is a container of its own, which it cannot see by itself.
    """
    apt(host, "install", "autopkgtest", "dpkg-dev")
    host.write("/etc/apt/preferences.d/built", f"Package: epyc-vllm\nPin: version {build.NEWER}\n"
               "Pin-Priority: -1\n")  # fmt: skip
    sshd.open_root(host)
    where = ["-H", "127.0.0.1", "-p", str(sshd.PORT), "-l", "root", "-i", "/root/.ssh/id_ed25519"]
    packages = host.sh("ls /srv/package/*.dsc /srv/package/*.deb").split()
    done = host.run(
        [
            *("autopkgtest", *packages, "--", "ssh", *where),
            *("--options=-o StrictHostKeyChecking=no", "--capability=isolation-container"),
        ],
        check=False,
        timeout=800,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert "lifecycle            PASS" in said


def _version(deb: Path) -> str:
    asked = ["dpkg-deb", "--field", str(deb), "Version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
