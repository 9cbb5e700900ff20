"""A host below a root that endpoints can be applied to: machine, model and environment.

Systemd is the fake; models are directories, and what the environment has is remembered, so that
neither a hub nor a program is asked.
"""

import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from epyc_vllm_agent.apply import apply as whole
from epyc_vllm_agent.apply.apply import Applied
from epyc_vllm_agent.apply.intents import Options
from epyc_vllm_agent.apply.prepare import Fetching
from epyc_vllm_agent.codec import to_plain
from epyc_vllm_agent.doors import environment, probed
from epyc_vllm_agent.doors.systemd import Systemd
from epyc_vllm_agent.paths import Paths
from tests.hosts import HOSTS, HostDescription, build
from tests.plans import ZEN

TINY: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class Host:
    """`model` and `venv` are absolute paths of a tiny chat model and of an environment."""

    paths: Paths
    model: str
    venv: str

    def write(self, name: str, *lines: str, **keys: object) -> None:
        """endpoints.d/NAME.toml: the tiny model with `keys`, and lines as they are."""
        values = {"model": self.model, "environment": self.venv, "kv_gib": 1, **keys}
        text = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.drop(f"{name}.toml", "\n".join([*text, *lines]) + "\n")

    def drop(self, file: str, text: str) -> None:
        path = self.paths.endpoints / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.paths.endpoints / f"{name}.toml").unlink()

    def apply(
        self, systemd: Systemd, *, restart: bool = False, start: bool = True
    ) -> dict[str, Applied]:
        options = Options(restart=restart, start=start)
        done = whole.apply(self.paths, systemd, options, telling, log=lambda _unit: ("a line",))
        return {one.endpoint: one for one in done}

    def check(self, systemd: Systemd, *, restart: bool = False) -> dict[str, Applied]:
        found = whole.check(self.paths, systemd, Options(restart=restart))
        return {one.endpoint: one for one in found}

    def unit(self, name: str) -> Path:
        return self.paths.units / f"epyc-vllm-{name}"

    def files(self) -> dict[str, str]:
        """All that a run may write, but the marks of instances."""
        folders = ("etc", "usr/share", "var/lib")
        found = (path for folder in folders for path in (self.paths.root / folder).rglob("*"))
        return {
            str(path.relative_to(self.paths.root)): path.read_text(errors="replace")
            for path in found
            if path.is_file()
        }


def telling(_model: str, _image: str) -> Fetching:
    return Fetching(lambda _done, _total: None, lambda _line: None)


def host(root: Path, machine: HostDescription = HOSTS["genoa-2s-nps1"]) -> Host:
    """The machine below `root`, with vLLM running as whoever runs the test."""
    paths = build(machine, root)
    made = Host(
        paths, str(write_model(root / "srv/tiny")), str(write_environment(paths, root / "opt/vllm"))
    )
    paths.endpoints.mkdir(parents=True)
    paths.config_file.write_text(f'user = "{pwd.getpwuid(os.getuid()).pw_name}"\n')
    return made


def write_model(folder: Path) -> Path:
    """A directory with a tiny model that has a chat template."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    tensor = {"dtype": "BF16", "shape": [64], "data_offsets": [0, 128]}
    header = json.dumps({"model.norm.weight": tensor}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(128)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def write_environment(paths: Paths, folder: Path) -> Path:
    """An environment whose stack is remembered, so that none has to be asked."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "vllm"):
        (folder / "bin" / name).write_text("")
    remembered = paths.cache / "probes" / f"{environment._fingerprint(str(folder))}.json"
    probed.remember(remembered, json.dumps({"stack": to_plain(ZEN), "registry": None}))
    return folder
