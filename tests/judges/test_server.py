"""``serve --judges``: the hub's default answers the judge routes, and callers choose no judge."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .conftest import NOUL, Serve, Server, Stub, ask, wait_for

FILE = """
default = "low"
[judges.low]
provider = "mock"
answers = { q = 0.1 }
[judges.high]
provider = "mock"
answers = { q = 0.9 }
[judges.far]
provider = "systemone"
host = "STUB"
[judges.off]
provider = "systemone"
host = "http://127.0.0.1:9"
[judges.keyless]
provider = "openai"
host = "STUB"
key_env = "A_KEY_THAT_IS_NOT_SET"
"""
ANSWER = {
    "model": "jev",
    "answers": {"q": {"type": "noul", "noul": 0.5}},
    "usage": {"input_tokens": 3, "output_tokens": 0},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judges") / "judges.toml"


@pytest.fixture(scope="module")
def judging(serve: Serve, config: Path, stub_server: Stub) -> Server:
    config.write_text(FILE.replace("STUB", stub_server.url))
    return serve("--judges", str(config))


@pytest.fixture
def http(judging: Server, config: Path, stub: Stub) -> Iterator[httpx2.Client]:
    choose(config, stub, "low")
    with httpx2.Client(base_url=judging.url, timeout=60) as client:
        yield client


def choose(config: Path, stub: Stub, name: str) -> None:
    config.write_text(FILE.replace("STUB", stub.url).replace('"low"', f'"{name}"', 1))


def evaluate(http: httpx2.Client, **more: Any) -> tuple[int, Any]:
    response = http.post("/v1/judge/evaluate", json=ask(**more))
    body = response.json()
    code = body["results"]["a"]["answers"]["q"]["noul"] if body["status"] == "ok" else body["code"]
    return response.status_code, code


def test_the_default_answers_and_its_owner_changes_it(http: httpx2.Client, config: Path, stub: Stub) -> None:
    assert evaluate(http) == (200, 0.1)
    choose(config, stub, "high")
    assert evaluate(http) == (200, 0.9)
    assert http.get("/v1/judge/models").json()["models"][0]["name"] == "mock"
    config.write_text("nonsense")
    assert evaluate(http) == (200, 0.9)
    choose(config, stub, "none")
    assert evaluate(http) == (404, "provider_unavailable")


def test_a_caller_chooses_no_judge(http: httpx2.Client) -> None:
    for name in ("low", "high", "nobody"):
        response = http.post("/v1/judge/evaluate", json=ask(provider=name))
        assert (response.status_code, response.json()["code"]) == (404, "provider_unavailable")
        assert "leave provider out" in response.json()["provider_error"]["message"]
        assert "high" not in response.json()["provider_error"]["message"].replace(name, "")
    assert evaluate(http, provider="Not A Name") == (422, "invalid_request")
    assert evaluate(http, model="high") == (404, "provider_unavailable")


def test_the_other_routes_are_the_models(http: httpx2.Client) -> None:
    response = http.post("/v1/systemone", json={"state": "The disk is full.", "questions": {"q": NOUL}})
    assert response.json()["model"] == "qwen35-h64-F32"
    assert response.json()["answers"]["q"]["noul"] not in (0.1, 0.9)


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("off", 502, "transport"), ("keyless", 503, "missing_key"), ("far", 502, "invalid_response")],
)
def test_what_goes_wrong_with_a_judge_has_its_status(
    http: httpx2.Client, config: Path, stub: Stub, name: str, status: int, code: str
) -> None:
    stub.replies = [(200, {}, {})]
    choose(config, stub, name)
    assert evaluate(http, timeout_ms=30_000) == (status, code)


def test_a_remote_default_is_asked_cancelled_and_given_up(http: httpx2.Client, config: Path, stub: Stub) -> None:
    stub.replies = [(200, {}, ANSWER)]
    choose(config, stub, "far")
    assert evaluate(http, request_id="r") == (200, 0.5)
    assert evaluate(http, request_id="") == (422, "invalid_request")
    stub.reset()
    stub.gate.clear()
    assert evaluate(http, timeout_ms=1000) == (504, "deadline")
    assert stub.hung_up.wait(10)
    stub.hung_up.clear()
    seen = len(stub.seen)
    outcomes: list[tuple[int, Any]] = []
    caller = threading.Thread(target=lambda: outcomes.append(evaluate(http, request_id="r")))
    caller.start()
    wait_for(lambda: len(stub.seen) > seen)
    assert http.post("/v1/judge/cancel", json={"request_id": "r"}).json()["cancelled"] is True
    caller.join()
    assert outcomes == [(409, "cancelled")]
    assert stub.hung_up.wait(10)


def test_a_caller_that_hangs_up_stops_the_judge(http: httpx2.Client, config: Path, stub: Stub) -> None:
    stub.replies = [(200, {}, ANSWER)]
    choose(config, stub, "far")
    assert evaluate(http) == (200, 0.5)
    stub.gate.clear()
    with pytest.raises(httpx2.ReadTimeout):
        http.post("/v1/judge/evaluate", json=ask(), timeout=1)
    assert len(stub.seen) == 2
    assert stub.hung_up.wait(10)


def test_a_file_that_is_invalid_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "judges.toml"
    path.write_text('default = "nobody"')
    command = [sys.executable, "-m", "decider_native", "serve", "--port", "0", "--judges", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (2, "")
    assert "names no judge of this file" in run.stderr
    assert str(path) in run.stderr


def test_it_ends_as_it_should(judging: Server, stub: Stub, config: Path) -> None:
    choose(config, stub, "low")
    with httpx2.Client(base_url=judging.url, timeout=60) as client:
        assert evaluate(client) == (200, 0.1)
    assert judging.stop() == 0
    assert "Traceback" not in judging.log.read_text()
