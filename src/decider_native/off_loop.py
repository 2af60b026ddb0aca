"""Blocking calls beside an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["off_loop"]

T = TypeVar("T")


async def off_loop(work: Callable[[], T], cancel: threading.Event) -> T:
    """Run a blocking call on a thread; cancelling the task sets `cancel` and waits until the call has stopped."""
    import asyncio  # most programs that import this package never need it

    call = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        cancel.set()
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # or the loop reports it as lost
        await asyncio.wait([call])
        raise
