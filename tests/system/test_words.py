"""Odd characters in names and arguments: what the process really received, or a refusal."""

import json

import pytest

from tests.guest import parts
from tests.guest.boot import Guest
from tests.system.conftest import ENVIRONMENT, EpycVllm, Standin

pytestmark = pytest.mark.timeout(600)

WORDS = (
    "two words",
    "  lead and trail  ",
    'double " quote',
    "single ' quote",
    "100% %n %% %H",
    "$HOME ${PATH} $$",
    "back\\slash \\n \\x41 trailing\\",
    "gemütlich 模型 🙂",
    ";",
    "a;b",
    "#comment",
    "--looks-like=an option",
    "{{ template }} {% raw %}",
    "<&>|*?[]~`!",
)


def write(guest: Guest, **values: object) -> None:
    """The endpoint's file; a JSON string is a TOML string, a table is written inline."""
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    guest.write("/etc/epyc-vllm/endpoints.d/odd.toml", "\n".join(lines) + "\n")


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def received(guest: Guest) -> list[str]:
    pid = guest.sh("systemctl show -P MainPID epyc-vllm-odd-s0.service").strip()
    return guest.read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")


def test_words_arrive_unchanged(guest: Guest, epyc_vllm: EpycVllm, standin: Standin) -> None:
    served = 'my "odd" $model % \\ ü'
    write(
        guest,
        model="example/tiny-chat",
        environment=str(parts.STANDIN),
        served_model_name=served,
        vllm_args=[item for word in WORDS for item in ("--odd", word)],
        env={f"ODD_{number}": word for number, word in enumerate(WORDS)},
    )
    done = epyc_vllm("enable", "odd", "--yes")
    assert done.returncode == 0, done.stderr
    argv = received(guest)
    given = [argv[i + 1] for i, word in enumerate(argv) if word == "--odd"]
    assert given == list(WORDS)
    assert argv[argv.index("--served-model-name") + 1] == served
    environ = standin.record("odd-s0")["environ"]
    assert [environ[f"ODD_{number}"] for number in range(len(WORDS))] == list(WORDS)
    shown = json.loads(epyc_vllm("show", "odd", "--json").stdout)
    curl = shown["endpoints"][0]["connections"][0]["curl"]
    assert json.loads(guest.sh(curl))["choices"]


def test_a_model_directory_with_an_odd_name(guest: Guest, epyc_vllm: EpycVllm) -> None:
    path = '/srv/odd "model" 100% $x \\y ü'
    guest.run(["cp", "-r", "/srv/models/example__tiny-chat", path])
    try:
        done = epyc_vllm("enable", path, "--name", "odd", *ENVIRONMENT, "--yes")
        assert done.returncode == 0, done.stderr
        argv = received(guest)
        assert argv[argv.index("serve") + 1] == path
    finally:
        guest.run(["rm", "-r", path])


@pytest.mark.parametrize("word", ["two\nlines", "nul\0", "tab\there", "escape\x1b[0m", ""])
@pytest.mark.parametrize("key", ["model", "served_model_name", "vllm_args", "env"])
def test_control_characters_are_refused(
    guest: Guest, epyc_vllm: EpycVllm, key: str, word: str
) -> None:
    values: dict[str, object] = {"vllm_args": [word], "env": {"ODD": word}}
    write(guest, **{"model": "example/tiny-chat", key: values.get(key, word)})
    done = epyc_vllm("enable", "odd", "--yes")
    assert done.returncode == 2
    assert key in done.stderr
    assert "Traceback" not in done.stderr
    assert guest.sh("ls /etc/systemd/system | grep odd || true") == ""


@pytest.mark.parametrize("name", ["Über", "a b", "../x", "x" * 60, "-a", "a.b", ""])
def test_odd_endpoint_names_are_refused(epyc_vllm: EpycVllm, name: str) -> None:
    done = epyc_vllm("enable", "example/tiny-chat", "--name", name, *ENVIRONMENT, "--yes")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
