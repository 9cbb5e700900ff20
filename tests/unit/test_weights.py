"""Which files vLLM loads, by the traps of real repositories, and what their bytes become."""

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.errors import AgentError
from epyc_vllm_agent.facts.catalog import model_notes
from epyc_vllm_agent.facts.hfconfig import HfConfig
from epyc_vllm_agent.facts.loaded import Loaded, Stored, is_tied, loaded_weights
from epyc_vllm_agent.facts.model import RepoFile
from epyc_vllm_agent.facts.parameters import count_parameters
from epyc_vllm_agent.facts.weights import (
    Tensor,
    choose_weight_files,
    header_length,
    needed_files,
    parse_tensors,
    require_whole,
)

INDEX = "model.safetensors.index.json"
SHARDS = tuple(f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
QWEN3_0_6B: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
GLM_4_5_AIR: dict[str, object] = {
    "model_type": "glm4_moe",
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 151552,
    "torch_dtype": "bfloat16",
}


def files(paths: Iterable[str]) -> list[RepoFile]:
    return [RepoFile(path, 10) for path in paths]


def chosen(paths: Iterable[str], texts: Mapping[str, str] | None = None) -> list[str]:
    return [file.path for file in choose_weight_files(files(paths), texts or {}, "a/model")]


def index(*shards: str, names: Iterable[str] = ("a.weight",)) -> str:
    return json.dumps({"weight_map": {name + shard: shard for shard in shards for name in names}})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model.safetensors", "model.fp16.safetensors"], ["model.safetensors"]),
        (["model.safetensors", "original/consolidated.00.pth"], ["model.safetensors"]),
        (["metal/model.bin", "original/model.safetensors", "model.safetensors"], None),
        (["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], ["pytorch_model.bin"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.bin"], ["pytorch_model.bin"]),
        ([*SHARDS, "consolidated.safetensors"], list(SHARDS)),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors"]),
        (["gptq_model-4bit-128g.safetensors"], ["gptq_model-4bit-128g.safetensors"]),
        (["model.safetensors", "adapter_model.safetensors"], ["model.safetensors"]),
        (["weights.pt", "optimizer.pt"], ["weights.pt"]),
        (["model-q4.gguf", "onnx/model.onnx"], []),
        ([], []),
    ],
)
def test_one_set_of_weights(paths: list[str], expected: list[str] | None) -> None:
    assert chosen(paths) == (["model.safetensors"] if expected is None else expected)


def test_the_index_decides() -> None:
    paths = [*SHARDS, "model.safetensors", "consolidated.safetensors", INDEX]
    assert chosen(paths, {INDEX: index(*SHARDS)}) == list(SHARDS)


def test_an_index_of_files_that_are_not_there_is_not_believed() -> None:
    assert chosen(["model.safetensors", INDEX], {INDEX: index(*SHARDS)}) == ["model.safetensors"]
    with pytest.raises(AgentError, match=f"{SHARDS[0]} is missing"):
        choose_weight_files(
            files(["model.safetensors", INDEX]), {INDEX: index(*SHARDS)}, "a/b", as_it_is=True
        )


@pytest.mark.parametrize(
    ("paths", "indexed", "missing"),
    [
        (SHARDS[:1], SHARDS, SHARDS[1]),
        (SHARDS[1:], SHARDS, SHARDS[0]),
        (["model.safetensors", "other.safetensors"], ["model.safetensors", "b.safetensors"], None),
        (["a.safetensors"], ["a.safetensors", "b.safetensors"], "b.safetensors"),
    ],
)
def test_a_part_of_what_an_index_names_is_no_model(
    paths: Sequence[str], indexed: Sequence[str], missing: str | None
) -> None:
    texts = {INDEX: index(*indexed)}
    if missing is None:  # the one file is loaded, and the index is not
        assert chosen([*paths, INDEX], texts) == ["model.safetensors"]
        return
    with pytest.raises(AgentError, match=f"{missing} is missing"):
        chosen([*paths, INDEX], texts)
    # A whole set of the other format is taken instead.
    assert chosen(["pytorch_model.bin"], texts) == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"model.safetensors": 0}, "model.safetensors cannot be used: it is empty"),
        ({SHARDS[0]: 10}, r"model-00002-of-00002\.safetensors is missing"),
        ({"pytorch_model-00003-of-00003.bin": 10}, r"pytorch_model-00001-of-00003\.bin is missing"),
        ({SHARDS[0]: 10, SHARDS[1]: 10}, None),
        ({"model.safetensors": None}, None),
        ({"model-00000-of-00002.safetensors": 1, SHARDS[0]: 1}, None),  # counted from 0
    ],
)
def test_a_set_with_a_gap_is_no_model(sizes: Mapping[str, int | None], told: str | None) -> None:
    listed = [RepoFile(path, size) for path, size in sizes.items()]
    if told is None:
        require_whole(listed, "a/b")
        return
    with pytest.raises(AgentError, match=told):
        require_whole(listed, "a/b")


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_map_is_not_believed(text: str) -> None:
    assert chosen([*SHARDS, INDEX], {INDEX: text}) == list(SHARDS)


