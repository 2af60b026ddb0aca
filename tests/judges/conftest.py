"""Judges of every kind over one tiny model: in this process, and behind a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from decider_native.judges import Hub
from server_process import Serve, Server, serve, server, wait_for

__all__ = ["TWO", "Serve", "Server", "Stub", "WriteHub", "ask", "local_table", "serve", "server", "wait_for"]

WriteHub = Callable[..., Hub]
TWO = """
default = "low"
[judges.low]
provider = "mock"
model = "low"
answers = { q = 0.1 }
[judges.high]
provider = "mock"
model = "high"
answers = { q = 0.9 }
"""
NOUL = {"type": "noul", "instructions": "Is it urgent?"}


def ask(**more: Any) -> dict[str, Any]:
    """A request with one noul named ``q``."""
    return {"evaluations": [{"id": "a", "state": "The disk is full.", "questions": {"q": NOUL}}]} | more


def local_table(model: Path, name: str = "local", **options: Any) -> str:
    """A table of ``judges.toml`` for a model in this process."""
    settings = {"provider": "decider", "model": str(model), "device": "cpu", "threads": 1, "context_tokens": 8192}
    lines = (f"{key} = {json.dumps(value)}" for key, value in (settings | options).items())
    return "\n".join([f"[judges.{name}]", *lines, ""])


@pytest.fixture
def write_hub(tmp_path: Path) -> Iterator[WriteHub]:
    """Return a function that writes a ``judges.toml`` and makes its hub."""
    hubs: list[Hub] = []

    def make(text: str, *, name: str = "judges.toml", preload: bool = False) -> Hub:
        path = tmp_path / name
        path.write_text(text)
        hubs.append(Hub.from_file(path, preload=preload))
        return hubs[-1]

    yield make
    for hub in hubs:
        hub.close()


@dataclass
class Stub:
    """A server that answers with what it is told, over real sockets.

    Attributes
    ----------
    replies
        ``(status, headers, body)`` in turn, the last one for ever; a body that is not bytes is sent as JSON. A callable
        is called with the request's JSON and returns such a reply.
    seen
        Path, headers and JSON of every request.
    hung_up
        Set when a client closed the connection while its request waited for `gate`.
    """

    url: str = ""
    replies: list[Any] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Forget what was seen, and open the gate."""
        self.seen.clear()
        self.hung_up.clear()
        self.gate.set()

    def next_reply(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], bytes]:
        with self.lock:
            self.seen.append((path, headers, body))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        status, more, content = reply(body) if callable(reply) else reply
        return status, more, content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.fixture(scope="module")
def stub_server() -> Iterator[Stub]:
    """A scripted server."""
    scripted = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.loads(content) if content else None
            status, headers, reply = scripted.next_reply(self.path, dict(self.headers.items()), body)
            self.connection.settimeout(0.02)
            while not scripted.gate.is_set():
                try:
                    if not self.connection.recv(1):
                        scripted.hung_up.set()
                        return
                except TimeoutError:
                    pass
            self.connection.settimeout(None)
            self.send_response(status)
            for name, value in ({"content-type": "application/json"} | headers).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        scripted.url = f"http://127.0.0.1:{http.server_address[1]}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield scripted
        scripted.gate.set()
        http.shutdown()


@pytest.fixture
def stub(stub_server: Stub) -> Stub:
    """The scripted server, as new; its gate is open."""
    stub_server.reset()
    return stub_server
