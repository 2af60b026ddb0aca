"""Strict reading of requests: unknown fields are refused, and every refusal says where."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import strict_json
from ..errors import InvalidRequest
from ..questions import KINDS, Choice, Json, Noul, Question, Score, copy_json
from .call import Call, Evaluation, shorten
from .errors import TooManyBytes

__all__ = ["Limits", "Request", "parse_call", "parse_cancel", "parse_models", "parse_question", "provider_name"]

Request: TypeAlias = "Mapping[str, Any] | str | bytes"

_OPTIONAL = ("timeout_ms", "expires_at_unix_ms", "model", "provider", "request_id")
_PROVIDER = re.compile(r"[a-z0-9-]{1,64}"), "1 to 64 of a-z, 0-9 and -"
_EVALUATION_ID = re.compile(r"\s*\S.*", re.DOTALL), "text that is not blank"
_REQUEST_ID = re.compile(r"[ -~]{1,128}"), "1 to 128 printable ASCII characters"
_FAR_MS = 10**10  # longer than any call lasts, and still a time that every clock can count
_TYPES: tuple[type, ...] = (type(None), bool, int, float, str, Mapping, list, tuple)
_TYPE_NAMES = ("null", "a boolean", "an integer", "a number", "text", "an object", "an array", "an array")
_CONTENT = ("text", "an object", "an array")


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest ``timeout_ms``, most evaluations in a call, and longest JSON text in bytes (Python values: any size)."""

    max_timeout_ms: int = 300_000
    max_evaluations: int = 512
    max_request_bytes: int = 8_388_608


def parse_call(request: object, limits: Limits, call: Call) -> None:
    """Check a judge::evaluate request and fill in its call."""
    body = _members(_json(request, limits), required=("evaluations",), optional=_OPTIONAL)
    if "request_id" in body:
        call.request_id = _matching(_REQUEST_ID, body["request_id"], "request_id")
    if "provider" in body:
        call.provider = provider_name(body["provider"])
    if "model" in body:
        call.model = _expect(body["model"], "model", "text")
    if "timeout_ms" in body:
        timeout_ms = _expect(body["timeout_ms"], "timeout_ms", "an integer")
        if not 1 <= timeout_ms <= limits.max_timeout_ms:
            raise InvalidRequest(f"must be from 1 to {limits.max_timeout_ms}", field="timeout_ms")
        call.deadline = call.started + timeout_ms / 1000
    if "expires_at_unix_ms" in body:
        expires_ms = _expect(body["expires_at_unix_ms"], "expires_at_unix_ms", "an integer")
        left = max(0, min(expires_ms - time.time_ns() // 1_000_000, _FAR_MS))
        call.deadline = min(call.deadline, time.monotonic() + left / 1000)
    items, most = _expect(body["evaluations"], "evaluations", "an array"), limits.max_evaluations
    if not 1 <= len(items) <= most:
        raise InvalidRequest(f"needs 1 to {most} items, got {len(items)}; split the call", field="evaluations")
    ids: set[str] = set()
    call.evaluations = [_parse_evaluation(item, i, ids, call) for i, item in enumerate(items)]


def parse_cancel(request: object, limits: Limits) -> str:
    """Return the request id of a cancel request."""
    body = _members(_json(request, limits), required=("request_id",))
    return _matching(_REQUEST_ID, body["request_id"], "request_id")


def parse_models(request: object, limits: Limits) -> None:
    """Check a models.list request: an empty object."""
    _members(_json(request, limits))


def provider_name(value: object) -> str:
    """Check what a provider is called."""
    return _matching(_PROVIDER, value, "provider")


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
        raise InvalidRequest(f"must be one of {', '.join(KINDS)}; got {shorten(kind)!r}", field="type")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, question=question_id, field=error.field) from None


def _json(request: object, limits: Limits) -> object:
    if not isinstance(request, (str, bytes)):
        return request
    limit = limits.max_request_bytes
    size = len(request.encode(errors="surrogatepass") if isinstance(request, str) else request)
    if size > limit:
        raise TooManyBytes(f"the request has {size} bytes; send at most {limit} in one call")
    return strict_json.loads(request, "request")


def _parse_evaluation(item: object, position: int, ids: set[str], call: Call) -> Evaluation:
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
    return Evaluation(evaluation_id, state, parsed)


def _descriptions(criteria: object) -> Mapping[str, Json]:
    described: Mapping[str, Json] = _expect(criteria, "criteria", "an object")
    for name, description in described.items():
        _expect(name, "criteria", "text")
        _expect(description, f"criteria.{shorten(name)}", "null", *_CONTENT)
    return described


def _members(
    value: object, where: str = "", *, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Members of an object that has every required field and no unknown one."""
    body, known = dict(_expect(value, where, "an object")), (*required, *optional)
    for name in (*required, *body):
        if name not in body or name not in known:
            what = f"is unknown; known here: {', '.join(known) or 'none'}" if name in body else "is missing"
            shown = shorten(name) if isinstance(name, str) else _kind(name)
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


def _kind(value: object) -> str:
    """What JSON calls a value; errors never show the value itself, which may be long or private."""
    names = (name for types, name in zip(_TYPES, _TYPE_NAMES, strict=True) if isinstance(value, types))
    return next(names, f"a Python {type(value).__name__}")
