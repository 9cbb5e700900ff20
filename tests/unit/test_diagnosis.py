"""From a log to a cause: what servers really print, and what must not be taken for a cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.watch.diagnosis import Signature, Signatures, diagnose, masked
from tests.plans import SIGNATURES

# How vLLM 0.32 and its libraries word it; one line of each, with what stands around it in a log.
LOGS = {
    "port-busy": "OSError: [Errno 98] error while attempting to bind on address "
    "('127.0.0.1', 8000): address already in use",
    "context-too-long": "  Value error, User-specified max_model_len (999999) is greater than the "
    "derived max_model_len (max_position_embeddings=40960 or model_max_length=None in model's "
    "config.json).",
    "no-compiler": "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler "
    "found in torch._inductor.config.cpp.cxx: (None, 'g++')",
    "kv-over-node": "ValueError: Available memory on node 0 (3.1/7.7 GiB) on startup is less than "
    "requested memory for kv (200.0 GiB)",
    "kv-none": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "kv-too-small": "ValueError: To serve at least one request with the models's max seq len "
    "(40960), (5.6 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(1.0 GiB).",
    "gated-model": "OSError: You are trying to access a gated repo.\nGatedRepoError: 403 Client "
    "Error. Access to model org/name is restricted and you are not in the authorized list.",
    "model-missing": "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate "
    "cached snapshot folder for the specified revision on the local disk",
    "architecture": "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
    "custom-code": "ValueError: The repository org/name contains custom code which must be "
    "executed to correctly load the model. You can inspect the repository content at "
    "https://hf.co/org/name.\nPlease pass the argument `trust_remote_code=True` to allow custom "
    "code to be run.",
    "dtype": "ValueError: Current platform cpu does not have float16 dtype support",
    "argument": "vllm serve: error: ambiguous option: --device could match --device-ids, "
    "--device-config",
    "freezing": "AssertionError: expected OutputCode, got <class 'NoneType'>",
    "disk-full": "OSError: [Errno 28] No space left on device: '/var/cache/epyc-vllm/a-s0/x'",
    "out-of-memory": "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes.",
    "permission": "PermissionError: [Errno 13] Permission denied: '/srv/model/config.json'",
    "cpu-attention": "NotImplementedError: Sparse Attention is not supported on CPU.",
    "compile-cache": "TypeError: DefaultsSource.__init__() takes from 3 to 4 positional arguments "
    "but 6 were given",
    "shm-and-ipc": "Error: cannot set shmsize when running in the {host } IPC Namespace",
    "name-in-use": 'Error: creating container storage: the container name "epyc-vllm-a-s0" is '
    "already in use by 0123. You have to remove that container to be able to reuse that name: "
    "that name is already in use",
    "cpuset-refused": "Error: OCI runtime error: crun: the requested cgroup controller `cpuset` "
    "is not available",
    "pinning-refused": "libnuma: Warning: node argument 1 is out of range",
    "image-missing": "Error: docker.io/vllm/vllm-openai-cpu@sha256:12: image not known",
    "mount-missing": "Error: statfs /srv/model: no such file or directory",
    "library-missing": "ImportError: libnuma.so.1: cannot open shared object file: No such file or "
    "directory",
    "stack-mismatch": "ImportError: /opt/vllm/lib/python3.11/site-packages/zentorch/_C.so: "
    "undefined symbol: _ZN3c104cuda9SetDeviceEi",
    "weights-broken": "safetensors_rust.SafetensorError: Error while deserializing header",
    "too-many-files": "OSError: [Errno 24] Too many open files",
    "cpu-bfloat16": "RuntimeError: check_valid_dtypes_for_matmul, src/cpu/cpp/MatmulUtils.hpp:293, "
    "zentorch_matmul bf16 path needs the cpu support avx512bf16",
    "load-timeout": "TimeoutError: Timed out waiting for engine core processes to start.",
    "step-timeout": "TimeoutError: RPC call to execute_model timed out.",
    "shm": "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
    "worker-crashed": "(EngineCore pid=7) ERROR [multiproc_executor.py:316] Worker proc "
    "VllmWorker-0 died unexpectedly (exit code: -11), shutting down executor.",
    "worker-killed": "(EngineCore pid=7) ERROR [multiproc_executor.py:316] Worker proc "
    "VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
    "engine-died": "(APIServer pid=3) ERROR [core_client.py:780] vllm.v1.engine.exceptions."
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "illegal-instruction": "!!!!!!! Segfault encountered: SIGILL\nIllegal instruction",
}

# Lines of every start, the good ones too.
GOOD = [
    "INFO 11-30 20:00:00 [api_server.py:1977] vLLM API server version 0.32.0",
    "INFO 11-30 20:00:00 [utils.py:233] non-default args: {'model': '/srv/m', 'host': '127.0.0.1', "
    "'trust_remote_code': True, 'max_model_len': 4096}",
    "INFO 11-30 20:00:01 [model.py:1745] Using max model len 4096",
    "INFO 11-30 20:00:02 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/srv/m', tokenizer='/srv/m', skip_tokenizer_init=False, tokenizer_mode=auto, "
    "revision=None, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=4096, "
    "download_dir=None, load_format=auto, tensor_parallel_size=1, quantization=None, "
    "enforce_eager=False, kv_cache_dtype=auto, device_config=cpu, seed=0, served_model_name=m",
    "WARNING 11-30 20:00:02 [cpu.py:159] VLLM_CPU_KVCACHE_SPACE not set",
    "INFO 11-30 20:00:09 [kv_cache_utils.py:1229] GPU KV cache size: 123,456 tokens",
    "WARNING 11-30 20:00:10 [system_utils.py:262] Found ulimit of 1024 and failed to automatically "
    "increase with error. This can cause fd limit errors like `OSError: [Errno 24] Too many open "
    "files`. Consider increasing with ulimit -n",
    "INFO:     Application startup complete.",
]


@pytest.mark.parametrize("code", LOGS)
def test_every_known_failure_is_found_among_usual_lines(code: str) -> None:
    found = diagnose([*GOOD, *LOGS[code].splitlines(), *GOOD[-1:]], SIGNATURES)
    assert found is not None
    assert found.code == code
    signature = next(s for s in SIGNATURES.signatures if s.code == code)
    assert found.text.startswith(signature.cause + " (")
    assert found.hint == signature.hint


def test_every_signature_has_an_example() -> None:
    assert {s.code for s in SIGNATURES.signatures} == set(LOGS)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("gated-model", "Cannot access gated repo for url https://huggingface.co/org/name"),
        (
            "architecture",
            "The checkpoint you are trying to load has model type `new` but Transformers does not "
            "recognize this architecture.",
        ),
        (
            "no-compiler",
            "g++: fatal error: cannot execute \u2018cc1plus\u2019: execvp: No such file",
        ),
        ("no-compiler", "g++: fatal error: cannot execute 'cc1plus': execvp: No such file"),
        ("argument", "vllm serve: error: unrecognized arguments: --device cpu"),
        ("freezing", "AssertionError: expected OutputCode, got function"),
        ("compile-cache", "torch._inductor.BypassFxGraphCache: Failed to pickle cache key"),
        (
            "name-in-use",
            'docker: Error response from daemon: Conflict. The container name "/epyc-vllm-a-s0" is '
            'already in use by container "0123". You have to remove (or rename) that container.',
        ),
        (
            "cpuset-refused",
            "crun: writing file `/sys/fs/cgroup/system.slice/x/cpuset.cpus`: Invalid argument",
        ),
        (
            "cpuset-refused",
            "docker: Error response from daemon: Requested CPUs are not available - requested "
            "64-95, available: 0-1.",
        ),
        ("pinning-refused", "taskset: failed to set pid 0's affinity: Invalid argument"),
        ("image-missing", "docker: Error response from daemon: No such image: vllm:1."),
        ("shm", "Worker proc VllmWorker-1 died unexpectedly (exit code: -7), shutting down"),
        ("illegal-instruction", "Worker proc VllmWorker-0 died unexpectedly (exit code: -4), x"),
    ],
)
def test_other_words_for_it(code: str, line: str) -> None:
    found = diagnose([*GOOD, line], SIGNATURES)
    assert found is not None
    assert found.code == code


def test_a_full_dev_shm_is_not_any_full_disk() -> None:
    for log in (
        "RuntimeError: unable to mmap 1024 bytes from file </torch_123>: shared memory: unable to "
        "open shared memory object </torch_1> in read-write mode",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
    ):
        found = diagnose([log], SIGNATURES)
        assert found is not None
        assert found.code == "shm"


def test_usual_lines_are_no_cause() -> None:
    assert diagnose(GOOD, SIGNATURES) is None
    assert diagnose([], SIGNATURES) is None


def test_the_special_comes_before_the_general() -> None:
    log = [LOGS["permission"], LOGS["no-compiler"]]
    found = diagnose(log, SIGNATURES)
    assert found is not None
    assert found.code == "no-compiler"


def test_long_matches_are_cut_and_stay_on_one_line() -> None:
    signatures = Signatures((Signature("x", r"(?s)begin.*", "it began", "h", "s"),))
    found = diagnose(["begin", "a  b" * 200], signatures)
    assert found is not None
    assert len(found.text) < 200
    assert "\n" not in found.text
    assert found.text.endswith("...)")


def test_secrets_are_masked() -> None:
    lines = ["token hf_abcDEF0123456789 used", "Authorization: Bearer s3cret!", "hf_short"]
    assert masked(lines, ["s3cret!", ""]) == (
        "token hf_*** used",
        "Authorization: Bearer ***",
        "hf_short",
    )


@given(st.lists(st.text()), st.text("abcXYZ0189.+/", min_size=4))
def test_a_secret_is_nowhere_left(lines: list[str], secret: str) -> None:
    found = masked([*lines, f"key={secret};"], [secret])
    assert len(found) == len(lines) + 1
    assert not any(secret in line for line in found)
