"""What judges on other machines have in common: keys, the deadline, cancelling, several requests at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from ..contract import Call, Evaluation, Judge, Limits, Measure, NotServed, Reply
from ..contract.call import answers_itself
from ..errors import Closed, DeciderError, InvalidRequest
from ..questions import Json, Question
from ..strict_json import loads
from .answers import check_answers, checked_evaluations, measure_bytes, only_option
from .errors import InvalidResponse, MissingKey, TransportFailure
from .settings import RemoteSettings
from .status import Status

__all__ = ["RETRIES", "RemoteAnswer", "RemoteJudge", "missing_extra", "read_json"]

T = TypeVar("T")

RETRIES = 2
"""How often a try that failed in passing is repeated, with the waits of the judge's own library."""

_PARALLEL = 8  # requests of one call at once
_STOP_SECONDS = 0.05
_PROBE_SECONDS = 10.0
_NO_KEY = "none"  # the libraries send a key always

_tries: ContextVar[list[None]] = ContextVar("tries")


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """What came back: the real model, question ids to answers in wire form (not checked yet), and tokens."""

    model: str
    answers: Mapping[str, Any]
    input_tokens: int
    output_tokens: int


class RemoteJudge(Judge):
    """A judge that is asked over HTTP, one request for each evaluation.

    The requests of all threads run on one event loop in a thread of its own, so that a deadline or a cancel stops them
    wherever they are, waits between tries included. A call is answered whole or not at all: the first request that
    fails stops the others.
    """

    def __init__(self, settings: RemoteSettings, *, limits: Limits | None = None) -> None:
        super().__init__(settings.name, limits=limits)
        self.settings = settings
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._key = _NO_KEY
        self._closed = False

    @abstractmethod
    def make_client(self, key: str, http_client: Any) -> Any:
        """Return the library's client, over an `httpx2.AsyncClient`."""

    @abstractmethod
    async def close_client(self, client: Any) -> None:
        """Close it."""

    @abstractmethod
    async def ask(
        self, client: Any, state: Json, questions: Mapping[str, Question], seconds_left: float | None
    ) -> RemoteAnswer:
        """Ask about one state; raises the `DeciderError` of whatever goes wrong."""

    @abstractmethod
    async def fetch_models(self, client: Any) -> dict[str, dict[str, str]]:
        """Names of the models it answers to, with their description and release date. Errors as for `ask`."""

    def answer(self, call: Call) -> Reply:
        """Answer a call with one request for each evaluation."""
        self.check_served(call, self.settings.model)
        evaluations = checked_evaluations(call)
        call.remaining()
        return self._run(self._answer(call, evaluations), call)

    def list_models(self) -> list[dict[str, Any]]:
        """The configured model, as the judge describes it."""
        known = self._models()
        if self.settings.model not in known:
            raise NotServed(self._unknown_model(known))
        facts = known[self.settings.model]
        window = {"context_window": self.settings.context_window, "max_options": 255}
        return [{"name": self.settings.model, **facts, **window}]

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure`, from bytes."""
        return measure_bytes(state, questions, self.settings.context_window)

    def status(self) -> Status:
        """Ask the judge for its models, and say whether all is well."""
        try:
            known = self._models()
        except MissingKey as error:
            return Status("missing_key", str(error))
        except DeciderError as error:
            return Status("unreachable", f"{error}; check that {self.settings.host} is right and runs")
        if self.settings.model not in known:
            return Status("model_unknown", self._unknown_model(known))
        return Status("ready")

    def check_key(self) -> str:
        """Return the key.

        Raises
        ------
        MissingKey
            Its environment variable is not set, or holds nothing that can be sent as a key.
        """
        if self.settings.key_env is None:
            return _NO_KEY
        if not (key := os.environ.get(self.settings.key_env, "").strip()):
            raise MissingKey(f"the environment variable {self.settings.key_env} holds no key; set it")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise MissingKey(f"{self.settings.key_env} holds no key, but something not printable ASCII or with spaces")
        return key

    def close(self) -> None:
        """Drop the connections and end the thread; calls that run are stopped."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is None:
            return

        async def finish() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if self._client is not None:
                await self.close_client(self._client)

        asyncio.run_coroutine_threadsafe(finish(), loop).result()
        loop.call_soon_threadsafe(loop.stop)

    def _run(self, work: Coroutine[Any, Any, T], call: Call) -> T:
        """Run a coroutine on the judge's loop until it ends, or until the call has to."""
        with self._lock:
            if self._closed:
                work.close()
                raise Closed("the judge is closed; make a new hub")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = f"judge-{self.settings.name}"
                threading.Thread(target=_run_loop, args=(self._loop,), name=name, daemon=True).start()
            future = asyncio.run_coroutine_threadsafe(_settle(work), self._loop)
        try:
            while True:
                left = call.remaining(f"while {self.settings.name!r} was asked")
                wait = _STOP_SECONDS if left is None else min(left, _STOP_SECONDS)
                if concurrent.futures.wait([future], timeout=wait).done:
                    break
            outcome = future.result()
            if isinstance(outcome, DeciderError):
                raise self._without_key(outcome)
            return outcome
        except concurrent.futures.CancelledError:
            raise Closed("the judge was closed during the call") from None
        finally:
            future.cancel()

    async def _answer(self, call: Call, evaluations: Sequence[Evaluation]) -> Reply:
        client = self._get_client()
        slots = asyncio.Semaphore(_PARALLEL)
        results: dict[str, dict[str, Any]] = {evaluation.id: {} for evaluation in evaluations}
        models: set[str] = set()

        async def ask(evaluation: Evaluation) -> None:
            async with slots:
                try:
                    model, results[evaluation.id] = await self._evaluate(client, evaluation, call)
                except DeciderError:
                    call.current = call.current or evaluation.id
                    raise
            models.update(model)
            done = sum(bool(result) for result in results.values())
            if call.progress is not None:
                call.progress(done, len(results))

        try:
            async with asyncio.TaskGroup() as group:
                for evaluation in evaluations:
                    group.create_task(ask(evaluation))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if len(models) > 1:
            raise InvalidResponse(f"several models answered one call: {', '.join(sorted(models))}; ask again")
        return Reply(models.pop() if models else self.settings.model, results)

    async def _evaluate(self, client: Any, evaluation: Evaluation, call: Call) -> tuple[set[str], dict[str, Any]]:
        """The model that answered, none where nothing had to be asked, and the result of one evaluation."""
        asked = {name: question for name, question in evaluation.questions.items() if not answers_itself(question)}
        if not asked:
            answers = {name: only_option(question) for name, question in evaluation.questions.items()}
            return set(), {"answers": answers, "usage": {"input_tokens": 0, "output_tokens": 0}}
        call.requests += 1
        tries: list[None] = []
        _tries.set(tries)
        try:
            back = await self.ask(client, evaluation.state, asked, call.remaining())
        finally:
            call.attempts = max(call.attempts, len(tries))
        if back.input_tokens < 0 or back.output_tokens < 0:
            raise InvalidResponse("the token counts of usage are below 0")
        checked = check_answers(asked, back.answers)
        answers = {
            name: checked[name] if name in checked else only_option(question)
            for name, question in evaluation.questions.items()
        }
        usage = {"input_tokens": back.input_tokens, "output_tokens": back.output_tokens}
        return {back.model}, {"answers": answers, "usage": usage}

    def _models(self) -> dict[str, dict[str, str]]:
        async def fetch() -> dict[str, dict[str, str]]:
            return await self.fetch_models(self._get_client())

        return self._run(fetch(), Call(deadline=time.monotonic() + _PROBE_SECONDS))

    def _get_client(self) -> Any:
        """The client, made on first use; only called on the loop."""
        if self._client is None:
            self._key = self.check_key()
            try:
                import httpx2
            except ImportError as error:
                raise missing_extra(self.settings.provider) from error
            try:
                httpx2.URL(self.settings.host)
            except httpx2.InvalidURL as error:
                raise TransportFailure(f"the host {self.settings.host} is no address: {error}") from None
            self._client = self.make_client(self._key, httpx2.AsyncClient(event_hooks={"request": [_count_try]}))
        return self._client

    def _without_key(self, error: DeciderError) -> DeciderError:
        """The same error; a server may repeat the key that it was sent."""
        if self._key != _NO_KEY:
            error.args = tuple(str(part).replace(self._key, f"[{self.settings.key_env}]") for part in error.args)
        return error

    def _unknown_model(self, known: Mapping[str, Any]) -> str:
        names = ", ".join(sorted(known)[:8]) or "no model"
        return f"{self.settings.host} does not answer to {self.settings.model!r}; set model to one of: {names}"


def read_json(content: bytes) -> Mapping[str, Any]:
    """Parse the body of a response strictly."""
    try:
        body = loads(content, "the response")
    except InvalidRequest as error:
        raise InvalidResponse(str(error)) from None
    if not isinstance(body, Mapping):
        raise InvalidResponse("the response is no JSON object")
    return body


def missing_extra(provider: str) -> DeciderError:
    """Return the error for a kind of judge whose library is not installed."""
    return DeciderError(f'{provider} judges need more packages; run pip install "decider-native[judges]"')


async def _settle(work: Coroutine[Any, Any, T]) -> T | DeciderError:
    """What a coroutine returns or raises; the loop would report an error that nobody waits for any more as lost."""
    try:
        return await work
    except DeciderError as error:
        return error


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _count_try(request: object) -> None:
    if (tries := _tries.get(None)) is not None:
        tries.append(None)
