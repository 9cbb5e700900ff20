"""A planted hub token and API key: after a whole cycle nothing holds them but what has to."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.guest import hub, image, parts
from tests.guest.boot import Guest
from tests.system.conftest import EpycVllm

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = "example/tiny-chat"
INSTANCE = "tiny-chat-s0"
SERVICE = f"epyc-vllm-{INSTANCE}.service"
TOKEN, KEY = "hf_planted4711TokenOfTheHub", "planted-4712-key-of-the-api"
TOKEN_FILE, KEY_FILE = "/etc/epyc-vllm/token", "/etc/epyc-vllm/key"
OURS = "/root/planted"  # the test's own: the words to look for, and the hub that knows the token
FLAGS = {
    "host": ("--environment", str(parts.STANDIN)),
    "podman": ("--image", image.NAME, "--image-archive", f"{parts.IMAGES}/standin.tar"),
    "docker": ("--image", image.NAME, "--image-archive", f"{parts.IMAGES}/standin.tar"),
}
# What holds the key while the server runs, beside the administrator's own file.
LENT = f"/run/epyc-vllm-keys/{INSTANCE}"  # to the watchdog, for its canary
HOLDERS = {
    "host": {LENT, f"/run/credentials/{SERVICE}/api-key"},
    "podman": {LENT, f"/run/epyc-vllm/{INSTANCE}.key"},
    "docker": {LENT, f"/run/epyc-vllm/{INSTANCE}.key"},
}
JSON = ("detect", "doctor", "plan", "status", "show", "verify", "report", "apply")
PLACES = "/etc /run /var /tmp /dev/shm /root /home /srv /opt/epyc-vllm /usr/local"
# Every process, again and again: what had a secret in its arguments or in its environment. The
# arguments are read first: a process may be gone before the second look; and once more, since one
# that becomes another program has none for a moment.
SAMPLER = f"""
import pathlib, time
needles = pathlib.Path("{OURS}/needles").read_bytes().split()
seen = set()
while True:
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            said = [(process / name).read_bytes() for name in ("cmdline", "environ")]
            argv = said[0] or (process / "cmdline").read_bytes() or (process / "comm").read_bytes()
        except OSError:
            continue
        for name, text in zip(("cmdline", "environ"), said):
            if any(needle in text for needle in needles):
                seen.add(name + " " + argv.replace(b"\\0", b" ").decode(errors="replace").strip())
    pathlib.Path("{OURS}/hits").write_text("\\n".join(sorted(seen)))
    time.sleep(0.1)
"""


@pytest.fixture
def planted(guest: Guest) -> Iterator[Guest]:
    """A gated model, the token that opens it, an API key, and the sampler of all processes."""
    guest.write(f"{OURS}/needles", f"{TOKEN}\n{KEY}\n", mode=0o600)
    guest.write(TOKEN_FILE, f"{TOKEN}\n", mode=0o600)
    guest.write(KEY_FILE, f"VLLM_API_KEY={KEY}\n", mode=0o600)
    guest.write(
        f"{OURS}/hub.sh",
        f"exec /usr/bin/python3 {parts.HUB_SERVER} {parts.MODELS} --port {hub.PORT} "
        f"--gated {MODEL} --token {TOKEN}\n",
    )
    hub.stop(guest)
    # It says nothing: journald would keep the arguments of whoever speaks.
    guest.sh(
        f"systemd-run --quiet --collect --unit={hub.UNIT} --property=StandardOutput=null "
        f"--property=StandardError=null /bin/sh {OURS}/hub.sh"
    )
    guest.write(hub.CONFIG, f'{hub.CONFIG_TEXT}token_file = "{TOKEN_FILE}"\n')
    guest.write(f"{OURS}/sampler.py", SAMPLER)
    guest.sh(f"systemd-run --quiet --collect --unit=sampler /usr/bin/python3 {OURS}/sampler.py")
    yield guest
    guest.sh(f"systemctl stop sampler; rm -rf {OURS} {TOKEN_FILE} {KEY_FILE}")
    hub.stop(guest)


def holders(guest: Guest) -> set[str]:
    """Files that hold one of the secrets."""
    found = guest.sh(
        f"grep -rlFa -D skip -f {OURS}/needles --exclude-dir=planted {PLACES}",
        check=False,
        timeout=300,
    )
    # The stand-in server, which needs the key, notes the environment that it was given.
    return {path for path in found.split("\n") if path and not path.endswith("/standin.json")}


def wide(guest: Guest, files: set[str]) -> set[str]:
    """Those that anybody but their owner may read; of a credential the group bits are the mask of
    its access list, in which systemd names the service's user."""
    return set(guest.sh(f"find {' '.join(sorted(files))} -perm /077").splitlines())


