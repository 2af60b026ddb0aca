"""What can go wrong with a request, as an HTTP status; each route family has its own body for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from decider_native.contract import RETRY_AFTER_MS
from decider_native.errors import DeciderError, InvalidRequest

from .wire import Place

__all__ = ["STATUS", "HttpError", "as_http_error", "retry_headers"]

STATUS = {
    "invalid_request": 422,
    "payload_too_large": 413,
    "deadline": 504,
    "cancelled": 409,
    "provider_unavailable": 503,
    "missing_key": 503,
    "http": 502,
    "transport": 502,
    "invalid_response": 502,
    "attempt_timeout": 504,
}
_CODES = {401: "missing_key", 413: "payload_too_large", 500: "provider_unavailable", 503: "provider_unavailable"}


@dataclass(eq=False)
class HttpError(Exception):
    """A request that is not answered.

    Attributes
    ----------
    status, message
        The HTTP status, and what is wrong and what to do about it.
    code
        The error code of the judge::evaluate contract.
    retry_after_ms
        When trying again may help; None: it will not.
    place
        The part at fault, outermost first: ``("questions", "team", "choice", "criteria")``.
    headers
        Further response headers.
    """

    status: int
    message: str
    code: str = ""
    retry_after_ms: int | None = None
    place: Place = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give it the contract's code where none was named."""
        self.code = self.code or _CODES.get(self.status, "invalid_request")

    def __str__(self) -> str:
        """Return the message."""
        return self.message

    def all_headers(self) -> dict[str, str]:
        """Response headers, with those that tell clients when to try again."""
        return {**self.headers, **retry_headers(self.retry_after_ms)}


def retry_headers(after_ms: int | None) -> dict[str, str]:
    """Return the headers that say when to try again; none if it will not help."""
    return {} if after_ms is None else {"retry-after": str(math.ceil(after_ms / 1000)), "retry-after-ms": str(after_ms)}


def as_http_error(error: Exception) -> HttpError:
    """Return the HTTP form of an error."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InvalidRequest):
        question = () if error.question is None else ("questions", error.question)
        return HttpError(422, error.message, error.code, place=(*question, *([error.field] if error.field else [])))
    if isinstance(error, DeciderError):
        status = STATUS.get(error.code, 503)
        return HttpError(status, str(error), error.code, RETRY_AFTER_MS if status == 503 else None)
    return HttpError(500, "the server failed to answer this request; its log says why")
