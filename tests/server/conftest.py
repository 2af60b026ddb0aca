"""A real server in a process of its own, with clients for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from server_process import Serve, Server, serve, server, wait_for

__all__ = ["Serve", "Server", "http", "node_sdk", "serve", "server", "wait_for"]


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
