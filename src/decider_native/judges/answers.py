"""Questions and answers in wire form: what goes to a judge, and the check of what comes back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from ..config import ReadoutConfig
from ..contract import Call, Evaluation, Measure
from ..contract.call import shorten
from ..prompts import PlainLayout, question_rows, render_state
from ..questions import Choice, Json, Noul, Question, Score, copy_json, parse_questions
from .errors import InvalidResponse

__all__ = [
    "Wire",
    "check_answers",
    "checked_evaluations",
    "measure_bytes",
    "only_option",
    "question_wire",
]

Wire: TypeAlias = dict[str, Any]

_SUM_TOLERANCE = 0.02
_PROMPT_TOKENS = 256  # more than the words around a state and a question


def checked_evaluations(call: Call) -> list[Evaluation]:
    """The evaluations of a call, with what no JSON text can hold refused before anything is sent.

    Raises
    ------
    InvalidRequest
        A state or a question id that is not JSON.
    """
    checked = []
    for evaluation in call.evaluations:
        call.current = evaluation.id
        state, questions = copy_json(evaluation.state, "state"), parse_questions(evaluation.questions)
        checked.append(Evaluation(evaluation.id, state, questions))
    call.current = None
    return checked


def question_wire(question: Question) -> Wire:
    """A question as requests write it."""
    criteria = list(question.criteria) if isinstance(question, Score) else dict(question.criteria)
    return {"type": question.kind, "instructions": question.instructions, "criteria": criteria}


def only_option(question: Question) -> Wire:
    """The answer to a choice of one option."""
    (name,) = question.criteria
    return {"type": "choice", "choice": name, "confidence": 1.0, "probabilities": {name: 1.0}}


def measure_bytes(state: Json, questions: Mapping[str, Question], limit: int) -> Measure:
    """Bound the longest row that a state and questions make, for a judge whose vocabulary is not known.

    No token is shorter than a byte of the text, be that the JSON or what a decider model is shown of it.

    Raises
    ------
    InvalidRequest
        A state that is not JSON.
    """
    state = copy_json(state, "state")
    asked = max((_question_bytes(name, question) for name, question in questions.items()), default=0)
    shown = max(_size(state), len(render_state(state).encode()))
    return Measure(_PROMPT_TOKENS + shown + asked, limit)


def check_answers(questions: Mapping[str, Question], answers: object) -> dict[str, Wire]:
    """Return the answers to questions in the contract's form and order, or refuse them all.

    Parameters
    ----------
    questions
        What was asked.
    answers
        What came back: question ids to answers in wire form; fields that start with ``x_`` are dropped.

    Raises
    ------
    InvalidResponse
        Answers are missing or not asked for; an answer has another type or other fields; a number is not finite or out
        of range; probabilities do not cover the options or do not sum to 1 within 0.02; a legend is not the criteria.
    """
    given = _object(answers, "answers")
    _same_names(given, questions, "answers")
    return {name: _check(question, given[name], f"answer {shorten(name)!r}") for name, question in questions.items()}


def _check(question: Question, answer: object, where: str) -> Wire:
    body = {name: value for name, value in _object(answer, where).items() if not name.startswith("x_")}
    if body.get("type") != question.kind:
        raise InvalidResponse(f"{where}: its type must be {question.kind!r}")
    if isinstance(question, Noul):
        _same_names(body, ("type", "noul"), where)
        return {"type": "noul", "noul": _number(body["noul"], f"{where}: noul")}
    if isinstance(question, Choice):
        _same_names(body, ("type", "choice", "confidence", "probabilities"), where)
        if not isinstance(body["choice"], str) or body["choice"] not in question.criteria:
            raise InvalidResponse(f"{where}: choice must be one of the options")
        return {
            "type": "choice",
            "choice": body["choice"],
            "confidence": _number(body["confidence"], f"{where}: confidence"),
            "probabilities": _distribution(body["probabilities"], list(question.criteria), f"{where}: probabilities"),
        }
    _same_names(body, ("type", "score", "confidence", "probabilities", "legend"), where)
    legend = {str(i): level for i, level in enumerate(question.criteria)}
    if _canonical(body["legend"]) != _canonical(legend):
        raise InvalidResponse(f"{where}: the legend is not the criteria of the question")
    return {
        "type": "score",
        "score": _number(body["score"], f"{where}: score", len(legend) - 1),
        "confidence": _number(body["confidence"], f"{where}: confidence"),
        "probabilities": _distribution(body["probabilities"], list(legend), f"{where}: probabilities"),
        "legend": deepcopy(legend),
    }


def _distribution(value: object, names: Sequence[str], where: str) -> dict[str, float]:
    given = _object(value, where)
    _same_names(given, names, where)
    p = {name: _number(given[name], f"{where}: {shorten(name)!r}") for name in names}
    if abs(math.fsum(p.values()) - 1) > _SUM_TOLERANCE:
        raise InvalidResponse(f"{where}: they sum to {math.fsum(p.values()):.4f} and not to 1")
    return p


def _number(value: object, where: str, most: float = 1) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise InvalidResponse(f"{where} must be a number from 0 to {most}")
    return float(value)


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidResponse(f"{where}: must be an object")
    return value


def _same_names(given: Mapping[str, Any], wanted: Sequence[str] | Mapping[str, Any], where: str) -> None:
    for what, names in (("lacks", set(wanted) - set(given)), ("must not have", set(given) - set(wanted))):
        if names:
            raise InvalidResponse(f"{where}: {what} {', '.join(sorted(map(shorten, names))[:5])}")


def _question_bytes(name: str, question: Question) -> int:
    rows = question_rows(name, question, ReadoutConfig(), PlainLayout())
    shown = [sum(len(piece.encode()) if isinstance(piece, str) else 1 for piece in row.pieces) for row in rows]
    return max([_size(question_wire(question)), *shown])


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _size(value: Json) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
