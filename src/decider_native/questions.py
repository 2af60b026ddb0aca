"""The three question types and decider-ai's lenient way of writing them.

A question owns its data: values are checked and copied when it is made, so it always renders, and changing the caller's
dict afterwards does not change the question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from .errors import InvalidRequest

__all__ = [
    "KINDS",
    "MAX_DEPTH",
    "MAX_LEVELS",
    "MAX_OPTIONS",
    "MIN_LEVELS",
    "Choice",
    "Json",
    "Kind",
    "Noul",
    "Question",
    "Questions",
    "Score",
    "copy_json",
    "is_blank",
    "parse_question",
    "parse_questions",
]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Kind: TypeAlias = Literal["noul", "choice", "score"]

KINDS: tuple[Kind, ...] = ("noul", "choice", "score")
MAX_OPTIONS = 255
MIN_LEVELS, MAX_LEVELS = 2, 10
MAX_DEPTH = 200
"""Deepest nesting of arrays and objects in a state, an instruction or a description."""

_MAX_INT_BITS = 14284  # every integer this long has at most 4300 digits, Python's own limit for printing one
_MAX_PATH = 100


@dataclass(frozen=True, slots=True, init=False)
class Noul:
    """A yes/no question, answered with the probability of yes.

    Parameters
    ----------
    instructions
        What is asked: text or any JSON value. None or ``""``: the descriptions carry the question.
    criteria
        What ``"true"`` and ``"false"`` mean; each is optional, other keys are ignored.

    Raises
    ------
    InvalidRequest
        A value that is not JSON, or neither instructions nor a description.
    """

    instructions: Json
    criteria: Mapping[str, Json]
    kind: ClassVar[Kind] = "noul"

    def __init__(self, instructions: Json = None, criteria: Mapping[str, Json] | None = None) -> None:
        if criteria is not None and not isinstance(criteria, Mapping):
            raise InvalidRequest(
                f'must be a map with "true" and/or "false", or nothing; got {_type_name(criteria)}',
                field="criteria",
            )
        ends = {
            key: text for key, text in (criteria or {}).items() if isinstance(key, bool) or key in ("true", "false")
        }
        described = _copy_map(ends, "criteria")
        asked = copy_json(instructions, "instructions")
        if is_blank(asked) and all(is_blank(text) for text in described.values()):
            raise InvalidRequest(
                'asks nothing: give instructions, or a description of "true" or "false" in criteria',
                field="instructions",
            )
        _store(self, instructions=asked, criteria=described)


@dataclass(frozen=True, slots=True, init=False)
class Choice:
    """A choice of one among 1 to 255 options, answered with a probability per option.

    Parameters
    ----------
    instructions
        What is asked: text or any JSON value. None or ``""``: ``Which answer fits the context?``.
    criteria
        Option names and their descriptions (None or ``""``: none), or a list whose items name the options. Equal names
        in a list are one option. A single option answers itself.

    Raises
    ------
    InvalidRequest
        A value that is not JSON, no options, more than 255, or a list that repeats one name only.
    """

    instructions: Json
    criteria: Mapping[str, Json]
    kind: ClassVar[Kind] = "choice"

    def __init__(self, instructions: Json = None, criteria: Mapping[str, Json] | Sequence[Json] = ()) -> None:
        options: dict[str, Json]
        if isinstance(criteria, Mapping):
            options = _copy_map(criteria, "criteria")
        elif isinstance(criteria, (list, tuple)):
            options = {str(item): None for item in _copy_list(criteria, "criteria")}
        else:
            raise InvalidRequest(
                f"must be a map of option names to descriptions, or a list of names; got {_type_name(criteria)}",
                field="criteria",
            )
        if not 1 <= len(options) <= MAX_OPTIONS:
            advice = "name the options to choose from" if not options else "split them over several questions"
            raise InvalidRequest(f"needs 1 to {MAX_OPTIONS} options, got {len(options)}; {advice}", field="criteria")
        if len(options) == 1 < len(criteria):
            raise InvalidRequest(
                f"lists the same option {len(criteria)} times; give the options different names", field="criteria"
            )
        _store(self, instructions=copy_json(instructions, "instructions"), criteria=options)


@dataclass(frozen=True, slots=True, init=False)
class Score:
    """A rating on a scale of 2 to 10 described levels, answered with a probability per level.

    Parameters
    ----------
    instructions
        What is rated: text or any JSON value. None or ``""``: ``Which answer fits the context?``.
    criteria
        The level descriptions, lowest first; or a map of positions to descriptions, ordered by ``float(position)``.
    isolated
        Each level is judged in a row of its own, where the model's configuration allows it; False shows all in one.

    Raises
    ------
    InvalidRequest
        A value that is not JSON, a position that is no number, or not 2 to 10 levels.
    """

    instructions: Json
    criteria: tuple[Json, ...]
    isolated: bool
    kind: ClassVar[Kind] = "score"

    def __init__(
        self,
        instructions: Json = None,
        criteria: Sequence[Json] | Mapping[str, Json] = (),
        isolated: bool = True,
    ) -> None:
        levels: Sequence[Json]
        if isinstance(criteria, Mapping):
            legend = _copy_map(criteria, "criteria")
            levels = [legend[key] for key in sorted(legend, key=_position)]
        elif isinstance(criteria, (list, tuple)):
            levels = _copy_list(criteria, "criteria")
        else:
            raise InvalidRequest(
                f"must be a list of level descriptions, lowest first; got {_type_name(criteria)}", field="criteria"
            )
        if not MIN_LEVELS <= len(levels) <= MAX_LEVELS:
            raise InvalidRequest(
                f"needs {MIN_LEVELS} to {MAX_LEVELS} levels, got {len(levels)}; describe each level, lowest first",
                field="criteria",
            )
        asked = copy_json(instructions, "instructions")
        _store(self, instructions=asked, criteria=tuple(levels), isolated=bool(isolated))


Question: TypeAlias = Noul | Choice | Score
Questions: TypeAlias = Mapping[str, Question | Mapping[str, object]]


def parse_questions(questions: Questions) -> dict[str, Question]:
    """Check a map of question id to question; ids are any non-empty strings and never reach the model.

    Raises
    ------
    InvalidRequest
        Not a map, an empty one, or a question that cannot be asked (the error names it).
    """
    if not isinstance(questions, Mapping):
        raise InvalidRequest(
            f"must be a map of question ids to questions; got {_type_name(questions)}", field="questions"
        )
    if not questions:
        raise InvalidRequest("is empty; ask at least one question", field="questions")
    parsed: dict[str, Question] = {}
    for question_id, value in questions.items():
        if not isinstance(question_id, str):
            raise InvalidRequest(f"has an id of type {_type_name(question_id)}; use a string", field="questions")
        if not question_id:
            raise InvalidRequest("has an empty id; use a non-empty string", field="questions")
        parsed[str(copy_json(question_id, "questions"))] = parse_question(question_id, value)
    return parsed


def parse_question(question_id: str, value: Question | Mapping[str, object]) -> Question:
    """Read one question as decider-ai writes it.

    ``type`` defaults to ``"choice"`` and ``"bool"`` means ``"noul"``; ``question`` stands for ``instructions`` and
    ``options`` for ``criteria`` where those keys are absent; unknown keys are ignored.

    Raises
    ------
    InvalidRequest
        A question that cannot be asked; `question` is its id, `field` the part at fault.
    """
    if isinstance(value, (Noul, Choice, Score)):
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"must be a map with type, instructions and criteria, or a Noul, Choice or Score; got {_type_name(value)}",
            question=question_id,
        )
    body: Mapping[str, Any] = value  # the constructors check what they are given
    kind = body.get("type", "choice")
    instructions = body.get("instructions", body.get("question"))
    criteria = body.get("criteria", body.get("options"))
    try:
        if kind in ("noul", "bool"):
            return Noul(instructions, criteria)
        if kind == "choice":
            return Choice(instructions, () if criteria is None else criteria)
        if kind == "score":
            isolated = bool(copy_json(body.get("isolated", True), "isolated"))
            return Score(instructions, () if criteria is None else criteria, isolated)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, question=question_id, field=error.field) from None
    shown = repr(kind) if isinstance(kind, str) or kind is None else _type_name(kind)
    raise InvalidRequest(
        f"is unknown: {shown}; use 'choice', 'score' or 'noul' ('bool')", question=question_id, field="type"
    )


def is_blank(value: Json) -> bool:
    """Whether an instruction or description counts as none: null or ``""``, but not 0, false, [] or {}."""
    return value is None or value == ""


def copy_json(value: object, where: str) -> Json:
    """Check that a value is JSON and copy it into plain dicts, lists and scalars.

    Tuples become lists. Keys that are numbers, booleans or None become strings as `json.dumps` writes them.

    Parameters
    ----------
    value
        Any Python object.
    where
        What the value is, the start of the path in errors: ``"state"``, ``"criteria"``.

    Raises
    ------
    InvalidRequest
        A type that is not JSON, NaN or infinity, a lone surrogate, two keys written alike, an integer of more than 4300
        digits or nesting deeper than `MAX_DEPTH` (cycles included); `field` is the path.
    """
    try:
        return _copy(value, 0)
    except _RefusedError as error:
        path = where + "".join(reversed(error.path))
        if len(path) > _MAX_PATH:
            path = f"{path[: _MAX_PATH // 2]}...{path[-_MAX_PATH // 2 :]}"
        raise InvalidRequest(error.reason, field=path) from None
    except RecursionError:
        raise InvalidRequest("nested too deeply for this call; flatten it", field=where) from None


class _RefusedError(Exception):
    """A value that is not JSON; containers add their step to `path` (innermost first) as it passes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def _copy(value: object, depth: int) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if _is_numpy(value):  # before str and float: numpy.str_ and numpy.float64 derive from them
        raise _RefusedError(f"{_type_name(value)} is not JSON; convert it with .tolist()")
    if isinstance(value, str):
        return _copy_str(value)
    if isinstance(value, int):
        return _copy_int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _RefusedError(f"{float(value)!r} is not JSON; use a finite number or null")
        return float(value)
    if isinstance(value, (list, tuple, Mapping)):
        if depth == MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels; flatten it (or it contains itself)")
        return _copy_object(value, depth) if isinstance(value, Mapping) else _copy_array(value, depth)
    raise _RefusedError(f"{_type_name(value)} is not JSON; use text, numbers, booleans, None, lists and dicts")


