#!/usr/bin/env python3
"""A stand-in for the model hub on loopback; standard library only, of Python 3.11 or later.

usage: hubserver.py FOLDER [--port N] [--gated ID]... [--token TOKEN]...
                   [--fault KIND:PATH[:TIMES]]...

Serves the repositories below FOLDER, one folder ORG__NAME each, as huggingface_hub expects the hub
to, and prints the port. A repository is the files that really lie in its folder; hub.json there is
not one of them and may set pipeline_tag and gated. A folder with facts.json instead of weights has
metadata only: sizes are told and weights are not had.

Any of the tokens may read gated repositories; another hf_... is an account without access to
them, anything else is no token. Faults (see Fault) make the server misbehave.
"""

import argparse
import contextlib
import hashlib
import json
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
PAGE = 1000
CHUNK = 1 << 16
NOT_SERVED = ("facts.json", "hub.json", "index_meta.json", "tokenizer_config.min.json")
FAULTS = "stall drip cut 429 500 503 redirect garbage empty escape missing"


@dataclass
class Fault:
    """Misbehaviour for requests whose path holds `path`, `times` times (None: always).

    stall sends nothing, drip a byte now and then, cut breaks off in the middle of the body, 429 has
    a Retry-After of `seconds`, redirect leads to itself, garbage is HTML with status 200, empty is
    a JSON object without what belongs there, escape lists a file outside of the repository, missing
    is a 404 for a file that was listed.
    """

    kind: str
    path: str = ""
    times: int | None = None
    seconds: float = 30
    method: str | None = None


@dataclass(frozen=True)
class Content:
    """A file of a repository: `source` is None where only its size is known."""

    size: int
    source: Path | None
    identity: str

    @property
    def lfs(self) -> bool:
        return self.size > 10 << 20 or len(self.identity) == 64


@dataclass(frozen=True)
class Repository:
    id: str
    files: dict[str, Content]
    commit: str
    gated: bool
    pipeline_tag: str | None

    def entry(self, path: str) -> dict[str, object]:
        content = self.files[path]
        told: dict[str, object] = {"type": "file", "path": path, "size": content.size}
        told["oid"] = content.identity[:40]
        if content.lfs:
            told["lfs"] = {"oid": content.identity, "size": content.size, "pointerSize": 135}
        return told

    def sibling(self, path: str, blobs: bool) -> dict[str, object]:
        if not blobs:
            return {"rfilename": path}
        content = self.files[path]
        told: dict[str, object] = {"rfilename": path, "size": content.size}
        told["blobId"] = content.identity[:40]
        if content.lfs:
            told["lfs"] = {"sha256": content.identity, "size": content.size, "pointerSize": 135}
        return told


def content_of(path: Path, name: str) -> Content:
    """Its identity is a digest of name, size and time: no gigabytes are read to know a file."""
    status = path.stat()
    seed = f"{name} {status.st_size} {status.st_mtime_ns}".encode()
    digest = hashlib.sha256(seed) if name.endswith(WEIGHTS) else hashlib.sha1(seed)  # noqa: S324
    return Content(status.st_size, path, digest.hexdigest())


def read_repository(folder: Path, gated: Iterable[str]) -> Repository:
    model = folder.name.replace("__", "/", 1)
    files = {
        str(path.relative_to(folder)): content_of(path, str(path.relative_to(folder)))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_SERVED
    }
    settings: dict[str, object] = {}
    if (folder / "hub.json").is_file():
        settings = json.loads((folder / "hub.json").read_text())
    elif (folder / "facts.json").is_file():
        settings = _metadata_only(folder, files)
    listing = repr([(path, content.identity) for path, content in files.items()])
    tag = settings.get("pipeline_tag", "text-generation")
    return Repository(
        id=model,
        files=files,
        commit=hashlib.sha1(listing.encode()).hexdigest(),  # noqa: S324 - as git names commits
        gated=model in gated or settings.get("gated") is True,
        pipeline_tag=tag if isinstance(tag, str) else None,
    )


def _metadata_only(folder: Path, files: dict[str, Content]) -> dict[str, object]:
    """Add the weight files that facts.json tells of, and say what the hub says of such a model."""
    facts = json.loads((folder / "facts.json").read_text())
    tokenizer = folder / "tokenizer_config.min.json"
    if tokenizer.is_file():
        files["tokenizer_config.json"] = content_of(tokenizer, "tokenizer_config.json")
    told = facts["weight_files"] or [
        {"path": "model.safetensors", "size": facts["total_weight_bytes"]}
    ]
    for file in told:
        if file["size"] is not None:
            identity = hashlib.sha256(file["path"].encode()).hexdigest()
            files[file["path"]] = Content(file["size"], None, identity)
    return {"gated": facts["gated"] is True, "pipeline_tag": _tag(facts)}


