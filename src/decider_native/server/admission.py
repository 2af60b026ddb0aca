"""The queue before the model: bounded, and fair between clients."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .errors import HttpError

__all__ = ["FairQueue"]

_LONGEST_WAIT_MS = 30_000


class FairQueue:
    """Lets so many calls run at once; the others wait, and clients take turns. For one event loop.

    Parameters
    ----------
    slots
        Calls that may run at once.
    capacity
        Calls that may wait.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.running = 0
        self.waiting = 0
        self._slots = slots
        self._capacity = capacity
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # in the order of their turns
        self._mean_seconds = 0.1

    def check(self) -> None:
        """Refuse a call that would find the queue full, before anything is done for it.

        Raises
        ------
        HttpError
            503, with the time after which a slot of the queue should be free.
        """
        if self.waiting >= self._capacity:
            wait_ms = round(1000 * self._mean_seconds * max(1, self.waiting // (2 * self._slots)))
            raise HttpError(
                503, f"{self.waiting} requests wait already", retry_after_ms=max(100, min(_LONGEST_WAIT_MS, wait_ms))
            )

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for this client's turn and hold a slot. Errors as for `check`; cancelling leaves the queue."""
        if self.running < self._slots:
            self.running += 1
        else:
            self.check()
            await self._turn(client)
        started = time.monotonic()
        try:
            yield
        finally:
            self._mean_seconds += 0.1 * (time.monotonic() - started - self._mean_seconds)
            self._pass_on()

    async def _turn(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came at the same moment
                self._pass_on()
            else:
                self._remove(client, turn)
            raise

    def _remove(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[client]
        queue.remove(turn)
        self.waiting -= 1
        if not queue:
            del self._queues[client]

    def _pass_on(self) -> None:
        """Hand the slot of a call that has ended to the next client."""
        if not self._queues:
            self.running -= 1
            return
        client, queue = self._queues.popitem(last=False)
        turn = queue.popleft()
        self.waiting -= 1
        if queue:
            self._queues[client] = queue
        turn.set_result(None)
