"""OpenAI's ``/v1/decisions``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decider_native.answers import Answer, ChoiceAnswer, NoulAnswer, Result, ScoreAnswer
from decider_native.errors import InvalidRequest
from decider_native.questions import MAX_OPTIONS, Choice, Json, Noul, Question, Score

from ..errors import HttpError
from . import Evaluation, Place

__all__ = ["Decisions", "error_body", "parse"]

MAX_QUESTIONS = 400

_ROLES = ("user", "developer", "system", "assistant")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 408: "timeout_error", 504: "timeout_error"}
_ERROR_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    408: "timeout",
    413: "context_length_exceeded",
    422: "invalid_value",
    503: "overloaded",
    504: "timeout",
}


@dataclass(frozen=True, slots=True)
class Decisions:
    """A parsed request: what to evaluate, and how each question's answer is written."""

    evaluation: Evaluation
    writers: tuple[Callable[[Answer], dict[str, Any]], ...]

    def result_body(self, result: Result) -> dict[str, Any]:
        """``{"model", "answers", "usage"}``, with the answers in the order of the questions."""
        read = result.usage.input_tokens
        cached = min(read, result.diagnostics.reused_tokens)
        return {
            "model": result.model,
            "answers": [write(answer) for write, answer in zip(self.writers, result.answers.values(), strict=True)],
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": result.usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + result.usage.output_tokens,
            },
        }


def parse(body: Mapping[str, Any]) -> Decisions:
    """Read ``{"input", "questions"}``; other fields are ignored.

    Raises
    ------
    HttpError
        422, with the place of what cannot be asked.
    """
    if "input" not in body:
        raise _fault("is missing", "input")
    state = _state(body["input"])
    items = body.get("questions")
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_QUESTIONS:
        raise _fault(f"must be an array of 1 to {MAX_QUESTIONS} questions", "questions")
    asked = [_question(item, ("questions", i)) for i, item in enumerate(items)]
    questions = {str(i): question for i, (question, _) in enumerate(asked)}
    places: dict[str, Place] = {str(i): ("questions", i) for i in range(len(asked))}
    return Decisions(Evaluation(state, questions, places), tuple(write for _, write in asked))


def error_body(error: HttpError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    server_side = error.status >= 500 and error.status != 504
    kind = "server_error" if server_side else _ERROR_TYPES.get(error.status, "invalid_request_error")
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.place).lstrip(".")
    where = f"{place}: " if place else ""
    code = _ERROR_CODES.get(error.status)
    return {"error": {"message": where + error.message, "type": kind, "param": place or None, "code": code}}


def _state(given: Any) -> Json:
    """The input as one JSON value; a user message that stands alone is its content."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise _fault("must be text or an array of items", "input")
    calls: set[tuple[str, str]] = set()
    items = [_item(item, ("input", i), calls) for i, item in enumerate(given)]
    return items[0]["content"] if len(items) == 1 and items[0].get("role") == "user" else items


def _item(item: Any, place: Place, calls: set[tuple[str, str]]) -> dict[str, Any]:
    kind = _field(item, "type", str, place, default="message")
    if kind == "message":
        role = _field(item, "role", str, place)
        if role not in _ROLES:
            raise _fault(f"must be one of {', '.join(_ROLES)}", *place, "role")
        return {"role": role, "content": _content(item.get("content"), (*place, "content"), json_parts=role == "user")}
    if kind in _CALLS:
        calls.add((kind, _field(item, "call_id", str, place)))
        name, text = _CALLS[kind], _field(item, _CALLS[kind], str, place)
        return {"type": kind, "name": _field(item, "name", str, place), name: text}
    if kind in _OUTPUTS:
        if (_OUTPUTS[kind], _field(item, "call_id", str, place)) not in calls:
            raise _fault(f"names no {_OUTPUTS[kind]} before it", *place, "call_id")
        return {"type": kind, "output": _content(item.get("output"), (*place, "output"))}
    raise _fault(f"must be one of message, {', '.join((*_CALLS, *_OUTPUTS))}", *place, "type")


def _content(content: Any, place: Place, *, json_parts: bool = False) -> Json:
    """Text, or parts; a part that stands alone is its text or data."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _fault("must be text or an array of parts", *place)
    parts = [_part(part, (*place, i), json_parts) for i, part in enumerate(content)]
    return parts[0] if len(parts) == 1 else parts


