"""The judge contract as its consumers check it: shapes, codes, budgets, and the very answers of `Decider.evaluate`."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decider_native import Decider, InvalidRequest
from decider_native.contract import MAX_MESSAGE, DeciderJudge, Judge, Limits, Measure, parse_question

Wire = dict[str, Any]

CODES = {"invalid_request", "payload_too_large", "deadline", "cancelled", "provider_unavailable"}
STATS = ["attempts", "requests", "questions", "input_tokens", "output_tokens", "elapsed_ms", "usage_complete"]
TICKET: Wire = {
    "id": "ticket",
    "state": {"subject": "Refund", "messages": ["I was charged twice.", {"from": "bot", "n": 1.0}], "open": True},
    "questions": {
        "urgent": {"type": "noul", "instructions": "Is it urgent?", "criteria": {"true": "a loss of money"}},
        "team": {"type": "choice", "criteria": {"billing": None, "tech support": ["bugs"], "sales": "", "기타": {}}},
        "mood": {
            "type": "score",
            "instructions": {"rate": "the mood"},
            "criteria": ["0: calm", {"level": 1.0, "words": ["tense", None, True]}, ["angry", {"loud": 1}]],
        },
    },
}
NOTE: Wire = {
    "id": "note 2",
    "state": "Nothing to do.",
    "questions": {
        "only": {"type": "choice", "instructions": None, "criteria": {"the one": "option"}},
        "wide": {"type": "choice", "instructions": "Which?", "criteria": {f"option {i}": None for i in range(12)}},
        "done": {"type": "noul", "instructions": ["Is", "it", "done?"], "criteria": {}},
    },
}
REQUEST: Wire = {"timeout_ms": 60_000, "evaluations": [TICKET, NOTE]}
SMALL: Wire = {"evaluations": [{"id": "a", "state": "b", "questions": {"q": {"type": "noul", "instructions": "c"}}}]}
LONG: Wire = {
    "evaluations": [
        {"id": str(i), "state": f"{i} " + "word " * 4000, "questions": SMALL["evaluations"][0]["questions"]}
        for i in range(24)
    ]
}


@pytest.fixture(scope="module")
def judge(tiny: Decider) -> Judge:
    return DeciderJudge(tiny)


def check_envelope(response: Wire) -> None:
    assert json.loads(json.dumps(response, allow_nan=False, ensure_ascii=False).encode()) == response
    if response["status"] == "ok":
        assert list(response) == ["status", "model", "results", "stats"]
    else:
        retry = ["retry_after_ms"] if "retry_after_ms" in response else []
        assert not retry or response["code"] == "provider_unavailable"
        assert list(response) == ["status", "code", "provider_error", *retry, "stats"]
        assert (response["status"], response.get("retry_after_ms", 30_000)) == ("error", 30_000)
        assert response["code"] in CODES
        assert list(response["provider_error"]) == ["message", "truncated"]
        assert 0 < len(response["provider_error"]["message"]) <= MAX_MESSAGE
        assert isinstance(response["provider_error"]["truncated"], bool)
        assert response["stats"]["input_tokens"] == 0
    stats = response["stats"]
    assert list(stats) == STATS
    assert isinstance(stats["usage_complete"], bool)
    assert all(type(stats[name]) is int and stats[name] >= 0 for name in STATS[:-1])


def check_answers(request: Wire, response: Wire) -> None:
    """What a strict consumer refuses to do without."""
    assert list(response["results"]) == [evaluation["id"] for evaluation in request["evaluations"]]
    for evaluation in request["evaluations"]:
        result = response["results"][evaluation["id"]]
        assert list(result) == ["answers", "usage"]
        assert list(result["usage"]) == ["input_tokens", "output_tokens"]
        assert list(result["answers"]) == list(evaluation["questions"])
        for question_id, question in evaluation["questions"].items():
            check_answer(question, result["answers"][question_id])
    usages = [result["usage"] for result in response["results"].values()]
    assert response["stats"]["input_tokens"] == sum(usage["input_tokens"] for usage in usages)
    assert response["stats"]["output_tokens"] == sum(usage["output_tokens"] for usage in usages) == 0
    assert response["stats"]["questions"] == sum(len(item["questions"]) for item in request["evaluations"])
    assert response["stats"]["usage_complete"] is True


def check_answer(question: Wire, answer: Wire) -> None:
    assert answer["type"] == question["type"]
    if answer["type"] == "noul":
        assert list(answer) == ["type", "noul"]
        assert 0 <= answer["noul"] <= 1
        return
    value = answer["type"]
    p = answer["probabilities"]
    assert all(type(x) is float and 0 <= x <= 1 for x in [*p.values(), answer["confidence"]])
    assert math.fsum(p.values()) == pytest.approx(1, abs=1e-9)
    n, likeliest = len(p), max(p, key=lambda name: p[name])
    if value == "choice":
        assert list(answer) == ["type", "choice", "confidence", "probabilities"]
        assert list(p) == list(question["criteria"])
        assert answer["choice"] == likeliest
        confidence = (n * p[likeliest] - 1) / (n - 1) if n > 1 else 1
    else:
        assert list(answer) == ["type", "score", "confidence", "probabilities", "legend"]
        assert list(p) == [str(i) for i in range(n)]
        legend = {str(i): level for i, level in enumerate(question["criteria"])}
        assert json.dumps(answer["legend"]) == json.dumps(legend)
        assert answer["score"] == pytest.approx(sum(i * p[str(i)] for i in range(n)), abs=1e-9)
        spread = sum(p[str(i)] * abs(i - int(likeliest)) for i in range(n))
        confidence = 1 - spread * n / sum(abs(i - (n - 1) / 2) for i in range(n))
    assert answer["confidence"] == pytest.approx(max(0, confidence), abs=1e-9)


def check_error(response: Wire, code: str, *parts: str) -> str:
    check_envelope(response)
    assert (response["status"], response.get("code")) == ("error", code), response
    message = str(response["provider_error"]["message"])
    for part in parts:
        assert part in message
    return message


def changed(path: str, value: Any, request: Wire = REQUEST) -> Wire:
    """A request with one member replaced or added: ``changed("evaluations.0.id", "")``."""
    request = deepcopy(request)
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = request
    for step in steps:
        place = place[step]
    place[last] = value
    return request


def without(path: str) -> Wire:
    request = changed(path, None)
    place: Any = request
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step) if step.isdigit() else step]
    del place[last]
    return request


# -- answers


def test_answers_are_those_of_the_decider_bit_for_bit(judge: Judge, tiny: Decider) -> None:
    response = judge.evaluate(REQUEST)
    check_envelope(response)
    check_answers(REQUEST, response)
    assert response["model"] == tiny.name
    for evaluation in REQUEST["evaluations"]:
        alone = tiny.evaluate(evaluation["state"], evaluation["questions"]).to_dict()
        assert response["results"][evaluation["id"]] == {"answers": alone["answers"], "usage": alone["usage"]}
    assert (response["stats"]["attempts"], response["stats"]["requests"], response["stats"]["questions"]) == (1, 2, 6)
    assert tiny.judge(REQUEST)["results"] == response["results"]


def test_json_text_is_read_as_the_same_request(judge: Judge) -> None:
    results = judge.evaluate(REQUEST)["results"]
    text = json.dumps(REQUEST, ensure_ascii=False)
    assert judge.evaluate(text)["results"] == results
    assert judge.evaluate(text.encode())["results"] == results


def test_changing_the_answer_does_not_change_the_request(judge: Judge) -> None:
    request = deepcopy(REQUEST)
    judge.evaluate(request)["results"]["ticket"]["answers"]["mood"]["legend"]["1"]["words"].append("changed")
    assert request == REQUEST


def test_the_only_option_answers_itself_without_the_model(judge: Judge) -> None:
    question = {"type": "choice", "criteria": {"the one": None}}
    response = judge.evaluate({"evaluations": [{"id": "a", "state": "s", "questions": {"q": question}}]})
    check_envelope(response)
    answer = {"type": "choice", "choice": "the one", "confidence": 1.0, "probabilities": {"the one": 1.0}}
    usage = {"input_tokens": 0, "output_tokens": 0}
    assert response["results"] == {"a": {"answers": {"q": answer}, "usage": usage}}
    stats = {**response["stats"], "elapsed_ms": 0}
    assert list(stats.values()) == [0, 0, 1, 0, 0, 0, True]


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul", "instructions": "Yes?"},
        {"type": "noul", "instructions": "Yes?", "criteria": None},
        {"type": "noul", "instructions": "Yes?", "criteria": {"true": None, "false": ["no"]}},
        {"type": "noul", "criteria": {"false": "it is not"}},
        {"type": "choice", "criteria": {str(i): None for i in range(255)}},
        {"type": "choice", "instructions": {}, "criteria": {"a": "", "b": []}},
        {"type": "score", "criteria": [str(i) for i in range(10)]},
        {"type": "score", "instructions": [], "criteria": [{}, ["x"]]},
    ],
)
def test_every_form_the_contract_allows(question: Wire, judge: Judge) -> None:
    states: list[Any] = ["", {}, [], [1, None, {"_index": 2}]]
    for state in states:
        request = {"evaluations": [{"id": "a", "state": state, "questions": {"질문 ❓": question}}]}
        response = judge.evaluate(request)
        check_envelope(response)
        check_answers(request, response)


# -- requests that are refused

BAD: list[tuple[Wire, list[str]]] = [
    (changed("extra", 1), ["'extra'", "unknown"]),
    (changed("evaluations.0.extra", 1), ["evaluation 'ticket'", "'extra'"]),
    (changed("evaluations.1.questions.done.extra", 1), ["evaluation 'note 2'", "question 'done'", "'extra'"]),
    (changed("evaluations.1.questions.done.isolated", True), ["question 'done'", "'isolated'"]),
    (changed("evaluations.1.questions.done.criteria", {"yes": "y"}), ["question 'done'", "'criteria.yes'"]),
    (changed("evaluations.1.questions.done.criteria", {True: "y"}), ["question 'done'", "criteria."]),
    (without("evaluations"), ["'evaluations'", "missing"]),
    (without("evaluations.0.id"), ["'evaluations[0].id'"]),
    (without("evaluations.0.state"), ["evaluation 'ticket'", "'state'"]),
    (without("evaluations.0.questions"), ["evaluation 'ticket'", "'questions'"]),
    (without("evaluations.0.questions.team.type"), ["evaluation 'ticket'", "question 'team'", "'type'"]),
    (without("evaluations.0.questions.team.criteria"), ["question 'team'", "'criteria'", "null"]),
    (without("evaluations.0.questions.mood.criteria"), ["question 'mood'", "'criteria'"]),
    (changed("evaluations", []), ["'evaluations'", "1 to 512"]),
    (changed("evaluations", {"a": 1}), ["'evaluations'", "an array"]),
    (changed("evaluations.1", "x"), ["'evaluations[1]'", "an object"]),
    (changed("evaluations.1.id", "ticket"), ["evaluation 'ticket'", "'id'"]),
    (changed("evaluations.1.id", " \n"), ["'evaluations[1].id'", "blank"]),
    (changed("evaluations.1.id", 7), ["'evaluations[1].id'"]),
    (changed("evaluations.1.id", "\ud800"), ["'evaluations[1].id'", "surrogate"]),
    (changed("evaluations.1.state", None), ["evaluation 'note 2'", "'state'", "null"]),
    (changed("evaluations.1.state", 5), ["'state'", "an integer"]),
    (changed("evaluations.1.state", {"a": [1, math.nan]}), ["evaluation 'note 2'", "'state.a[1]'"]),
    (changed("evaluations.1.questions", {}), ["evaluation 'note 2'", "'questions'"]),
    (changed("evaluations.1.questions", []), ["evaluation 'note 2'", "'questions'"]),
    (changed("evaluations.1.questions", {"": {"type": "noul"}}), ["evaluation 'note 2'", "question ''"]),
    (changed("evaluations.1.questions", {1: {"type": "noul"}}), ["evaluation 'note 2'", "'questions'"]),
    (changed("evaluations.1.questions.done", "Is it?"), ["question 'done'", "an object"]),
    (changed("evaluations.1.questions.done.type", "bool"), ["question 'done'", "'type'", "noul, choice, score"]),
    (changed("evaluations.1.questions.done.type", np.zeros(2)), ["question 'done'", "'type'"]),
    (changed("evaluations.1.questions.done.instructions", 3), ["question 'done'", "'instructions'"]),
    (changed("evaluations.1.questions.done.instructions", False), ["question 'done'", "a boolean"]),
    (changed("evaluations.1.questions.done.instructions", None), ["question 'done'", "asks nothing"]),
    (changed("evaluations.1.questions.done.criteria", False), ["question 'done'", "'criteria'", "a boolean"]),
    (changed("evaluations.1.questions.done.criteria", []), ["question 'done'", "'criteria'", "an array"]),
    (changed("evaluations.1.questions.done.criteria", {"true": 1}), ["question 'done'", "'criteria.true'"]),
    (changed("evaluations.0.questions.team.criteria", ["a", "b"]), ["question 'team'", "'criteria'", "an array"]),
    (changed("evaluations.0.questions.team.criteria", {}), ["question 'team'", "1 to 255"]),
    (changed("evaluations.0.questions.team.criteria", {str(i): "" for i in range(256)}), ["'team'", "256"]),
    (changed("evaluations.0.questions.team.criteria", {"a": 1}), ["question 'team'", "'criteria.a'"]),
    (changed("evaluations.0.questions.team.criteria", {1: "a"}), ["question 'team'", "'criteria'"]),
    (changed("evaluations.0.questions.mood.criteria", ["a"]), ["question 'mood'", "2 to 10"]),
    (changed("evaluations.0.questions.mood.criteria", ["a"] * 11), ["question 'mood'", "2 to 10"]),
    (changed("evaluations.0.questions.mood.criteria", ["a", None]), ["question 'mood'", "'criteria[1]'", "null"]),
    (changed("evaluations.0.questions.mood.criteria", ["a", 2.5]), ["question 'mood'", "'criteria[1]'", "number"]),
    (changed("evaluations.0.questions.mood.criteria", {"0": "a", "1": "b"}), ["question 'mood'", "an object"]),
    *((changed("timeout_ms", value), ["'timeout_ms'"]) for value in (0, -1, True, 5.0, "5", None, 300_001, 10**4000)),
    *((changed("expires_at_unix_ms", value), ["'expires_at_unix_ms'"]) for value in (True, 5.0, "5", None)),
    *((changed("model", value), ["'model'"]) for value in (None, 5, ["decider"])),
    *((changed("provider", value), ["'provider'"]) for value in (None, "", "Decider", "a_b", "a\n", "é", "x" * 65)),
    *((changed("request_id", value), ["'request_id'"]) for value in (None, 5, "", "é", "a\n", "\x7f", "x" * 129)),
]


@pytest.mark.parametrize(("request_", "parts"), BAD, ids=[" ".join(parts) for _, parts in BAD])
def test_a_bad_request_is_refused_with_its_place(request_: Wire, parts: list[str], judge: Judge) -> None:
    response = judge.evaluate(request_)
    check_error(response, "invalid_request", *parts)
    assert (response["stats"]["attempts"], response["stats"]["usage_complete"]) == (0, True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"", "line 1 column 1"),
        (b"\xff", "UTF-8"),
        ("[" * 100_000, "nested"),
        ('{"evaluations": [], "evaluations": []}', "twice"),
        ('{"timeout_ms": NaN}', "NaN"),
        ('{"timeout_ms": NaNa}', "request"),
        ('[1e999x, "]', "request"),
        ('{"evaluations": []} x', "follows"),
        ("[1]", "an array"),
        ("null", "null"),
    ],
)
def test_text_that_is_no_request(text: str | bytes, part: str, judge: Judge) -> None:
    check_error(judge.evaluate(text), "invalid_request", part)
    check_error(judge.cancel(text), "invalid_request", part)


def test_a_call_is_atomic(judge: Judge) -> None:
    response = judge.evaluate(changed("evaluations.1.state", "word " * 5000))
    message = check_error(response, "payload_too_large", "evaluation 'note 2'", "question 'wide'", "4096")
    assert int(re.findall(r"(\d+) tokens", message)[0]) > 5000
    assert response["stats"]["attempts"] == 0
    check_error(judge.evaluate(changed("evaluations.1.state", "a" * 10**7)), "payload_too_large", "evaluation 'note 2'")


def test_limits(tiny: Decider) -> None:
    text = json.dumps(changed("evaluations.0.state", "é" * 100), ensure_ascii=False)
    size = len(text.encode())
    for data in (text, text.encode()):
        assert DeciderJudge(tiny, limits=Limits(max_request_bytes=size)).evaluate(data)["status"] == "ok"
        response = DeciderJudge(tiny, limits=Limits(max_request_bytes=size - 1)).evaluate(data)
        check_error(response, "payload_too_large", str(size), str(size - 1))
    judge = DeciderJudge(tiny, limits=Limits(max_timeout_ms=1000, max_evaluations=1))
    check_error(judge.evaluate({**SMALL, "timeout_ms": 1001}), "invalid_request", "'timeout_ms'", "1000")
    check_error(judge.evaluate(REQUEST | {"timeout_ms": 1000}), "invalid_request", "'evaluations'", "1 to 1", "got 2")


def test_512_evaluations_and_no_more(judge: Judge) -> None:
    questions = {"q": {"type": "noul", "instructions": "Even?"}}
    many = [{"id": f"e{i}", "state": str(i), "questions": questions} for i in range(513)]
    response = judge.evaluate({"evaluations": many[:512]})
    check_answers({"evaluations": many[:512]}, response)
    assert response["stats"]["requests"] == 512
    check_error(judge.evaluate({"evaluations": many}), "invalid_request", "'evaluations'", "513")


def test_messages_are_short_and_private(judge: Judge) -> None:
    secret = "the secret " * 500
    for path, value in [("state", {"a": [secret, math.inf]}), ("questions.done.type", 5), ("state", secret * 4)]:
        response = judge.evaluate(changed(f"evaluations.1.{path}", value))
        assert response["status"] == "error"
        assert "secret" not in response["provider_error"]["message"]
        assert response["provider_error"]["truncated"] is False
    response = judge.evaluate(changed("evaluations.1.questions." + "q" * 1000, {"type": "noul"}))
    assert check_error(response, "invalid_request").endswith("in criteria")
    huge = {"id": "a", "state": "word " * 5000, "questions": {"q" * 1000: {"type": "noul", "instructions": "?"}}}
    response = judge.evaluate({"evaluations": [huge]})
    assert len(check_error(response, "payload_too_large", "5023 tokens")) < MAX_MESSAGE


# -- names


def test_the_model_and_the_provider_by_name(judge: Judge, tiny: Decider) -> None:
    for name in (tiny.name, tiny.name.upper()):
        assert judge.evaluate({**SMALL, "model": name, "provider": "decider"})["model"] == tiny.name
    other = DeciderJudge(tiny, provider="local-1")
    assert other.evaluate({**SMALL, "provider": "local-1"})["status"] == "ok"
    for response, part in [
        (judge.evaluate({**SMALL, "model": "decider-4b-v2"}), tiny.name),
        (judge.evaluate({**SMALL, "model": ""}), tiny.name),
        (other.evaluate({**SMALL, "provider": "decider"}), "local-1"),
    ]:
        check_error(response, "provider_unavailable", part)
        assert "retry_after_ms" not in response
        assert response["stats"]["attempts"] == 0
    with pytest.raises(InvalidRequest, match="provider"):
        DeciderJudge(tiny, provider="Not A Name")


def test_a_request_that_is_wrong_in_itself_is_wrong_for_another_model_too(judge: Judge) -> None:
    check_error(judge.evaluate({"model": "other", "evaluations": []}), "invalid_request")


def test_models(judge: Judge, tiny: Decider) -> None:
    requests: list[Any] = [None, {}, "{}", b"{}"]
    for request in requests:
        response = judge.models(request)
        assert list(response) == ["status", "models", "stats"]
        (model,) = response["models"]
        assert list(model) == ["name", "description", "release_date", "context_window", "max_options"]
        assert (model["name"], model["context_window"], model["max_options"]) == (tiny.name, 4096, 255)
        assert all(isinstance(model[name], str) for name in ("description", "release_date"))
        assert list(response["stats"]) == STATS
    check_error(judge.models({"name": "x"}), "invalid_request", "'name'")
    check_error(judge.models("[]"), "invalid_request")


def test_a_measure_is_the_longest_row_in_real_tokens(judge: Judge, tiny: Decider) -> None:
    questions = {name: parse_question(name, asked) for name, asked in TICKET["questions"].items()}
    rows = tiny.rows(TICKET["state"], questions)
    assert judge.measure(TICKET["state"], questions) == Measure(max(len(row.ids) for row in rows), 4096)
    too_long = judge.measure("word " * 5000, questions)
    assert (too_long.tokens > 5000, too_long.limit) == (True, 4096)


def test_a_closed_model_is_unavailable_for_now(tiny_path: Path) -> None:
    decider = Decider(tiny_path, device="cpu", context_tokens=256)
    judge = decider.as_judge
    assert judge.evaluate(SMALL)["status"] == "ok"
    decider.close()
    response = judge.evaluate(SMALL)
    check_error(response, "provider_unavailable", "closed")
    assert response["retry_after_ms"] == 30_000


# -- deadlines and cancelling


@contextmanager
def busy(judge: Judge, request_id: str = "long") -> Iterator[Future[Wire]]:
    """A call of a minute that the model works on while the block runs; cancelled at its end."""
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(
            judge.evaluate,
            {**LONG, "request_id": request_id},
            progress=lambda done, total: begun.set() if done else None,
        )
        try:
            assert begun.wait(60)
            yield call
        finally:
            judge.cancel({"request_id": request_id})


def test_cancel_stops_a_running_call(judge: Judge) -> None:
    with busy(judge) as call:
        assert judge.cancel({"request_id": "long"}) == {"status": "ok", "cancelled": True}
        response = call.result()
    check_error(response, "cancelled")
    assert (response["stats"]["attempts"], response["stats"]["requests"]) == (1, 24)
    assert response["stats"]["usage_complete"] is False
    assert judge.cancel('{"request_id": "long"}') == {"status": "ok", "cancelled": False}
    check_answers(SMALL, judge.evaluate({**SMALL, "request_id": "long"}))


def test_cancel_stops_a_queued_call(judge: Judge) -> None:
    with busy(judge), ThreadPoolExecutor(1) as pool:
        queued = pool.submit(judge.evaluate, {**LONG, "request_id": "queued"})
        while not judge.cancel({"request_id": "queued"})["cancelled"]:
            assert not queued.done()
        check_error(queued.result(), "cancelled")


def test_a_request_id_names_one_active_call(judge: Judge) -> None:
    with busy(judge, "~ the longest id " + "x" * 111) as call:
        again = {**SMALL, "request_id": "~ the longest id " + "x" * 111}
        check_error(judge.evaluate(again), "invalid_request", "'request_id'")
        assert not call.done()
    assert judge.evaluate(again)["status"] == "ok"
    assert judge.evaluate(again)["status"] == "ok"
    check_error(judge.evaluate({**again, "expires_at_unix_ms": 0}), "deadline")
    assert judge.evaluate(again)["status"] == "ok"


@pytest.mark.parametrize(
    "request_", [{}, {"request_id": 5}, {"request_id": "é"}, {"request_id": "a", "more": 1}, None, []]
)
def test_a_bad_cancel_request(request_: Any, judge: Judge) -> None:
    check_error(judge.cancel(request_), "invalid_request")


def test_a_deadline_that_passes_in_the_queue(judge: Judge) -> None:
    with busy(judge) as call:
        response = judge.evaluate({**LONG, "timeout_ms": 3000})  # a small call would not have to wait
        check_error(response, "deadline", "queue")
        expires = {"timeout_ms": 60_000, "expires_at_unix_ms": time.time_ns() // 1_000_000 + 300}
        check_error(judge.evaluate({**LONG, **expires}), "deadline")
        assert not call.done()


def test_a_deadline_that_passes_while_the_model_runs(judge: Judge) -> None:
    timeout_ms = 250
    while "while the model ran" not in check_error(
        response := judge.evaluate({**LONG, "timeout_ms": timeout_ms}), "deadline"
    ):
        timeout_ms *= 2  # tokenizing alone took that long
    assert (response["stats"]["attempts"], response["stats"]["usage_complete"]) == (1, False)
    assert judge.evaluate(SMALL)["status"] == "ok"


@pytest.mark.parametrize("expires", [0, -1, -(10**4000), 1_700_000_000_000])
def test_expired_work_does_not_start(expires: int, judge: Judge) -> None:
    response = judge.evaluate({**REQUEST, "expires_at_unix_ms": expires})
    check_error(response, "deadline")
    assert list(response["stats"].values())[:4] == [0, 0, 6, 0]


def test_the_earlier_deadline_wins(judge: Judge) -> None:
    for far in (time.time_ns() // 1_000_000 + 60_000, 10**20, 10**4000):
        assert judge.evaluate({**REQUEST, "expires_at_unix_ms": far})["status"] == "ok"
        check_error(judge.evaluate({**LONG, "timeout_ms": 1, "expires_at_unix_ms": far}), "deadline")


# -- anything at all

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.builds(lambda: 10**5000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
ODDITIES = st.one_of(
    *(st.builds(make) for make in (object, set, bytearray, lambda: (1, 2), lambda: np.float64(1), lambda: np.ones(2))),
    st.dictionaries(st.integers() | st.none() | st.tuples(st.integers()), st.none(), min_size=1, max_size=2),
    st.sampled_from([math.nan, "\ud800", {"\udfff": 1}, {1: 1, "1": 2}, np.str_("noul"), b"{}"]),
)
ANYTHING = JSON_VALUES | ODDITIES


def check_legal(judge: Judge, request: Any) -> None:
    response = judge.evaluate(request)
    check_envelope(response)
    if response["status"] == "ok":
        check_answers(json.loads(request) if isinstance(request, (str, bytes)) else request, response)
    for method in (judge.cancel, judge.models):
        other: Callable[[Any], Wire] = method
        assert other(request)["status"] in ("ok", "error")


@settings(max_examples=200, deadline=None)
@given(request=ANYTHING | st.dictionaries(st.sampled_from([*REQUEST, "model", "request_id"]), ANYTHING))
def test_garbage_gets_an_envelope(judge: Judge, request: Any) -> None:
    check_legal(judge, request)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_request_with_some_garbage_gets_an_envelope(judge: Judge, data: st.DataObject) -> None:
    request: Any = deepcopy(REQUEST)
    for _ in range(data.draw(st.integers(1, 2))):
        place = request
        while True:
            steps = list(place) if isinstance(place, dict) else list(range(len(place)))
            step = data.draw(st.sampled_from(steps))
            if not (isinstance(place[step], (dict, list)) and place[step] and data.draw(st.integers(0, 3))):
                break
            place = place[step]
        match data.draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                place[step] = deepcopy(data.draw(ANYTHING))
            case "remove" if len(place) > 1:
                del place[step]
            case _ if isinstance(place, dict):
                place[data.draw(st.text(max_size=3) | st.integers())] = deepcopy(data.draw(ANYTHING))
    check_legal(judge, request)


@settings(max_examples=100, deadline=None)
@given(start=st.integers(0, 900), length=st.integers(0, 20), new=st.text(max_size=5) | st.sampled_from('{}[]",:0e-'))
def test_damaged_text_gets_an_envelope(judge: Judge, start: int, length: int, new: str) -> None:
    text = json.dumps(REQUEST)
    damaged = text[:start] + new + text[start + length :]
    check_legal(judge, damaged)
    check_legal(judge, damaged.encode(errors="surrogatepass"))
