"""What is known of a model, as frozen values; reads nothing itself (see `checkpoint`)."""

from dataclasses import dataclass
from enum import StrEnum


class ModelKind(StrEnum):
    TEXT = "text"
    MULTIMODAL = "multimodal"
    EMBEDDING = "embedding"
    RERANKER = "reranker"
    SPEECH = "speech"
    UNKNOWN = "unknown"


class EndpointKind(StrEnum):
    """The OpenAI route that a model answers; also its name in JSON."""

    CHAT = "chat_completions"
    COMPLETIONS = "completions"


class TemplateStatus(StrEnum):
    PRESENT = "present"
    ABSENT = "absent"
    AMBIGUOUS = "ambiguous"  # several named templates and none called "default"
    UNKNOWN = "unknown"  # the files that would tell could not be read


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    status: TemplateStatus
    names: tuple[str, ...] = ()
    source: str | None = None  # the file that holds it


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a model repository: path inside it, size in bytes (None: not told)."""

    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class KvLayer:
    """What `count` equal layers keep of a sequence, in one rank-independent description.

    `bytes_per_token` is for all heads of one layer; `heads` tells how ranks divide it (None: the
    layer is replicated on each rank, as MLA's latent is). `window` bounds it (None: grows);
    `chunked` says that the window is Llama 4's chunk, which starts at a block.
    """

    count: int
    bytes_per_token: int
    heads: int | None
    window: int | None = None
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV cache of a model, enough to compute bytes for any context, ranks and batch.

    No layers and no state: the model keeps nothing between tokens (an encoder).
    """

    layers: tuple[KvLayer, ...]
    state_bytes: int = 0  # of all state layers, one copy: mamba, linear attention
    state_layers: int = 0
    state_copies: int = 1  # that vLLM keeps per sequence: more with prefix caching
    cross_bytes_per_encoder_token: int = 0
    cross_layers: int = 0
    block_tokens: int | None = None  # fixed by the CPU backend: 16 for MLA without AMX


@dataclass(frozen=True, slots=True)
class ModelFacts:
    id: str  # as the user gave it: a hub id or a directory
    revision: str | None  # the resolved commit; None for a directory
    architectures: tuple[str, ...]
    kind: ModelKind
    dtype: str | None  # of the checkpoint, "bfloat16"
    quantization: str | None  # quant_method as stored
    max_context_tokens: int | None
    custom_code: bool
    chat_template: ChatTemplate
    weight_files: tuple[RepoFile, ...]  # the one set that vLLM loads
    weight_bytes: int | None  # as loaded in bfloat16, or as stored where quantised
    vocab_size: int | None
    hidden_size: int | None
    attention_heads: int | None
    kv: KvLayout | None  # None: not computable from config.json
    kv_heads: int | None = None  # the smallest number over the layers; None for MLA
    parameters: int | None = None  # as loaded, where they could be counted
    registry_vllm: str | None = None  # the version whose registry it was judged by
    listed: bool = True  # the architecture is in that registry
    cpu_refusal: str | None = None  # why vLLM's CPU backend will not run it although listed
    prefix_caching_refusal: str | None = None  # why it will not with prefix caching
    files: tuple[RepoFile, ...] = ()  # all that vLLM needs offline: weights, configs, tokenizer
    pipeline_tag: str | None = None
    expert_bytes: int = 0  # the part of weight_bytes that is in routed experts

    @property
    def download_bytes(self) -> int | None:
        """Bytes of `files`; None where the hub left a weight file's size out."""
        if any(file.size_bytes is None for file in self.weight_files):
            return None
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def primary_endpoint(self) -> EndpointKind:
        present = self.chat_template.status is TemplateStatus.PRESENT
        return EndpointKind.CHAT if present else EndpointKind.COMPLETIONS

    @property
    def supported_endpoints(self) -> tuple[EndpointKind, ...]:
        if self.primary_endpoint is EndpointKind.CHAT:
            return (EndpointKind.CHAT, EndpointKind.COMPLETIONS)
        return (EndpointKind.COMPLETIONS,)
