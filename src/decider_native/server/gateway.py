"""What every request passes: its id, its key, its metrics, its line in the access log, and the body of its error."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Keys
from .errors import HttpError, as_http_error
from .metrics import Metrics
from .wire import decisions, judge, systemone

__all__ = ["Gateway", "error_response"]

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_CLIENT_GONE = 499

_logger = logging.getLogger("decider_native.server")
_access_logger = logging.getLogger("decider_native.server.access")


class _ErrorResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        # a lone surrogate of the request may be quoted in its error
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return an error as the family of the request's route writes it."""
    if isinstance(error, HTTPException):
        error = HttpError(error.status_code, f"{error.detail}: {request.url.path[:200]}", headers=error.headers or {})
    fault = as_http_error(error)
    path = request.url.path
    family = decisions if path.startswith("/v1/decisions") else judge if path.startswith("/v1/judge/") else systemone
    return _ErrorResponse(family.error_body(fault), fault.status, fault.all_headers())


class Gateway:
    """ASGI middleware around all routes.

    A request's ``state`` gets ``request_id``, ``client`` (who asks), ``started`` (monotonic seconds) and ``facts``, a
    dict that handlers fill for the access log: counts, and no content.
    """

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"req_{uuid.uuid4().hex}"
        peer = scope["client"][0] if scope.get("client") else ""
        facts: dict[str, object] = {}
        state = {"request_id": request_id, "client": peer, "started": time.monotonic(), "facts": facts}
        scope.setdefault("state", {}).update(state)
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                outgoing = MutableHeaders(scope=message)
                outgoing["x-typesafe-request-id"] = outgoing["x-request-id"] = request_id
            await send(message)

        try:
            if scope["path"].startswith("/v1/") or scope["path"] == "/metrics":
                scope["state"]["client"] = self._keys.client(headers.get("authorization"), peer)
            await self._app(scope, receive, reply)
        except ClientDisconnect:
            status = _CLIENT_GONE
        except Exception as error:
            if not isinstance(error, HttpError):
                _logger.exception("request %s failed", request_id)
            if status:
                raise
            await error_response(Request(scope), error)(scope, receive, reply)
        finally:
            self._record(scope, status or _CLIENT_GONE, facts)

    def _record(self, scope: Scope, status: int, facts: dict[str, object]) -> None:
        state = scope["state"]
        seconds = time.monotonic() - state["started"]
        route = getattr(scope.get("route"), "path", "unknown")
        self._metrics.count(route, status, seconds, facts)
        entry = {
            "request_id": state["request_id"],
            "client": state["client"],
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            **facts,
        }
        _access_logger.info("%s", json.dumps(entry))
