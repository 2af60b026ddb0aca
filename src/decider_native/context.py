"""A state that the model has read and keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from .answers import Result
from .errors import Closed
from .questions import Questions

if TYPE_CHECKING:
    from .engine import KeptContext

__all__ = ["Context"]


class Context:
    """A handle on a state that a `Decider` has read; `Decider.context` makes it. Thread-safe; a context manager.

    Attributes
    ----------
    tokens
        Length of the state.
    bytes
        Memory that the handle holds until it is closed. 0: nothing is kept, every `ask` reads the state again. It has
        only a few tokens, or the model's attention slides and the state is longer than its window.
    """

    def __init__(
        self,
        ask: Callable[[Questions, float | None, threading.Event | None], Result],
        tokens: int,
        kept: KeptContext | None,
    ) -> None:
        self.tokens = tokens
        self.bytes = kept.bytes if kept else 0
        self._ask = ask
        self._kept = kept
        self._closed = False

    def ask(
        self, questions: Questions, *, timeout: float | None = None, cancel: threading.Event | None = None
    ) -> Result:
        """Answer questions about the state; they cost their own tokens alone.

        Parameters and errors as for `Decider.evaluate`; `Closed` after `close`.
        """
        if self._closed:
            raise Closed("the context is closed; make a new one with Decider.context")
        return self._ask(questions, timeout, cancel)

    def close(self) -> None:
        """Free the memory; a call that runs still ends well. Closing again does nothing."""
        self._closed = True
        self._kept = None
        self.bytes = 0

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
