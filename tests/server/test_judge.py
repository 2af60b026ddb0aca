"""The judge contract over HTTP."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx2
import pytest

from .conftest import Server, wait_for

QUESTIONS = {"q": {"type": "noul", "instructions": "Is it urgent?"}}


def envelope(**more: Any) -> dict[str, Any]:
    return {"evaluations": [{"id": "a", "state": "Down.", "questions": QUESTIONS}]} | more


def test_an_envelope_is_answered(http: httpx2.Client) -> None:
    response = http.post("/v1/judge/evaluate", json=envelope(timeout_ms=60_000, request_id="r"))
    body = response.json()
    assert response.status_code == 200
    assert (body["status"], body["model"], list(body["results"])) == ("ok", "qwen35-h64-F32", ["a"])
    assert body["stats"]["questions"] == 1
    plain = http.post("/v1/systemone", json={"state": "Down.", "questions": QUESTIONS}).json()
    assert body["results"]["a"]["answers"] == plain["answers"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (envelope(surprise=1), 422, "invalid_request"),
        (envelope(request_id=""), 422, "invalid_request"),
        (envelope(timeout_ms=0), 422, "invalid_request"),
        (envelope(expires_at_unix_ms="x"), 422, "invalid_request"),
        (envelope(expires_at_unix_ms=1), 504, "deadline"),
        (envelope(model="other"), 404, "provider_unavailable"),
        ({"evaluations": [{"id": "a", "state": "word " * 9000, "questions": QUESTIONS}]}, 413, "payload_too_large"),
        (
            {"evaluations": [{"id": "a", "state": "", "questions": {str(i): {} for i in range(600)}}]},
            422,
            "invalid_request",
        ),
    ],
)
def test_errors_are_envelopes_too(http: httpx2.Client, body: dict[str, Any], status: int, code: str) -> None:
    response = http.post("/v1/judge/evaluate", json=body)
    assert response.status_code == status
    assert response.json()["status"] == "error"
    assert response.json()["code"] == code
    assert response.json()["provider_error"]["message"]
    assert "elapsed_ms" in response.json()["stats"]


def test_http_errors_are_envelopes_too(http: httpx2.Client) -> None:
    for response in (
        http.get("/v1/judge/evaluate"),
        http.post("/v1/judge/evaluate", content=b"{"),
        http.get("/v1/judge/x"),
    ):
        assert response.status_code in (404, 405, 422)
        assert response.json()["code"] == "invalid_request"


def test_the_models_list(http: httpx2.Client) -> None:
    for response in (http.get("/v1/judge/models"), http.post("/v1/judge/models", json={})):
        (model,) = response.json()["models"]
        assert model["name"] == "qwen35-h64-F32"
        assert model["context_window"] == 8192
    assert http.post("/v1/judge/models", json={"x": 1}).json()["code"] == "invalid_request"


def test_a_call_is_cancelled_by_its_id(server: Server, http: httpx2.Client) -> None:
    nouls = {str(i): {"type": "noul", "instructions": f"Question {i}?"} for i in range(400)}
    body = {"evaluations": [{"id": "a", "state": "word " * 6000, "questions": nouls}], "request_id": "long"}
    answers: list[httpx2.Response] = []
    call = threading.Thread(
        target=lambda: answers.append(httpx2.post(f"{server.url}/v1/judge/evaluate", json=body, timeout=120))
    )
    call.start()
    cancel = {"request_id": "long"}
    wait_for(lambda: http.post("/v1/judge/cancel", json=cancel).json()["cancelled"])
    started = time.monotonic()
    call.join()
    assert time.monotonic() - started < 30
    assert answers[0].status_code == 409
    assert answers[0].json()["code"] == "cancelled"
    assert http.post("/v1/judge/cancel", json=cancel).json() == {"status": "ok", "cancelled": False}
    assert http.post("/v1/judge/cancel", json={}).status_code == 422
    assert http.post("/v1/judge/evaluate", json=envelope(request_id="long")).status_code == 200
