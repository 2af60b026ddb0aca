"""The judge::evaluate contract: strict JSON requests in, envelopes out. A fault of a request is an answer too."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from . import strict_json
from .errors import Cancelled, DeadlineExceeded, DeciderError, InvalidRequest
from .models import find
from .questions import KINDS, Choice, Json, Noul, Question, Score, copy_json

if TYPE_CHECKING:
    from .decider import Decider

__all__ = ["MAX_MESSAGE", "RETRY_AFTER_MS", "Judge", "Limits", "parse_question"]

Request: TypeAlias = Mapping[str, Any] | str | bytes

RETRY_AFTER_MS = 30_000
"""When to ask again after a failure that may pass: a closed model, a failed load or device."""
MAX_MESSAGE = 500
"""Characters of an error message; a longer one is cut and says so."""

_OPTIONAL = ("timeout_ms", "expires_at_unix_ms", "model", "provider", "request_id")
_PROVIDER = re.compile(r"[a-z0-9-]{1,64}"), "1 to 64 of a-z, 0-9 and -"
_EVALUATION_ID = re.compile(r"\s*\S.*", re.DOTALL), "text that is not blank"
_REQUEST_ID = re.compile(r"[ -~]{1,128}"), "1 to 128 printable ASCII characters"
_FAR_MS = 10**10  # longer than any call lasts, and still a time that every clock can count
_TYPES: tuple[type, ...] = (type(None), bool, int, float, str, Mapping, list, tuple)
_TYPE_NAMES = ("null", "a boolean", "an integer", "a number", "text", "an object", "an array", "an array")
_CONTENT = ("text", "an object", "an array")


class _TooManyBytesError(DeciderError):
    code: ClassVar[str] = "payload_too_large"


class _NotServedError(DeciderError):
    """Another model or provider is asked for; asking again later does not help."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest ``timeout_ms``, most evaluations in a call, and longest JSON text in bytes (Python values: any size)."""

    max_timeout_ms: int = 300_000
    max_evaluations: int = 512
    max_request_bytes: int = 8_388_608


