"""Typed decisions from a local language model: one forward pass, exact probabilities, no server."""

import logging
from typing import TYPE_CHECKING, Any

from .answers import Answer, ChoiceAnswer, Diagnostics, NoulAnswer, Result, ScoreAnswer, Usage
from .context import Context
from .decider import Decider, Row, evaluate
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


if TYPE_CHECKING:
    from .engine import Device, devices

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        # Looked up when asked for: the engine brings numpy, which takes longer to import than all of this package.
        if name in ("Device", "devices"):
            from . import engine

            return getattr(engine, name)
        if name == "__version__":
            from importlib.metadata import version

            return version("decider-native")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# A library stays silent until its user configures logging.
logging.getLogger("decider_native").addHandler(logging.NullHandler())
