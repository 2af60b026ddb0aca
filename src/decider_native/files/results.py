"""What the file tools return. `to_dict` gives the wire form; no file text is in any of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeAlias

from ..answers import Usage

__all__ = [
    "Answers",
    "BoolAnswer",
    "ChoiceAnswer",
    "FileAnswer",
    "FileAnswers",
    "FileBool",
    "FileChoice",
    "FilePick",
    "FileScore",
    "Meta",
    "QuestionType",
    "Result",
    "ScoreAnswer",
    "Skipped",
    "StateSummary",
    "wire_name",
]

QuestionType: TypeAlias = Literal["bool", "choice", "score"]

_WIRE_NAMES = {
    "budget_tokens": "budgetTokens",
    "cost_usd": "costUsd",
    "elapsed_ms": "elapsedMs",
    "max_files": "maxFiles",
    "requested_model": "requestedModel",
    "state_summary": "stateSummary",
}


def wire_name(name: str) -> str:
    """What a field is called on the wire."""
    return _WIRE_NAMES.get(name, name)


class Result:
    """A dataclass with a wire form. A field that is None by default is left out while it is None."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"alias_generator": wire_name}  # for a schema of the wire form

    def to_dict(self) -> dict[str, Any]:
        """Wire form: JSON values only."""
        return {
            wire_name(field.name): _wire(value)
            for field in fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
            if (value := getattr(self, field.name)) is not None or field.default is MISSING
        }


def _wire(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Usage):
        return {"input_tokens": value.input_tokens, "output_tokens": value.output_tokens}
    if isinstance(value, Mapping):
        return {name: _wire(item) for name, item in value.items()}
    return [_wire(item) for item in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, slots=True)
class Meta(Result):
    """How a result came about.

    Attributes
    ----------
    provider, model, requested_model
        Who answered; the model that was asked for, None when that was left to the judge.
    elapsed_ms
        Wall time, loading the model and reading included.
    attempts
        Most tries that one request took.
    usage
        Tokens of all calls.
    calls, concurrency, max_files
        For many files: calls to the judge, how many of them at once, and the most files allowed.
    """

    provider: str
    model: str
    requested_model: str | None
    elapsed_ms: int
    attempts: int
    usage: Usage
    calls: int | None = None
    concurrency: int | None = None
    max_files: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped(Result):
    """A path that was not asked about, and why in one word."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class BoolAnswer(Result):
    """Yes or no about a file: `noul` is the probability of yes, `answer` whether it is over a half."""

    path: str
    answer: bool
    noul: float

    @classmethod
    def read(cls, path: str, wire: Mapping[str, Any], **more: Any) -> Self:
        """From a judge's answer in wire form; `more` are the fields of a subclass."""
        return cls(path, wire["noul"] > 0.5, wire["noul"], **more)


@dataclass(frozen=True, slots=True)
class FileBool(BoolAnswer):
    """The answer about the one file asked about."""

    meta: Meta


@dataclass(frozen=True, slots=True)
class ChoiceAnswer(Result):
    """An option for a file; `confidence` is 0 when all are equally likely, 1 when one has all the probability."""

    path: str
    choice: str
    confidence: float
    probabilities: Mapping[str, float]

    @classmethod
    def read(cls, path: str, wire: Mapping[str, Any], **more: Any) -> Self:
        """As for `BoolAnswer`."""
        return cls(path, wire["choice"], wire["confidence"], wire["probabilities"], **more)


@dataclass(frozen=True, slots=True)
class FileChoice(ChoiceAnswer):
    """The answer about the one file asked about; `options` are all that stood to choose, with descriptions."""

    options: Mapping[str, Any]
    meta: Meta


@dataclass(frozen=True, slots=True)
class ScoreAnswer(Result):
    """A rating of a file.

    Attributes
    ----------
    score
        Expected level, 0 to levels - 1.
    top, nearest
        The likeliest level, and the one nearest to the score (of two, the higher).
    normalized
        The score over the highest level: 0 to 1.
    confidence
        0 when the probability is spread over the scale, 1 when one level has all of it.
    """

    path: str
    score: float
    top: int
    nearest: int
    normalized: float
    confidence: float

    @classmethod
    def read(cls, path: str, wire: Mapping[str, Any], **more: Any) -> Self:
        """As for `BoolAnswer`."""
        p, score = list(wire["probabilities"].values()), wire["score"]
        top, nearest = p.index(max(p)), math.floor(score + 0.5)
        return cls(path, score, top, nearest, score / (len(p) - 1), wire["confidence"], **more)


@dataclass(frozen=True, slots=True)
class FileScore(ScoreAnswer):
    """The answer about the one file asked about; `legend` maps ``"0"``, ``"1"``, ... to the levels."""

    legend: Mapping[str, Any]
    meta: Meta


FileAnswer: TypeAlias = BoolAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class FileAnswers(Result):
    """The answers to one question about many files, in the order of the files."""

    type: QuestionType
    answers: Sequence[FileAnswer]
    skipped: Sequence[Skipped]
    meta: Meta
    options: Mapping[str, Any] | None = None
    legend: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FilePick(Result):
    """The file that fits a question best; `path` is None when none does."""

    path: str | None
    confidence: float
    probabilities: Mapping[str, float]
    options: Mapping[str, Any]
    skipped: Sequence[Skipped]
    meta: Meta


@dataclass(frozen=True, slots=True)
class StateSummary(Result):
    """What a state was made of: field names, paths, and tokens against those that the questions left for it."""

    own_fields: Sequence[str]
    files: Sequence[str]
    skipped: Sequence[Skipped]
    tokens: int
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class Answers(Result):
    """Answers to several questions about one state, by question id, in the wire form of the judge contract."""

    answers: Mapping[str, Mapping[str, Any]]
    state_summary: StateSummary
    meta: Meta
