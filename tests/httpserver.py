"""A real HTTP server on loopback that answers as a test tells it to."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """Answers each path with a status and a body; remembers what it was asked."""

    port: int = 0
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)  # each question's port: one a connection
    delay_seconds: float = 0.0
    key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, body: Any, status: int = 200) -> None:
        self.answers[path] = (status, body if isinstance(body, str) else json.dumps(body))

    def serve_model(self, name: str) -> None:
        """As vLLM serves a model that is well."""
        self.answer("/health", "")
        self.answer("/v1/models", {"object": "list", "data": [{"id": name}]})
        message = {"index": 0, "message": {"role": "assistant", "content": "hi"}}
        self.answer("/v1/chat/completions", {"choices": [message]})
        self.answer("/v1/completions", {"choices": [{"index": 0, "text": ""}]})


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # as vLLM's: a connection stays open until either closes it

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode()
            server.asked.append((self.command, self.path, dict(self.headers), body))
            server.peers.append(self.client_address[1])
            time.sleep(server.delay_seconds)
            status, text = server.answers.get(self.path, (404, '{"error": "no such route"}'))
            if server.key and self.path != "/health":
                sent = self.headers.get("Authorization")
                status, text = (status, text) if sent == f"Bearer {server.key}" else (401, "no")
            content = text.encode("utf-8", "surrogateescape")
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    made = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    made.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        http.shutdown()
        http.server_close()