def _tag(facts: dict[str, object]) -> str:
    architectures = facts["architectures"]
    if isinstance(architectures, list) and architectures[0].endswith("Classification"):
        return "text-ranking"
    return {
        "text": "text-generation",
        "multimodal": "image-text-to-text",
        "pooling": "feature-extraction",
        "asr": "automatic-speech-recognition",
    }[str(facts["is_generation"])]


@dataclass
class State:
    folder: Path
    gated: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def repository(self, model: str) -> Repository | None:
        name = model.replace("/", "__", 1)
        folder = self.folder / name
        if "/" in name or ".." in name or not folder.is_dir():
            return None
        return read_repository(folder, self.gated)

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.path in path and fault.method in (None, method) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: 40 ms each otherwise
    server: "Server"
    cut = False

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *_arguments: object) -> None:
        """Quiet: the requests are in State.log."""

    def _serve(self) -> None:
        state = self.server.state
        self.cut = False
        length = int(self.headers.get("content-length") or 0)
        self.body = self.rfile.read(length)
        with state.lock:
            state.log.append((self.command, self.path))
        fault = state.take_fault(self.command, self.path)
        try:
            if fault is None or not self._misbehave(fault):
                self._route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _misbehave(self, fault: Fault) -> bool:
        """Act out a fault; False where the request is then answered as usual (or cut off)."""
        if fault.kind == "stall":
            self.server.state.stopping.wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "drip":
            self._drip(fault.seconds)
        elif fault.kind == "cut":
            self.cut = True
            return False
        elif fault.kind == "redirect":
            self._send(307, b"", headers={"Location": self.path})
        elif fault.kind == "garbage":
            self._send(200, b"<html>Sign in to this network</html>", "text/html")
        elif fault.kind == "empty":
            self._send(200, b"{}")
        elif fault.kind == "escape":
            self._json({"id": "a/b", "sha": "0" * 40, "siblings": [{"rfilename": "../x"}]})
        elif fault.kind == "missing":
            self._error(404, "EntryNotFound", "Entry not found")
        else:
            self._send(int(fault.kind), b"{}", headers={"Retry-After": str(int(fault.seconds))})
        return True

    def _drip(self, seconds: float) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.server.state.stopping.wait(0.2):
            self.wfile.write(b" ")
            self.wfile.flush()
        self.close_connection = True

    def _route(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api("/".join(parts[2:4]), parts[4:], query)
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self._error(404, None, "Not found")

    def _api(self, model: str, rest: list[str], query: dict[str, list[str]]) -> None:
        repository = self._repository(model)
        if repository is None:
            return
        if rest[:1] == ["auth-check"]:
            if self._may_read(repository):
                self._json({})
            return
        revision = rest[1] if len(rest) > 1 else "main"
        if not self._has_revision(repository, revision):
            return
        if rest[:1] == ["tree"]:
            return self._tree(repository, query)
        if rest[:1] == ["paths-info"]:
            form = urllib.parse.parse_qs(self.body.decode())
            paths = [path for path in form.get("paths", []) if path in repository.files]
            return self._json([repository.entry(path) for path in paths])
        return self._json(self._info(repository, blobs="blobs" in query))

    def _info(self, repository: Repository, *, blobs: bool) -> dict[str, object]:
        return {
            "id": repository.id,
            "modelId": repository.id,
            "author": repository.id.partition("/")[0],
            "sha": repository.commit,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2025-01-01T00:00:00.000Z",
            "private": False,
            "gated": "manual" if repository.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "pipeline_tag": repository.pipeline_tag,
            "library_name": "transformers",
            "siblings": [repository.sibling(path, blobs) for path in repository.files],
        }

    def _tree(self, repository: Repository, query: dict[str, list[str]]) -> None:
        first = int(query.get("cursor", ["0"])[0])
        paths = list(repository.files)[first : first + PAGE]
        headers = {}
        if first + PAGE < len(repository.files):
            path = urllib.parse.urlsplit(self.path).path
            address = f"http://{self.headers['Host']}{path}?recursive=true&cursor={first + PAGE}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._json([repository.entry(path) for path in paths], headers)

    def _resolve(self, model: str, revision: str, path: str) -> None:
        repository = self._repository(model)
        if repository is None or not self._may_read(repository):
            return None
        if not self._has_revision(repository, revision):
            return None
        content = repository.files.get(path)
        commit = {"X-Repo-Commit": repository.commit}
        if content is None:
            return self._error(404, "EntryNotFound", "Entry not found", commit)
        headers = {**commit, "ETag": f'"{content.identity}"', "Accept-Ranges": "bytes"}
        if content.lfs:
            headers["X-Linked-Size"] = str(content.size)
            headers["X-Linked-ETag"] = f'"{content.identity}"'
        if content.source is None and self.command != "HEAD":
            return self._error(404, "EntryNotFound", "Entry not found", commit)
        return self._file(content, headers)

    def _file(self, content: Content, headers: dict[str, str]) -> None:
        first, last = 0, content.size - 1
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if wanted and self.command != "HEAD":
            first = int(wanted[1])
            last = min(int(wanted[2] or last), last)
            if first > last:
                return self._send(416, b"", headers={"Content-Range": f"bytes */{content.size}"})
            headers["Content-Range"] = f"bytes {first}-{last}/{content.size}"
        length = last - first + 1
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and content.source is not None:
            self._copy(content.source, first, length // 2 if self.cut else length)
        if self.cut:
            self.close_connection = True
        return None

    def _copy(self, source: Path, first: int, length: int) -> None:
        with source.open("rb") as stream:
            stream.seek(first)
            while length > 0 and (chunk := stream.read(min(CHUNK, length))):
                self.wfile.write(chunk)
                length -= len(chunk)

    @property
    def _token(self) -> str | None:
        scheme, _, token = (self.headers.get("authorization") or "").partition(" ")
        return token if scheme == "Bearer" and token else None

    def _repository(self, model: str) -> Repository | None:
        repository = self.server.state.repository(model)
        if repository is not None:
            return repository
        if self._token is None:
            self._error(401, "RepoNotFound", "Invalid username or password.")
        else:
            self._error(404, "RepoNotFound", "Repository not found")
        return None

    def _may_read(self, repository: Repository) -> bool:
        token = self._token
        if token is not None and token not in self.server.state.tokens:
            if not token.startswith("hf_"):
                self._error(401, None, "Invalid credentials in Authorization header")
                return False
            if repository.gated:
                self._error(403, "GatedRepo", f"Access to model {repository.id} is restricted")
                return False
        if repository.gated and token is None:
            self._error(401, "GatedRepo", f"Access to model {repository.id} is restricted")
            return False
        return True

    def _has_revision(self, repository: Repository, revision: str) -> bool:
        if revision in ("main", repository.commit):
            return True
        self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return False

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), headers=headers)

    def _error(
        self, status: int, code: str | None, message: str, headers: dict[str, str] | None = None
    ) -> None:
        told = {**(headers or {}), "X-Error-Message": message}
        if code is not None:
            told["X-Error-Code"] = code
        self._send(status, json.dumps({"error": message}).encode(), headers=told)

    def _send(
        self,
        status: int,
        body: bytes,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.cut else body)
        self.close_connection = self.close_connection or self.cut


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, state: State, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.state = state


