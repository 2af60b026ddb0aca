"""Keys: who is let in, and that no key is ever shown."""

from __future__ import annotations

import subprocess
import sys

import httpx2
import pytest

from decider_native.errors import InvalidRequest
from decider_native.server.auth import Keys, keys_from_environment
from decider_native.server.errors import HttpError

from .conftest import Serve

KEYS = {"ALICE_KEY": "alice-secret-1", "BOB_KEY": "bob-secret-2"}
BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}


def test_each_key_names_its_client() -> None:
    keys = Keys(KEYS)
    assert keys.client("Bearer alice-secret-1", "peer") == "ALICE_KEY"
    assert keys.client("bearer  bob-secret-2 ", "peer") == "BOB_KEY"
    assert Keys({}).client("Bearer whatever", "peer") == "peer"


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Basic alice-secret-1", "Bearer alice-secret", "alice-secret-1"]
)
def test_anything_else_is_401(given: str | None) -> None:
    with pytest.raises(HttpError) as caught:
        Keys(KEYS).client(given, "peer")
    assert caught.value.status == 401
    assert "secret" not in caught.value.message


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE_KEY", " k ")
    assert keys_from_environment(["ALICE_KEY"]) == {"ALICE_KEY": "k"}
    monkeypatch.delenv("ALICE_KEY")
    with pytest.raises(InvalidRequest, match="ALICE_KEY"):
        keys_from_environment(["ALICE_KEY"])


def test_a_server_with_keys(serve: Serve) -> None:
    server = serve("--api-key-env", "ALICE_KEY", "--api-key-env", "BOB_KEY", environment=KEYS)
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            assert client.get(path).status_code == 401
        for path in ("/health", "/ready", "/", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        refused = client.post("/v1/systemone", json=BODY, headers={"authorization": "Bearer wrong"})
        assert refused.json()["detail"]["error_type"] == "authentication_error"
        assert refused.headers["x-typesafe-request-id"]
        assert client.post("/v1/decisions", json=BODY).json()["error"]["code"] == "invalid_api_key"
        assert client.post("/v1/judge/evaluate", json=BODY).json()["code"] == "missing_key"
        allowed = client.post("/v1/systemone", json=BODY, headers={"authorization": f"Bearer {KEYS['BOB_KEY']}"})
        assert allowed.status_code == 200
    assert server.stop() == 0
    log = server.log.read_text()
    assert '"client": "BOB_KEY"' in log
    assert "secret" not in log
    assert '"state"' not in log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_listening_beyond_loopback_needs_a_key(host: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "decider_native", "serve", "--model", "demo", "--host", host],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert "--api-key-env" in run.stderr
