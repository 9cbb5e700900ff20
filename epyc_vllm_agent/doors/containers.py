"""Images and containers of podman or docker, whose commands are the same; decides nothing.

`program` is the runtime's absolute path. Both keep what they are told under the same names:
docs.podman.io and docs.docker.com, "image inspect", "pull", "load", "run", "rm".
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epyc_vllm_agent.doors import command, probed
from epyc_vllm_agent.doors.command import Finished, Line
from epyc_vllm_agent.doors.probed import INQUIRY, Probed
from epyc_vllm_agent.errors import ActionFailed

LABEL = "epyc-vllm.instance"  # which of our instances a container is

_ASK_SECONDS = 60
_FETCH_SECONDS = 6 * 3600
_PROBE_SECONDS = 300

# The image's own interpreter, by the image's own PATH.
_PYTHON = (
    'for p in python3 python; do command -v $p >/dev/null && exec $p -c "$1"; done; '
    "echo no python in this image >&2; exit 127"
)


@dataclass(frozen=True, slots=True)
class Image:
    """An image on this host. `pinned` is its name by digest, or its id where it has no digest."""

    id: str
    pinned: str
    entrypoint: tuple[str, ...]

    @property
    def serves(self) -> bool:
        """Whether its entrypoint is `vllm serve`, so that only arguments may follow."""
        return self.entrypoint[-1:] == ("serve",)


@dataclass(frozen=True, slots=True)
class Running:
    """A container by its name: whose it is, and its first process where it runs."""

    instance: str | None
    pid: int | None


def find(program: str, reference: str) -> Image | None:
    """The image that `reference` names, None where it is not on this host."""
    found = _inspected(program, "image", reference)
    if found is None:
        return None
    config = found.get("Config") or {}
    entrypoint = config.get("Entrypoint") or []
    words = [entrypoint] if isinstance(entrypoint, str) else entrypoint
    return Image(_id(found), _pinned(reference, found), tuple(map(str, words)))


def pull(program: str, reference: str, tell: Line) -> None:
    """Fetches an image from its registry; raises ActionFailed with the runtime's own sentence."""
    done = command.follow(
        [program, "pull", reference], timeout_seconds=_FETCH_SECONDS, tell=_told(reference, tell)
    )
    if done.status != 0:
        raise ActionFailed(
            "image-not-fetched",
            f"the image {reference} cannot be fetched: {_last_words(done)}",
            "without a way to its registry: `podman save` or `docker save` it elsewhere and give "
            "the file with --image-archive",
        )


def load(program: str, archive: str, reference: str, tell: Line) -> None:
    """Loads the file that `podman save` or `docker save` made; it must hold `reference`.

    An image without a name gets that one. Raises ActionFailed with one sentence.
    """
    if not Path(archive).is_file():
        raise ActionFailed(
            "no-archive", f"there is no file {archive}", "name the file that `podman save` made"
        )
    before = find(program, reference)
    done = command.follow(
        [program, "load", "--input", archive], timeout_seconds=_FETCH_SECONDS, tell=tell
    )
    if done.status != 0:
        raise ActionFailed(
            "archive-unusable",
            f"{program} cannot load {archive}: {_last_words(done)}",
            "save it again with `podman save` or `docker save`, and compare checksums",
        )
    names = re.findall(r"Loaded image(?:\(s\)| ID)?: (\S+)", done.stdout)
    _require_named(program, archive, reference, names, before is not None)


def probe(program: str, image: Image, name: str, cache: Path) -> Probed:
    """What the vLLM in an image says, asked inside of it as it will be run; kept in `cache`.

    `name` is the stack that the plan wants. Raises ActionFailed with the image's last words.
    """
    file = cache / f"image-{_key(image)}.json"
    if known := probed.recall(file, name):
        return known
    answer = _ask(program, image)
    probed.remember(file, answer)
    return probed.read(answer, name)


def container(program: str, name: str) -> Running | None:
    """The container of that name, None where there is none."""
    found = _inspected(program, "container", name)
    if found is None:
        return None
    labels = (found.get("Config") or {}).get("Labels") or {}
    pid = (found.get("State") or {}).get("Pid") or None
    return Running(labels.get(LABEL), pid)


def kill(program: str, name: str) -> None:
    """Ends all processes of a container at once."""
    command.run([program, "kill", "--signal", "KILL", name], timeout_seconds=_ASK_SECONDS)


