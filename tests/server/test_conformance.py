"""The conformance suite of TypeSafe's format, and our own OpenAPI document under generated requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from .conftest import Serve, Server


@pytest.mark.parametrize("key", [None, "secret-1"])
def test_every_requirement_of_jevcompat_is_met(serve: Serve, tmp_path: Path, key: str | None) -> None:
    pytest.importorskip("jevcompat", reason="jevcompat is not installed")
    options = [] if key is None else ["--api-key-env", "THE_KEY"]
    server = serve("--preload", *options, environment={"THE_KEY": key or ""})
    report_file = tmp_path / "report.json"
    program = "import sys; from jevcompat.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "test", server.url, "--json", str(report_file)]
    run = subprocess.run(
        [*command, *([] if key is None else ["--key", key])], capture_output=True, text=True, timeout=300
    )
    report = json.loads(report_file.read_text())
    assert run.returncode == 0, run.stdout
    assert report["summary"]["verdict"] == "conformant"
    for level, total in (("MUST", 32), ("SHOULD", 13 if key is None else 15)):
        assert report["summary"][level]["passed"] == total, run.stdout
        assert report["summary"][level]["failed"] == 0, run.stdout
    assert server.stop() == 0


def test_the_openapi_document_is_kept(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    config = tmp_path / "schemathesis.toml"  # a generated timeout_ms of 1 does run out
    config.write_text('[checks.not_a_server_error]\nexpected-statuses = ["2xx", "4xx", "504"]\n')
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        f"{server.url}/openapi.json",
    ]
    run = subprocess.run(
        [*command, "--checks", checks, "--max-examples", "25", "--seed", "1", "--workers", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


def test_the_document_names_every_route(server: Server) -> None:
    document = httpx2.get(f"{server.url}/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        for method in operations:
            assert httpx2.request(method, server.url + path).status_code not in (404, 405)
