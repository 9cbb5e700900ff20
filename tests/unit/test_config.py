"""Configuration files: defaults, rules, and faults that name file, key and rule."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epyc_vllm_agent.config.config import Config, load, parse_endpoint
from epyc_vllm_agent.config.layers import origin
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths
from tests.plans import endpoint


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.endpoints.mkdir(parents=True)
    return paths


def faults(values: Mapping[str, Any], name: str = "a") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(name, {"model": "org/name"} | dict(values), {}, origin("a.toml"))
    assert caught.value.exit_code == 2
    return caught.value.message


def test_without_any_file(tmp_path: Path) -> None:
    assert load(Paths(tmp_path)) == Config((), ())


def test_defaults_of_an_endpoint() -> None:
    made = endpoint()
    assert (made.sockets, made.address, made.dtype, made.max_model_len, made.num_prompts) == (
        "all",
        "127.0.0.1",
        "bfloat16",
        4096,
        1,
    )
    assert (made.port, made.cores, made.kv_gib, made.accept, made.env) == (None, None, None, (), ())


def test_the_client_name_is_the_model_unless_given() -> None:
    assert endpoint().client_name == "Qwen/Qwen3-8B"
    assert endpoint(served_model_name="my model").client_name == "my model"


def test_host_wide_defaults_are_under_the_endpoint(paths: Paths) -> None:
    paths.config_file.write_text(
        'user = "vllm"\n[hub]\nendpoint = "https://hub.example.org/x"\n'
        '[defaults]\naddress = "::1"\ncores = 4\naccept = ["not-epyc"]\n'
    )
    (paths.endpoints / "a.toml").write_text('model = "m/a"\ncores = 2\n')
    config = load(paths)
    assert (config.user, config.hub_endpoint) == ("vllm", "https://hub.example.org/x")
    (one,) = config.endpoints
    assert (one.name, one.address, one.cores, one.accept) == ("a", "::1", 2, ("not-epyc",))


@pytest.mark.parametrize("key", ["model", "port", "served_model_name", "revision", "chat_template"])
def test_what_is_one_endpoints_own_has_no_host_wide_default(paths: Paths, key: str) -> None:
    paths.config_file.write_text(f"[defaults]\n{key} = 1\n")
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        load(paths)


def test_a_broken_endpoint_does_not_touch_the_good_ones(paths: Paths) -> None:
    (paths.endpoints / "a.toml").write_text('model = "m/a"\n')
    (paths.endpoints / "b.toml").write_text("model = \n")
    (paths.endpoints / "c.toml").write_bytes(b'model = "\xff"\n')
    (paths.endpoints / "d.toml").mkdir()
    (paths.endpoints / "e.toml").symlink_to("nowhere.toml")
    (paths.endpoints / "F.toml").write_text('model = "m/f"\n')
    (paths.endpoints / "g.toml").write_text("# nothing\n")
    (paths.endpoints / "notes.txt").write_text("not ours")
    config = load(paths)
    assert [one.name for one in config.endpoints] == ["a"]
    assert len(config.errors) == 6
    for error, name in zip(config.errors, "Fbcdeg", strict=True):
        assert f"{name}.toml" in error


def test_all_faults_are_told_at_once() -> None:
    message = faults({"port": 0, "colour": "red", "dtype": "int8", "address": "host"})
    for part in ("port must be", "unknown key 'colour'", "dtype must be one of", "address must be"):
        assert part in message
    assert message.count("a.toml: ") == 4


def test_a_near_miss_is_suggested() -> None:
    assert "did you mean 'max_model_len'?" in faults({"max_model_length": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", True),
        ("port", 65536),
        ("port", "8000"),
        ("port", 8000.0),
        ("cores", 0),
        ("max_model_len", -1),
        ("num_prompts", 0),
        ("start_timeout", 9),
        ("address", "127.0.0.1\n"),
        ("address", "300.0.0.1"),
        ("address", "localhost"),
        ("address", ""),
        ("sockets", []),
        ("sockets", "some"),
        ("sockets", [0, 0]),
        ("sockets", [-1]),
        ("sockets", [True]),
        ("sockets", ["0"]),
        ("sockets", 0),
        ("environment", "opt/vllm"),
        ("environment", "/opt/my env"),
        ("environment", "/opt/a:b"),
        ("api_key_file", "key"),
        ("api_key_file", "/etc/*.key"),
        ("api_key_file", "/etc/key\\"),
        ("api_key_file", "/etc/key "),
        ("chat_template", "t.jinja"),
        ("served_model_name", "a\nb"),
        ("served_model_name", "a\x1bb"),
        ("served_model_name", "a\x00b"),
        ("served_model_name", "a\x85b"),
        ("served_model_name", "\ud800"),
        ("served_model_name", ""),
        ("served_model_name", "--port"),
        ("vllm_args", "--x"),
        ("vllm_args", ["a\rb"]),
        ("vllm_args", [1]),
        ("env", {"A-B": "x"}),
        ("env", {"": "x"}),
        ("env", {"1A": "x"}),
        ("env", {"A": 1}),
        ("env", {"A": "x\ny"}),
        ("env", ["A=b"]),
        ("accept", "stock-cpu"),
        ("accept", ["everything"]),
        ("runtime", ["host"]),
    ],
)
def test_values_that_are_refused(key: str, value: object) -> None:
    message = faults({key: value})
    assert message.startswith(f"a.toml: {key} ")
    assert message.isprintable()


@pytest.mark.parametrize(
    "name",
    ["", "A", "a_b", "a.b", "a b", "-a", "a-", "ä", "../a", "a/b", "a" * 49, "a\n", "a\\x2d", "%i"],
)
def test_names_that_are_refused(name: str) -> None:
    assert "must be lower-case letters" in faults({}, name)


@pytest.mark.parametrize("name", ["a", "0", "a-b", "qwen3-0-6b", "a" * 48])
def test_names_that_are_taken(name: str) -> None:
    assert endpoint(name).name == name


@pytest.mark.parametrize(
    "argument",
    [
        "--port",
        "--port=1",
        "--host=0.0.0.0",
        "--dtype",
        "-tp",
        "-tp=2",
        "--tensor-parallel-size",
        "--served-model-name",
        "--api-key",
        "--max-model-len",
        # vLLM's parser takes underscores for dashes, and argparse any unique beginning.
        "--max_model_len",
        "--max_model_len=9",
        "--served_model_name",
        "--max-model-l",
        "--por",
        # A gate, a second configuration, other ranks, another KV cache than the planned one.
        "--trust-remote-code",
        "--trust_remote_code",
        "--trust",
        "--config",
        "--pipeline-parallel-size",
        "-pp",
        "--data-parallel-size",
        "-dp",
        "--kv-cache-memory-bytes",
        # The server elsewhere than the probes and the plan look for it.
        "--uds",
        "--root-path",
        "--ssl-keyfile",
        "--headless",
        "--model",
    ],
)
def test_arguments_that_the_plan_sets_are_reserved(argument: str) -> None:
    assert argument.split("=", 1)[0] in faults({"vllm_args": ["--seed", "1", argument]})


@pytest.mark.parametrize(
    "arguments",
    [
        ["--enable-prefix-caching"],
        ["--max-num-seqs", "8"],
        ["--chat-template-content-format", "string"],
        ["--seed=--port"],
        ["--model-impl", "vllm"],
        ["--kv-cache-dtype", "fp8"],
        ["-O3"],
    ],
)
def test_other_arguments_are_taken(arguments: list[str]) -> None:
    assert endpoint(vllm_args=arguments).vllm_args == tuple(arguments)


@pytest.mark.parametrize(
    "variable",
    ["VLLM_CPU_OMP_THREADS_BIND", "HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "LD_PRELOAD"],
)
def test_variables_that_the_plan_sets_are_reserved(variable: str) -> None:
    assert variable in faults({"env": {variable: "x"}})


def test_a_missing_model_is_told() -> None:
    with pytest.raises(ConfigError, match="model is missing"):
        parse_endpoint("a", {"port": 8000}, {}, origin("a.toml"))


@pytest.mark.parametrize("text", ["user = 1\n", "[hub]\nx = 1\n", "hub = 1\n", "x = \n"])
def test_a_wrong_host_file_stops_everything(paths: Paths, text: str) -> None:
    paths.config_file.write_text(text)
    with pytest.raises(ConfigError, match=r"epyc-vllm\.toml"):
        load(paths)
