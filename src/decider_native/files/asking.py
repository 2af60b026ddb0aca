"""One call of a tool on its way to the judge: its budget, and the answers that come back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..answers import Usage
from ..contract import Call, Judge, JudgeError
from ..errors import Cancelled, DeadlineExceeded, DeciderError, InvalidRequest, PayloadTooLarge
from ..judges.remote import RemoteJudge
from ..progress import Progress
from ..questions import Json, Question
from .questions import to_wire

__all__ = ["Asking", "Replies"]

_MOST_BYTES_A_TOKEN = 512  # more than a token stands for in any vocabulary in use
_NORMALIZED_BYTES = 3  # for a byte of UTF-8 before a tokenizer's normalization, at most
_CONTEXT_BYTES = 16  # more than what a layout puts before a state

_ERRORS: dict[str, type[DeciderError]] = {
    "invalid_request": InvalidRequest,
    "deadline": DeadlineExceeded,
    "attempt_timeout": DeadlineExceeded,
    "cancelled": Cancelled,
}


@dataclass(frozen=True, slots=True)
class Replies:
    """What came back.

    Attributes
    ----------
    answers
        State ids to answers by question id, in wire form.
    failed
        State ids to the error code of a call that was about this state alone.
    model, attempts, usage, calls, concurrency
        As in `Meta`.
    """

    answers: dict[str, dict[str, dict[str, Any]]]
    failed: dict[str, str]
    model: str
    attempts: int
    usage: Usage
    calls: int
    concurrency: int


class Asking:
    """Questions on their way to a judge.

    Parameters
    ----------
    judge, model
        Who is asked, and the model to ask for; None: the judge's own.
    questions
        What is asked about every state.
    call
        The deadline and the cancel of all of it.

    Raises
    ------
    PayloadTooLarge
        The questions alone do not fit.
    Cancelled, DeadlineExceeded
        The call is over.

    Attributes
    ----------
    budget
        Tokens that the questions leave for a state.
    """

    def __init__(
        self,
        judge: Judge,
        questions: Mapping[str, Question],
        *,
        model: str | None,
        call: Call,
    ) -> None:
        self.judge = judge
        self.questions = questions
        self.call = call
        self._wire = {name: to_wire(question) for name, question in questions.items()}
        self._model = model
        alone = judge.measure({}, questions, call)
        self._question_tokens = alone.tokens
        self.budget = alone.limit - alone.tokens
        if self.budget <= 0:
            raise PayloadTooLarge(
                f"the question alone has {alone.tokens} tokens and the judge reads {alone.limit}; ask it shorter",
                tokens=alone.tokens,
                limit=alone.limit,
            )

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest file that could fit, whatever it holds."""
        return min(self.judge.limits.max_request_bytes, _MOST_BYTES_A_TOKEN * self.budget)

    def surely_fits(self, state: Json) -> bool:
        """Whether a state fits even with a token for every byte; then it need not be measured."""
        text = json.dumps(state, ensure_ascii=False)
        size = len(text) if text.isascii() else _NORMALIZED_BYTES * len(text.encode())
        return size + _CONTEXT_BYTES <= self.budget

    def tokens(self, state: Json) -> int:
        """Tokens of a state beside the questions; of one that does not fit, at least so many that it does not.

        Raises
        ------
        Cancelled, DeadlineExceeded
            The call is over.
        """
        self.call.remaining()
        return self.judge.measure(state, self.questions, self.call).tokens - self._question_tokens

    def ask(self, states: Mapping[str, Json], progress: Progress | None = None) -> Replies:
        """Ask about states in one call, or raise what stopped it."""
        envelope = self._exchange(states, progress)
        return self._replies([envelope], {}, 1)

    def ask_each(self, states: Mapping[str, Json], concurrency: int, progress: Progress | None = None) -> Replies:
        """Ask about states in a call each where the judge is on another machine, else in one call.

        Raises
        ------
        DeciderError
            What stopped the one call; of many, the first error when all of them failed.
        """
        if not isinstance(self.judge, RemoteJudge):
            return self.ask(states, progress)
        done, lock = 0, threading.Lock()

        def exchange(item: tuple[str, Json]) -> dict[str, Any]:
            nonlocal done
            envelope = self._exchange(dict([item]), None)
            with lock:
                done += 1
                if progress:
                    progress(done, len(states))
            return envelope

        with ThreadPoolExecutor(concurrency) as pool:
            try:
                envelopes = list(pool.map(exchange, states.items()))
            except BaseException:  # Ctrl-C, or what the caller's own progress raises: the pool waits for what runs
                self.call.cancel.set()
                raise
        failed = {
            state_id: envelope["code"]
            for state_id, envelope in zip(states, envelopes, strict=True)
            if envelope["status"] != "ok"
        }
        if "cancelled" in failed.values():
            raise Cancelled("the call was cancelled")
        return self._replies(envelopes, failed, concurrency)

    def _replies(self, envelopes: list[dict[str, Any]], failed: dict[str, str], concurrency: int) -> Replies:
        answered = [envelope for envelope in envelopes if envelope["status"] == "ok"]
        if not answered:
            raise _error(envelopes[0])
        stats = [envelope["stats"] for envelope in envelopes]
        return Replies(
            {state_id: result["answers"] for each in answered for state_id, result in each["results"].items()},
            failed,
            answered[0]["model"],
            max(each["attempts"] for each in stats),
            Usage(sum(each["input_tokens"] for each in stats), sum(each["output_tokens"] for each in stats)),
            len(envelopes),
            concurrency,
        )

    def _exchange(self, states: Mapping[str, Json], progress: Progress | None) -> dict[str, Any]:
        left_ms = 1000 * (self.call.deadline - time.monotonic())
        request: dict[str, Any] = {
            # at least 1: a judge says best what an end means
            "timeout_ms": int(min(max(1, left_ms), self.judge.limits.max_timeout_ms)),
            "evaluations": [{"id": name, "state": state, "questions": self._wire} for name, state in states.items()],
        }
        if self._model is not None:
            request["model"] = self._model
        return self.judge.evaluate(request, progress=progress, cancel=self.call.cancel)


def _error(envelope: Mapping[str, Any]) -> DeciderError:
    code, told = envelope["code"], envelope["provider_error"]
    message = told["message"] + "..." * told["truncated"]
    if code in _ERRORS:
        return _ERRORS[code](message)
    wait = envelope.get("retry_after_ms")
    again = "" if wait is None else f"; ask again in {wait / 1000:g} s"
    return JudgeError(f"{code}: {message}{again}", retry_after_ms=wait)
