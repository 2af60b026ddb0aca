"""The exception tree: everything this package raises on purpose derives from `DeciderError`."""

# ruff: noqa: N818 - the names say what happened; all of them are errors
from __future__ import annotations

from functools import partial
from typing import ClassVar

__all__ = [
    "BackendError",
    "Cancelled",
    "Closed",
    "ConfigError",
    "DeadlineExceeded",
    "DeciderError",
    "InvalidRequest",
    "ModelLoadError",
    "ModelNotFound",
    "PayloadTooLarge",
]


class DeciderError(Exception):
    """Root of the tree; `code` is the error code of the judge::evaluate contract."""

    code: ClassVar[str] = "provider_unavailable"


class InvalidRequest(DeciderError, ValueError):
    """A state or a question that cannot be asked.

    Parameters
    ----------
    message
        What is wrong and what to do about it.
    question
        Id of the question at fault; None when the fault is not in one question.
    field
        Path of the part at fault, such as ``criteria.billing[2]`` or ``state.items[0]``.
    """

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, question: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.question = question
        self.field = field

    def __str__(self) -> str:
        where = [
            f"{name} {value!r}"
            for name, value in (("question", self.question), ("field", self.field))
            if value is not None
        ]
        return f"{', '.join(where)}: {self.message}" if where else self.message


class PayloadTooLarge(DeciderError):
    """A row that does not fit the context window.

    Parameters
    ----------
    message
        What does not fit and what to do about it.
    tokens, limit
        Tokens of the row and the tokens the context window holds.
    """

    code: ClassVar[str] = "payload_too_large"

    def __init__(self, message: str, *, tokens: int, limit: int) -> None:
        super().__init__(message)
        self.message = message
        self.tokens = tokens
        self.limit = limit

    def __reduce__(self) -> tuple[partial[PayloadTooLarge], tuple[str]]:
        # The default would call the class without its keyword arguments.
        return partial(type(self), tokens=self.tokens, limit=self.limit), (self.message,)


class DeadlineExceeded(DeciderError, TimeoutError):
    """The time budget of a call ran out."""

    code: ClassVar[str] = "deadline"


class Cancelled(DeciderError):
    """The caller cancelled the call."""

    code: ClassVar[str] = "cancelled"


class ModelNotFound(DeciderError):
    """No model file answers to a name or a path."""


class ModelLoadError(DeciderError):
    """A model file that cannot be loaded, or not be read in this layout."""


class ConfigError(ModelLoadError):
    """A decider_config.json, GGUF metadata or an argument that cannot be used."""


class BackendError(DeciderError):
    """The native engine failed, or returned figures that are no answer."""


class Closed(DeciderError):
    """The Decider was closed before or during the call."""
