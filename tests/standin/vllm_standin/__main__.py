"""`vllm serve` from the first line to the last: bind, load, listen, end."""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from . import VERSION, api, control, processes, serving
from .control import Behaviour
from .serving import Command, LoadError, Served

RECORD = "standin.json"  # below VLLM_CACHE_ROOT: what this process was started with


class Server:
    """One run; `phase` is what signals and the engine's death are judged by."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.counters = api.Counters()
        self.loading = True
        self.ending: int | None = None  # the exit code, once it is to end
        self.engine = 0
        self.engine_died: float | None = None

    def behaviour(self) -> Behaviour:
        return control.read(self.command.port, os.environ)

    def on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        kind = self.behaviour().sigterm
        if kind == "ignored" or (self.loading and kind == "lost"):
            return
        say("[shutdown] API server: signalling HTTP server shutdown")
        self.ending = 0

    def run(self) -> int:
        listener = bind(self.command)
        record()
        signal.signal(signal.SIGTERM, self.on_sigterm)
        served = serving.load(self.command, os.environ)
        bound = serving.rank_cpus(os.environ.get("VLLM_CPU_OMP_THREADS_BIND"), self.command.ranks)
        self.engine = processes.start_engine(bound, lambda: self.behaviour().burn)
        code = self.load()
        if code is None:
            self.serve(listener, served)
            code = self.wait()
        if not self.behaviour().orphans:
            processes.end(self.engine)
        return code

    def load(self) -> int | None:
        """Takes its time; an exit code where loading fails or is ended."""
        began = time.monotonic()
        while time.monotonic() - began < self.behaviour().load_seconds and self.ending is None:
            time.sleep(0.05)
        failure = self.behaviour().fail_loading
        if failure is not None:
            sys.stderr.write(f"{self.behaviour().message}\n")
            return failure
        return self.ending

    def serve(self, listener: socket.socket, served: Served) -> None:
        handler = type("Handler", (Handler,), {"server_state": self, "served": served})
        address = (self.command.host, self.command.port)
        http = ThreadingHTTPServer(address, handler, bind_and_activate=False)
        http.socket.close()
        http.socket = listener
        listener.listen(2048)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        self.loading = False
        say(f"Starting vLLM server on http://{self.command.host}:{self.command.port}")
        sys.stderr.write("INFO:     Application startup complete.\n")

    def wait(self) -> int:
        """Serves until something ends it; the exit code, which is 0 for a dead engine too."""
        while self.ending is None:
            time.sleep(0.05)
            self.ending = self.behaviour().exit if self.ending is None else self.ending
            if self.engine_died is None and processes.ended(self.engine):
                self.engine_died = time.monotonic()
                say("AsyncLLM output_handler failed: EngineDeadError")
            if self.engine_died is not None:
                since = time.monotonic() - self.engine_died
                self.ending = 0 if since > self.behaviour().death_seconds else self.ending
        return self.ending


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: Server
    served: Served

    def do_GET(self) -> None:
        state, behaviour = self.server_state, self.server_state.behaviour()
        while self.path == "/health" and behaviour.health == "hang":
            time.sleep(0.1)
            behaviour = state.behaviour()
        dead = state.engine_died is not None and self.path == "/health"
        self._send(
            api.refused(self.path, self.headers["Authorization"], self.served)
            or (api.Answer(503) if dead else None)
            or api.get(self.path, self.served, behaviour, state.counters)
        )

    def do_POST(self) -> None:
        state = self.server_state
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        answer = api.refused(self.path, self.headers["Authorization"], self.served)
        if answer is None:
            state.counters.begin()
            while state.behaviour().completion == "hang":
                time.sleep(0.1)
            state.counters.end()
            answer = api.post(self.path, body, self.served, state.behaviour(), state.counters)
        if answer.ends_server:
            state.ending = 0
        elif answer.events:
            self._stream(answer)
        else:
            self._send(answer)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        sys.stderr.write(f'INFO:     {client} - "{self.requestline}" {code}\n')

    def _stream(self, answer: api.Answer) -> None:
        """Server-sent events in chunks, with a token's time between them."""
        state = self.server_state
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        state.counters.begin()
        for event in answer.events:
            line = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            state.counters.token()
            time.sleep(state.behaviour().token_seconds)
        state.counters.end()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, answer: api.Answer) -> None:
        content = answer.body.encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        if content:
            self.send_header("Content-Type", answer.content_type)
        self.end_headers()
        self.wfile.write(content)


def say(text: str) -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stderr.write(f"(APIServer pid={os.getpid()}) INFO {stamp} [standin.py:1] {text}\n")


def bind(command: Command) -> socket.socket:
    """Takes the port at once, as vLLM does, and lets nobody connect before the model is loaded."""
    family = socket.AF_INET6 if ":" in command.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((command.host, command.port))
    return listener


def record() -> None:
    folder = os.environ.get("VLLM_CACHE_ROOT")
    if folder:
        found = {
            "argv": sys.argv[1:],
            "environ": dict(os.environ),
            "pid": os.getpid(),
            "uid": os.getuid(),
            "cwd": str(Path.cwd()),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        Path(folder, RECORD).write_text(json.dumps(found, indent=1))


def main(words: list[str]) -> int:
    processes.name("vllm")
    if words == ["--version"]:
        sys.stdout.write(f"{VERSION}+cpu\n")
        return 0
    if not words or words[0] != "serve":
        sys.stderr.write("usage: vllm serve MODEL [options]\n")
        return 2
    command = serving.parse(words[1:], os.environ)
    say(f"version {VERSION} model {command.model}")
    try:
        return Server(command).run()
    except LoadError as error:
        sys.stderr.write(f"{error}\n")
    except OSError as error:
        sys.stderr.write(f"OSError: {error}\n")
    return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # not waiting for threads that hang on purpose
