"""What a judge on another machine can answer with instead of answers, in the codes of the contract."""

# ruff: noqa: N818 - the names say what happened; all of them are errors
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ..contract import JudgeError, NotServed

__all__ = ["AttemptTimeout", "HttpFailure", "InvalidResponse", "MissingKey", "TransportFailure", "http_failure"]


class MissingKey(JudgeError):
    """There is no key for the judge, or it is refused."""

    code: ClassVar[str] = "missing_key"


class AttemptTimeout(JudgeError):
    """Every try took longer than one may; the call's own budget was not spent."""

    code: ClassVar[str] = "attempt_timeout"


class HttpFailure(JudgeError):
    """The judge answered with an HTTP error."""

    code: ClassVar[str] = "http"


class TransportFailure(JudgeError):
    """The judge was not reached, or the connection broke."""

    code: ClassVar[str] = "transport"


class InvalidResponse(JudgeError):
    """What came back is no answer to what was asked."""

    code: ClassVar[str] = "invalid_response"


class _RefusedRequest(JudgeError):
    code: ClassVar[str] = "invalid_request"


class _RefusedSize(JudgeError):
    code: ClassVar[str] = "payload_too_large"


_KINDS: dict[int, type[JudgeError]] = {
    400: _RefusedRequest,
    401: MissingKey,
    403: MissingKey,
    404: NotServed,
    413: _RefusedSize,
    422: _RefusedRequest,
}


def http_failure(status: int, message: str, headers: Mapping[str, str], key_env: str | None) -> JudgeError:
    """Return the error for an HTTP status, with the wait that the response's headers ask for."""
    kind = _KINDS.get(status, HttpFailure)
    if kind is MissingKey:
        where = f"check the key in {key_env}" if key_env else "name the environment variable of a key in key_env"
        message = f"{message}; {where}"
    return kind(f"HTTP {status}: {message}", retry_after_ms=_retry_after_ms(headers))


def _retry_after_ms(headers: Mapping[str, str]) -> int | None:
    for name, unit in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            wait = float(headers[name]) * unit
        except (KeyError, ValueError):  # not there, or a date
            continue
        if 0 <= wait < math.inf:
            return math.ceil(wait)
    return None
