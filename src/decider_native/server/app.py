"""The ASGI app: routes and what they do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from decider_native.answers import Result
from decider_native.contract import Limits
from decider_native.decider import Decider
from decider_native.errors import DeciderError, InvalidRequest
from decider_native.judges import Hub

from .auth import Keys
from .body import read_json
from .calls import Calls
from .errors import HttpError, retry_headers
from .gateway import Gateway, error_response
from .lifecycle import ModelHost
from .metrics import Metrics
from .names import Names
from .openapi import document
from .settings import Settings
from .wire import Evaluation, decisions, judge, systemone

__all__ = ["create_app"]

TIMEOUT_HEADER = "x-request-timeout-ms"
_SDK_TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")  # seconds, as the OpenAI clients send them
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def create_app(settings: Settings | None = None) -> Starlette:
    """Return the ASGI app of a server; the model is loaded within its lifespan.

    Raises
    ------
    ModelNotFound
        The model's name cannot be read. Whatever else is wrong with it, ``/health`` tells.
    InvalidRequest
        The judges' file cannot be read or is invalid.
    """
    return _Server(settings or Settings()).app


class _Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = Names(settings.model, settings.strict_models)
        self._host = ModelHost(lambda: Decider(settings.model, **settings.decider), settings.idle_unload_seconds)
        self._limits = Limits(max_timeout_ms=settings.max_timeout_ms, max_request_bytes=settings.max_request_bytes)
        self._hub = None if settings.judges is None else Hub.from_file(settings.judges, limits=self._limits)
        self._calls = Calls(self._host, self._limits, settings.parallel_calls, settings.max_queue, self._hub)
        self._metrics = Metrics(self._host, self._calls.queue)
        self._openapi = document(settings)
        self.app = Starlette(
            routes=[
                Route("/v1/systemone", self._systemone, methods=["POST"]),
                Route("/v1/systemone/batch", self._batch, methods=["POST"]),
                Route("/v1/decisions", self._decisions, methods=["POST"]),
                Route("/v1/judge/evaluate", self._judge, methods=["POST"]),
                Route("/v1/judge/cancel", self._judge_cancel, methods=["POST"]),
                Route("/v1/judge/models", self._judge_models, methods=["GET", "POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics_text),
                Route("/openapi.json", self._openapi_json),
                Route("/docs", _page("docs.html")),
                Route("/", _page("page.html")),
            ],
            middleware=[Middleware(Gateway, keys=Keys(settings.keys), metrics=self._metrics)],
            exception_handlers={HTTPException: _fail, HttpError: _fail, DeciderError: _fail},
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False  # clients do not follow a redirected POST

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if self._settings.preload:
            self._host.start()
        yield
        await self._host.close()
        if self._hub is not None:
            await asyncio.to_thread(self._hub.close)

    async def _systemone(self, request: Request) -> Response:
        body = await self._read(request)
        (result,) = await self._evaluate(request, [systemone.parse(body)])
        return JSONResponse(systemone.result_body(result, body.get("x_diagnostics") is True))

    async def _batch(self, request: Request) -> Response:
        body = await self._read(request)
        results = await self._evaluate(request, systemone.parse_batch(body))
        return JSONResponse(systemone.batch_body(results, body.get("x_diagnostics") is True))

    async def _decisions(self, request: Request) -> Response:
        asked = decisions.parse(await self._read(request))
        (result,) = await self._evaluate(request, [asked.evaluation])
        return JSONResponse(asked.result_body(result))

    async def _judge(self, request: Request) -> Response:
        body = await self._read(request, any_model=True)
        deadline = min(self._deadline(request), _judge_deadline(request, body))
        envelope = await self._calls.judge(request, request.state.client, deadline, body)
        stats = envelope["stats"]
        stats["elapsed_ms"] = int(1000 * (time.monotonic() - request.state.started))
        request.state.facts.update(questions=stats["questions"], tokens=stats["input_tokens"])
        return _envelope(envelope)

    async def _judge_cancel(self, request: Request) -> Response:
        body = await self._read(request, any_model=True, always=True)
        if not isinstance(request_id := body.get("request_id"), str) or len(body) != 1:
            raise InvalidRequest("is the one field of this request, and text", field="request_id")
        return JSONResponse({"status": "ok", "cancelled": self._calls.cancel(request.state.client, request_id)})

    async def _judge_models(self, request: Request) -> Response:
        body = await self._read(request, any_model=True) if request.method == "POST" else {}
        envelope = await self._calls.judge_models(request, request.state.client, self._deadline(request), body)
        return _envelope(envelope)

    async def _models(self, request: Request) -> Response:
        return JSONResponse(self._names.listing(self._host.facts))

    async def _health(self, request: Request) -> Response:
        facts = self._host.facts
        health = {
            "status": self._host.state,
            "model": self._names.name,
            "device": facts.get("device"),
            "revision": self._names.revision,
            "context_window": facts.get("context_tokens"),
            "reason": self._host.reason,
        }
        return JSONResponse(health, 503 if self._host.state == "failed" else 200)

    async def _ready(self, request: Request) -> Response:
        # an idle server is ready: the next request loads its model, and a balancer must send it one
        ready = self._host.state in ("ready", "idle")
        return JSONResponse({"ready": ready, "status": self._host.state}, 200 if ready else 503)

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi_json(self, request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def _read(self, request: Request, *, any_model: bool = False, always: bool = False) -> dict[str, Any]:
        if not always:
            self._calls.queue.check()  # before the work of reading it
        settings = self._settings
        body = await read_json(request, limit=settings.max_request_bytes, seconds=settings.body_timeout_seconds)
        if settings.log_content:
            request.state.facts["request"] = body
        if (count := _count_questions(body)) > settings.max_questions:
            what = f"{count} questions; ask at most {settings.max_questions} in one request"
            raise HttpError(422, what, place=("questions",))
        if not any_model:
            self._names.check(body.get("model"))
        return body

    async def _evaluate(self, request: Request, evaluations: Sequence[Evaluation]) -> list[Result]:
        results = await self._calls.evaluate(request, request.state.client, self._deadline(request), evaluations)
        tokens = sum(result.usage.input_tokens for result in results)
        questions = sum(len(result.answers) for result in results)
        request.state.facts.update(questions=questions, tokens=tokens)
        return results

    def _deadline(self, request: Request) -> float:
        """When this request must be answered, on the monotonic clock."""
        allowed_ms = float(self._settings.max_timeout_ms)
        if given := request.headers.get(TIMEOUT_HEADER):
            if not given.isdecimal() or not 1 <= int(given[:20]) <= allowed_ms:
                raise InvalidRequest(f"must be an integer from 1 to {allowed_ms:.0f}", field=TIMEOUT_HEADER)
            allowed_ms = int(given)
        for name in _SDK_TIMEOUT_HEADERS:
            seconds = request.headers.get(name, "")
            if seconds.replace(".", "", 1).isdecimal() and float(seconds) > 0:
                allowed_ms = min(allowed_ms, 1000 * float(seconds))
        started: float = request.state.started
        return started + allowed_ms / 1000


async def _fail(request: Request, error: Exception) -> Response:
    return error_response(request, error)


def _envelope(envelope: dict[str, Any]) -> Response:
    return JSONResponse(envelope, judge.status_of(envelope), retry_headers(envelope.get("retry_after_ms")))


def _count_questions(body: dict[str, Any]) -> int:
    """How many questions a body asks, of whatever family; what has another shape is for its parser to refuse."""
    evaluations = body.get("evaluations")
    items = [body, *(evaluations if isinstance(evaluations, list) else ())]
    questions = (item.get("questions") for item in items if isinstance(item, dict))
    return sum(len(asked) for asked in questions if isinstance(asked, (dict, list)))


def _judge_deadline(request: Request, body: dict[str, Any]) -> float:
    """The deadline in a judge request; what is no valid one is for the contract to refuse."""
    started: float = request.state.started
    timeout_ms, expires_ms = body.get("timeout_ms"), body.get("expires_at_unix_ms")
    deadlines = [float("inf")]
    if type(timeout_ms) is int and 0 < timeout_ms < 1 << 53:
        deadlines.append(started + timeout_ms / 1000)
    if type(expires_ms) is int and 0 < expires_ms < 1 << 53:
        deadlines.append(time.monotonic() + expires_ms / 1000 - time.time())
    return min(deadlines)


def _page(name: str) -> Any:
    async def show(request: Request) -> Response:
        return HTMLResponse(files(__package__).joinpath(name).read_bytes(), headers=_PAGE_HEADERS)

    return show
