"""Label logits to probabilities to answers, in float64 from unrounded logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer, certainty
from .errors import BackendError
from .questions import Choice, Noul, Question

__all__ = [
    "RowScore",
    "answer_question",
    "certainty",
    "choice_confidence",
    "input_tokens",
    "score_confidence",
    "score_row",
    "softmax",
]


@dataclass(frozen=True, slots=True)
class RowScore:
    """What one row says.

    Attributes
    ----------
    probabilities
        Over the row's options, float64 of shape (options,), summing to 1.
    label_mass
        Share of the full next-token probability that the labels of these options hold, 0 to 1.
    """

    probabilities: NDArray[np.float64]
    label_mass: float


def softmax(logits: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Probabilities of finite logits at a temperature.

    Parameters
    ----------
    logits
        Shape (n,), float32 or float64.
    temperature
        Finite, > 0.

    Returns
    -------
    numpy.ndarray
        float64 of shape (n,), summing to 1.
    """
    values = np.asarray(logits, dtype=np.float64)
    with np.errstate(over="ignore"):  # a difference too large for a float is a probability of 0
        weights = np.exp((values - values.max()) / temperature)
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def score_row(question_id: str, logits: ArrayLike, temperature: float, label_mass: float) -> RowScore:
    """Read one row.

    Parameters
    ----------
    question_id
        The question the row belongs to, for errors.
    logits
        The label logits of the row's options, shape (options,).
    temperature
        Finite, > 0.
    label_mass
        As in `RowScore`.

    Raises
    ------
    BackendError
        A logit or the label mass is not finite.
    """
    values = np.asarray(logits, dtype=np.float64)
    if not (np.isfinite(values).all() and math.isfinite(label_mass)):
        raise BackendError(
            f"question {question_id!r}: the model returned logits that are not finite; "
            "try another device, or check the model file"
        )
    return RowScore(softmax(values, temperature), label_mass)


def answer_question(question: Question, rows: Sequence[RowScore]) -> Answer:
    """Answer a question from its rows, in the order they were asked; a single option has none and answers itself."""
    label_mass = min((row.label_mass for row in rows), default=1.0)
    if isinstance(question, Noul):
        (row,) = rows
        return NoulAnswer(float(row.probabilities[1]), label_mass)
    if isinstance(question, Choice):
        p = rows[0].probabilities if rows else np.ones(1)
        names = tuple(question.criteria)
        return ChoiceAnswer(names[int(p.argmax())], choice_confidence(p), names, tuple(p.tolist()), label_mass)
    if len(rows) == 1:
        level_fit = None
        p = rows[0].probabilities
    else:
        fits = np.array([row.probabilities[1] for row in rows])
        level_fit = tuple(fits.tolist())
        # No level fits at all: nothing tells them apart.
        p = fits / fits.sum() if fits.sum() > 0 else np.full(len(fits), 1 / len(fits))
    return ScoreAnswer(
        score=min(float(np.arange(len(p)) @ p), len(p) - 1.0),
        confidence=score_confidence(p),
        legend=tuple(deepcopy(question.criteria)),
        p=tuple(p.tolist()),
        label_mass=label_mass,
        level_fit=level_fit,
        fit_mass=None if level_fit is None else math.fsum(level_fit),
    )


def choice_confidence(p: ArrayLike) -> float:
    """(n p_max - 1) / (n - 1) of n probabilities, clipped to 0..1; 1 for a single option (TypeSafe's definition)."""
    values = np.asarray(p, dtype=np.float64)
    n = len(values)
    return 1.0 if n == 1 else _clip((n * float(values.max()) - 1) / (n - 1))


def score_confidence(p: ArrayLike) -> float:
    """1 - sum p_i |i - k| / D over n levels, clipped to 0..1, with k the likeliest level (TypeSafe's definition).

    D is the mean distance of the levels from the middle of the scale: sum |i - (n - 1) / 2| / n.
    """
    values = np.asarray(p, dtype=np.float64)
    if len(values) == 1:
        return 1.0
    levels = np.arange(len(values))
    spread = float(values @ np.abs(levels - values.argmax()))
    return _clip(1.0 - spread / float(np.abs(levels - (len(values) - 1) / 2).mean()))


def input_tokens(rows: Sequence[ArrayLike]) -> int:
    """Tokens of rows of token ids, each of shape (tokens,), with their longest common prefix counted once."""
    if not rows:
        return 0
    ids = [np.asarray(row) for row in rows]
    shared = min(len(row) for row in ids)
    for row in ids[1:]:
        differ = np.flatnonzero(row[:shared] != ids[0][:shared])
        shared = int(differ[0]) if len(differ) else shared
    return shared + sum(len(row) - shared for row in ids)


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
