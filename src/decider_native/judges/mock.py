"""A judge that is told what to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..contract import Call, Judge, Limits, Measure, Reply
from ..questions import Choice, Json, Noul, Question
from ..scoring import choice_confidence, score_confidence
from .answers import Wire, check_answers, checked_evaluations, measure_bytes
from .errors import InvalidResponse
from .settings import MockSettings

__all__ = ["MockJudge"]

_CONTEXT_WINDOW = 16384


class MockJudge(Judge):
    """Answers by question id, without any model.

    A noul is forced with true, false or a probability; a choice with an option or a map of options to probabilities; a
    score with a level, which may lie between two, or an array of probabilities. What is not forced is answered evenly:
    every option as likely as the other. A forced answer that does not fit its question is ``invalid_response``.
    """

    def __init__(self, settings: MockSettings, *, limits: Limits | None = None) -> None:
        super().__init__(settings.name, limits=limits)
        self.settings = settings

    def answer(self, call: Call) -> Reply:
        """Answer a call with what is forced."""
        self.check_served(call, self.settings.model)
        results: dict[str, dict[str, Any]] = {}
        for done, evaluation in enumerate(checked_evaluations(call), start=1):
            call.remaining()
            call.current = evaluation.id
            answers = {name: self._answer(name, question) for name, question in evaluation.questions.items()}
            results[evaluation.id] = {
                "answers": check_answers(evaluation.questions, answers),
                "usage": {"input_tokens": 0, "output_tokens": 0},
            }
            call.current = None
            if call.progress is not None:
                call.progress(done, len(call.evaluations))
        return Reply(self.settings.model, results)

    def list_models(self) -> list[dict[str, Any]]:
        """The one model, which is none."""
        return [
            {
                "name": self.settings.model,
                "description": "answers as it is told",
                "release_date": "",
                "context_window": _CONTEXT_WINDOW,
                "max_options": 255,
            }
        ]

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure`, from bytes."""
        return measure_bytes(state, questions, _CONTEXT_WINDOW)

    def close(self) -> None:
        """Do nothing: it holds nothing."""

    def _answer(self, name: str, question: Question) -> Wire:
        forced = self.settings.answers.get(name)
        if isinstance(question, Noul):
            return {"type": "noul", "noul": 0.5 if forced is None else _probability(name, forced)}
        if isinstance(question, Choice):
            p = _choice(name, forced, list(question.criteria))
            values = list(p.values())
            likeliest = max(p, key=lambda option: p[option])
            return {"type": "choice", "choice": likeliest, "confidence": choice_confidence(values), "probabilities": p}
        levels = _levels(name, forced, len(question.criteria))
        return {
            "type": "score",
            "score": min(float(np.arange(len(levels)) @ levels), len(levels) - 1.0),
            "confidence": score_confidence(levels),
            "probabilities": {str(i): float(p) for i, p in enumerate(levels)},
            "legend": {str(i): level for i, level in enumerate(question.criteria)},
        }


def _probability(name: str, forced: object) -> float:
    if not isinstance(forced, (bool, int, float)):
        raise InvalidResponse(f"the forced answer of {name!r} must be true, false or a probability")
    return float(forced)


def _choice(name: str, forced: object, options: list[str]) -> dict[str, float]:
    if forced is None:
        return dict.fromkeys(options, 1 / len(options))
    given = {forced: 1.0} if isinstance(forced, str) else forced
    if not isinstance(given, Mapping) or not set(given) <= set(options):
        raise InvalidResponse(f"the forced answer of {name!r} names other options than the question")
    return {option: _probability(name, given.get(option, 0.0)) for option in options}


def _levels(name: str, forced: object, count: int) -> list[float]:
    if forced is None:
        return [1 / count] * count
    if isinstance(forced, list):
        if len(forced) != count:
            raise InvalidResponse(f"the forced answer of {name!r} must have {count} probabilities")
        return [_probability(name, p) for p in forced]
    level = _probability(name, forced)
    if not 0 <= level <= count - 1:
        raise InvalidResponse(f"the forced answer of {name!r} must be a level from 0 to {count - 1}")
    return [max(0.0, 1 - abs(i - level)) for i in range(count)]