def _part(part: Any, place: Place, json_parts: bool) -> Json:
    kind = _field(part, "type", str, place)
    if kind in _TEXT_PARTS:
        text: str = _field(part, _TEXT_PARTS[kind], str, place)
        return text
    if kind == "input_json" and json_parts:
        if "data" not in part:
            raise _fault("is missing", *place, "data")
        data: Json = part["data"]
        return data
    if kind == "input_image":
        raise _fault("images are not supported here; describe them in text", *place)
    raise _fault("must be input_text" + (" or input_json" if json_parts else ""), *place, "type")


def _question(item: Any, place: Place) -> tuple[Question, Callable[[Answer], dict[str, Any]]]:
    kind = _field(item, "type", str, place)
    name = None if item.get("name") is None else _field(item, "name", str, place)
    if "instructions" not in item:
        raise _fault("is missing", *place, "instructions")
    instructions = _content(item["instructions"], (*place, "instructions"), json_parts=True)
    head = {"type": kind, "name": name}
    try:
        if kind == "predicate":
            return Noul(instructions), lambda answer: head | _predicate(answer)
        if kind == "choice":
            values = _choices(item.get("choices"), (*place, "choices"))
            criteria = {text: description for text, (_, description) in values.items()}
            plain = [value for value, _ in values.values()]
            return Choice(instructions, criteria), lambda answer: head | _choice(answer, plain)
        if kind == "score":
            levels = _levels(item.get("levels"), (*place, "levels"))
            texts = [f"{label}: {text}" if text else label for label, text in levels]
            return Score(instructions, texts), lambda answer: head | _score(answer, [label for label, _ in levels])
    except InvalidRequest as error:
        field = {"choice": "choices", "score": "levels"}.get(kind) if error.field == "criteria" else error.field
        raise _fault(error.message, *place, *([field] if field else [])) from None
    raise _fault("must be one of predicate, choice, score", *place, "type")


def _choices(items: Any, place: Place) -> dict[str, tuple[str | bool, str | None]]:
    """Option texts to values and descriptions. ``true`` and ``"true"`` are two values, and so two texts."""
    if not isinstance(items, list) or not 2 <= len(items) <= MAX_OPTIONS:
        raise _fault(f"must be an array of 2 to {MAX_OPTIONS} choices", *place)
    choices: dict[str, tuple[str | bool, str | None]] = {}
    for i, item in enumerate(items):
        value = _field(item, "value", (str, bool), (*place, i))
        if any(type(value) is type(other) and value == other for other, _ in choices.values()):
            raise _fault("is the value of another choice too; give each its own", *place, i, "value")
        text = value if isinstance(value, str) else json.dumps(value)
        while text in choices:
            text = json.dumps(text, ensure_ascii=False)
        choices[text] = value, _description(item, (*place, i))
    return choices


def _levels(items: Any, place: Place) -> list[tuple[str, str | None]]:
    if not isinstance(items, list):
        raise _fault("must be an array of 2 to 10 levels, lowest first", *place)
    return [(_field(item, "label", str, (*place, i)), _description(item, (*place, i))) for i, item in enumerate(items)]


def _description(item: Mapping[str, Any], place: Place) -> str | None:
    return None if item.get("description") is None else _field(item, "description", str, place)


def _predicate(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, NoulAnswer)
    return {"probability": answer.noul}


def _choice(answer: Answer, values: list[str | bool]) -> dict[str, Any]:
    assert isinstance(answer, ChoiceAnswer)
    return {
        "choice": values[answer.names.index(answer.choice)],
        "confidence": answer.confidence,
        "probabilities": [{"value": value, "probability": p} for value, p in zip(values, answer.p, strict=True)],
    }


def _score(answer: Answer, labels: list[str]) -> dict[str, Any]:
    assert isinstance(answer, ScoreAnswer)
    return {
        "score": answer.score,
        "confidence": answer.confidence,
        "probabilities": [
            {"value": i, "label": label, "probability": p}
            for i, (label, p) in enumerate(zip(labels, answer.p, strict=True))
        ],
    }


def _field(item: Any, name: str, kinds: type | tuple[type, ...], place: Place, default: object = None) -> Any:
    if not isinstance(item, Mapping):
        raise _fault("must be an object", *place)
    value = item.get(name, default)
    if not isinstance(value, kinds):
        wanted = "text or a boolean" if isinstance(kinds, tuple) else "text"
        raise _fault(f"must be {wanted}" if name in item else "is missing", *place, name)
    return value


def _fault(message: str, *place: str | int) -> HttpError:
    return HttpError(422, message, place=place)
