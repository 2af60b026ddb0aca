"""Typed answers and their wire form. Probabilities are unrounded; `to_dict` adds diagnostics only when asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from .questions import Json, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Answer", "ChoiceAnswer", "Diagnostics", "NoulAnswer", "Result", "ScoreAnswer", "Usage", "certainty"]

Wire: TypeAlias = dict[str, Any]


def certainty(p: Sequence[float] | NDArray[np.float64]) -> float:
    """1 minus the entropy of a distribution over that of a flat one: 0 for a flat one, 1 for all mass on one option."""
    if len(p) == 1:
        return 1.0
    entropy = -sum(x * math.log(x) for x in map(float, p) if x > 0)
    return min(1.0, max(0.0, 1.0 - entropy / math.log(len(p))))


@dataclass(frozen=True, slots=True)
class NoulAnswer:
    """The answer to a yes/no question.

    Attributes
    ----------
    noul
        Probability of yes, 0 to 1.
    label_mass
        Share of the full next-token probability that the labels hold, 0 to 1; near 0 the model answers in other words.
    """

    noul: float
    label_mass: float
    kind: ClassVar[Kind] = "noul"

    @property
    def answer(self) -> bool:
        """Whether yes is likelier than no."""
        return self.noul > 0.5

    def array(self) -> NDArray[np.float64]:
        """Probabilities of no and yes, float64 of shape (2,)."""
        return _array((1.0 - self.noul, self.noul))

    def to_dict(self, diagnostics: bool = False) -> Wire:
        """Wire form; with `diagnostics`, ``x_label_mass`` too."""
        wire: Wire = {"type": self.kind, "noul": self.noul}
        if diagnostics:
            wire["x_label_mass"] = self.label_mass
        return wire


class _Distribution:
    """What a choice and a score have in common: probabilities `p` of their options or levels, in order."""

    __slots__ = ()
    p: tuple[float, ...]

    @property
    def p_max(self) -> float:
        """The largest probability."""
        return max(self.p)

    @property
    def certainty(self) -> float:
        """1 minus the normalized entropy of the probabilities."""
        return certainty(self.p)

    def array(self) -> NDArray[np.float64]:
        """The probabilities in order, float64 of shape (options or levels,)."""
        return _array(self.p)


@dataclass(frozen=True, slots=True)
class ChoiceAnswer(_Distribution):
    """The answer to a choice.

    Attributes
    ----------
    choice
        Name of the likeliest option, the first of equals.
    confidence
        0 when all options are equally likely, 1 when one has all the probability.
    names, p
        The options in the order of the question and their probabilities, which sum to 1.
    label_mass
        As in `NoulAnswer`.
    """

    choice: str
    confidence: float
    names: tuple[str, ...]
    p: tuple[float, ...]
    label_mass: float
    kind: ClassVar[Kind] = "choice"

    @property
    def probabilities(self) -> dict[str, float]:
        """Option names to probabilities."""
        return dict(zip(self.names, self.p, strict=True))

    def to_dict(self, diagnostics: bool = False) -> Wire:
        """Wire form; with `diagnostics`, the ``x_`` fields too."""
        wire: Wire = {
            "type": self.kind,
            "choice": self.choice,
            "confidence": self.confidence,
            "probabilities": self.probabilities,
        }
        if diagnostics:
            wire |= {"x_p_max": self.p_max, "x_certainty": self.certainty, "x_label_mass": self.label_mass}
        return wire


@dataclass(frozen=True, slots=True)
class ScoreAnswer(_Distribution):
    """The answer to a rating.

    Attributes
    ----------
    score
        Expected level, 0 to levels - 1.
    confidence
        0 when the probability is spread over the scale, 1 when one level has all of it.
    legend
        The level descriptions as the question gave them.
    p
        Probability of each level; they sum to 1.
    label_mass
        As in `NoulAnswer`; the smallest of the question's rows.
    level_fit
        Probability, level by level, that it fits when judged alone; None when the levels were read in one row.
    fit_mass
        Sum of `level_fit`: near 1 when exactly one level fits.
    """

    score: float
    confidence: float
    legend: tuple[Json, ...]
    p: tuple[float, ...]
    label_mass: float
    level_fit: tuple[float, ...] | None = None
    fit_mass: float | None = None
    kind: ClassVar[Kind] = "score"

    @property
    def probabilities(self) -> dict[str, float]:
        """Levels ``"0"``, ``"1"``, ... to probabilities."""
        return _numbered(self.p)

    def to_dict(self, diagnostics: bool = False) -> Wire:
        """Wire form; with `diagnostics`, the ``x_`` fields too."""
        wire: Wire = {
            "type": self.kind,
            "score": self.score,
            "confidence": self.confidence,
            "probabilities": self.probabilities,
            "legend": _numbered(deepcopy(self.legend)),
        }
        if diagnostics:
            wire |= {"x_p_max": self.p_max, "x_certainty": self.certainty, "x_label_mass": self.label_mass}
            if self.level_fit is not None:
                wire |= {"x_level_fit": _numbered(self.level_fit), "x_fit_mass": self.fit_mass}
        return wire


Answer: TypeAlias = NoulAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an evaluation: its rows with their longest common prefix counted once. Nothing is generated."""

    input_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What an evaluation did.

    Attributes
    ----------
    rows
        Prompt rows read.
    decoded_tokens, padded_tokens
        Tokens the model ran, and those it ran on top only to fill up a step.
    reused_tokens
        Tokens whose state the context cache still had.
    elapsed_ms
        Wall time in milliseconds.
    """

    rows: int
    decoded_tokens: int
    padded_tokens: int
    reused_tokens: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """The answers of one evaluation, by question id in the order asked."""

    model: str
    answers: dict[str, Answer]
    usage: Usage
    diagnostics: Diagnostics

    def to_dict(self, diagnostics: bool = False) -> Wire:
        """``{"model", "answers", "usage"}``; with `diagnostics`, ``x_diagnostics`` and the answers' ``x_`` fields."""
        wire: Wire = {
            "model": self.model,
            "answers": {question_id: answer.to_dict(diagnostics) for question_id, answer in self.answers.items()},
            "usage": asdict(self.usage),
        }
        if diagnostics:
            wire["x_diagnostics"] = asdict(self.diagnostics)
        return wire


def _array(p: Sequence[float]) -> NDArray[np.float64]:
    import numpy as np  # when it is asked for: an answer is known without

    return np.array(p, dtype=np.float64)


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}
