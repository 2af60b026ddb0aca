"""The three questions of the file tools, and how a question is written for a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import parse_question
from ..errors import InvalidRequest
from ..judges.answers import question_wire
from ..questions import MAX_OPTIONS, Choice, Noul, Question, Score, parse_questions
from .results import QuestionType

__all__ = ["bool_question", "choice_question", "make_question", "parse", "score_question", "to_wire"]

_OTHER, _NO_OTHER = "other", ("other", "none", "none_of_the_above")


def bool_question(question: str, yes: str | None = None, no: str | None = None) -> Noul:
    """A yes/no question; `yes` and `no` say what each answer means."""
    return Noul(question, {"true": yes, "false": no})


def choice_question(question: str, options: Mapping[str, str | None]) -> Choice:
    """A choice among options and their descriptions; ``other`` joins them unless an option says none of them already.

    Raises
    ------
    InvalidRequest
        No map of options, an empty one, or more than fit beside ``other``.
    """
    if not options:
        raise InvalidRequest("needs at least one option; name what to choose from", field="options")
    if not isinstance(options, Mapping):
        raise InvalidRequest("must be a map of names to descriptions, which may be None", field="options")
    if not any(name in options for name in _NO_OTHER):
        options = {**options, _OTHER: "None of the above"}
    if len(options) > MAX_OPTIONS:
        raise InvalidRequest(
            f"has {len(options)} options, 'other' included; at most {MAX_OPTIONS} can be told apart", field="options"
        )
    return Choice(question, options)


def score_question(question: str, levels: Sequence[str]) -> Score:
    """A rating on levels, lowest first."""
    try:
        return Score(question, levels)
    except InvalidRequest as error:
        field = None if error.field is None else error.field.replace("criteria", "levels", 1)
        raise InvalidRequest(error.message, field=field) from None


def make_question(
    question_type: QuestionType,
    question: str,
    *,
    yes: str | None = None,
    no: str | None = None,
    options: Mapping[str, str | None] | None = None,
    levels: Sequence[str] | None = None,
) -> Question:
    """A question of the type that a caller names.

    Raises
    ------
    InvalidRequest
        Another type, a part that the type has no use for, or one that it lacks.
    """
    given = {"yes": yes, "no": no, "options": options, "levels": levels}
    parts = {"bool": ("yes", "no"), "choice": ("options",), "score": ("levels",)}
    if question_type not in parts:
        raise InvalidRequest(f"must be one of {', '.join(parts)}; got {question_type!r}", field="question_type")
    used = parts[question_type]
    for name, value in given.items():
        if value is not None and name not in used:
            raise InvalidRequest(f"is not for a {question_type} question; leave it out", field=name)
    if question_type == "bool":
        return bool_question(question, yes, no)
    if question_type == "choice":
        return choice_question(question, options or {})
    return score_question(question, levels or ())


def parse(questions: Mapping[str, Question | Mapping[str, Any]]) -> dict[str, Question]:
    """Questions by id, each as it is or in the wire form of the judge contract.

    Raises
    ------
    InvalidRequest
        None at all, or one that cannot be asked; names it and the field at fault.
    """
    if not isinstance(questions, Mapping):
        raise InvalidRequest("must be an object of question ids to questions", field="questions")
    return parse_questions(
        {
            name: asked if isinstance(asked, Noul | Choice | Score) else parse_question(name, asked)
            for name, asked in questions.items()
        }
    )


def to_wire(question: Question) -> dict[str, Any]:
    """A question in the wire form of the judge contract.

    Raises
    ------
    InvalidRequest
        A score with ``isolated=False``, which the contract cannot say.
    """
    if isinstance(question, Score) and not question.isolated:
        raise InvalidRequest("isolated=False is not in the judge contract; ask a Decider directly", field="isolated")
    return question_wire(question)
