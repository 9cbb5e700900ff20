"""The hub door with the real huggingface_hub against the stand-in hub on loopback."""

import errno
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from epyc_vllm_agent.doors.hub import Hub, describe_directory
from epyc_vllm_agent.doors.huberrors import translate
from epyc_vllm_agent.errors import ActionFailed, AgentError, ConfigError, Refused
from epyc_vllm_agent.facts.model import ModelFacts, ModelKind, RepoFile, TemplateStatus
from tests.hubserver import HubServer

MODEL = "org/tiny"
SHARDED = "org/sharded"
GATED = "org/gated"
TOKEN = "hf_licensed"  # noqa: S105
OTHER_TOKEN = "hf_of_another_account"  # noqa: S105
CONFIG: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
ROWS = 1000 * 64


def safetensors(*names: str) -> bytes:
    """A file in which every tensor is as large as the embedding."""
    size = 2 * ROWS
    entries = {
        name: {"dtype": "BF16", "shape": [ROWS], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(size * len(names))


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


SMALL: dict[str, str | bytes] = {
    "config.json": json.dumps(CONFIG),
    "generation_config.json": "{}",
    "tokenizer.json": "{}",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
    "README.md": "# A model",
}
SHARDS = {
    "model-00001-of-00002.safetensors": safetensors("model.embed_tokens.weight"),
    "model-00002-of-00002.safetensors": safetensors("lm_head.weight"),
}
INDEX = {
    "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    weights = safetensors("model.embed_tokens.weight", "lm_head.weight")
    write(folder / "org__tiny", {**SMALL, "model.safetensors": weights, "original/x.pth": "copy"})
    write(folder / "org__gated", {**SMALL, "model.safetensors": weights})
    write(
        folder / "org__sharded",
        {
            **SMALL,
            **SHARDS,
            "consolidated.safetensors": b"copy",
            "model.safetensors.index.json": json.dumps(INDEX),
        },
    )
    return folder


@pytest.fixture
def server(repositories: Path) -> Iterator[HubServer]:
    with HubServer(repositories, gated=[GATED], tokens=[TOKEN]) as hub:
        yield hub


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return hub_of(server, tmp_path)


def hub_of(server: HubServer, cache: Path, token: str | None = None) -> Hub:
    return Hub(cache, endpoint=server.endpoint, token=token, budget_seconds=3.0, stall_seconds=0.5)


def fetched(hub: Hub, model: str = MODEL) -> tuple[ModelFacts, Path]:
    facts = hub.describe(model)
    assert facts.revision is not None
    return facts, hub.fetch(model, facts.revision, facts.files)


def test_a_description_needs_metadata_and_small_files_only(hub: Hub, server: HubServer) -> None:
    facts = hub.describe(MODEL)
    assert facts.kind is ModelKind.TEXT
    assert facts.chat_template.status is TemplateStatus.PRESENT
    assert facts.weight_bytes == 2 * ROWS  # its header shows that the tied head is stored
    assert facts.revision is not None
    assert len(facts.revision) == 40
    got = [path for method, path in server.log if method == "GET" and "resolve" in path]
    assert [path.rpartition("/")[2] for path in got] == [
        "config.json",
        "tokenizer_config.json",
        "model.safetensors",  # a range of it: see the next test
    ]
    assert hub.requests == len(server.log) == 6


def test_no_weights_come_with_a_description(hub: Hub, tmp_path: Path) -> None:
    hub.describe(MODEL)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_description_stays_the_same_without_the_hub(hub: Hub) -> None:
    facts = hub.describe(MODEL)
    assert hub.describe(MODEL, offline=True) == facts
    assert hub.describe(MODEL, facts.revision) == facts


def test_an_index_saves_the_headers(hub: Hub, server: HubServer) -> None:
    assert hub.describe(SHARDED).weight_bytes == pytest.approx(2 * ROWS, abs=400)
    assert not any(path.endswith(".safetensors") for _, path in server.log)


def test_a_commit_that_is_cached_needs_no_hub(hub: Hub, server: HubServer, tmp_path: Path) -> None:
    facts, _ = fetched(hub)
    asked = len(server.log)
    again = hub_of(server, tmp_path)
    assert again.describe(MODEL, facts.revision) == facts
    assert again.describe(MODEL, offline=True) == facts
    assert again.cached(MODEL) is not None
    assert len(server.log) == asked
    assert again.requests == 0


def test_a_hub_that_is_gone_leaves_what_is_cached(
    hub: Hub, server: HubServer, tmp_path: Path
) -> None:
    facts, _ = fetched(hub)
    server.fault("503")
    later = hub_of(server, tmp_path)
    assert later.describe(MODEL) == facts
    assert later.fallback is not None
    assert later.fallback.code == "hub-error"


def test_a_fetch_brings_one_set_of_weights_and_all_that_a_server_reads(
    hub: Hub, server: HubServer
) -> None:
    facts, snapshot = fetched(hub, SHARDED)
    found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*")}
    assert found == {*SMALL, *SHARDS, "model.safetensors.index.json"} - {"README.md"}
    assert (snapshot / "model-00001-of-00002.safetensors").read_bytes() == SHARDS[
        "model-00001-of-00002.safetensors"
    ]
    assert hub.cached(SHARDED, facts.revision) == snapshot
    asked = len(server.log)
    assert hub.fetch(SHARDED, facts.revision or "", facts.files) == snapshot
    assert len(server.log) == asked


def test_a_fetch_reports_its_progress(hub: Hub) -> None:
    facts = hub.describe(MODEL)
    seen: list[tuple[int, int]] = []
    hub.fetch(
        MODEL, facts.revision or "", facts.files, lambda done, all_: seen.append((done, all_))
    )
    assert facts.download_bytes is not None
    assert seen[-1] == (facts.download_bytes, facts.download_bytes)
    assert seen == sorted(seen)


def test_nothing_counts_as_cached_before_it_is_whole(hub: Hub) -> None:
    assert hub.cached(MODEL) is None
    hub.describe(MODEL)
    assert hub.cached(MODEL) is None
    _, snapshot = fetched(hub)
    assert hub.cached(MODEL) == snapshot
    (snapshot / "model.safetensors").resolve().write_bytes(b"cut")
    assert hub.cached(MODEL) is None
    facts, _ = fetched(hub)
    assert (snapshot / "model.safetensors").stat().st_size == facts.weight_files[0].size_bytes


def test_a_download_that_is_cut_off_is_taken_up_again(
    hub: Hub, server: HubServer, tmp_path: Path
) -> None:
    facts = hub.describe(MODEL)
    server.fault("cut", "model.safetensors", times=1, method="GET")
    patient = Hub(tmp_path, endpoint=server.endpoint)
    snapshot = patient.fetch(MODEL, facts.revision or "", facts.files)
    size = facts.weight_files[0].size_bytes
    assert (snapshot / "model.safetensors").stat().st_size == size


def test_what_an_interrupted_download_left_is_swept(hub: Hub, tmp_path: Path) -> None:
    hub.describe(MODEL)
    left = tmp_path / "models--org--tiny" / "blobs" / "abc.1234.incomplete"
    left.write_bytes(b"half")
    fresh = left.with_name("def.5678.incomplete")
    fresh.write_bytes(b"of another download")
    os.utime(left, (0, 0))
    fetched(hub)
    assert not left.exists()
    assert fresh.exists()


@pytest.mark.parametrize(
    ("model", "revision", "token", "error", "code"),
    [
        ("org/none", None, None, ConfigError, "unknown-model"),
        ("org/none", None, TOKEN, ConfigError, "unknown-model"),
        (MODEL, "no-such-branch", None, ConfigError, "unknown-revision"),
        (MODEL, "0" * 40, None, ConfigError, "unknown-revision"),
        (GATED, None, None, Refused, "gated-model"),
        (GATED, None, OTHER_TOKEN, Refused, "licence-not-accepted"),
        (GATED, None, "not-a-token", Refused, "bad-token"),
    ],
)
def test_access_errors_are_told_apart(
    server: HubServer,
    tmp_path: Path,
    model: str,
    revision: str | None,
    token: str | None,
    error: type[AgentError],
    code: str,
) -> None:
    with pytest.raises(error) as caught:
        hub_of(server, tmp_path, token).describe(model, revision)
    assert caught.value.code == code
    assert model in caught.value.message
    assert caught.value.hint
    assert token is None or token not in f"{caught.value.message} {caught.value.hint}"


def test_a_token_with_access_reads_a_gated_model(server: HubServer, tmp_path: Path) -> None:
    facts, snapshot = fetched(hub_of(server, tmp_path, TOKEN), GATED)
    assert facts.kind is ModelKind.TEXT
    assert (snapshot / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("fault", "path", "code"),
    [
        ("429", "api/models", "rate-limited"),
        ("429", "config.json", "rate-limited"),
        ("500", "api/models", "hub-error"),
        ("redirect", "api/models", "hub-malformed"),
        ("garbage", "api/models", "hub-malformed"),
        ("empty", "api/models", "hub-malformed"),
        ("escape", "api/models", "hub-malformed"),
        ("cut", "api/models", "hub-cut-off"),
        ("missing", "config.json", "missing-file"),
        ("garbage", "config.json", "hub-malformed"),
    ],
)
def test_a_hub_that_misbehaves(
    hub: Hub, server: HubServer, fault: str, path: str, code: str
) -> None:
    server.fault(fault, path)
    begin = time.monotonic()
    with pytest.raises(ActionFailed) as caught:
        hub.describe(MODEL)
    assert caught.value.code == code
    assert caught.value.hint
    assert time.monotonic() - begin < 3


def test_a_rate_limit_says_how_long_to_wait(hub: Hub, server: HubServer) -> None:
    server.fault("429", seconds=77)
    with pytest.raises(ActionFailed, match="wait 77 seconds"):
        hub.describe(MODEL)


@pytest.mark.parametrize("fault", ["stall", "drip"])
def test_a_description_takes_a_bounded_time(server: HubServer, tmp_path: Path, fault: str) -> None:
    server.fault(fault)
    hasty = Hub(tmp_path, endpoint=server.endpoint, budget_seconds=0.4)
    begin = time.monotonic()
    with pytest.raises(ActionFailed) as caught:
        hasty.describe(MODEL)
    assert caught.value.code == "hub-timeout"
    assert time.monotonic() - begin < 1


def test_a_download_that_stalls_is_given_up(hub: Hub, server: HubServer) -> None:
    facts = hub.describe(MODEL)
    server.fault("stall", "model.safetensors", method="GET")
    with pytest.raises(ActionFailed) as caught:
        hub.fetch(MODEL, facts.revision or "", facts.files)
    assert caught.value.code == "hub-stalled"


def test_a_download_that_is_rate_limited_stops(hub: Hub, server: HubServer) -> None:
    facts = hub.describe(MODEL)
    server.fault("429", "model.safetensors", seconds=9)
    with pytest.raises(ActionFailed, match="wait 9 seconds"):
        hub.fetch(MODEL, facts.revision or "", facts.files)


def test_no_hub_at_all(repositories: Path, tmp_path: Path) -> None:
    with HubServer(repositories) as server:
        endpoint = server.endpoint
    hub = Hub(tmp_path, endpoint=endpoint, budget_seconds=3.0)
    with pytest.raises(ActionFailed) as caught:
        hub.describe(MODEL)
    assert caught.value.code == "hub-unreachable"
    with pytest.raises(ActionFailed) as caught:
        hub.describe(MODEL, offline=True)
    assert caught.value.code == "not-cached"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk-full"),
        (PermissionError(errno.EACCES, "Permission denied"), "cache-unwritable"),
        (OSError(errno.EROFS, "Read-only file system"), "cache-unwritable"),
        (RuntimeError("a bug"), None),
    ],
)
def test_what_the_disk_does_is_told_and_bugs_stay_bugs(error: Exception, code: str | None) -> None:
    found = translate(error, MODEL, None, has_token=False, host="hub")
    assert (found and found.code) == code


def test_too_small_a_disk_is_refused_with_numbers(hub: Hub, server: HubServer) -> None:
    facts = hub.describe(MODEL)
    asked = len(server.log)
    huge = RepoFile("model.safetensors", 1 << 49)
    with pytest.raises(Refused, match=r"needs 524288\.0 GiB more .* has [\d.]+ GiB free"):
        hub.fetch(MODEL, facts.revision or "", [huge])
    assert len(server.log) == asked


def test_a_file_of_another_size_than_told_is_not_kept_as_whole(hub: Hub) -> None:
    facts = hub.describe(MODEL)
    file = facts.weight_files[0]
    wrong = RepoFile(file.path, (file.size_bytes or 0) + 1)
    with pytest.raises(ActionFailed) as caught:
        hub.fetch(MODEL, facts.revision or "", [wrong])
    assert caught.value.code == "hub-cut-off"


@pytest.mark.parametrize(
    "model",
    [
        "",
        "name",
        "/etc/passwd",
        "../../etc",
        "org/..",
        "org/a..b",
        "org/a--b",
        "org/name/more",
        "org/na me",
        "org/name\n",
        "-org/name",
        "org/name.",
        "http://org/name",
        "org/" + "a" * 97,
    ],
)
def test_a_model_id_is_no_path(hub: Hub, server: HubServer, model: str) -> None:
    for call in (hub.describe, hub.cached):
        with pytest.raises(ConfigError) as caught:
            call(model)
        assert caught.value.code == "bad-model-id"
    assert server.log == []


@pytest.mark.parametrize("revision", ["../main", "a//b", "-x", "/main", "a b", "x" * 300])
def test_a_revision_is_no_path(hub: Hub, server: HubServer, revision: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub.describe(MODEL, revision)
    assert caught.value.code == "bad-revision"
    assert server.log == []


def test_a_directory(repositories: Path) -> None:
    facts = describe_directory(repositories / "org__tiny")
    assert (facts.revision, facts.kind) == (None, ModelKind.TEXT)
    assert facts.weight_bytes == 2 * ROWS
    assert describe_directory(repositories / "org__sharded").weight_bytes == 2 * ROWS


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        describe_directory(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        describe_directory(tmp_path)
    write(tmp_path, SMALL)
    with pytest.raises(Refused, match="has no weights"):
        describe_directory(tmp_path)


def test_a_directory_with_half_a_file(tmp_path: Path) -> None:
    write(tmp_path, {**SMALL, "model.safetensors": safetensors("a")[:-1]})
    with pytest.raises(ActionFailed, match="not as long as its header says"):
        describe_directory(tmp_path)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    (tmp_path / "model.safetensors").symlink_to("../../blobs/gone")
    with pytest.raises(ActionFailed, match=r"cannot be read: .*/model\.safetensors \(No such file"):
        describe_directory(tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_no_weight(tmp_path: Path, file: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
    write(tmp_path, {**SMALL, file: pointer})
    with pytest.raises(ActionFailed, match="is a pointer of git-lfs") as caught:
        describe_directory(tmp_path)
    assert "git lfs pull" in (caught.value.hint or "")


def test_a_directory_with_a_shard_that_is_missing(tmp_path: Path) -> None:
    first, second = SHARDS
    index = {"model.safetensors.index.json": json.dumps(INDEX)}
    write(tmp_path, {**SMALL, **index, first: SHARDS[first]})
    with pytest.raises(ActionFailed, match=f"{second} is missing"):
        describe_directory(tmp_path)


def test_a_folder_without_a_config_is_not_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rglob", lambda *_: pytest.fail("it was"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        describe_directory(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"architectures"'])
def test_a_damaged_copy_is_fetched_again(
    hub: Hub, server: HubServer, tmp_path: Path, text: str
) -> None:
    facts, snapshot = fetched(hub)
    (snapshot / "config.json").resolve().write_text(text)
    assert hub_of(server, tmp_path).describe(MODEL, facts.revision) == facts
    assert (snapshot / "config.json").read_text() == SMALL["config.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["model.safetensors", "x"]]},
        {"files": [[None, 3]]},
        {"files": [["../x", 3]]},
        {"files": 3},
        {"tensors": [["a", "BF16", "1", 2]]},
        {"tensors": [["a", "BF16", 1, -2]]},
        {"tensors": [[1, 2]]},
    ],
)
def test_a_note_that_makes_no_sense_is_not_believed(
    hub: Hub, server: HubServer, tmp_path: Path, change: dict[str, object]
) -> None:
    facts, _ = fetched(hub)
    (note,) = tmp_path.rglob(f"epyc-vllm/{facts.revision}.json")
    note.write_text(json.dumps(json.loads(note.read_text()) | change))
    assert hub_of(server, tmp_path).describe(MODEL, facts.revision) == facts


def test_a_failing_hub_that_asks_to_wait_is_not_waited_for(hub: Hub, server: HubServer) -> None:
    server.fault("503", seconds=300)
    began = time.monotonic()
    with pytest.raises(ActionFailed, match="failed with HTTP status 503"):
        hub.describe(MODEL)
    assert time.monotonic() - began < 2.5  # the budget is 3


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [-1000], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 256]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]},
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [10**12] * 60, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 1, 4]},
    ],
)
def test_a_header_that_lies_is_not_believed(
    tmp_path: Path, entry: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(300_000)
    write(tmp_path / "repositories/org__odd", {**SMALL, "model.safetensors": weights})
    with HubServer(tmp_path / "repositories") as server:
        facts = hub_of(server, tmp_path / "cache").describe("org/odd")
    assert facts.weight_bytes == pytest.approx(300_000, rel=0.01)  # the file's size tells


def test_a_picture_may_have_any_name(tmp_path: Path) -> None:
    """macOS puts a narrow no-break space into the names of screenshots."""
    name = "Screenshot at 3.04.05\u202fPM.png"
    weights = safetensors("model.embed_tokens.weight")
    write(tmp_path / "hub/org__shots", {**SMALL, "model.safetensors": weights, name: "x"})
    with HubServer(tmp_path / "hub") as server:
        asked = hub_of(server, tmp_path / "cache")
        facts = asked.describe("org/shots")
        assert asked.describe("org/shots", facts.revision) == facts
