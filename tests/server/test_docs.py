"""What docs/server.md shows works as it stands, but for addresses."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from .conftest import Serve, Server, wait_for

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
NJS = Path("/usr/lib/nginx/modules/ngx_http_js_module.so")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def at(server: Server, code: str) -> str:
    assert "http://127.0.0.1:8000" in code
    return code.replace("http://127.0.0.1:8000", server.url)


@pytest.mark.parametrize(("position", "package"), [(0, "typesafe_sdk"), (1, "openai")])
def test_the_python_snippets(server: Server, position: int, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    code = at(server, blocks("python")[position])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert 0 < float(run.stdout.split()[0]) < 1


def test_the_node_snippet(server: Server, node_sdk: Path) -> None:
    (node_sdk / "snippet.mjs").write_text(at(server, blocks("js")[0]))
    run = subprocess.run(["node", "snippet.mjs"], cwd=node_sdk, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert 0 < float(run.stdout) < 1


@pytest.fixture
def balancer(serve: Serve, tmp_path: Path) -> Iterator[tuple[str, list[Server]]]:
    """Nginx before two servers."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if not nginx or not NJS.exists():
        pytest.skip("nginx with its JavaScript module is not installed")
    servers = [serve("--preload") for _ in range(2)]
    wait_for(lambda: all(httpx2.get(f"{server.url}/ready").status_code == 200 for server in servers))
    (config,) = blocks("nginx")
    port = _free_port()
    for old, new in (
        ("/etc/nginx/njs", str(tmp_path)),
        ("127.0.0.1:8001", servers[0].url.removeprefix("http://")),
        ("127.0.0.1:8002", servers[1].url.removeprefix("http://")),
        ("127.0.0.1:8000", f"127.0.0.1:{port}"),
        ("http {", "http {\n" + "".join(f"{name}_temp_path {name};\n" for name in TEMPORARY) + "access_log off;"),
    ):
        assert old in config
        config = config.replace(old, new)
    (tmp_path / "nginx.conf").write_text(f"daemon off;\npid nginx.pid;\nerror_log error.log;\n{config}")
    (tmp_path / "state.js").write_text(blocks("js")[1])
    process = subprocess.Popen([nginx, "-p", tmp_path, "-c", tmp_path / "nginx.conf"], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: _answers(url))
    yield url, servers
    process.terminate()
    process.wait(30)


def test_equal_states_meet_behind_nginx(balancer: tuple[str, list[Server]]) -> None:
    url, servers = balancer
    states = [*(f"Ticket {i}" for i in range(8)), *({"ticket": [i, {"x": None}]} for i in range(8))]
    totals = [_asked(server) for server in servers]
    shares = []
    for state in states:
        for i in range(3):
            questions = {f"q{i}": {"type": "noul", "instructions": f"Question {i}?"}}
            response = httpx2.post(f"{url}/v1/systemone", json={"questions": questions, "state": state}, timeout=60)
            assert response.status_code == 200
        counts = [_asked(server) for server in servers]
        shares.append(sorted(now - before for now, before in zip(counts, totals, strict=True)))
        totals = counts
    assert shares == [[0, 3]] * len(states)
    assert min(totals) > 0


def _asked(server: Server) -> int:
    text = httpx2.get(f"{server.url}/metrics").text
    found = re.search(r"^decider_questions_total (\d+)", text, re.MULTILINE)
    assert found
    return int(found[1])


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health").status_code == 200
    except httpx2.ConnectError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