class HubServer:
    """The stand-in inside a test: `with HubServer(folder) as hub: ... hub.endpoint`."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        gated: Iterable[str] = (),
        tokens: Iterable[str] = (),
        faults: Sequence[Fault] = (),
    ) -> None:
        self.state = State(folder, frozenset(gated), frozenset(tokens), list(faults))
        self._server = Server(self.state, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[tuple[str, str]]:
        return self.state.log

    def fault(self, kind: str, path: str = "", times: int | None = None, **more: object) -> None:
        self.state.faults.append(Fault(kind, path, times, **more))  # type: ignore[arg-type]

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.state.stopping.set()
        self._server.shutdown()
        self._server.server_close()


def parse_fault(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    path, _, times = rest.partition(":")
    if kind not in FAULTS.split():
        raise argparse.ArgumentTypeError(f"no such fault: {kind} (one of: {FAULTS})")
    return Fault(kind, path, int(times) if times else None)


def main() -> int:
    parser = argparse.ArgumentParser(description="stand-in for the model hub on loopback")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--gated", action="append", default=[], metavar="ID")
    parser.add_argument("--token", action="append", default=[])
    parser.add_argument("--fault", action="append", default=[], type=parse_fault)
    options = parser.parse_args()
    hub = HubServer(
        options.folder,
        port=options.port,
        gated=options.gated,
        tokens=options.token,
        faults=options.fault,
    )
    sys.stdout.write(f"{hub.port}\n")
    sys.stdout.flush()
    with hub, contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
