"""The same requests to every kind of judge: envelopes of one shape, and one model's answers wherever it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decider_native import Choice, InvalidRequest
from decider_native.contract import Judge, parse_question
from decider_native.judges import Hub

from .conftest import Server, local_table

Wire = dict[str, Any]

STATES: list[Any] = [
    "The invoice was charged twice, please refund one.",
    "결제가 두 번 되었습니다 💳",
    {"subject": "Refund", "open": True, "lines": [{"sku": "A", "n": 2}, None], "total": 12.5},
    ["first", {"second": 2}, []],
    {},
]
QUESTIONS: list[tuple[bool, Wire]] = [  # whether the Decisions API has a place for all of it
    (True, {"q": {"type": "noul", "instructions": "Is it urgent?"}}),
    (True, {"a": {"type": "noul", "instructions": {"ask": ["Is", "it", "paid?"]}}, "b": {"type": "choice",
        "instructions": "Which team?", "criteria": {"billing": "invoices", "tech": None, "기타": ""}}}),
    (True, {"wide 🎯": {"type": "choice", "criteria": {f"option {i}": None for i in range(12)}}}),
    (True, {"mood": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "tense: words", "angry"]}}),
    (True, {"only": {"type": "choice", "criteria": {"the one": None}}, "q": {"type": "noul", "instructions": "Open?"}}),
    (False, {"q": {"type": "noul", "instructions": "Paid?", "criteria": {"true": "money came", "false": None}}}),
    (False, {"q": {"type": "choice", "instructions": [1, "x"], "criteria": {"a": {"deep": [1]}, "b": ["list"]}}}),
    (False, {"q": {"type": "score", "criteria": [{"level": 1.0}, ["two"], "three"]}}),
]  # fmt: skip
REQUESTS = [(state, *questions) for state in STATES for questions in QUESTIONS]


@pytest.fixture(scope="module")
def hub(server: Server, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    path = tmp_path_factory.mktemp("kinds") / "judges.toml"
    path.write_text(
        f"""
        default = "local"
        {local_table(tiny_path)}
        [judges.typesafe]
        provider = "systemone"
        host = "{server.url}"
        [judges.luna]
        provider = "openai"
        host = "{server.url}/"
        key_env = "SOME_KEY"
        [judges.fake]
        provider = "mock"
        """
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_KEY", "any")
        hub = Hub.from_file(path)
        yield hub
        hub.close()


def shape(value: Any) -> Any:
    """Keys in their order, and the types of what is no answer."""
    if isinstance(value, dict):
        return [(key, shape(member)) for key, member in value.items()]
    return type(value).__name__


def test_there_are_forty_requests() -> None:
    assert len(REQUESTS) == 40


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
@pytest.mark.parametrize(("carried", "questions"), QUESTIONS, ids=range(len(QUESTIONS)))
def test_the_same_request_to_every_kind(hub: Hub, state: Any, carried: bool, questions: Wire) -> None:
    request: Wire = {
        "timeout_ms": 60_000,
        "evaluations": [
            {"id": "one", "state": state, "questions": questions},
            {"id": "두 번째", "state": "another", "questions": questions},
        ],
    }
    local, typesafe, luna, fake = (
        hub.evaluate({**request, "provider": name}) for name in ("local", "typesafe", "luna", "fake")
    )
    assert local["status"] == "ok", local
    assert shape(local) == shape(typesafe) == shape(luna) == shape(fake)
    assert local["model"] == typesafe["model"] == luna["model"] == "qwen35-h64-F32"
    assert typesafe["results"] == local["results"]
    if carried:
        assert luna["results"] == local["results"]
    assert hub.evaluate(json.dumps(request))["results"] == local["results"]


def test_evaluations_of_one_call_are_asked_one_by_one_and_counted(hub: Hub) -> None:
    evaluations = [
        {"id": str(i), "state": f"state {i}", "questions": {"q": {"type": "noul", "instructions": "Even?"}}}
        for i in range(20)
    ]
    evaluations.append({"id": "self", "state": "", "questions": {"q": {"type": "choice", "criteria": {"x": None}}}})
    told: dict[str, list[tuple[int, int]]] = {}
    envelopes = {}
    for name in ("local", "typesafe", "luna"):
        seen = told[name] = []
        request = {"provider": name, "evaluations": evaluations}
        envelopes[name] = hub.evaluate(request, progress=lambda *counts, seen=seen: seen.append(counts))
    assert envelopes["typesafe"]["results"] == envelopes["luna"]["results"] == envelopes["local"]["results"]
    for envelope in envelopes.values():
        assert list(envelope["results"]) == [evaluation["id"] for evaluation in evaluations]
        stats = envelope["stats"]
        assert (stats["attempts"], stats["requests"], stats["questions"]) == (1, 20, 21)
    assert told["typesafe"] == told["luna"] == [(i, 21) for i in range(1, 22)]


@pytest.mark.parametrize("name", ["local", "typesafe", "luna", "fake"])
def test_what_all_kinds_have_in_common(hub: Hub, name: str) -> None:
    ask: Wire = {"provider": name, "evaluations": [{"id": "a", "state": "s", "questions": QUESTIONS[0][1]}]}
    refused = [
        ({**ask, "surprise": 1}, "invalid_request"),
        ({**ask, "timeout_ms": 0}, "invalid_request"),
        ({**ask, "expires_at_unix_ms": 1}, "deadline"),
        ({**ask, "model": "another"}, "provider_unavailable"),
        ({**ask, "evaluations": [{**ask["evaluations"][0], "state": {"a": float("nan")}}]}, "invalid_request"),
        ({**ask, "evaluations": [{**ask["evaluations"][0], "state": "\ud800"}]}, "invalid_request"),
        ({**ask, "evaluations": [{**ask["evaluations"][0], "questions": {"\ud800": QUESTIONS[0][1]["q"]}}]},
         "invalid_request"),
    ]  # fmt: skip
    for request, code in refused:
        envelope = hub.evaluate(request)
        assert (envelope["status"], envelope["code"]) == ("error", code), envelope
        assert envelope["stats"]["requests"] == 0
        assert "retry_after_ms" not in envelope
    assert hub.cancel({"request_id": "nobody"}) == {"status": "ok", "cancelled": False}


def test_models(hub: Hub) -> None:
    keys = ["name", "description", "release_date", "context_window", "max_options"]
    for name in ("local", "typesafe", "luna", "fake"):
        with hub.judge(name) as judge:
            (model,) = judge.models()["models"]
        assert list(model) == keys
        assert model["max_options"] == 255
    assert hub.models()["models"][0]["context_window"] == 8192


def test_measures_bound_what_a_judge_reads(hub: Hub) -> None:
    questions = {name: parse_question(name, asked) for _, asks in QUESTIONS for name, asked in asks.items()}
    judges: dict[str, Judge] = {}
    for name in ("local", "typesafe", "luna", "fake"):
        with hub.judge(name) as judge:
            judges[name] = judge
    questions["wider"] = Choice("Which?", {f"{i}": None for i in range(255)})
    for each in judges.values():
        for state, field in ((object(), "state"), ({"a": math.nan}, "state.a"), (["\ud800"], "state[0]")):
            with pytest.raises(InvalidRequest) as caught:
                each.measure(state, questions)  # type: ignore[arg-type]
            assert caught.value.field == field
    for state in [*STATES, "결제 " * 500, list(range(900)), {"a": [[]] * 300}]:
        real = judges["local"].measure(state, questions)
        assert real.limit == 8192
        for name in ("typesafe", "luna", "fake"):
            bound = judges[name].measure(state, questions)
            assert bound.limit == 16384
            assert bound.tokens >= real.tokens
    assert judges["local"].measure("word " * 5000, questions).tokens > 5000
    assert judges["local"].measure("word " * 50_000, questions).tokens > 8192
    assert (
        judges["local"].measure("x", {"q": parse_question("q", {"type": "choice", "criteria": {"x": None}})}).tokens
        == 0
    )
