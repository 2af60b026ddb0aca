"""A judge that is told its answers."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import WriteHub

QUESTIONS: dict[str, Any] = {
    "n": {"type": "noul", "instructions": "?"},
    "c": {"type": "choice", "criteria": {"a": None, "b": None, "c": None, "d": None}},
    "s": {"type": "score", "criteria": ["low", "mid", "high"]},
}


def answers(write_hub: WriteHub, forced: str, **questions: Any) -> Any:
    hub = write_hub(f'default = "m"\n[judges.m]\nprovider = "mock"\n[judges.m.answers]\n{forced}')
    asked = questions or QUESTIONS
    envelope = hub.evaluate({"evaluations": [{"id": "a", "state": "x", "questions": asked}]})
    return envelope["results"]["a"]["answers"] if envelope["status"] == "ok" else envelope


def test_what_is_not_forced_is_even(write_hub: WriteHub) -> None:
    assert answers(write_hub, "") == {
        "n": {"type": "noul", "noul": 0.5},
        "c": {
            "type": "choice",
            "choice": "a",
            "confidence": 0.0,
            "probabilities": {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25},
        },
        "s": {
            "type": "score",
            "score": pytest.approx(1.0),
            "confidence": pytest.approx(0.0),
            "probabilities": {"0": pytest.approx(1 / 3), "1": pytest.approx(1 / 3), "2": pytest.approx(1 / 3)},
            "legend": {"0": "low", "1": "mid", "2": "high"},
        },
    }


def test_what_is_forced_is_answered(write_hub: WriteHub) -> None:
    plain = answers(write_hub, 'n = true\nc = "b"\ns = 2')
    assert plain["n"]["noul"] == 1.0
    assert (plain["c"]["choice"], plain["c"]["confidence"]) == ("b", 1.0)
    assert plain["c"]["probabilities"] == {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0}
    assert (plain["s"]["score"], plain["s"]["confidence"]) == (2.0, 1.0)
    spread = answers(write_hub, "n = 0.2\nc = {a = 0.3, d = 0.7}\ns = 1.25")
    assert spread["n"]["noul"] == 0.2
    assert spread["c"]["choice"] == "d"
    assert spread["c"]["confidence"] == pytest.approx((4 * 0.7 - 1) / 3)
    assert spread["s"]["probabilities"] == {"0": 0.0, "1": 0.75, "2": 0.25}
    assert spread["s"]["score"] == 1.25
    listed = answers(write_hub, "s = [0.5, 0, 0.5]")
    assert (listed["s"]["score"], listed["s"]["confidence"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    "forced",
    [
        'n = "yes"',
        "n = 1.5",
        'c = "z"',
        "c = {z = 1}",
        "c = {a = 0.5}",
        "c = {a = 'much'}",
        "c = 1",
        "s = 3",
        "s = -1",
        "s = [1, 0]",
        "s = [1, 1, 1]",
        's = "mid"',
    ],
)
def test_a_forced_answer_that_does_not_fit(write_hub: WriteHub, forced: str) -> None:
    envelope = answers(write_hub, forced)
    assert envelope["code"] == "invalid_response"
    assert repr(forced[0]) in envelope["provider_error"]["message"]