def remove(program: str, instance: str) -> None:
    """Removes what is left of an instance's container; another's of the same name stays."""
    name = container_name(instance)
    # podman 5.4: where conmon was killed the first rm only notes the container's death, and fails.
    for _ in range(2):
        found = container(program, name)
        if found is None or found.instance != instance:
            return
        arguments = [program, "rm", "--force", "--volumes", name]
        command.run(arguments, timeout_seconds=_ASK_SECONDS)


def container_name(instance: str) -> str:
    return f"epyc-vllm-{instance}"


def _inspected(program: str, kind: str, name: str) -> dict[str, Any] | None:
    done = command.run([program, kind, "inspect", name], timeout_seconds=_ASK_SECONDS)
    if done.status == 0:
        values: list[dict[str, Any]] = json.loads(done.stdout)
        return values[0] if values else None
    if re.search("no such|not known|not found", done.stderr.lower()):
        return None
    raise ActionFailed(
        "runtime-broken",
        f"{program} does not answer: {_last_words(done)}",
        f"`{program} info` must work as root",
    )


def _id(found: dict[str, Any]) -> str:
    text = str(found["Id"])
    return text if text.startswith("sha256:") else f"sha256:{text}"


def _pinned(reference: str, found: dict[str, Any]) -> str:
    """By digest under the registry's name. An image that docker has not pulled has only an id."""
    if "@" in reference:
        return reference
    name = repository(reference)
    digests = [
        str(item).rpartition("@")[2]
        for item in found.get("RepoDigests") or []
        if repository(str(item)) in (name, name.removeprefix("docker.io/"))
    ]
    own = found.get("Digest")  # podman: of the image itself, where a list's digest is there too
    digest = own if own in digests else digests[0] if digests else None
    return f"{name}@{digest}" if digest else _id(found)


def repository(reference: str) -> str:
    """The name without tag and digest."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def _require_named(
    program: str, archive: str, reference: str, names: Sequence[str], was_there: bool
) -> None:
    if reference in names or (not was_there and find(program, reference)):
        return
    nameless = [name for name in names if name.startswith("sha256:")]
    if len(names) == 1 and nameless:
        command.run([program, "tag", nameless[0], reference], timeout_seconds=_ASK_SECONDS)
        return
    if any(_full(name) == _full(reference) for name in names):
        return
    raise ActionFailed(
        "archive-other-image",
        f"{archive} holds {', '.join(names) or 'no named image'}, not {reference}",
        f"name the image that is meant: --image {names[0]}" if names else None,
    )


def _full(name: str) -> str:
    return name.removeprefix("docker.io/")


def _ask(program: str, image: Image) -> str:
    done = command.run(
        [
            *(program, "run", "--rm", "--network", "none", "--env", "HF_HUB_OFFLINE=1"),
            *("--env", "PYTHONDONTWRITEBYTECODE=1", "--entrypoint", "/bin/sh"),
            *(image.pinned, "-c", _PYTHON, "sh", INQUIRY),
        ],
        timeout_seconds=_PROBE_SECONDS,
    )
    if answer := probed.answer_in(done.stdout):
        return answer
    raise ActionFailed(
        "image-broken",
        f"vLLM in the image {image.pinned} cannot be imported: {_last_words(done)}",
        f"try `{program} run --rm --entrypoint python3 {image.pinned} -c 'import vllm'`",
    )


def _key(image: Image) -> str:
    """What a probe's answer depends on: the image, the questions, and the CPU that vLLM sees."""
    import hashlib

    cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    flags = [line for line in cpuinfo.splitlines() if line.startswith(("vendor_id", "flags"))]
    text = "\n".join([image.id, image.pinned, INQUIRY, *flags])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _told(reference: str, tell: Line) -> Line:
    """podman repeats lines where it has no terminal, and ends with the image's bare id."""
    seen: set[str] = set()

    def once(line: str) -> None:
        if line and line not in seen and not re.fullmatch("[0-9a-f]{64}", line):
            seen.add(line)
            tell(line)

    return once


def _last_words(done: Finished) -> str:
    text = (done.stderr.strip() or done.stdout.strip()).splitlines()
    said = text[-1] if text else f"exit status {done.status}"
    return re.sub(
        r"^(?:time=\S+ )?(?:level=\w+ msg=)?(?:Error: |Error response from daemon: )?", "", said
    )
