"""Answers: the wire form field by field, with diagnostics only when asked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decider_native.answers import ChoiceAnswer, Diagnostics, NoulAnswer, Result, ScoreAnswer, Usage

NOUL = NoulAnswer(0.75, 0.9)
CHOICE = ChoiceAnswer("b", 0.5, ("a", "b"), (0.25, 0.75), 0.9)
SCORE = ScoreAnswer(1.5, 0.25, ("low", {"text": ["mid"]}, None), (0.1, 0.3, 0.6), 0.8, (0.2, 0.6, 1.2), 2.0)


def test_noul() -> None:
    assert NOUL.to_dict() == {"type": "noul", "noul": 0.75}
    assert NOUL.to_dict(diagnostics=True) == {"type": "noul", "noul": 0.75, "x_label_mass": 0.9}
    assert NOUL.answer is True
    assert NoulAnswer(0.5, 1.0).answer is False
    assert NOUL.array().tolist() == [0.25, 0.75]


def test_choice() -> None:
    wire = {
        "type": "choice",
        "choice": "b",
        "confidence": 0.5,
        "probabilities": {"a": 0.25, "b": 0.75},
    }
    assert CHOICE.to_dict() == wire
    assert CHOICE.probabilities == {"a": 0.25, "b": 0.75}
    certainty = 1 + (0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    assert CHOICE.certainty == pytest.approx(certainty)
    assert CHOICE.to_dict(diagnostics=True) == wire | {
        "x_p_max": 0.75,
        "x_certainty": CHOICE.certainty,
        "x_label_mass": 0.9,
    }
    assert CHOICE.array().dtype == np.float64
    assert CHOICE.array().tolist() == [0.25, 0.75]


def test_score() -> None:
    wire = {
        "type": "score",
        "score": 1.5,
        "confidence": 0.25,
        "probabilities": {"0": 0.1, "1": 0.3, "2": 0.6},
        "legend": {"0": "low", "1": {"text": ["mid"]}, "2": None},
    }
    assert SCORE.to_dict() == wire
    assert SCORE.to_dict(diagnostics=True) == wire | {
        "x_p_max": 0.6,
        "x_certainty": SCORE.certainty,
        "x_label_mass": 0.8,
        "x_level_fit": {"0": 0.2, "1": 0.6, "2": 1.2},
        "x_fit_mass": 2.0,
    }
    assert SCORE.array().tolist() == [0.1, 0.3, 0.6]


def test_levels_read_in_one_row_have_no_fit() -> None:
    answer = ScoreAnswer(0.5, 0.0, ("a", "b"), (0.5, 0.5), 1.0)
    assert set(answer.to_dict(diagnostics=True)) == {
        *("type", "score", "confidence", "probabilities", "legend", "x_p_max", "x_certainty", "x_label_mass")
    }


def test_the_wire_legend_is_a_copy() -> None:
    SCORE.to_dict()["legend"]["1"]["text"].append("changed")
    assert SCORE.legend[1] == {"text": ["mid"]}


def test_result() -> None:
    result = Result("decider", {"n": NOUL, "c": CHOICE}, Usage(12), Diagnostics(2, 10, 1, 0, 3.5))
    assert result.to_dict() == {
        "model": "decider",
        "answers": {"n": NOUL.to_dict(), "c": CHOICE.to_dict()},
        "usage": {"input_tokens": 12, "output_tokens": 0},
    }
    full = result.to_dict(diagnostics=True)
    assert full["answers"]["c"]["x_p_max"] == 0.75
    assert full["x_diagnostics"] == {
        "rows": 2,
        "decoded_tokens": 10,
        "padded_tokens": 1,
        "reused_tokens": 0,
        "elapsed_ms": 3.5,
    }
    assert json.loads(json.dumps(full, allow_nan=False)) == full
