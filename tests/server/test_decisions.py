"""OpenAI's route: how an input becomes a state, and answers and errors in its shape."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

PREDICATE = {"type": "predicate", "instructions": "Is it urgent?"}
CHOICE = {
    "type": "choice",
    "name": "flag",
    "instructions": [{"type": "input_text", "text": "Which?"}, {"type": "input_json", "data": {"a": 1}}],
    "choices": [{"value": True, "description": "yes"}, {"value": "true"}, {"value": False}],
}
SCORE = {
    "type": "score",
    "instructions": "How bad?",
    "levels": [{"label": "fine"}, {"label": "bad", "description": "x"}],
}


def decide(http: httpx2.Client, given: Any, *questions: Any, **more: Any) -> httpx2.Response:
    body = {"model": "gpt-6-luna", "input": given, "questions": questions or [PREDICATE]}
    return http.post("/v1/decisions", json=body | more)


def noul(http: httpx2.Client, state: Any) -> float:
    questions = {"q": {"type": "noul", "instructions": "Is it urgent?"}}
    body = http.post("/v1/systemone", json={"state": state, "questions": questions}).json()
    probability: float = body["answers"]["q"]["noul"]
    return probability


def test_answers_in_the_order_asked(http: httpx2.Client) -> None:
    response = decide(http, "The site is down.", SCORE, PREDICATE, CHOICE, prompt_cache_key="ignored")
    assert response.status_code == 200
    body = response.json()
    score, predicate, choice = body["answers"]
    assert body["model"] == "qwen35-h64-F32"
    assert (score["type"], score["name"]) == ("score", None)
    assert [(p["value"], p["label"]) for p in score["probabilities"]] == [(0, "fine"), (1, "bad")]
    assert predicate == {"type": "predicate", "name": None, "probability": noul(http, "The site is down.")}
    assert choice["name"] == "flag"
    assert [p["value"] for p in choice["probabilities"]] == [True, "true", False]
    best = max(choice["probabilities"], key=lambda p: p["probability"])
    assert choice["choice"] is best["value"] or choice["choice"] == best["value"] == "true"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
    assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([{"role": "user", "content": "Down."}], "Down."),
        ([{"role": "user", "content": [{"type": "input_json", "data": {"a": [1]}}]}], {"a": [1]}),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": 1}]}],
            ["a", 1],
        ),
        (
            [{"role": "system", "content": "s"}, {"type": "message", "role": "user", "content": "u"}],
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        ),
        (
            [
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "done"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            [
                {"type": "function_call", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "output": "done"},
                {"role": "assistant", "content": "no"},
            ],
        ),
    ],
)
def test_an_input_is_the_state_it_stands_for(http: httpx2.Client, given: Any, state: Any) -> None:
    (answer,) = decide(http, given).json()["answers"]
    assert answer["probability"] == noul(http, state)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 1}, "input"),
        ({"input": []}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"role": "judge", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "system", "content": [{"type": "input_json", "data": 1}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": ""}]}, "input[0].call_id"),
        ({"questions": []}, "questions"),
        ({"questions": [PREDICATE] * 401}, "questions"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
        ({"questions": [PREDICATE, {"type": "rank", "instructions": ""}]}, "questions[1].type"),
        ({"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": True}] * 2}]}, "questions[0].choices[1].value"),
        ({"questions": [CHOICE | {"choices": [{"value": 1}] * 2}]}, "questions[0].choices[0].value"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}]}]}, "questions[0].levels"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}, {}]}]}, "questions[0].levels[1].label"),
        ({"questions": [PREDICATE | {"name": 1}]}, "questions[0].name"),
    ],
)
def test_what_cannot_be_asked_is_422_with_its_param(http: httpx2.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/decisions", json={"input": "x", "questions": [PREDICATE]} | body)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


def test_other_errors_have_the_same_shape(http: httpx2.Client) -> None:
    for response, status, code in (
        (http.post("/v1/decisions", json={"model": "gpt-4"}), 404, "not_found"),
        (decide(http, "word " * 9000), 413, "context_length_exceeded"),
        (http.get("/v1/decisions"), 405, None),
        (http.post("/v1/decisions", content=b"{"), 422, "invalid_value"),
    ):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["code"] == code