def _copy_array(items: Iterable[object], depth: int) -> list[Json]:
    copied: list[Json] = []
    for i, item in enumerate(items):
        try:
            copied.append(_copy(item, depth + 1))
        except _RefusedError as error:
            error.path.append(f"[{i}]")
            raise
    return copied


def _copy_object(members: Mapping[object, object], depth: int) -> dict[str, Json]:
    copied: dict[str, Json] = {}
    for key, item in members.items():
        name = key if type(key) is str and key.isascii() else _copy_key(key)
        if name in copied:
            raise _RefusedError(f"two keys are both written {_shorten(name)}; keep one")
        try:
            copied[name] = _copy(item, depth + 1)
        except _RefusedError as error:
            error.path.append(_step(name))
            raise
    return copied


def _copy_key(key: object) -> str:
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, (str, int, float)) and not _is_numpy(key):
        return _copy_str(key) if isinstance(key, str) else json.dumps(_copy(key, 0))
    raise _RefusedError(f"has a key of type {_type_name(key)}; use strings")


def _copy_str(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = ascii(text[error.start])[1:-1]
            raise _RefusedError(
                f"lone surrogate {surrogate} at character {error.start}; decode the text properly or replace it"
            ) from None
    return str.__str__(text)  # the text of a str subclass, whatever its own __str__ says


def _copy_int(number: int) -> int:
    if number.bit_length() > _MAX_INT_BITS:
        raise _RefusedError("integer of more than 4300 digits; write it as text")
    return int(number)


def _copy_map(members: Mapping[str, Json], where: str) -> dict[str, Json]:
    copied = copy_json(members, where)
    assert isinstance(copied, dict)
    return copied


def _copy_list(items: Sequence[Json], where: str) -> list[Json]:
    copied = copy_json(items, where)
    assert isinstance(copied, list)
    return copied


def _position(key: str) -> float:
    try:
        position = float(key)
    except ValueError:
        position = math.nan
    if not math.isfinite(position):
        raise InvalidRequest(
            f'has the key {_shorten(key)}; the keys of a level map are numbers, such as "0" and "1"', field="criteria"
        )
    return position


def _is_numpy(value: object) -> bool:
    return type(value).__module__ == "numpy"  # asked of the name: a question does without importing numpy


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() and len(name) <= 60 else f"[{_shorten(name)}]"


def _shorten(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _store(question: Question, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(question, name, value)  # the dataclasses are frozen
