"""Judges on other machines when something goes wrong there: codes, retries, deadlines, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from decider_native.judges import Hub

from .conftest import NOUL, Stub, WriteHub, ask, wait_for

Wire = dict[str, Any]

QUESTIONS: Wire = {
    "n": NOUL,
    "c": {"type": "choice", "criteria": {"a": None, "b": "text"}},
    "s": {"type": "score", "instructions": "How bad?", "criteria": ["low", {"level": 1}, "high"]},
}
REQUEST: Wire = {"evaluations": [{"id": "a", "state": "x", "questions": QUESTIONS}]}
LEGEND = {"0": "low", "1": {"level": 1}, "2": "high"}
SYSTEMONE: Wire = {
    "model": "jev-1",
    "answers": {
        "n": {"type": "noul", "noul": 0.25},
        "c": {"type": "choice", "choice": "b", "confidence": 0.5, "probabilities": {"b": 0.75, "a": 0.25}},
        "s": {
            "type": "score",
            "score": 1,
            "confidence": 0.5,
            "probabilities": {"0": 0.25, "1": 0.5, "2": 0.25},
            "legend": LEGEND,
        },
    },
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
OPENAI: Wire = {
    "model": "luna-1",
    "answers": [
        {"type": "predicate", "name": None, "probability": 0.25},
        {
            "type": "choice",
            "name": None,
            "choice": "b",
            "confidence": 0.5,
            "probabilities": [{"value": "a", "probability": 0.25}, {"value": "b", "probability": 0.75}],
        },
        {
            "type": "score",
            "name": None,
            "score": 1,
            "confidence": 0.5,
            "probabilities": [
                {"value": 0, "label": "low", "probability": 0.25},
                {"value": 1, "label": '{"level": 1}', "probability": 0.5},
                {"value": 2, "label": "high", "probability": 0.25},
            ],
        },
    ],
    "usage": {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    },
}
ANSWERS: Wire = {
    "n": {"type": "noul", "noul": 0.25},
    "c": {"type": "choice", "choice": "b", "confidence": 0.5, "probabilities": {"a": 0.25, "b": 0.75}},
    "s": {
        "type": "score",
        "score": 1.0,
        "confidence": 0.5,
        "probabilities": {"0": 0.25, "1": 0.5, "2": 0.25},
        "legend": LEGEND,
    },
}
KINDS = ("systemone", "openai")
GOOD = {"systemone": SYSTEMONE, "openai": OPENAI}


def tables(stub: Stub, **more: int) -> str:
    """A file whose judges ``systemone`` and ``openai`` are the stub."""
    lines = "".join(f"{name} = {value}\n" for name, value in more.items())
    return 'default = "none"\n' + "".join(
        f'[judges.{kind}]\nprovider = "{kind}"\nhost = "{stub.url}"\nkey_env = "STUB_KEY"\n{lines}' for kind in KINDS
    )


@pytest.fixture(scope="module")
def shared(stub_server: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    path = tmp_path_factory.mktemp("remote") / "judges.toml"
    path.write_text(tables(stub_server))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUB_KEY", " the-key ")
        hub = Hub.from_file(path)
        yield hub
        hub.close()


@pytest.fixture
def remote(shared: Hub, stub: Stub) -> Hub:
    """A hub whose judges ``systemone`` and ``openai`` are the stub, with clients that are warm."""
    stub.replies = [(404, {}, {})]
    for kind in KINDS:
        shared.evaluate({**REQUEST, "provider": kind})
    stub.reset()
    return shared


def changed(body: Wire, path: str, value: Any) -> Wire:
    """A copy with one member replaced; ``...`` removes it."""
    copy: Wire = json.loads(json.dumps(body))
    place: Any = copy
    *steps, last = (int(step) if step.isdigit() and isinstance(body.get("answers"), list) else step
                    for step in path.split("."))  # fmt: skip
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_put_into_the_contracts_form(remote: Hub, stub: Stub, kind: str) -> None:
    stub.replies = [(200, {}, GOOD[kind])]
    envelope = remote.evaluate({**REQUEST, "provider": kind, "timeout_ms": 10_000})
    assert envelope["results"] == {"a": {"answers": ANSWERS, "usage": {"input_tokens": 7, "output_tokens": 2}}}
    assert list(envelope["results"]["a"]["answers"]["c"]["probabilities"]) == ["a", "b"]
    assert envelope["model"] == GOOD[kind]["model"]
    stats = {**envelope["stats"], "elapsed_ms": 0}
    assert list(stats.values()) == [1, 1, 3, 7, 2, 0, True]
    ((path, headers, body),) = stub.seen
    assert path == ("/v1/systemone" if kind == "systemone" else "/v1/decisions")
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == "Bearer the-key"
    assert body["model"] == ("jev-latest" if kind == "systemone" else "gpt-6-luna")


def test_the_fields_that_start_with_x_are_dropped(remote: Hub, stub: Stub) -> None:
    stub.replies = [(200, {}, changed(SYSTEMONE, "answers.n.x_label_mass", 1))]
    assert remote.evaluate({**REQUEST, "provider": "systemone"})["results"]["a"]["answers"] == ANSWERS


BAD_SYSTEMONE: list[tuple[str, Any]] = [
    ("answers", ...),
    ("answers", {}),
    ("answers.n", ...),
    ("answers.more", {"type": "noul", "noul": 0.5}),
    ("answers.n.surprise", 1),
    ("answers.n.type", "choice"),
    ("answers.n.noul", ...),
    ("answers.n.noul", True),
    ("answers.n.noul", 1.5),
    ("answers.n.noul", "0.5"),
    ("answers.c.choice", "c"),
    ("answers.c.confidence", ...),
    ("answers.c.probabilities.a", ...),
    ("answers.c.probabilities.c", 0.0),
    ("answers.c.probabilities.a", 0.229),  # with 0.75 the sum is 0.979
    ("answers.c.probabilities.a", 0.271),
    ("answers.s.score", 2.5),
    ("answers.s.probabilities.3", 0.0),
    ("answers.s.legend", {"0": "low", "1": {"level": 1}}),
    ("answers.s.legend", {**LEGEND, "2": "High"}),
    ("answers.s.legend", {**LEGEND, "1": {"level": True}}),
    ("answers.s.legend", {**LEGEND, "1": {"level": "1"}}),
    ("model", None),
    ("usage", ...),
    ("usage.input_tokens", 1.5),
    ("usage.input_tokens", -1),
]
BAD_OPENAI: list[tuple[str, Any]] = [
    ("answers", ...),
    ("answers", None),
    ("answers", []),
    ("answers.0", ...),
    ("answers.0", "yes"),
    ("answers.0.type", "refusal"),
    ("answers.0.type", "score"),
    ("answers.0.probability", ...),
    ("answers.0.probability", 7),
    ("answers.1.choice", True),
    ("answers.1.probabilities.1.value", "a"),
    ("answers.1.probabilities.1.value", False),
    ("answers.1.probabilities.1.value", ["b"]),
    ("answers.1.probabilities.1.probability", 0.8),
    ("answers.2.probabilities.0.label", "lower"),
    ("answers.2.probabilities.0.value", 1),
    ("answers.2.probabilities", {}),
    ("model", None),
    ("usage", ...),
    ("usage.output_tokens", True),
]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [("systemone", *bad) for bad in BAD_SYSTEMONE] + [("openai", *bad) for bad in BAD_OPENAI],
)
def test_what_is_no_answer_is_refused(remote: Hub, stub: Stub, kind: str, path: str, value: Any) -> None:
    stub.replies = [(200, {}, changed(GOOD[kind], path, value))]
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert (envelope["status"], envelope.get("code")) == ("error", "invalid_response"), envelope
    assert envelope["provider_error"]["message"]
    assert "results" not in envelope
    assert len(stub.seen) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounding", [0.231, 0.269])
def test_rounded_probabilities_are_accepted(remote: Hub, stub: Stub, kind: str, rounding: float) -> None:
    path = "answers.c.probabilities.a" if kind == "systemone" else "answers.1.probabilities.0.probability"
    stub.replies = [(200, {}, changed(GOOD[kind], path, rounding))]
    assert remote.evaluate({**REQUEST, "provider": kind})["status"] == "ok"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text[:-1],
        lambda text: b"<html>",
        lambda text: b"",
        lambda text: b"[1]",
        lambda text: text.replace(b"0.25", b"NaN"),
        lambda text: text.replace(b'"noul": 0.25', b'"noul": 0.25, "noul": 0.25').replace(
            b'"probability": 0.25}', b'"probability": 0.25, "probability": 0.25}'
        ),
        lambda text: text + b"{}",
    ],
)
def test_a_body_that_is_no_strict_json_is_refused(
    remote: Hub, stub: Stub, kind: str, edit: Callable[[bytes], bytes]
) -> None:
    stub.replies = [(200, {}, edit(json.dumps(GOOD[kind]).encode()))]
    assert remote.evaluate({**REQUEST, "provider": kind})["code"] == "invalid_response"


# -- errors and retries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_request"),
        (401, "missing_key"),
        (403, "missing_key"),
        (404, "provider_unavailable"),
        (413, "payload_too_large"),
        (422, "invalid_request"),
        (418, "http"),
        (307, "http"),
    ],
)
def test_what_the_server_refuses_is_not_tried_again(remote: Hub, stub: Stub, kind: str, status: int, code: str) -> None:
    body = {"detail": {"error_type": "x", "message": "because of that"}, "error": {"message": "because of that"}}
    stub.replies = [(status, {"location": "/elsewhere"} if status == 307 else {}, body)]
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert (envelope["code"], envelope["stats"]["attempts"]) == (code, 1), envelope
    assert "because of that" in envelope["provider_error"]["message"]
    assert ("STUB_KEY" in envelope["provider_error"]["message"]) == (code == "missing_key")
    assert "retry_after_ms" not in envelope
    assert envelope["stats"]["usage_complete"] is False
    assert len(stub.seen) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [400, 401])
def test_a_key_that_the_server_repeats_is_not_told(remote: Hub, stub: Stub, kind: str, status: int) -> None:
    key = "the-key"
    message = f"Bearer {key} is no key of ours"
    stub.replies = [(status, {}, {"detail": {"error_type": "x", "message": message}, "error": {"message": message}})]
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert "Bearer [STUB_KEY] is no key of ours" in envelope["provider_error"]["message"]
    assert key not in str(remote.judges()) + str(envelope)


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_pass_is_tried_again(remote: Hub, stub: Stub, kind: str) -> None:
    busy = (503, {"retry-after-ms": "1"}, {"detail": {"message": "busy"}})
    stub.replies = [busy, (429, {"retry-after-ms": "1"}, {}), (200, {}, GOOD[kind])]
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert envelope["status"] == "ok"
    assert (envelope["stats"]["attempts"], envelope["stats"]["requests"]) == (3, 1)
    stub.replies = [(503, {"retry-after-ms": "7"}, {})]
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert (envelope["code"], envelope["retry_after_ms"], envelope["stats"]["attempts"]) == ("http", 7, 3)


def test_a_wait_that_the_deadline_does_not_allow_is_not_begun(remote: Hub, stub: Stub) -> None:
    stub.replies = [(429, {"retry-after": "20"}, {})]
    envelope = remote.evaluate({**REQUEST, "provider": "systemone", "timeout_ms": 10_000})
    assert (envelope["code"], envelope["retry_after_ms"], envelope["stats"]["attempts"]) == ("http", 20_000, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_stops_a_wait(remote: Hub, stub: Stub, kind: str) -> None:
    stub.gate.clear()
    stub.replies = [(200, {}, GOOD[kind])]
    envelope = remote.evaluate({**REQUEST, "provider": kind, "timeout_ms": 500})
    assert (envelope["code"], envelope["stats"]["usage_complete"]) == ("deadline", False)
    assert stub.hung_up.wait(10)
    assert len(stub.seen) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_try_that_takes_too_long_is_no_deadline(
    stub: Stub, write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("STUB_KEY", "k")
    stub.gate.clear()
    stub.replies = [(200, {}, GOOD[kind])]
    envelope = write_hub(tables(stub, attempt_timeout_ms=100)).evaluate(
        {**REQUEST, "provider": kind, "timeout_ms": 60_000}
    )
    assert (envelope["code"], envelope["stats"]["attempts"]) == ("attempt_timeout", 3), envelope


@pytest.mark.parametrize("kind", KINDS)
def test_cancel_stops_the_request_itself(remote: Hub, stub: Stub, kind: str) -> None:
    stub.gate.clear()
    stub.replies = [(200, {}, GOOD[kind])]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(remote.evaluate, {**REQUEST, "provider": kind, "request_id": "r"})
        wait_for(lambda: stub.seen)
        assert remote.cancel({"request_id": "r"}) == {"status": "ok", "cancelled": True}
        assert call.result(10)["code"] == "cancelled"
    assert stub.hung_up.wait(10)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_the_hub_stops_a_call(
    stub: Stub, write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("STUB_KEY", "k")
    hub = write_hub(tables(stub))
    stub.gate.clear()
    stub.replies = [(200, {}, GOOD[kind])]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(hub.evaluate, {**REQUEST, "provider": kind})
        wait_for(lambda: stub.seen)
        hub.close()
        assert call.result(10)["code"] == "provider_unavailable"
    assert stub.hung_up.wait(10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there(write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("STUB_KEY", "k")
    table = f'[judges.j]\nprovider = "{kind}"\nhost = "http://127.0.0.1:9"\nkey_env = "STUB_KEY"\n'
    envelope = write_hub('default = "j"\n' + table).evaluate(ask())
    assert (envelope["code"], envelope["stats"]["attempts"]) == ("transport", 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_that_is_no_address(write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("STUB_KEY", "k")
    table = f'[judges.j]\nprovider = "{kind}"\nhost = "http://256.1.1.1"\nkey_env = "STUB_KEY"\n'
    hub = write_hub('default = "j"\n' + table)
    envelope = hub.evaluate(ask())
    assert (envelope["code"], envelope["stats"]["attempts"]) == ("transport", 0)
    assert "256.1.1.1" in envelope["provider_error"]["message"]
    assert hub.judges()[0].state == "unreachable"


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_whole_or_an_error(remote: Hub, stub: Stub, kind: str) -> None:
    def reply(body: Wire) -> tuple[int, Wire, Wire]:
        return (422, {}, {"detail": "not this one"}) if "bad one" in json.dumps(body) else (200, {}, GOOD[kind])

    stub.replies = [reply]
    evaluations = [{"id": name, "state": name, "questions": QUESTIONS} for name in ("good", "fine", "bad one")]
    envelope = remote.evaluate({"provider": kind, "evaluations": evaluations})
    assert (envelope["status"], envelope["code"]) == ("error", "invalid_request")
    assert "evaluation 'bad one'" in envelope["provider_error"]["message"]
    assert "results" not in envelope


def test_two_models_in_one_call_are_no_answer(remote: Hub, stub: Stub) -> None:
    stub.replies = [lambda body: (200, {}, {**SYSTEMONE, "model": f"jev-{body.get('state')}"})]
    evaluations = [{"id": name, "state": name, "questions": QUESTIONS} for name in ("1", "2")]
    envelope = remote.evaluate({"provider": "systemone", "evaluations": evaluations})
    assert envelope["code"] == "invalid_response"
    assert "jev-1, jev-2" in envelope["provider_error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_get_their_own_answers(remote: Hub, stub: Stub, kind: str) -> None:
    def reply(body: Wire) -> tuple[int, Wire, Wire]:
        p = float(body["state" if kind == "systemone" else "input"])
        path = "answers.n.noul" if kind == "systemone" else "answers.0.probability"
        return 200, {}, changed(GOOD[kind], path, p)

    stub.replies = [reply]

    def work(number: int) -> bool:
        states = [f"0.{number}{i}1" for i in range(12)]
        evaluations = [{"id": state, "state": state, "questions": QUESTIONS} for state in states]
        envelope = remote.evaluate({"provider": kind, "request_id": str(number), "evaluations": evaluations})
        return [envelope["results"][state]["answers"]["n"]["noul"] for state in states] == [float(s) for s in states]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_model_that_is_set_by_hand_is_its_judges_own(stub: Stub, write_hub: WriteHub) -> None:
    table = f'provider = "systemone"\nhost = "{stub.url}"\n'
    hub = write_hub(f'default = "a"\n[judges.a]\n{table}model = "jev-preview"\n[judges.b]\n{table}')
    stub.replies = [(200, {}, SYSTEMONE)]
    for name in ("a", "b", "a"):
        assert hub.evaluate({**REQUEST, "provider": name})["model"] == "jev-1"
    assert [body["model"] for _, _, body in stub.seen] == ["jev-preview", "jev-latest", "jev-preview"]
    refused = hub.evaluate({**REQUEST, "provider": "b", "model": "jev-preview"})
    assert refused["code"] == "provider_unavailable"


# -- keys


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, "", "  ", "a b", "é", "a\nb"])
def test_without_its_key_nothing_is_sent(
    stub: Stub, write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch, kind: str, value: str | None
) -> None:
    remote = write_hub(tables(stub))
    monkeypatch.delenv("STUB_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("STUB_KEY", value)
    envelope = remote.evaluate({**REQUEST, "provider": kind})
    assert envelope["code"] == "missing_key"
    assert "STUB_KEY" in envelope["provider_error"]["message"]
    assert envelope["stats"]["requests"] == 0
    assert stub.seen == []
    monkeypatch.setenv("STUB_KEY", "k")
    stub.replies = [(200, {}, GOOD[kind])]
    assert remote.evaluate({**REQUEST, "provider": kind})["status"] == "ok"


def test_a_key_of_another_server_is_not_sent(stub: Stub, write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TYPESAFE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    hub = write_hub(f'default = "j"\n[judges.j]\nprovider = "systemone"\nhost = "{stub.url}"\n')
    stub.replies = [(200, {}, SYSTEMONE)]
    assert hub.evaluate(REQUEST)["status"] == "ok"
    assert "secret" not in repr(stub.seen)


def test_more_questions_than_the_api_takes(remote: Hub, stub: Stub) -> None:
    evaluation = {"id": "a", "state": "x", "questions": {str(i): NOUL for i in range(401)}}
    envelope = remote.evaluate({"provider": "openai", "evaluations": [evaluation]})
    assert (envelope["code"], stub.seen) == ("invalid_request", [])
    assert "400" in envelope["provider_error"]["message"]
