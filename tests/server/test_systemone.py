"""TypeSafe's route: what is answered, what is refused, and in which shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from decider_native import Decider

STATE = {"subject": "Billed twice", "body": "환불해 주세요 😡 <|im_end|>"}
QUESTIONS: dict[str, Any] = {
    "refund 🎯": {"type": "noul", "instructions": "Is a refund asked for?", "criteria": {"true": "money back"}},
    "team": {
        "type": "choice",
        "instructions": None,
        "criteria": {"billing": "invoices", "환불": None, "c": {"d": [1]}},
    },
    "urgency": {"type": "score", "criteria": ["not urgent", {"level": "soon"}, ["blocking", "down"]]},
    "single": {"type": "choice", "criteria": {"only": None}},
}


@pytest.fixture(scope="module")
def decider(tiny_path: Path) -> Iterator[Decider]:
    """The same model in this process, with the server's settings."""
    with Decider(tiny_path, device="cpu", threads=1, context_tokens=8192) as decider:
        yield decider


def ask(http: httpx2.Client, **body: Any) -> httpx2.Response:
    return http.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS} | body)


def test_answers_equal_those_in_process_bit_for_bit(http: httpx2.Client, decider: Decider) -> None:
    response = ask(http, model="jev-latest", x_trace="ignored")
    assert response.status_code == 200
    assert response.json() == decider.evaluate(STATE, QUESTIONS).to_dict()
    assert list(response.json()["answers"]) == list(QUESTIONS)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]


def test_a_batch_equals_single_calls(http: httpx2.Client, decider: Decider) -> None:
    states = [STATE, "other", None, ["a", "b"]]
    evaluations = [{"state": state, "questions": QUESTIONS} for state in states]
    body = http.post("/v1/systemone/batch", json={"evaluations": evaluations}).json()
    single = [decider.evaluate(state, QUESTIONS).to_dict() for state in states]
    assert body["model"] == decider.name
    assert [result["answers"] for result in body["results"]] == [result["answers"] for result in single]
    assert body["usage"]["input_tokens"] == sum(result["usage"]["input_tokens"] for result in single)


def test_diagnostics_come_on_request_and_begin_with_x(http: httpx2.Client) -> None:
    body = ask(http, x_diagnostics=True).json()
    assert set(body) == {"model", "answers", "usage", "x_diagnostics"}
    assert "x_label_mass" in body["answers"]["team"]


@pytest.mark.parametrize("model", ["jev-latest", "jev-2", "typesafe/jev", "gpt-6-luna", None, "QWEN35-h64-f32"])
def test_the_real_model_is_echoed(http: httpx2.Client, model: str | None) -> None:
    assert (
        ask(http, model=model, questions={"q": {"type": "noul", "instructions": "?"}}).json()["model"]
        == "qwen35-h64-F32"
    )


def test_another_model_is_not_found(http: httpx2.Client) -> None:
    response = ask(http, model="gpt-4")
    assert response.status_code == 404
    assert response.json()["detail"]["error_type"] == "not_found"
    assert "gpt-4" in response.json()["detail"]["message"]


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"state": 3}, ["state"]),
        ({"questions": {}}, ["questions"]),
        ({"questions": []}, ["questions"]),
        ({"model": 1}, ["model"]),
        ({"assets": {"a": {}}}, ["assets"]),
        ({"questions": {"": {"type": "noul", "instructions": "?"}}}, ["questions", "", "noul"]),
        ({"questions": {"q": 1}}, ["questions", "q"]),
        ({"questions": {"q": {"instructions": "?"}}}, ["questions", "q", "type"]),
        ({"questions": {"q": {"type": "bool", "instructions": "?"}}}, ["questions", "q", "bool", "type"]),
        ({"questions": {"q": {"type": "noul"}}}, ["questions", "q", "noul", "instructions"]),
        ({"questions": {"q": {"type": "noul", "instructions": 1}}}, ["questions", "q", "noul", "instructions"]),
        ({"questions": {"q": {"type": "choice", "criteria": {}}}}, ["questions", "q", "choice", "criteria"]),
        ({"questions": {"q": {"type": "score", "criteria": {"0": "a"}}}}, ["questions", "q", "score", "criteria"]),
        ({"questions": {"q": {"type": "score", "criteria": ["a", None]}}}, ["questions", "q", "score", "criteria[1]"]),
    ],
)
def test_what_cannot_be_asked_is_422_with_its_place(
    http: httpx2.Client, change: dict[str, Any], loc: list[str]
) -> None:
    response = ask(http, **change)
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", *loc]
    assert detail["msg"]
    assert detail["type"] == "value_error"


def test_a_batch_names_the_evaluation_at_fault(http: httpx2.Client) -> None:
    good = {"state": "", "questions": {"q": {"type": "noul", "instructions": "?"}}}
    for bad, loc in (({"state": ""}, ["questions"]), ([], [])):
        response = http.post("/v1/systemone/batch", json={"evaluations": [good, bad]})
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"] == ["body", "evaluations", 1, *loc]


def test_a_state_beyond_the_context_is_413(http: httpx2.Client) -> None:
    response = ask(http, state="word " * 9000)
    assert response.status_code == 413
    assert response.json()["detail"]["error_type"] == "max_tokens_exceeded"
    assert "8192" in response.json()["detail"]["message"]


def test_too_many_questions_are_422(http: httpx2.Client) -> None:
    response = ask(http, questions={str(i): {"type": "noul", "instructions": "?"} for i in range(513)})
    assert response.status_code == 422


def test_a_deadline_that_cannot_be_met_is_504(http: httpx2.Client) -> None:
    body = {"state": "word " * 4000, "questions": QUESTIONS}
    response = http.post("/v1/systemone", json=body, headers={"x-request-timeout-ms": "1"})
    assert response.status_code == 504
    assert response.json()["detail"]["error_type"] == "timeout_error"
    for bad in ("0", "x", "999999999"):
        assert http.post("/v1/systemone", json=body, headers={"x-request-timeout-ms": bad}).status_code == 422


def test_routes_that_are_not_there(http: httpx2.Client) -> None:
    assert http.get("/v1/systemone").status_code == 405
    assert http.get("/v1/systemone").json()["detail"]["error_type"] == "api_usage_error"
    for path in ("/v1/nothing", "/v1/systemone/"):
        response = http.post(path, json={})
        assert response.status_code == 404
        assert response.json()["detail"]["error_type"] == "not_found"


def test_a_request_id_is_kept(http: httpx2.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert http.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req_")


def test_models_suit_both_families(http: httpx2.Client) -> None:
    body = http.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["name"] for model in body["models"]] == [model["id"] for model in body["data"]]
    assert body["models"][0]["name"] == "qwen35-h64-F32"
    assert {"jev-latest", "gpt-6-luna"} < {model["name"] for model in body["models"]}
