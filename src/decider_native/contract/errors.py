"""What stops a judge's call beyond the errors of a model in this process."""

# ruff: noqa: N818 - the names say what happened; all of them are errors
from __future__ import annotations

from typing import ClassVar

from ..errors import DeciderError

__all__ = ["JudgeError", "NotServed", "TooManyBytes"]


class JudgeError(DeciderError):
    """A call that a judge cannot answer.

    Parameters
    ----------
    message
        What is wrong and what to do about it.
    retry_after_ms
        When asking again may help; None: it does not.
    """

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class NotServed(JudgeError):
    """Another model or provider is asked for, or none is to be had; asking again later does not help."""


class TooManyBytes(JudgeError):
    """The text of a request is longer than allowed."""

    code: ClassVar[str] = "payload_too_large"
