"""What a server can be told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decider_native.errors import InvalidRequest

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one server.

    Attributes
    ----------
    model, decider
        The model as `Decider` takes it, and further keyword arguments of `Decider`.
    keys
        Names of clients to their bearer keys; empty: every request is let in.
    strict_models
        Refuse every model name that is not the loaded model's own, instead of answering to the usual aliases too.
    preload
        Load the model at start and not on the first request.
    idle_unload_seconds
        Free the model after so long without a request; None: keep it.
    max_queue
        Requests that may wait; one more is refused with 503.
    parallel_calls
        Requests that are given to the model at once: they are read together, and what they share is decoded once.
    max_request_bytes
        Largest body, both as sent and inflated.
    max_questions
        Most questions in one request, all its evaluations together.
    max_timeout_ms
        Milliseconds that a request may take at most, waiting and loading included.
    body_timeout_seconds
        Time within which a request's body has to arrive.
    log_content
        Put the request's JSON in the access log.
    judges
        A ``judges.toml``: its default judge answers the routes under ``/v1/judge``. None: the model does.

    Raises
    ------
    InvalidRequest
        A number that is not positive, or a key that cannot be sent in a header.
    """

    model: str | os.PathLike[str] | None = None
    decider: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    strict_models: bool = False
    preload: bool = False
    idle_unload_seconds: float | None = None
    max_queue: int = 256
    parallel_calls: int = 8
    max_request_bytes: int = 8_388_608
    max_questions: int = 512
    max_timeout_ms: int = 300_000
    body_timeout_seconds: float = 30.0
    log_content: bool = False
    judges: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what would only fail later."""
        limits = ("max_queue", "parallel_calls", "max_request_bytes", "max_questions", "max_timeout_ms")
        for name in (*limits, "body_timeout_seconds", "idle_unload_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(f"must be more than 0; got {value!r}", field=name)
        for name, key in self.keys.items():
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidRequest("is empty or not printable ASCII without spaces; choose another key", field=name)
