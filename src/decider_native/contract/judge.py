"""What all judges have in common: whatever answers, its envelopes are made here."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import DeciderError, InvalidRequest
from ..progress import Progress
from ..questions import Json, Question
from .call import Call, Reply, shorten
from .errors import NotServed
from .request import Limits, Request, parse_call, parse_cancel, parse_models, provider_name

__all__ = ["Judge", "Measure", "Request"]


@dataclass(frozen=True, slots=True)
class Measure:
    """How long the longest row of a state and its questions is, and how long it may be.

    Attributes
    ----------
    tokens
        Of a model in this process: real tokens of its vocabulary, or, where a row does not fit, at least those of one
        that does not. Of a remote judge: an upper bound, for no token is shorter than a byte.
    limit
        Tokens that the judge reads at most in a row.
    """

    tokens: int
    limit: int


class Judge(ABC):
    """Answers judge::evaluate requests. Thread-safe.

    A kind of judge says how parsed evaluations are answered (`answer`), which models it has (`list_models`), and how
    long a question gets (`measure`); the rest is the same for all.

    Parameters
    ----------
    provider
        The name that requests may call it by: 1 to 64 of ``a-z``, ``0-9`` and ``-``, else `InvalidRequest`.
    limits
        What a request may ask for; None: the defaults.
    """

    def __init__(self, provider: str, *, limits: Limits | None = None) -> None:
        self._provider = provider_name(provider)
        self.limits = limits or Limits()
        self._active: dict[object, threading.Event] = {}
        self._active_lock = threading.Lock()

    @property
    def provider(self) -> str:
        """The name that requests may call this judge by."""
        return self._provider

    def evaluate(
        self, request: Request, *, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> dict[str, Any]:
        """Answer every question of every evaluation, or none.

        The request is ``{"evaluations": [{"id", "state", "questions"}, ...]}`` with, as wanted, ``timeout_ms``,
        ``expires_at_unix_ms``, ``model``, ``provider`` and ``request_id``; or the JSON text of it. The answer is
        ``{"status": "ok", "model", "results", "stats"}`` or ``{"status": "error", "code", "provider_error", "stats"}``,
        the latter with ``retry_after_ms`` where waiting may help. `progress` is called with done and total while the
        call runs, in the judge's own unit, from any thread. Set `cancel` from another thread to stop the call.
        """
        call = Call(progress, cancel=cancel or threading.Event())
        try:
            parse_call(request, self.limits, call)
            with self._cancellable(call):
                return call.answered(self.answer(call))
        except DeciderError as error:
            return call.failed(error)

    def cancel(self, request: Request) -> dict[str, Any]:
        """Signal the active call that ``{"request_id"}`` names; it may still end as ok.

        Answers ``{"status": "ok", "cancelled": bool}``, whether there is such a call; or an error as `evaluate` does.
        """
        call = Call()
        try:
            request_id = parse_cancel(request, self.limits)
        except DeciderError as error:
            return call.failed(error)
        with self._active_lock:
            if event := self._active.get(request_id):
                event.set()
        return {"status": "ok", "cancelled": event is not None}

    def models(self, request: Request | None = None) -> dict[str, Any]:
        """List the models that answer here (models.list); a request, if given, is an empty object.

        Answers ``{"status": "ok", "models": [...], "stats"}``, or an error as `evaluate` does.
        """
        call = Call()
        try:
            parse_models({} if request is None else request, self.limits)
            return {"status": "ok", "models": self.list_models(), "stats": call.stats()}
        except DeciderError as error:
            return call.failed(error)

    @abstractmethod
    def answer(self, call: Call) -> Reply:
        """Answer the evaluations of a call before its deadline, or raise the `DeciderError` that says why not."""

    @abstractmethod
    def list_models(self) -> list[dict[str, Any]]:
        """``{"name", "description", "release_date", "context_window", "max_options"}`` of each model.

        ``context_window`` is in tokens. What is not known is empty, or null for a number.
        """

    @abstractmethod
    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """Measure the longest row that a state and questions make, without asking anything.

        The deadline and the cancel of `call` end the wait for a model that has to be loaded for it.

        Raises
        ------
        DeciderError
            A state that is not JSON, or what keeps the judge from measuring.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the judge itself holds. Closing again does nothing."""

    def check_served(self, call: Call, model: str, others: Collection[str] = ()) -> None:
        """Refuse a call for another provider, or for another model than `model` or its `others`, in any case."""
        if call.provider not in (None, self.provider):
            raise NotServed(f"this provider is {self.provider!r}, not {call.provider!r}; leave provider out")
        if call.model is not None and call.model.casefold() not in {name.casefold() for name in (model, *others)}:
            raise NotServed(f"{model!r} answers here, not {shorten(call.model)!r}; leave model out")

    @contextmanager
    def _cancellable(self, call: Call) -> Iterator[None]:
        """Hold the call's request id while it runs."""
        key = object() if call.request_id is None else call.request_id
        with self._active_lock:
            if key in self._active:
                raise InvalidRequest("is that of a call that still runs; give each its own", field="request_id")
            self._active[key] = call.cancel
        try:
            yield
        finally:
            with self._active_lock:
                del self._active[key]
