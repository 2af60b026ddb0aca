"""A real server in a process of its own, on a port of its own, over the tiny model."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest

MODEL_OPTIONS = ("--device", "cpu", "--threads", "1", "--context-tokens", "8192")
_LISTENING = re.compile(r"running on (http://\S+)")


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, its process and its log file."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, timeout: float = 60) -> int:
        """End it as a service manager would, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


T = TypeVar("T")
Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def serve(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Return a function that starts a server: ``serve("--max-queue", "1", environment={"KEY": "secret"})``."""
    servers: list[Server] = []

    def start(*options: str, model: Path = tiny_path, environment: dict[str, str] | None = None) -> Server:
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "decider_native", "serve", "--model", str(model), "--port", "0"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *MODEL_OPTIONS, *options], stderr=file, env=os.environ | (environment or {})
            )
        server = Server(wait_for(lambda: _url(process, log)), process, log)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def server(serve: Serve) -> Server:
    """The server that the tests share, with its model loaded."""
    server = serve("--preload")
    wait_for(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
    return server


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    """A client of the shared server."""
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def node_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds TypeSafe's SDK."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text("{}")
    install = ["npm", "install", "--no-audit", "--no-fund", "@typesafe-ai/sdk@0.6.0"]
    if subprocess.run(install, cwd=folder, capture_output=True, timeout=300).returncode:
        pytest.skip("@typesafe-ai/sdk cannot be installed here")
    return folder


def wait_for(condition: Callable[[], T], seconds: float = 60) -> T:
    """Return the first true result of a condition."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.02)
    return result


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.poll() is None, log.read_text()
    found = _LISTENING.search(log.read_text())
    return found[1] if found else ""
