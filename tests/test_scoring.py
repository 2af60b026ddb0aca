"""Scoring: hand arithmetic, the published definitions and what must always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from decider_native.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer, certainty
from decider_native.errors import BackendError
from decider_native.questions import Choice, Noul, Score
from decider_native.scoring import (
    RowScore,
    answer_question,
    choice_confidence,
    input_tokens,
    score_confidence,
    score_row,
    softmax,
)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

LOGITS = hnp.arrays(np.float32, st.integers(2, 255), elements=st.floats(-100, 100, width=32))
TEMPERATURES = st.floats(0.05, 20)


def row(*p: float, label_mass: float = 0.9) -> RowScore:
    return RowScore(np.array(p), label_mass)


class TestSoftmax:
    def test_by_hand(self) -> None:
        assert softmax([0.0, math.log(3)], 1.0) == pytest.approx([0.25, 0.75], rel=1e-15)
        assert softmax([0.0, 2 * math.log(3)], 2.0) == pytest.approx([0.25, 0.75], rel=1e-15)

    def test_decider_ais_row(self) -> None:
        # Label logits and probabilities at T = 1.935 of one decider-ai row, computed there in float32.
        p = softmax(np.array([5.010540962219238, 3.5224215984344482], dtype=np.float32), 1.935)
        assert p == pytest.approx([0.6833162307739258, 0.3166837692260742], abs=3e-7)

    @unhurried
    @given(LOGITS, TEMPERATURES)
    def test_sums_to_one(self, logits: np.ndarray, temperature: float) -> None:
        p = softmax(logits, temperature)
        assert p.dtype == np.float64
        assert p.shape == logits.shape
        assert abs(p.sum() - 1) < 1e-12
        assert (p >= 0).all()

    @unhurried
    @given(LOGITS, TEMPERATURES, st.integers(-1000, 1000))
    def test_does_not_see_a_shift(self, logits: np.ndarray, temperature: float, shift: int) -> None:
        values = logits.astype(np.float64)
        assert softmax(values + shift, temperature) == pytest.approx(softmax(values, temperature), abs=1e-9)

    @pytest.mark.parametrize("temperature", [1e-300, 1e300])
    def test_extremes_stay_finite(self, temperature: float) -> None:
        for logits in ([3e38, -3e38], [1e308, -1e308], [0.0, 0.0]):
            p = softmax(logits, temperature)
            assert np.isfinite(p).all()
            assert p.sum() == pytest.approx(1)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_logits_that_are_not_finite_name_the_question(self, bad: float) -> None:
        with pytest.raises(BackendError, match="question 'team'"):
            score_row("team", [1.0, bad], 1.0, 0.5)
        with pytest.raises(BackendError, match="question 'team'"):
            score_row("team", [1.0, 2.0], 1.0, bad)

    def test_a_row_is_read_at_its_temperature(self) -> None:
        scored = score_row("q", np.array([0, 1], dtype=np.float32), 0.5, 0.25)
        assert scored.probabilities == pytest.approx([1 / (1 + math.e**2), math.e**2 / (1 + math.e**2)])
        assert scored.label_mass == 0.25


class TestConfidence:
    @pytest.mark.parametrize(
        ("p", "expected"),
        [
            ([1.0], 1.0),
            ([0.5, 0.5], 0.0),
            ([0.75, 0.25], 0.5),
            ([0.6, 0.3, 0.1], 0.4),  # (3 * 0.6 - 1) / 2
            ([0.0, 1.0, 0.0, 0.0], 1.0),
        ],
    )
    def test_of_a_choice(self, p: list[float], expected: float) -> None:
        assert choice_confidence(p) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("p", "expected"),
        [
            ([0.25, 0.75], 0.5),  # two levels: as a choice
            ([1.0, 0.0, 0.0], 1.0),
            ([0.2, 0.7, 0.1], 0.55),  # spread 0.3, D = (1 + 0 + 1) / 3
            ([0.1, 0.2, 0.3, 0.4], 0.0),  # spread 1.0 from level 3, D = (1.5 + 0.5 + 0.5 + 1.5) / 4 = 1
            ([0.5, 0.0, 0.5], 0.0),  # spread 1, D = 2/3: clipped
            ([0.0, 0.1, 0.8, 0.1, 0.0], 1 - 0.2 / 1.2),
        ],
    )
    def test_of_a_score(self, p: list[float], expected: float) -> None:
        assert score_confidence(p) == pytest.approx(expected)

    def test_published_answers(self) -> None:
        assert choice_confidence([0.2547, 0.7453]) == pytest.approx(0.4906)
        assert score_confidence([0.5664, 0.3243, 0.1093]) == pytest.approx(0.1857, abs=1e-4)
        assert score_confidence([0.315, 0.0467, 0.0996, 0.5387]) == 0.0

    @unhurried
    @given(LOGITS)
    def test_stays_in_range(self, logits: np.ndarray) -> None:
        p = softmax(logits, 1.0)
        for value in (choice_confidence(p), score_confidence(p[:10] / p[:10].sum()), certainty(p)):
            assert 0 <= value <= 1

    def test_certainty(self) -> None:
        assert certainty([0.25] * 4) == 0.0
        assert certainty([0.0, 1.0]) == 1.0
        assert certainty([1.0]) == 1.0
        assert certainty([0.5, 0.5, 0.0, 0.0]) == pytest.approx(0.5)  # ln 2 / ln 4


class TestAnswers:
    def test_noul(self) -> None:
        answer = answer_question(Noul("x"), [row(0.3, 0.7)])
        assert answer == NoulAnswer(noul=0.7, label_mass=0.9)

    def test_choice(self) -> None:
        answer = answer_question(Choice("x", ["a", "b", "c"]), [row(0.1, 0.6, 0.3)])
        assert isinstance(answer, ChoiceAnswer)
        assert (answer.choice, answer.names, answer.p) == ("b", ("a", "b", "c"), (0.1, 0.6, 0.3))
        assert answer.confidence == pytest.approx(0.4)

    def test_the_first_of_equals_is_chosen(self) -> None:
        answer = answer_question(Choice("x", ["a", "b", "c"]), [row(0.2, 0.4, 0.4)])
        assert isinstance(answer, ChoiceAnswer)
        assert answer.choice == "b"

    def test_a_single_option_answers_itself(self) -> None:
        answer = answer_question(Choice("x", ["only"]), [])
        assert answer == ChoiceAnswer("only", 1.0, ("only",), (1.0,), 1.0)

    def test_isolated_levels_are_normalized(self) -> None:
        rows = [row(0.9, 0.1), row(0.7, 0.3, label_mass=0.2), row(0.4, 0.6)]
        answer = answer_question(Score("x", ["low", {"k": 1}, "high"]), rows)
        assert isinstance(answer, ScoreAnswer)
        assert answer.p == pytest.approx((0.1, 0.3, 0.6))
        assert answer.score == pytest.approx(1.5)
        assert answer.confidence == pytest.approx(1 - 0.5 / (2 / 3))
        assert answer.level_fit == (0.1, 0.3, 0.6)
        assert answer.fit_mass == pytest.approx(1.0)
        assert answer.label_mass == 0.2
        assert answer.legend == ("low", {"k": 1}, "high")

    def test_levels_in_one_row(self) -> None:
        answer = answer_question(Score("x", ["a", "b", "c"]), [row(0.2, 0.7, 0.1)])
        assert isinstance(answer, ScoreAnswer)
        assert (answer.p, answer.level_fit, answer.fit_mass) == ((0.2, 0.7, 0.1), None, None)
        assert answer.score == pytest.approx(0.9)

    def test_no_level_fits(self) -> None:
        answer = answer_question(Score("x", ["a", "b"]), [row(1.0, 0.0), row(1.0, 0.0)])
        assert isinstance(answer, ScoreAnswer)
        assert (answer.p, answer.score, answer.fit_mass) == ((0.5, 0.5), 0.5, 0.0)

    def test_the_legend_is_the_answers_own(self) -> None:
        question = Score("x", ["low", {"k": [1]}])
        answer = answer_question(question, [row(0.5, 0.5)])
        assert isinstance(answer, ScoreAnswer)
        answer.legend[1]["k"].append(2)  # type: ignore[call-overload,index,union-attr]
        assert question.criteria[1] == {"k": [1]}

    @unhurried
    @given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
    def test_scores_stay_on_the_scale(self, fits: list[float]) -> None:
        question = Score("x", [str(i) for i in range(len(fits))])
        answer = answer_question(question, [row(1 - fit, fit) for fit in fits])
        assert isinstance(answer, ScoreAnswer)
        assert 0 <= answer.score <= len(fits) - 1
        assert 0 <= answer.confidence <= 1
        assert math.fsum(answer.p) == pytest.approx(1)


class TestInputTokens:
    @pytest.mark.parametrize(
        ("rows", "expected"),
        [
            ([], 0),
            ([[1, 2, 3]], 3),
            ([[1, 2, 3], [1, 2, 4, 5]], 2 + 1 + 2),
            ([[1, 2], [1, 2, 3], [1, 9]], 1 + 1 + 2 + 1),
            ([[1, 2], [1, 2]], 2),
            ([[1], [2]], 2),
        ],
    )
    def test_the_common_prefix_counts_once(self, rows: list[list[int]], expected: int) -> None:
        assert input_tokens(rows) == expected
        assert input_tokens([np.array(ids, dtype=np.int32) for ids in rows]) == expected
