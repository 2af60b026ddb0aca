"""What keeps a file, or several, from being asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from ..errors import InvalidRequest, PayloadTooLarge

__all__ = ["REASONS", "FileStateError", "OutsideRoot", "Reason", "StateTooLarge"]

Reason: TypeAlias = Literal["not_found", "not_a_file", "too_large", "binary", "empty", "unreadable"]
REASONS: tuple[Reason, ...] = get_args(Reason)


class OutsideRoot(InvalidRequest):
    """A path that leads out of the project root, links followed."""


class FileStateError(InvalidRequest):
    """A file that cannot be a state.

    Parameters
    ----------
    message
        What is wrong and what to do about it; the path stands in it.
    path, reason
        The file, relative to the root, and one of `REASONS`.
    """

    def __init__(self, message: str, *, path: str, reason: Reason) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[partial[FileStateError], tuple[str]]:
        # The default would call the class without its keyword arguments.
        return partial(type(self), path=self.path, reason=self.reason), (self.message,)


class StateTooLarge(PayloadTooLarge):
    """A note and files that do not fit one call.

    Parameters
    ----------
    message
        All of the below in words.
    tokens, limit
        Tokens of the whole state, and those that the questions leave for one.
    note, parts
        Tokens of the own note, and of each file alone by its path.
    split
        Paths per call, so that each call fits; a path that fits no call is in none.
    """

    def __init__(
        self,
        message: str,
        *,
        tokens: int,
        limit: int,
        note: int,
        parts: Mapping[str, int],
        split: Sequence[Sequence[str]],
    ) -> None:
        super().__init__(message, tokens=tokens, limit=limit)
        self.note = note
        self.parts = dict(parts)
        self.split = tuple(map(tuple, split))

    def __reduce__(self) -> tuple[partial[Any], tuple[str]]:
        rest = {name: getattr(self, name) for name in ("tokens", "limit", "note", "parts", "split")}
        return partial(type(self), **rest), (self.message,)