def test_a_snapshot_has_all_that_a_server_reads_and_no_second_copy() -> None:
    needed = [*SHARDS, INDEX, "config.json", "generation_config.json", "tokenizer.json"]
    needed += ["tokenizer.model", "merges.txt", "tekken.json", "modeling_x.py", "code/part.py"]
    needed += ["chat_template.jinja", "additional_chat_templates/rag.jinja"]
    left = ["README.md", "consolidated.safetensors", "params.json", "original/params.json"]
    left += ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf", ".gitattributes"]
    left += ["LICENSE.txt", "onnx/config.json", "figure.png"]
    everything = files([*left, *needed])
    weights = choose_weight_files(everything, {INDEX: index(*SHARDS)}, "a/model")
    assert {file.path for file in needed_files(everything, weights)} == set(needed)


def test_mistrals_own_format_comes_with_its_own_config() -> None:
    everything = files(["consolidated.safetensors", "params.json", "config.json", "tekken.json"])
    weights = choose_weight_files(everything, {}, "a/model")
    assert needed_files(everything, weights) == tuple(everything)


def header(tensors: Mapping[str, object]) -> bytes:
    return json.dumps(tensors).encode()


def test_tensors_of_a_header() -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}
    tensors = parse_tensors(header({"__metadata__": {"format": "pt"}, "a": entry}), "a.safetensors")
    assert tensors == (Tensor("a", "F32", 6, 24),)
    assert tensors[0].served_bytes == 12


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32"}}',
        header({"a": {"dtype": 1, "shape": [], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1 << 50], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}),
        header({"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [math.inf], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [10**12] * 60, "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, math.inf]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1, 4]}}),
        b'{"a": ' + b"[" * 20000,
    ],
)
def test_a_header_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(AgentError, match=r"weight file a\.safetensors cannot be used"):
        parse_tensors(text, "a.safetensors")


def refusal(read: Callable[[bytes, str], object], data: bytes) -> str | None:
    try:
        read(data, "a.safetensors")
    except AgentError as error:
        return error.code
    return None


@given(st.binary(max_size=64))
def test_no_bytes_crash_the_header_reader(data: bytes) -> None:
    assert refusal(header_length, data) in (None, "broken-weights")
    assert refusal(parse_tensors, data) in (None, "broken-weights")


@pytest.mark.parametrize("length", [0, 101 << 20, (1 << 64) - 1])
def test_a_header_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(AgentError, match="header claims"):
        header_length(struct.pack("<Q", length), "a.safetensors")


def loaded(config: Mapping[str, object], stored: Stored) -> Loaded:
    notes = model_notes()
    outer = HfConfig("a/model", config)
    language = outer.language_model(notes.defaults)
    return loaded_weights(outer, language, notes, is_tied(outer, language, frozenset()), stored)


def test_a_tied_head_in_the_file_is_not_loaded() -> None:
    # Qwen3-0.6B: 751,632,384 parameters stored, 596,049,920 loaded by vLLM
    assert loaded(QWEN3_0_6B, Stored(file_bytes=1503264768)).weight_bytes == 1192099840


def test_a_tied_head_that_is_not_in_the_file_is_not_taken_off() -> None:
    assert loaded(QWEN3_0_6B, Stored(file_bytes=1192099840)).weight_bytes == 1192099840


def test_names_tell_whether_the_head_is_stored() -> None:
    with_head = Stored(names=("model.embed_tokens.weight", "lm_head.weight"), file_bytes=10**9)
    without = Stored(names=("model.embed_tokens.weight",), file_bytes=10**9)
    head = 151936 * 1024 * 2
    assert loaded(QWEN3_0_6B, with_head).weight_bytes == 10**9 - head
    assert loaded(QWEN3_0_6B, without).weight_bytes == 10**9


