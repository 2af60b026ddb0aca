"""Typed decisions from a local language model: one forward pass, exact probabilities, no server."""

import logging
from importlib.metadata import version

from .answers import Answer, ChoiceAnswer, Diagnostics, NoulAnswer, Result, ScoreAnswer, Usage
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

__version__ = version("decider-native")

# A library stays silent until its user configures logging.
logging.getLogger("decider_native").addHandler(logging.NullHandler())
