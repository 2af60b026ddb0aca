"""One request's way through queue and model: its deadline, its disconnect, its cancellation."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from decider_native.answers import Result
from decider_native.contract import DeciderJudge, Judge, Limits
from decider_native.decider import Decider
from decider_native.errors import Cancelled, DeadlineExceeded, DeciderError, InvalidRequest
from decider_native.judges import DefaultJudge, Hub
from decider_native.questions import Json, Question

from .admission import FairQueue
from .errors import HttpError
from .lifecycle import ModelHost
from .wire import Evaluation

__all__ = ["Calls"]

S = TypeVar("S")
T = TypeVar("T")

_STOP_INTERVAL = 0.05


class Calls:
    """Runs what requests ask for, on threads. For one event loop.

    Parameters
    ----------
    host
        The model.
    limits
        What a judge::evaluate request may ask for.
    slots, capacity
        Calls that run at once, and calls that may wait.
    hub
        Its default judge answers judge::evaluate requests; None: the model does.
    """

    def __init__(self, host: ModelHost, limits: Limits, slots: int, capacity: int, hub: Hub | None = None) -> None:
        self.host = host
        self._limits = limits
        self._hub = hub
        self.queue = FairQueue(slots, capacity)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="call")
        self._named: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def evaluate(
        self, request: Request, client: str, deadline: float, evaluations: Sequence[Evaluation]
    ) -> list[Result]:
        """Answer evaluations in one native call.

        Parameters
        ----------
        client
            Who asks, for the turns in the queue.
        deadline
            On the monotonic clock.

        Raises
        ------
        HttpError, DeciderError
            Why there is no answer.
        ClientDisconnect
            Nobody waits for it any more.
        """
        cancel = threading.Event()
        current = evaluations[0]

        def inputs() -> Iterator[tuple[Json, dict[str, Question]]]:
            nonlocal current
            for current in evaluations:
                yield current.state, current.questions

        def work(decider: Decider) -> list[Result]:
            try:
                return decider.evaluate_many(inputs(), timeout=_left(deadline), cancel=cancel)
            except InvalidRequest as error:
                raise HttpError(422, error.message, place=current.places.get(error.question or "", ())) from None

        return await self._run(request, client, deadline, self.host.use(), work, cancel.set)

    async def judge(self, request: Request, client: str, deadline: float, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a judge::evaluate request that waited for its turn. Parameters and errors as for `evaluate`."""
        request_id = body.get("request_id")
        name = (client, request_id) if isinstance(request_id, str) else None
        body = {"request_id": "call"} | body  # each call has a Judge of its own, so that any id will do
        if type(expires_ms := body.get("expires_at_unix_ms", sys.maxsize)) is int:
            left_ms = int(1000 * (deadline - time.monotonic()))
            body["expires_at_unix_ms"] = min(expires_ms, time.time_ns() // 1_000_000 + left_ms)
        judges: list[Judge] = []

        def work(judge: Judge) -> dict[str, Any]:
            judges.append(judge)
            return judge.evaluate(body)

        def stop() -> None:
            for judge in judges:
                judge.cancel({"request_id": body["request_id"]})

        return await self._run(request, client, deadline, self._judge(), work, stop, name)

    async def judge_models(
        self, request: Request, client: str, deadline: float, body: dict[str, Any]
    ) -> dict[str, Any]:
        """List the model. Parameters and errors as for `evaluate`."""
        return await self._run(request, client, deadline, self._judge(), lambda judge: judge.models(body), _nothing)

    def cancel(self, client: str, request_id: str) -> bool:
        """Stop the call of this client that has this request id; whether there is one."""
        task = self._named.get((client, request_id))
        return task is not None and _cancel(task)

    def _judge(self) -> AbstractAsyncContextManager[Judge]:
        """Hold a judge of one call's own over what answers the judge routes."""
        if self._hub is not None:
            return nullcontext(DefaultJudge(self._hub, limits=self._limits))
        return self._model_judge()

    @asynccontextmanager
    async def _model_judge(self) -> AsyncIterator[Judge]:
        async with self.host.use() as decider:
            yield DeciderJudge(decider, limits=self._limits)

    async def _run(
        self,
        request: Request,
        client: str,
        deadline: float,
        source: AbstractAsyncContextManager[S],
        work: Callable[[S], T],
        stop: Callable[[], object],
        name: tuple[str, str] | None = None,
    ) -> T:
        if name in self._named:
            raise InvalidRequest("is that of a call that still runs; give each its own", field="request_id")
        call = asyncio.create_task(self._admitted(client, deadline, source, work, stop))
        gone = asyncio.create_task(_disconnected(request))
        if name is not None:
            self._named[name] = call
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ClientDisconnect
            if call.cancelled():
                raise Cancelled("the call was cancelled")
            return call.result()
        finally:
            gone.cancel()
            _cancel(call)
            if name is not None:
                del self._named[name]

    async def _admitted(
        self,
        client: str,
        deadline: float,
        source: AbstractAsyncContextManager[S],
        work: Callable[[S], T],
        stop: Callable[[], object],
    ) -> T:
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    await held.enter_async_context(self.queue.slot(client))
                    answering = await held.enter_async_context(source)
            except TimeoutError as error:
                if isinstance(error, DeciderError):
                    raise
                what = "while the model was loading" if self.host.state == "loading" else "in the queue"
                raise DeadlineExceeded(f"the deadline passed {what}; ask again later, or allow more time") from None
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, answering)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                while not running.done():  # the slot stays taken until the model is free again
                    stop()
                    await asyncio.wait({running}, timeout=_STOP_INTERVAL)
                running.exception()  # retrieved, or the loop reports it as lost
                raise


def _cancel(task: asyncio.Task[Any]) -> bool:
    """Cancel a task once, for it needs the time to stop its thread; whether it is on its way to end."""
    return task.cancelling() > 0 or task.cancel()


def _nothing() -> None:
    """Stop what cannot be stopped and ends at once."""


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