def test_headers_are_believed_before_all_else() -> None:
    tensors = (
        Tensor("model.embed_tokens.weight", "F32", 100, 400),
        Tensor("lm_head.weight", "F32", 100, 400),
        Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 64, 256),
    )
    assert loaded(QWEN3_0_6B, Stored(tensors, file_bytes=999)) == Loaded(200, 100)


def test_prediction_layers_are_not_loaded() -> None:
    # GLM-4.5-Air: 220,937,649,664 bytes stored, vLLM loads 213,751,699,968
    found = loaded(GLM_4_5_AIR, Stored(file_bytes=220937649664))
    assert found.weight_bytes == pytest.approx(213751699968, rel=0.001)
    tensors = (
        Tensor("model.layers.45.a", "BF16", 10, 20),
        Tensor("model.layers.46.a", "BF16", 10, 20),
    )
    assert loaded(GLM_4_5_AIR, Stored(tensors)).parameters == 10


def test_the_part_of_the_experts() -> None:
    """Of GLM-4.5-Air 128 experts of 3 x 4096 x 1408 in 45 of 46 layers; none is elsewhere."""
    found = loaded(GLM_4_5_AIR, Stored(file_bytes=220937649664))
    assert found.expert_bytes == pytest.approx(128 * 3 * 4096 * 1408 * 45 * 2, rel=0.001)
    assert loaded(QWEN3_0_6B, Stored(file_bytes=1192099840)).expert_bytes == 0
    quantised = {**GLM_4_5_AIR, "quantization_config": {"quant_method": "awq", "bits": 4}}
    stored = loaded(quantised, Stored(file_bytes=60 * 10**9))
    assert stored.weight_bytes is not None
    assert 0.9 < stored.expert_bytes / stored.weight_bytes < 1


def test_experts_that_cannot_be_counted_are_all_of_it() -> None:
    config = {"model_type": "new", "num_experts": 8}
    assert loaded(config, Stored(file_bytes=1000)).expert_bytes == 1000
    assert loaded(config, Stored()).expert_bytes == 0


def test_float32_is_served_as_bfloat16() -> None:
    config = {**QWEN3_0_6B, "torch_dtype": "float32"}
    assert loaded(config, Stored(file_bytes=2 * 1192099840)).weight_bytes == 1192099840


def test_quantised_weights_are_loaded_as_stored() -> None:
    quantised = {**QWEN3_0_6B, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    quantised["torch_dtype"] = "float32"
    assert loaded(quantised, Stored(file_bytes=500)).weight_bytes == 500
    tensors = (Tensor("a.qweight", "I32", 25, 100), Tensor("a.scales", "F32", 5, 20))
    assert loaded(quantised, Stored(tensors)).weight_bytes == 120


def test_without_sizes_the_config_is_counted() -> None:
    assert loaded(QWEN3_0_6B, Stored()).weight_bytes == pytest.approx(1192099840, rel=0.001)
    fp8 = {**GLM_4_5_AIR, "quantization_config": {"quant_method": "fp8"}}
    plain = loaded(GLM_4_5_AIR, Stored()).weight_bytes
    halved = loaded(fp8, Stored()).weight_bytes
    assert plain is not None
    assert halved is not None
    assert plain / 2 < halved < plain * 0.52
    unknown = {**GLM_4_5_AIR, "quantization_config": {"quant_method": "something-new"}}
    assert loaded(unknown, Stored()).weight_bytes is None


def test_a_size_that_the_config_cannot_explain_is_taken_as_it_is() -> None:
    assert loaded(QWEN3_0_6B, Stored(file_bytes=3 * 10**9)).weight_bytes == 3 * 10**9


@pytest.mark.parametrize(
    ("config", "defaults", "tied"),
    [
        ({"tie_word_embeddings": True}, (), True),
        ({"tie_word_embeddings": False, "model_type": "gemma"}, ("gemma",), False),
        ({"model_type": "gemma"}, ("gemma",), True),
        ({"text_config": {"tie_word_embeddings": True}}, (), True),
        ({"model_type": "mistral3", "text_config": {}}, ("mistral3",), True),
        ({"model_type": "llama"}, ("gemma",), False),
    ],
)
def test_tied_heads(config: dict[str, object], defaults: tuple[str, ...], tied: bool) -> None:
    outer = HfConfig("a/model", config)
    assert is_tied(outer, outer.language_model({}), frozenset(defaults)) is tied


def test_a_count_needs_the_usual_numbers() -> None:
    assert count_parameters(HfConfig("a/model", {"hidden_size": 64}), tied=False) is None
