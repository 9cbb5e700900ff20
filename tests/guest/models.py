"""Tiny models in Hugging Face format, written byte by byte; loads none and needs no torch.

A Qwen3 of two layers with random weights and a byte-level BPE tokenizer of syllables: enough for
the real vLLM, small enough (4 MB) to be made wherever a test runs; beside it one of each make in
`architectures`. The same seed gives the same bytes.
"""

import json
import math
import random
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.guest import architectures, cache
from tests.guest.architectures import MAKES, Make

CHAT = "example/tiny-chat"
BASE = "example/tiny-base"  # the same without a chat template
MADE = {name: f"example/tiny-{name}" for name in MAKES}  # of another make each
MAX_CONTEXT = 4096

TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, START_OF_TURN, END_OF_TURN = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int = 2
    hidden: int = 256
    intermediate: int = 1024
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64


def folder() -> Path:
    """A folder with one model repository per subfolder, named org__name."""
    sources = [Path(file).read_text() for file in (__file__, architectures.__file__)]
    return cache.part("models", sources, _write_all)


def _write_all(target: Path) -> None:
    for name, template in ((CHAT, TEMPLATE), (BASE, None)):
        write(target / name.replace("/", "__"), template)
    for make, name in MADE.items():
        write(target / name.replace("/", "__"), TEMPLATE, make=MAKES[make])


def write(
    target: Path,
    template: str | None,
    shape: Shape = Shape(),
    seed: int = 0,
    make: Make | None = None,
) -> None:
    """Writes a whole model repository; without a template chat requests are refused.

    `make` is another architecture than Qwen3, with a shape of its own.
    """
    target.mkdir(parents=True)
    vocabulary, merges = syllables()
    rows = math.ceil((len(vocabulary) + len(SPECIAL)) / 64) * 64
    config = _config(shape, rows, vocabulary) | (make.whole_config() if make else {})
    tensors = make.tensors(rows) if make else _tensors(shape, rows)
    _json(target / "config.json", config)
    _json(target / "generation_config.json", _generation(vocabulary))
    _json(target / "tokenizer.json", _tokenizer(vocabulary, merges))
    _json(target / "tokenizer_config.json", _tokenizer_config(template))
    _safetensors(target / "model.safetensors", tensors, vocabulary, random.Random(seed))  # noqa: S311


def _json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def bytes_as_text() -> tuple[str, ...]:
    """The printable stand-in of each byte that byte-level BPE uses (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


def syllables() -> tuple[list[str], list[tuple[str, str]]]:
    """All bytes, then consonant and vowel merged, then the same after a space."""
    space = bytes_as_text()[0x20]
    pairs = [(consonant, vowel) for consonant in "bdfgklmnprstvwz" for vowel in "aeiou"]
    merges = pairs + [(space, consonant + vowel) for consonant, vowel in pairs]
    return [*bytes_as_text(), *(left + right for left, right in merges)], merges


def _special(vocabulary: list[str], token: str) -> int:
    return len(vocabulary) + SPECIAL.index(token)


def _config(shape: Shape, rows: int, vocabulary: list[str]) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": _special(vocabulary, END),
        "eos_token_id": _special(vocabulary, END_OF_TURN),
        "pad_token_id": _special(vocabulary, END),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": MAX_CONTEXT,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": rows,
    }


def _generation(vocabulary: list[str]) -> dict[str, object]:
    return {
        "bos_token_id": _special(vocabulary, END),
        "eos_token_id": _special(vocabulary, END_OF_TURN),
        "pad_token_id": _special(vocabulary, END),
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def _tokenizer(vocabulary: list[str], merges: list[tuple[str, str]]) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": _special(vocabulary, token), "content": token, "special": True, **flags}
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "trim_offsets": True},
        "post_processor": None,
        "decoder": {**byte_level, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in merges],
        },
    }


def _tokenizer_config(template: str | None) -> dict[str, object]:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": END,
    }
    if template is not None:
        config["chat_template"] = template
    return config


def _tensors(shape: Shape, rows: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Qwen3ForCausalLM in transformers has them; lm_head is the embedding."""
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (rows, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_norm.weight", (shape.head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.up_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)


LARGEST, BLOCK = 1 << 18, 1 << 12  # values: a larger tensor repeats a block of so many


def _bfloat16(values: Iterator[float]) -> bytes:
    """The upper half of each 32-bit float."""
    words = array("I", array("f", values).tobytes())
    return array("H", (word >> 16 for word in words)).tobytes()


def _content(name: str, shape: tuple[int, ...], dice: random.Random) -> bytes:
    size = math.prod(shape)
    thrown = size if size <= LARGEST else BLOCK
    return (_bfloat16(_values(name, shape, thrown, dice)) * -(-size // thrown))[: 2 * size]


def _values(name: str, shape: tuple[int, ...], count: int, dice: random.Random) -> Iterator[float]:
    if len(shape) == 1:
        return iter([1.0] * count)
    scale = 0.3 if name == "model.embed_tokens.weight" else 1 / math.sqrt(math.prod(shape[1:]))
    return (dice.gauss(0, scale) for _ in range(count))


def _readable(embedding: bytes, width: int, vocabulary: list[str]) -> bytes:
    """Zeroes the rows of single bytes, so that an answer of this model is made of syllables."""
    row = 2 * width
    singles = {number for number, token in enumerate(vocabulary) if len(token) == 1}
    rows = len(embedding) // row
    return b"".join(
        bytes(row) if number in singles or number >= len(vocabulary) else
        embedding[number * row : (number + 1) * row]
        for number in range(rows)
    )  # fmt: skip


def _safetensors(
    file: Path,
    tensors: Iterator[tuple[str, tuple[int, ...]]],
    vocabulary: list[str],
    dice: random.Random,
) -> None:
    """https://github.com/huggingface/safetensors: header length, JSON header, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    listed, end = list(tensors), 0
    for name, dimensions in listed:
        begin, end = end, end + 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as written:
        written.write(struct.pack("<Q", len(text)) + text)
        for name, dimensions in listed:
            content = _content(name, dimensions, dice)
            if name == "model.embed_tokens.weight":
                content = _readable(content, dimensions[1], vocabulary)
            written.write(content)
