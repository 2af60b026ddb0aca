"""The request and response bodies of each route family: JSON to questions, results and errors to JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from decider_native.questions import Json, Question

__all__ = ["Evaluation", "Place"]

Place: TypeAlias = "tuple[str | int, ...]"
"""Where something stands in a request, outermost first: ``("questions", "team", "choice", "criteria")``."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A state, its questions, and the place of each question in the request."""

    state: Json
    questions: dict[str, Question]
    places: Mapping[str, Place]