class Judge:
    """A model behind the judge contract. Thread-safe.

    `limits` bounds what a request may ask for (None: the defaults); `provider` is the name this model answers to, 1 to
    64 of ``a-z``, ``0-9`` and ``-``, else `InvalidRequest`. Closing the Decider stays with whoever made it.
    """

    def __init__(self, decider: Decider, *, limits: Limits | None = None, provider: str = "decider") -> None:
        self.limits = limits or Limits()
        self.provider = _matching(_PROVIDER, provider, "provider")
        self._decider = decider
        entry = find(decider.name)
        self._entry = entry if entry and entry.name == decider.name else None
        self._names = {name.casefold() for name in (decider.name, *(self._entry.aliases if self._entry else ()))}
        self._active: dict[object, threading.Event] = {}
        self._lock = threading.Lock()

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Answer every question of every evaluation, or none.

        The request is ``{"evaluations": [{"id", "state", "questions"}, ...]}`` with, as wanted, ``timeout_ms``,
        ``expires_at_unix_ms``, ``model``, ``provider`` and ``request_id``; or the JSON text of it. The answer is
        ``{"status": "ok", "model", "results", "stats"}`` or ``{"status": "error", "code", "provider_error", "stats"}``,
        the latter with ``retry_after_ms`` where waiting may help.
        """
        call = _Call()
        try:
            with self._cancellable(self._parse(request, call)) as call.cancel:
                results = self._decider.evaluate_many(call.prepared(), timeout=call.remaining(), cancel=call.cancel)
        except DeciderError as error:
            return call.failed(error)
        return {
            "status": "ok",
            "model": self._decider.name,
            "results": {
                evaluation.id: {key: wire[key] for key in ("answers", "usage")}
                for evaluation, wire in zip(call.evaluations, (result.to_dict() for result in results), strict=True)
            },
            "stats": call.stats(sum(result.usage.input_tokens for result in results)),
        }

    def cancel(self, request: Request) -> dict[str, Any]:
        """Signal the active call that ``{"request_id"}`` names; it may still end as ok.

        Answers ``{"status": "ok", "cancelled": bool}``, whether there is such a call; or an error as `evaluate` does.
        """
        call = _Call()
        try:
            body = _members(self._json(request), required=("request_id",))
            request_id = _matching(_REQUEST_ID, body["request_id"], "request_id")
        except DeciderError as error:
            return call.failed(error)
        with self._lock:
            if event := self._active.get(request_id):
                event.set()
        return {"status": "ok", "cancelled": event is not None}

    def models(self, request: Request | None = None) -> dict[str, Any]:
        """List the one model that runs here (models.list); a request, if given, is an empty object.

        Answers ``{"status": "ok", "models": [...], "stats"}``, or an error as `evaluate` does. ``context_window`` is in
        tokens; ``release_date`` is empty, for model files do not tell theirs.
        """
        call = _Call()
        try:
            _members({} if request is None else self._json(request))
        except DeciderError as error:
            return call.failed(error)
        facts = self._decider.info()
        model = {
            "name": self._decider.name,
            "description": self._entry.summary if self._entry else facts["description"],
            "release_date": "",
            "context_window": facts["context_tokens"],
            "max_options": facts["labels"],
        }
        return {"status": "ok", "models": [model], "stats": call.stats(0)}

    def _json(self, request: object) -> object:
        if not isinstance(request, (str, bytes)):
            return request
        limit = self.limits.max_request_bytes
        size = len(request.encode(errors="surrogatepass") if isinstance(request, str) else request)
        if size > limit:
            raise _TooManyBytesError(f"the request has {size} bytes; send at most {limit} in one call")
        return strict_json.loads(request, "request")

    def _parse(self, request: object, call: _Call) -> str | None:
        """Check a request, fill in its call, and return its request id."""
        body = _members(self._json(request), required=("evaluations",), optional=_OPTIONAL)
        request_id = _matching(_REQUEST_ID, body["request_id"], "request_id") if "request_id" in body else None
        provider = _matching(_PROVIDER, body.get("provider", self.provider), "provider")
        model = _expect(body.get("model", self._decider.name), "model", "text")
        if "timeout_ms" in body:
            timeout_ms = _expect(body["timeout_ms"], "timeout_ms", "an integer")
            if not 1 <= timeout_ms <= self.limits.max_timeout_ms:
                raise InvalidRequest(f"must be from 1 to {self.limits.max_timeout_ms}", field="timeout_ms")
            call.deadline = call.started + timeout_ms / 1000
        if "expires_at_unix_ms" in body:
            expires_ms = _expect(body["expires_at_unix_ms"], "expires_at_unix_ms", "an integer")
            left = max(0, min(expires_ms - time.time_ns() // 1_000_000, _FAR_MS))
            call.deadline = min(call.deadline, time.monotonic() + left / 1000)
        items, most = _expect(body["evaluations"], "evaluations", "an array"), self.limits.max_evaluations
        if not 1 <= len(items) <= most:
            raise InvalidRequest(f"needs 1 to {most} items, got {len(items)}; split the call", field="evaluations")
        ids: set[str] = set()
        call.evaluations = [_parse_evaluation(item, i, ids, call) for i, item in enumerate(items)]
        # Only now: a request that is wrong in itself is wrong everywhere.
        if provider != self.provider:
            raise _NotServedError(f"this provider is {self.provider!r}, not {provider!r}; leave provider out")
        if model.casefold() not in self._names:
            raise _NotServedError(f"{self._decider.name!r} runs here, not {_short(model)!r}; leave model out")
        return request_id

    @contextmanager
    def _cancellable(self, request_id: str | None) -> Iterator[threading.Event]:
        """Hold a request id while its call runs."""
        key = object() if request_id is None else request_id
        with self._lock:
            if key in self._active:
                raise InvalidRequest("is that of a call that still runs; give each its own", field="request_id")
            event = self._active[key] = threading.Event()
        try:
            yield event
        finally:
            with self._lock:
                del self._active[key]


@dataclass(frozen=True, slots=True)
class _Evaluation:
    id: str
    state: Json
    questions: dict[str, Question]

    def needs_model(self) -> bool:
        # the only option of a choice answers itself
        return any(not isinstance(asked, Choice) or len(asked.criteria) > 1 for asked in self.questions.values())


@dataclass(slots=True)
class _Call:
    """How far a call has come: the source of its stats, its deadline and the place of its error.

    `current` names the evaluation at hand; `requests` counts those in the model's queue; times are monotonic seconds.
    """

    started: float = field(default_factory=time.monotonic)
    deadline: float = math.inf
    evaluations: list[_Evaluation] = field(default_factory=list)
    current: str | None = None
    requests: int = 0
    cancel: threading.Event = field(default_factory=threading.Event)

    def remaining(self) -> float | None:
        """Seconds left; None: no deadline. Raises what must stop a call that the model does not have yet."""
        if self.cancel.is_set():
            raise Cancelled("the call was cancelled before the model was asked")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the model was asked")
        return None if math.isinf(left) else left

    def prepared(self) -> Iterator[tuple[Json, dict[str, Question]]]:
        """Evaluations to tokenize one by one, so that the call can stop between them."""
        for evaluation in self.evaluations:
            self.remaining()
            self.current = evaluation.id
            yield evaluation.state, evaluation.questions
            self.current = None
        self.remaining()
        self.requests = sum(evaluation.needs_model() for evaluation in self.evaluations)

    def stats(self, input_tokens: int, *, complete: bool = True) -> dict[str, Any]:
        return {
            "attempts": min(1, self.requests),
            "requests": self.requests,
            "questions": sum(len(evaluation.questions) for evaluation in self.evaluations),
            "input_tokens": input_tokens,
            "output_tokens": 0,
            "elapsed_ms": int(1000 * (time.monotonic() - self.started)),
            "usage_complete": complete,
        }

    def failed(self, error: DeciderError) -> dict[str, Any]:
        if isinstance(error, InvalidRequest) and error.question is not None:
            error = InvalidRequest(error.message, question=_short(error.question), field=error.field)
        message = str(error) if self.current is None else f"evaluation {_short(self.current)!r}: {error}"
        message = message.encode(errors="replace").decode()  # a lone surrogate could not be sent
        shown = {"message": message[:MAX_MESSAGE], "truncated": len(message) > MAX_MESSAGE}
        envelope: dict[str, Any] = {"status": "error", "code": error.code, "provider_error": shown}
        if error.code == "provider_unavailable" and not isinstance(error, _NotServedError):
            envelope["retry_after_ms"] = RETRY_AFTER_MS
        # a model that was stopped half-way does not tell what it has read
        return envelope | {"stats": self.stats(0, complete=self.requests == 0)}


def _parse_evaluation(item: object, position: int, ids: set[str], call: _Call) -> _Evaluation:
    where = f"evaluations[{position}]"
    given_id = _matching(_EVALUATION_ID, _expect(item, where, "an object").get("id"), f"{where}.id")
    evaluation_id = call.current = str(copy_json(given_id, f"{where}.id"))
    if evaluation_id in ids:
        raise InvalidRequest("is the id of another evaluation too; give each its own", field="id")
    ids.add(evaluation_id)
    body = _members(item, required=("id", "state", "questions"))
    state = _expect(body["state"], "state", *_CONTENT)
    questions = _expect(body["questions"], "questions", "an object")
    if not questions:
        raise InvalidRequest("is empty; ask at least one question", field="questions")
    parsed = {_expect(key, "questions", "text"): parse_question(key, asked) for key, asked in questions.items()}
    call.current = None
    return _Evaluation(evaluation_id, state, parsed)


def parse_question(question_id: str, value: object) -> Question:
    """Read one question strictly; `InvalidRequest` names it and the field at fault."""
    try:
        body = _members(value, required=("type",), optional=("instructions", "criteria"))
        kind, criteria = _expect(body["type"], "type", "text"), body.get("criteria")
        instructions = _expect(body.get("instructions"), "instructions", "null", *_CONTENT)
        if kind == "noul":
            ends = _members({} if criteria is None else criteria, "criteria", optional=("true", "false"))
            return Noul(instructions, _descriptions(ends))
        if kind == "choice":
            return Choice(instructions, _descriptions(criteria))
        if kind == "score":
            levels: Sequence[Json] = _expect(criteria, "criteria", "an array")
            return Score(instructions, [_expect(level, f"criteria[{i}]", *_CONTENT) for i, level in enumerate(levels)])
        raise InvalidRequest(f"must be one of {', '.join(KINDS)}; got {_short(kind)!r}", field="type")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, question=question_id, field=error.field) from None


def _descriptions(criteria: object) -> Mapping[str, Json]:
    described: Mapping[str, Json] = _expect(criteria, "criteria", "an object")
    for name, description in described.items():
        _expect(name, "criteria", "text")
        _expect(description, f"criteria.{_short(name)}", "null", *_CONTENT)
    return described


def _members(
    value: object, where: str = "", *, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Members of an object that has every required field and no unknown one."""
    body, known = dict(_expect(value, where, "an object")), (*required, *optional)
    for name in (*required, *body):
        if name not in body or name not in known:
            what = f"is unknown; known here: {', '.join(known) or 'none'}" if name in body else "is missing"
            shown = _short(name) if isinstance(name, str) else _kind(name)
            raise InvalidRequest(what, field=f"{where}.{shown}" if where else shown)
    return body


def _expect(value: object, where: str, *allowed: str) -> Any:
    if (kind := _kind(value)) not in allowed:
        raise InvalidRequest(f"must be {' or '.join(allowed)}; got {kind}", field=where or None)
    return value


def _matching(rule: tuple[re.Pattern[str], str], value: object, where: str) -> str:
    if not isinstance(value, str) or not rule[0].fullmatch(value):
        raise InvalidRequest(f"must be {rule[1]}", field=where)
    return value


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: object) -> str:
    """What JSON calls a value; errors never show the value itself, which may be long or private."""
    names = (name for types, name in zip(_TYPES, _TYPE_NAMES, strict=True) if isinstance(value, types))
    return next(names, f"a Python {type(value).__name__}")
