"""The model's life in a server: loaded in the background, used, freed when idle, loaded again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

from decider_native.contract import RETRY_AFTER_MS
from decider_native.decider import Decider

from .errors import HttpError

__all__ = ["ModelHost", "State"]

State: TypeAlias = Literal["idle", "loading", "ready", "failed"]

_logger = logging.getLogger("decider_native.server")


class ModelHost:
    """Holds at most one loaded model. For one event loop.

    Parameters
    ----------
    load
        Makes the `Decider`; called on a thread of its own.
    idle_seconds
        Free the model when nobody has used it for so long; None: keep it.

    Attributes
    ----------
    state
        ``"idle"`` (the next request loads it), ``"loading"``, ``"ready"`` or ``"failed"``.
    reason
        Why the last load failed.
    facts
        What `Decider.info` said when it was last loaded.
    """

    def __init__(self, load: Callable[[], Decider], idle_seconds: float | None = None) -> None:
        self.state: State = "idle"
        self.reason: str | None = None
        self.facts: dict[str, Any] = {}
        self._load = load
        self._idle_seconds = idle_seconds
        self._loaded: asyncio.Future[Decider] | None = None
        self._retry_at = 0.0
        self._users = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    def start(self) -> asyncio.Future[Decider]:
        """Begin to load, unless that has happened already, and return what will be the model."""
        if self._loaded is None:
            self.state = "loading"
            result: Future[Decider] = Future()
            # No pool: a process that has to end does not wait for a load or a download.
            threading.Thread(target=self._run, args=(result,), name="model-load", daemon=True).start()
            self._loaded = asyncio.wrap_future(result)
            self._loaded.add_done_callback(self._finished)
        return self._loaded

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Decider]:
        """Hold the model, loading it first where needed; a load goes on when its waiter is cancelled.

        Raises
        ------
        DeciderError
            The load failed.
        HttpError
            503: it failed a moment ago, and is not tried again yet.
        """
        left = self._retry_at - time.monotonic()
        if self.state == "failed" and left > 0:
            raise HttpError(503, f"the model failed to load: {self.reason}", retry_after_ms=1 + int(1000 * left))
        self._users += 1
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        try:
            yield await asyncio.shield(self.start())
        finally:
            self._users -= 1
            self._rest()

    async def close(self) -> None:
        """Free the model; calls that still run are stopped."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        loaded, self._loaded, self.state = self._loaded, None, "idle"
        if loaded is None or loaded.cancel():  # a load that goes on keeps nobody waiting, and its model goes with it
            return
        if loaded.exception() is None:
            await asyncio.to_thread(loaded.result().close)

    def _run(self, result: Future[Decider]) -> None:
        result.set_running_or_notify_cancel()
        try:
            result.set_result(self._load())
        except BaseException as error:
            result.set_exception(error)

    def _finished(self, loaded: asyncio.Future[Decider]) -> None:
        if loaded is not self._loaded:  # closed meanwhile
            return
        if error := loaded.exception():
            self.state, self.reason, self._loaded = "failed", str(error) or type(error).__name__, None
            self._retry_at = time.monotonic() + RETRY_AFTER_MS / 1000
            _logger.error("the model failed to load: %s", self.reason)
            return
        self.state, self.reason, self.facts = "ready", None, loaded.result().info()
        self._rest()

    def _rest(self) -> None:
        if self._users == 0 and self.state == "ready" and self._idle_seconds is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._unload)

    def _unload(self) -> None:
        if self._users or self.state != "ready" or self._loaded is None:
            return
        decider, self._loaded, self.state = self._loaded.result(), None, "idle"
        _logger.info("freed %s after %g idle seconds", decider.name, self._idle_seconds)
        asyncio.get_running_loop().run_in_executor(None, decider.close)
