"""The settings table: every key of an endpoint's file and of epyc-vllm.toml, with its rule.

Parser, defaults, JSON schema and manual come from here; nothing else lists the keys.
"""

from dataclasses import dataclass
from typing import Any

from epyc_vllm_agent.config import checks
from epyc_vllm_agent.config.checks import Rule

RUNTIMES = ("auto", "podman", "docker", "host")
GATES = (
    "stock-cpu",
    "unvalidated-cpu",
    "unvalidated-stack",
    "not-epyc",
    "open-address",
    "custom-code",
)
DTYPES = ("bfloat16", "float16", "float32")
PLACEMENTS = ("auto", "socket", "node")
RESTART, NEXT_START = "restart", "next-start"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its rule, its default, and whether [defaults] of epyc-vllm.toml may set it."""

    key: str
    check: Rule[Any]
    default: object
    help: str
    host_wide: bool = True


ENDPOINT = (
    Setting("model", checks.model, None, "hub id (org/name) or a directory with a model", False),
    Setting("revision", checks.text, None, "branch, tag or commit of the hub model", False),
    Setting(
        "served_model_name",
        checks.name,
        None,
        "name that clients send; the model's by itself",
        False,
    ),
    Setting("runtime", checks.choice(RUNTIMES), "auto", "what runs vLLM"),
    Setting(
        "environment", checks.prefix, None, "Python environment with vLLM, for the host runtime"
    ),
    Setting(
        "image", checks.image, None, "container image with vLLM, by its registry: registry/name:tag"
    ),
    Setting(
        "model_dir", checks.path, None, "directory with the model's files, used in place", False
    ),
    Setting(
        "throughput",
        checks.flag,
        False,
        "sets the throughput switches that this vLLM reads, all of them or none",
    ),
    Setting("sockets", checks.sockets, "all", '"all", "auto" or a list: where instances run'),
    Setting(
        "cores",
        checks.integer(1, 1024),
        None,
        "physical cores per instance; the whole socket by itself",
    ),
    Setting(
        "placement",
        checks.choice(PLACEMENTS),
        "auto",
        "one instance per socket, or per node; by itself per socket where its nodes can share one",
    ),
    Setting("kv_gib", checks.integer(1, 65536), None, "KV cache in GiB per rank; sized by itself"),
    Setting(
        "port",
        checks.integer(1024, 65535),
        None,
        "first instance's port; a free one from 8000 by itself",
        False,
    ),
    Setting(
        "address",
        checks.matching(r"[0-9A-Fa-f.:]+", "IP address"),
        "127.0.0.1",
        "address to listen on",
    ),
    Setting(
        "max_model_len", checks.integer(1, 2**31 - 1), 4096, "longest prompt plus answer, in tokens"
    ),
    Setting(
        "num_prompts", checks.integer(1, 4096), 1, "requests of that length that must fit at once"
    ),
    Setting("dtype", checks.choice(DTYPES), "bfloat16", "precision served"),
    Setting(
        "chat_template", checks.path, None, "a chat template file for a model that has none", False
    ),
    Setting("vllm_args", checks.texts, (), "further arguments of `vllm serve`"),
    Setting("env", checks.variables, (), "further environment variables of vLLM"),
    Setting(
        "api_key_file",
        checks.key_file,
        None,
        "root-only file with a line VLLM_API_KEY=...",
    ),
    Setting("accept", checks.choices(GATES), (), "gates that are accepted"),
    Setting(
        "start_timeout",
        checks.integer(10, 86400),
        None,
        "seconds to answer; from the model's size by itself",
    ),
    Setting(
        "on_change",
        checks.choice((NEXT_START, RESTART)),
        NEXT_START,
        "what `apply` does with a running instance whose unit changed: restarts it at once, or "
        "leaves the change for its next start",
    ),
)

HUB = (
    Setting(
        "endpoint",
        checks.http_url,
        None,
        "the model hub",
    ),
    Setting("token_file", checks.path, None, "root-only file with the hub's token"),
)

HOST = (
    Setting(
        "user",
        checks.matching(r"[a-z_][a-z0-9_-]*", "user name"),
        "_epyc-vllm",
        "user that vLLM runs as in the host runtime",
    ),
    Setting(
        "auto_apply",
        checks.flag,
        True,
        "whether a file that is put into endpoints.d, changed or removed is applied by itself",
    ),
)

WATCH = (
    Setting("interval_seconds", checks.integer(1, 60), 5, "time between two probes of an instance"),
    Setting("dead_seconds", checks.integer(1, 60), 2, "within which the end of a unit is noticed"),
    Setting(
        "sick_seconds",
        checks.integer(3, 3600),
        30,
        "within which a server whose /health fails, three times or more, is given up",
    ),
    Setting(
        "hung_seconds",
        checks.integer(10, 86400),
        120,
        "within which a server with work, but without tokens and CPU time, is given up",
    ),
    Setting(
        "prefill_seconds",
        checks.integer(10, 86400),
        1800,
        "the same for one whose workers use CPU time: the longest prefill",
    ),
    Setting(
        "canary_seconds",
        checks.integer(0, 3600),
        60,
        "idle time after which one token is asked for; 0: never",
    ),
    Setting("on_failure", checks.program, (), "program that is given the path of each report"),
    Setting(
        "on_failure_timeout",
        checks.integer(1, 86400),
        60,
        "seconds after which that program is ended",
    ),
)

TABLES = {"hub": HUB, "defaults": tuple(s for s in ENDPOINT if s.host_wide), "watch": WATCH}
