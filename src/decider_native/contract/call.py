"""One call on its way through a judge: what is asked, its deadline, and the envelope it becomes."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ..errors import Cancelled, DeadlineExceeded, DeciderError, InvalidRequest
from ..progress import Progress
from ..questions import Choice, Json, Question
from .errors import JudgeError

__all__ = ["MAX_MESSAGE", "RETRY_AFTER_MS", "Call", "Evaluation", "Reply", "answers_itself", "shorten"]

RETRY_AFTER_MS = 30_000
"""When to ask again after a failure that may pass: a closed model, a failed load or device."""
MAX_MESSAGE = 500
"""Characters of an error message; a longer one is cut and says so."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A state and its questions, under the id that the caller gave."""

    id: str
    state: Json
    questions: dict[str, Question]

    def needs_model(self) -> bool:
        """Whether there is anything to ask."""
        return not all(map(answers_itself, self.questions.values()))


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: the model's real name, and evaluation ids to ``{"answers", "usage"}`` in wire form."""

    model: str
    results: dict[str, dict[str, Any]]


@dataclass(slots=True)
class Call:
    """How far a call has come: the source of its stats, its deadline and the place of its error.

    Attributes
    ----------
    progress
        What the caller wants to be told, if anything.
    started, deadline
        Monotonic seconds.
    evaluations
        What is asked.
    request_id, provider, model
        As in the request; None where it names none.
    current
        Id of the evaluation at hand.
    attempts, requests
        Most tries that one request took, and how many evaluations a model was asked about.
    cancel
        Set when the caller wants the call to stop.
    """

    progress: Progress | None = None
    started: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    evaluations: list[Evaluation] = field(default_factory=list)
    request_id: str | None = None
    provider: str | None = None
    model: str | None = None
    current: str | None = None
    attempts: int = 0
    requests: int = 0
    cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the start."""
        return int(1000 * (time.monotonic() - self.started))

    def remaining(self, when: str = "before the model was asked") -> float | None:
        """Seconds left; None: no deadline. Raises what must stop a call that the model does not have yet."""
        if self.cancel.is_set():
            raise Cancelled(f"the call was cancelled {when}")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"the deadline passed {when}")
        return None if math.isinf(left) else left

    def answered(self, reply: Reply) -> dict[str, Any]:
        """The envelope of an answer."""
        usages = [result["usage"] for result in reply.results.values()]
        read, written = (sum(usage[name] for usage in usages) for name in ("input_tokens", "output_tokens"))
        return {"status": "ok", "model": reply.model, "results": reply.results, "stats": self.stats(read, written)}

    def failed(self, error: DeciderError) -> dict[str, Any]:
        """The envelope of an error."""
        if isinstance(error, InvalidRequest) and error.question is not None:
            error = InvalidRequest(error.message, question=shorten(error.question), field=error.field)
        message = str(error) if self.current is None else f"evaluation {shorten(self.current)!r}: {error}"
        message = message.encode(errors="replace").decode()  # a lone surrogate could not be sent
        shown = {"message": message[:MAX_MESSAGE], "truncated": len(message) > MAX_MESSAGE}
        envelope: dict[str, Any] = {"status": "error", "code": error.code, "provider_error": shown}
        if isinstance(error, JudgeError):
            retry_after_ms = error.retry_after_ms
        else:
            retry_after_ms = RETRY_AFTER_MS if error.code == "provider_unavailable" else None
        if retry_after_ms is not None:
            envelope["retry_after_ms"] = retry_after_ms
        # a model that was stopped half-way does not tell what it has read
        return envelope | {"stats": self.stats(complete=self.requests == 0)}

    def stats(self, input_tokens: int = 0, output_tokens: int = 0, *, complete: bool = True) -> dict[str, Any]:
        """What the call took so far."""
        return {
            "attempts": self.attempts,
            "requests": self.requests,
            "questions": sum(len(evaluation.questions) for evaluation in self.evaluations),
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "elapsed_ms": self.elapsed_ms,
            "usage_complete": complete,
        }


def answers_itself(question: Question) -> bool:
    """Whether it is a choice of one option, which needs no model."""
    return isinstance(question, Choice) and len(question.criteria) == 1


def shorten(text: str) -> str:
    """Return a text as an error shows it."""
    return text if len(text) <= 60 else f"{text[:57]}..."
