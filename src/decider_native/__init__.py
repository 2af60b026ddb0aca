"""Typed decisions from a local language model: one forward pass, exact probabilities, no server."""

import logging

from .answers import Answer, ChoiceAnswer, Diagnostics, NoulAnswer, Result, ScoreAnswer, Usage
from .context import Context
from .decider import Decider, Row, evaluate
from .engine import Device, devices
from .errors import (
    BackendError,
    Cancelled,
    Closed,
    ConfigError,
    DeadlineExceeded,
    DeciderError,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    PayloadTooLarge,
)
from .questions import Choice, Noul, Question, Score

__all__ = [
    "Answer",
    "BackendError",
    "Cancelled",
    "Choice",
    "ChoiceAnswer",
    "Closed",
    "ConfigError",
    "Context",
    "DeadlineExceeded",
    "Decider",
    "DeciderError",
    "Device",
    "Diagnostics",
    "InvalidRequest",
    "ModelLoadError",
    "ModelNotFound",
    "Noul",
    "NoulAnswer",
    "PayloadTooLarge",
    "Question",
    "Result",
    "Row",
    "Score",
    "ScoreAnswer",
    "Usage",
    "devices",
    "evaluate",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up when asked for: importlib.metadata costs a quarter of the import
        from importlib.metadata import version

        return version("decider-native")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# A library stays silent until its user configures logging.
logging.getLogger("decider_native").addHandler(logging.NullHandler())
