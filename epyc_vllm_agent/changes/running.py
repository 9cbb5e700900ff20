"""Which text of its unit an instance runs with: noted as it starts, compared with its file."""

from pathlib import Path

from epyc_vllm_agent.files import write_atomically
from epyc_vllm_agent.paths import Paths
from epyc_vllm_agent.units.names import UnitFile, quadlet_name, service_name


def note(paths: Paths, instance: str, invocation_id: str) -> None:
    """To be called by the starting unit itself: `invocation_id` is systemd's for this run of it."""
    quadlet = paths.quadlets / quadlet_name(instance)
    path = quadlet if quadlet.is_file() else paths.units / service_name(instance)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    digest = UnitFile(str(path), text).digest
    write_atomically(_note(paths, instance), f"{invocation_id} {digest}\n")


def noted(paths: Paths, instance: str) -> tuple[str, str] | None:
    """The invocation that noted it, and the digest of its unit's text; None where none did."""
    try:
        invocation_id, digest = _note(paths, instance).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return invocation_id, digest


def _note(paths: Paths, instance: str) -> Path:
    return paths.run / f"{instance}.unit"