def sampled(guest: Guest) -> list[str]:
    """What the sampler saw, but for the hub, which the test started with its token."""
    lines = guest.read(f"{OURS}/hits").splitlines()
    return [line for line in lines if str(parts.HUB_SERVER) not in line]


def held(text: str) -> list[str]:
    return [secret for secret in (TOKEN, KEY) if secret in text]


@pytest.mark.parametrize("runtime", FLAGS)
def test_a_whole_cycle_leaks_nothing(
    planted: Guest, epyc_vllm: EpycVllm, request: pytest.FixtureRequest, runtime: str
) -> None:
    if runtime == "docker":
        request.getfixturevalue("docker")
    guest = planted
    done = epyc_vllm(
        *("enable", MODEL, "--runtime", runtime, *FLAGS[runtime], "--kv-gib", "1", "--yes"),
        *("--address", "0.0.0.0", "--api-key-file", KEY_FILE),
    )
    assert done.returncode == 0, done.stderr
    said = [done.stdout, done.stderr]
    assert epyc_vllm("verify", "tiny-chat").returncode == 0  # the key is asked for, and sent
    unasked = guest.sh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/v1/models")
    assert unasked == "401"
    assert holders(guest) == {TOKEN_FILE, KEY_FILE} | HOLDERS[runtime]
    assert wide(guest, holders(guest)) <= {LENT, f"/run/credentials/{SERVICE}/api-key"}
    assert guest.sh(f"stat --format='%a %U' {LENT}") == "640 root\n"
    said += [guest.sh(f"systemctl show --all {SERVICE}; systemctl cat {SERVICE}")]
    if runtime != "host":
        said.append(guest.sh(f"{runtime} inspect epyc-vllm-{INSTANCE}"))
    guest.sh("pkill -KILL -x 'VLLM::EngineCor'")  # a failure, with its report
    guest.sh(
        f"for n in $(seq 240); do systemctl is-failed --quiet {SERVICE} && exit; sleep .5; done; "
        "exit 1"
    )
    for verb in JSON:
        what = {"plan": ("tiny-chat",), "apply": ("--check",)}.get(verb, ())
        shown = epyc_vllm(verb, *what, "--json")
        assert json.loads(shown.stdout)["schema"] == 1, shown.stderr
        said += [shown.stdout, shown.stderr]
    said.append(epyc_vllm("report", "tiny-chat").stdout)
    assert f"{INSTANCE}" in said[-1]
    journal = f"journalctl --all --output=export | grep -caFf {OURS}/needles"
    assert guest.sh(journal, check=False) == "0\n"
    assert epyc_vllm("disable", "tiny-chat", "--purge").returncode == 0
    assert [held(text) for text in said] == [[]] * len(said)
    assert holders(guest) == {TOKEN_FILE, KEY_FILE}
    hits = sampled(guest)
    assert hits, "the sampler saw not even the server, which needs the key"
    assert [hit for hit in hits if not re.match(r"environ .*(VLLM::|vllm)", hit)] == []
    assert [hit for hit in hits if "epyc-vllm" in hit.split("serve", 1)[0]] == []
