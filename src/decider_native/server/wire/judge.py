"""The judge::evaluate contract over HTTP: its envelopes, with a status beside them."""

from __future__ import annotations

from typing import Any

from decider_native.contract import MAX_MESSAGE

from ..errors import STATUS, HttpError

__all__ = ["error_body", "status_of"]


def status_of(envelope: dict[str, Any]) -> int:
    """The HTTP status that goes with an envelope; 404 for a model or provider that is never to be had here."""
    if envelope["status"] == "ok":
        return 200
    if envelope["code"] == "provider_unavailable" and "retry_after_ms" not in envelope:
        return 404
    return STATUS.get(envelope["code"], 503)


def error_body(error: HttpError) -> dict[str, Any]:
    """The envelope of an error that happened before the contract saw the request."""
    where = f"{'.'.join(map(str, error.place))}: " if error.place else ""
    message = where + error.message
    envelope: dict[str, Any] = {
        "status": "error",
        "code": error.code,
        "provider_error": {"message": message[:MAX_MESSAGE], "truncated": len(message) > MAX_MESSAGE},
    }
    if error.retry_after_ms is not None:
        envelope["retry_after_ms"] = error.retry_after_ms
    counts = dict.fromkeys(("attempts", "requests", "questions", "input_tokens", "output_tokens", "elapsed_ms"), 0)
    return envelope | {"stats": counts | {"usage_complete": True}}
