"""The layers of endpoint files, masks and drop-ins; faults with their file and line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.changes.changes import to_disable
from epyc_vllm_agent.changes.installed import installed
from epyc_vllm_agent.config import layers
from epyc_vllm_agent.config.config import load
from epyc_vllm_agent.config.request import wanted
from epyc_vllm_agent.config.toml_text import compose, line_of
from epyc_vllm_agent.errors import ConfigError
from epyc_vllm_agent.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    paths.endpoints.mkdir(parents=True)
    paths.shipped_endpoints.mkdir(parents=True)
    return paths


def etc(paths: Paths, name: str, text: str) -> Path:
    return _write(paths.endpoints / name, text)


def usr(paths: Paths, name: str, text: str) -> Path:
    return _write(paths.shipped_endpoints / name, text)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_administrators_file_stands_instead_of_a_packages(paths: Paths) -> None:
    usr(paths, "a.toml", 'model = "m/usr"\ncores = 2\n')
    usr(paths, "b.toml", 'model = "m/b"\n')
    etc(paths, "a.toml", 'model = "m/etc"\n')
    etc(paths, "c.toml", 'model = "m/c"\n')
    found = {one.name: (one.model, one.cores) for one in load(paths).endpoints}
    assert found == {"a": ("m/etc", None), "b": ("m/b", None), "c": ("m/c", None)}


@pytest.mark.parametrize("mask", ["empty", "link"])
def test_an_empty_file_or_a_link_to_dev_null_masks(paths: Paths, mask: str) -> None:
    usr(paths, "a.toml", 'model = "m/usr"\n')
    etc(paths, "b.toml", 'model = "m/b"\n')
    etc(paths, "b.toml.d/10.toml", "cores = 2\n")
    for path in (paths.endpoints / "a.toml", paths.endpoints / "b.toml.d/10.toml"):
        path.unlink(missing_ok=True)
        if mask == "empty":
            path.write_text("")
        else:
            path.symlink_to("/dev/null")
    config = load(paths)
    assert [(one.name, one.cores) for one in config.endpoints] == [("b", None)]
    assert config.faults == ()
    with pytest.raises(ConfigError, match=r"masked by .*a\.toml"):
        wanted(paths, config, "m/usr", "a", {})


def test_drop_ins_go_over_in_order_of_their_names(paths: Paths) -> None:
    etc(paths, "a.toml", 'model = "m/a"\ncores = 1\nport = 9000\n[env]\nA = "1"\nB = "1"\n')
    usr(paths, "a.toml.d/10-one.toml", 'cores = 2\nvllm_args = ["--x"]\n[env]\nB = "2"\n')
    usr(paths, "a.toml.d/30-two.toml", "cores = 3\n")
    etc(paths, "a.toml.d/20-three.toml", 'cores = 4\nport = 9001\nvllm_args = ["--y"]\n')
    (one,) = load(paths).endpoints
    assert (one.cores, one.port, one.vllm_args) == (3, 9001, ("--y",))
    assert one.env == (("A", "1"), ("B", "2"))
    etc(paths, "a.toml.d/30-two.toml", "cores = 5\n")  # stands instead of the package's
    (one,) = load(paths).endpoints
    assert one.cores == 5


def test_drop_ins_without_a_file_are_no_endpoint(paths: Paths) -> None:
    etc(paths, "a.toml.d/10.toml", "cores = 2\n")
    assert load(paths).endpoints == ()
    made = wanted(paths, load(paths), "org/a", None, {"port": 9000})
    assert made.config.cores == 2
    assert "cores" not in str(made.file_text)


def test_enable_writes_the_administrators_file_alone(paths: Paths) -> None:
    text = '# ours\nmodel = "m/a"\nport = 9000\n'
    usr(paths, "a.toml", text)
    assert wanted(paths, load(paths), "a", None, {}).file_text is None
    made = wanted(paths, load(paths), "a", None, {"port": 9001})
    assert made.file_text == text.replace("9000", "9001")
    etc(paths, "a.toml.d/10.toml", "cores = 2\n")
    with pytest.raises(ConfigError, match=r"10\.toml:1 sets cores, and goes over"):
        wanted(paths, load(paths), "a", None, {"cores": 4})


def test_disable_masks_what_a_package_brings(paths: Paths) -> None:
    usr(paths, "a.toml", 'model = "m/a"\n')
    (change,) = to_disable(installed(paths, "a")).files
    assert (change.path, change.new) == ("/etc/epyc-vllm/endpoints.d/a.toml", "")
    etc(paths, "a.toml", "")
    assert not installed(paths, "a").exists
    assert to_disable(installed(paths, "a")).files == ()


def test_a_stamp_changes_with_every_file(paths: Paths) -> None:
    seen = {layers.stamp(paths)}
    for file in ("a.toml", "a.toml.d/10.toml"):
        for write in (etc, usr):
            write(paths, file, "x = 1\n")
            seen.add(layers.stamp(paths))
    paths.config_file.write_text("")
    seen.add(layers.stamp(paths))
    (paths.endpoints / "a.toml").unlink()
    seen.add(layers.stamp(paths))
    assert len(seen) == 7


def test_all_faults_of_all_files_with_their_lines(paths: Paths) -> None:
    paths.config_file.write_text(
        'usr = "x"\n\n[defaults]\nkv_gb = 1\nport = 1\n[watch]\nhung = 1\n'
    )
    etc(paths, "a.toml", '# note\nmodel = "m/a"\n\nport = 80\ncolour = "red"\n')
    etc(paths, "b.toml", 'model = "m/b"\nx = \n')
    etc(paths, "c.toml", 'model = "m/c"\n')
    etc(paths, "c.toml.d/10.toml", "\nmax_model_length = 5\n")
    etc(paths, "d.toml", 'model = "m/d"\nport = 9000\n')
    etc(paths, "e.toml", 'port = 9000\nmodel = "m/e"\n')
    with pytest.raises(ConfigError) as caught:
        load(paths)
    for part in (
        "epyc-vllm.toml:1: unknown key 'usr', did you mean 'user'?",
        "epyc-vllm.toml:4: [defaults] unknown key 'kv_gb', did you mean 'kv_gib'?",
        "epyc-vllm.toml:5: [defaults] unknown key 'port': it belongs into an endpoint's own file",
        "epyc-vllm.toml:7: [watch] unknown key 'hung'",
        "a.toml:4: port must be a whole number from 1024 to 65535",
        "a.toml:5: unknown key 'colour'",
        "b.toml:2: not valid TOML",
        "c.toml.d/10.toml:2: unknown key 'max_model_length', did you mean 'max_model_len'?",
        "d.toml:2: port 9000 is given to another endpoint too",
        "e.toml:1: port 9000 is given to another endpoint too",
    ):
        assert part in caught.value.message
    paths.config_file.unlink()
    assert {fault.endpoint for fault in load(paths).faults} == set("abcde")


@pytest.mark.parametrize(
    ("text", "key", "table", "line"),
    [
        ("a = 1\nb = 2\n", "b", "", 2),
        ('a = """\nb = 2\n"""\nb = 3\n', "b", "", 4),
        ("[x]\nb = 1\n[y]\nb = 2\n", "b", "y", 4),
        ("a = 1\n[env]\nb = 1\n", "env", "", 2),
        ("a = 1\n[env.x]\nb = 1\n", "env", "", 2),
        ("env.x = 1\n", "env", "", 1),
        ('"b" = 1\n', "b", "", 1),
        ("a = [\n'b = 1',\n]\n", "b", "", None),
        ("x = { b = 1 }\n", "b", "", None),
        ("b = 1\n", "bb", "", None),
        ("", "b", "", None),
    ],
)
def test_the_line_of_a_key(text: str, key: str, table: str, line: int | None) -> None:
    assert line_of(text, key, table) == line


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers() | st.text(max_size=5), min_size=1))
def test_the_line_of_every_key_of_a_file(values: dict[str, Any]) -> None:
    text = compose(values, "A comment.")
    for key in values:
        line = line_of(text, key)
        assert line is not None
        assert text.split("\n")[line - 1].startswith(f"{key} = ")
