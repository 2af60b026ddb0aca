"""TypeSafe's ``/v1/systemone``, and ``/v1/systemone/batch`` in the same style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decider_native.answers import Result
from decider_native.contract import parse_question
from decider_native.errors import InvalidRequest
from decider_native.questions import Question, copy_json

from ..errors import HttpError
from . import Evaluation, Place

__all__ = ["batch_body", "error_body", "parse", "parse_batch", "result_body"]

MAX_EVALUATIONS = 512

_QUESTION_FIELDS = ("type", "instructions", "criteria")
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found",
    408: "timeout_error",
    413: "max_tokens_exceeded",
    429: "rate_limit_error",
    500: "internal_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def parse(body: Mapping[str, Any], place: Place = ()) -> Evaluation:
    """Read ``{"state", "questions"}``; other fields are ignored.

    Raises
    ------
    HttpError
        422, with the place of what cannot be asked; `place` is where the body itself stands.
    """
    if "state" not in body:
        raise HttpError(422, "is missing", place=(*place, "state"))
    state = body["state"]
    if state is not None and not isinstance(state, (str, Mapping, list)):
        raise HttpError(422, "must be text, an object or an array", place=(*place, "state"))
    if body.get("assets"):
        raise HttpError(422, "images are not supported here; describe them in the state", place=(*place, "assets"))
    questions = body.get("questions")
    if not isinstance(questions, Mapping) or not questions:
        raise HttpError(422, "must be an object with at least one question", place=(*place, "questions"))
    places = {name: _place(name, asked, place) for name, asked in questions.items()}
    return Evaluation(state, {name: _question(name, asked, places[name]) for name, asked in questions.items()}, places)


def parse_batch(body: Mapping[str, Any]) -> list[Evaluation]:
    """Read ``{"evaluations": [{"state", "questions"}, ...]}``. Errors as for `parse`."""
    items = body.get("evaluations")
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_EVALUATIONS:
        raise HttpError(422, f"must be an array of 1 to {MAX_EVALUATIONS} evaluations", place=("evaluations",))
    evaluations = []
    for i, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise HttpError(422, "must be an object with state and questions", place=("evaluations", i))
        evaluations.append(parse(item, ("evaluations", i)))
    return evaluations


def result_body(result: Result, diagnostics: bool = False) -> dict[str, Any]:
    """``{"model", "answers", "usage"}``; with `diagnostics`, the ``x_`` fields too."""
    return result.to_dict(diagnostics)


def batch_body(results: Sequence[Result], diagnostics: bool = False) -> dict[str, Any]:
    """``{"model", "results": [{"answers", "usage"}, ...], "usage"}`` in the order asked; `usage` is the sum."""
    items = [result.to_dict(diagnostics) for result in results]
    models = {item.pop("model") for item in items}
    usage = {name: sum(item["usage"][name] for item in items) for name in ("input_tokens", "output_tokens")}
    return {"model": models.pop(), "results": items, "usage": usage}


def error_body(error: HttpError) -> dict[str, Any]:
    """The body of an error: a list of places for 422, else a type and a message."""
    if error.status == 422:
        return {"detail": [{"loc": ["body", *error.place], "msg": error.message, "type": "value_error"}]}
    kind = _ERROR_TYPES.get(error.status, "api_usage_error")
    where = f"{'.'.join(map(str, error.place))}: " if error.place else ""
    return {"detail": {"error_type": kind, "message": where + error.message}}


def _place(name: str, asked: object, place: Place) -> Place:
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    return (*place, "questions", name, *([kind] if isinstance(kind, str) else []))


def _question(name: str, asked: object, place: Place) -> Question:
    try:
        if not copy_json(name, "questions"):
            raise InvalidRequest("has an empty id; use a non-empty string")
        if not isinstance(asked, Mapping):
            raise InvalidRequest("must be an object with type, instructions and criteria")
        return parse_question(name, {field: asked[field] for field in _QUESTION_FIELDS if field in asked})
    except InvalidRequest as error:
        raise HttpError(422, error.message, place=(*place, *([error.field] if error.field else []))) from None
