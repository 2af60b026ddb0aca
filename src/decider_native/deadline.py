"""How long a call may take."""

from __future__ import annotations

import math
import time

from .errors import InvalidRequest

__all__ = ["check_timeout", "deadline", "seconds_left"]


def check_timeout(seconds: float) -> float:
    """Return a number of seconds that a caller allows; `InvalidRequest` if it is none, or not finite and above 0."""
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InvalidRequest(f"must be a finite number of seconds > 0; got {seconds!r}", field="timeout")
    return seconds


def deadline(timeout: float | None) -> float | None:
    """When a call that starts now must end, on the monotonic clock. Errors as for `check_timeout`."""
    return None if timeout is None else time.monotonic() + check_timeout(timeout)


def seconds_left(until: float | None) -> float | None:
    """Seconds until a deadline, at least 0."""
    return None if until is None else max(0.0, until - time.monotonic())
