"""The OpenAPI document."""

from __future__ import annotations

from typing import Any

from .settings import Settings

__all__ = ["document"]

Schema = dict[str, Any]

_ANY: Schema = {}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_CONTENT: Schema = {"type": ["string", "object", "array", "null"]}
_ERRORS = {
    400: "Broken compression.",
    401: "A key is needed, or this one is unknown.",
    404: "The model is not served here.",
    408: "The body came too slowly.",
    409: "The call was cancelled.",
    413: "The body, or a state with its question, is too large.",
    415: "The body is not JSON, or in another compression.",
    422: "What is asked cannot be answered; the body says where.",
    503: "Too many requests wait, or the model is not to be had; Retry-After says when to try again.",
    504: "The time allowed ran out.",
}


def document(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a server with these settings."""
    paths = {
        "/v1/systemone": {"post": _call("Answer questions about a state.", "SystemOneRequest", "SystemOneResponse")},
        "/v1/systemone/batch": {
            "post": _call("Answer questions about several states.", "BatchRequest", "BatchResponse")
        },
        "/v1/decisions": {
            "post": _call("Answer questions about an input.", "DecisionRequest", "Decision", "OpenAIError")
        },
        "/v1/judge/evaluate": {"post": _call("judge::evaluate.", "JudgeRequest", "JudgeEnvelope", "JudgeEnvelope")},
        "/v1/judge/cancel": {"post": _call("Stop a call by its id.", "JudgeCancel", "JudgeCancelled", "JudgeEnvelope")},
        "/v1/judge/models": {
            "get": _operation("The model that runs here.", "JudgeModels", "JudgeEnvelope", (401, 422, 503, 504)),
            "post": _call("The model that runs here.", "Empty", "JudgeModels", "JudgeEnvelope"),
        },
        "/v1/models": {"get": _operation("The names of the model.", "Models", "Error", (401,))},
        "/health": {"get": _health()},
        "/ready": {"get": _probe("Whether requests should be sent here.", "Ready")},
        "/metrics": {"get": _metrics()},
    }
    if settings.keys:
        for path, operations in paths.items():
            if path not in ("/health", "/ready"):
                for operation in operations.values():
                    operation["security"] = [{"bearer": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "decider-native", "version": "1", "description": "Typed decisions from a local model."},
        "paths": paths,
        "components": {
            "schemas": _schemas(settings),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _call(summary: str, request: str, response: str, error: str = "Error") -> dict[str, Any]:
    operation = _operation(summary, response, error, tuple(_ERRORS))
    operation["requestBody"] = {"required": True, "content": _json(request)}
    return operation


def _operation(summary: str, response: str, error: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    responses = {"200": {"description": "Answered.", "content": _json(response)}}
    for status in statuses:
        responses[str(status)] = {"description": _ERRORS[status], "content": _json(error)}
    return {"summary": summary, "responses": responses}


def _probe(summary: str, schema: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "Yes.", "content": _json(schema)},
            "503": {"description": "No.", "content": _json(schema)},
        },
    }


def _health() -> dict[str, Any]:
    return _probe("The state of the model; 503 when it failed to load.", "Health")


def _metrics() -> dict[str, Any]:
    operation = _operation("Metrics for Prometheus.", "Empty", "Error", (401,))
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required), **more}


def _array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    return {"type": "array", "items": items, "minItems": least} | ({"maxItems": most} if most else {})


def _map(values: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": values, **more}


def _one_of(*schemas: Schema) -> Schema:
    return {"oneOf": list(schemas)}


def _const(value: str) -> Schema:
    return {"type": "string", "const": value}


def _schemas(settings: Settings) -> dict[str, Schema]:
    return _systemone(settings) | _decisions() | _judge(settings) | _state()


def _systemone(settings: Settings) -> dict[str, Schema]:
    asked: dict[str, Schema] = {"instructions": _CONTENT}
    ends: Schema = {
        "type": ["object", "null"],
        "properties": {"true": _CONTENT, "false": _CONTENT},
        "additionalProperties": False,
    }
    options = _map(_CONTENT, minProperties=1, maxProperties=255)
    levels = _array({"type": ["string", "object", "array"]}, 2, 10)
    question = _one_of(
        _object({"type": _const("noul")}, asked | {"criteria": ends}),
        _object({"type": _const("choice"), "criteria": options}, asked),
        _object({"type": _const("score"), "criteria": levels}, asked),
    )
    questions = _map(_ref("Question"), minProperties=1, maxProperties=settings.max_questions)
    evaluation = {"state": _CONTENT, "questions": questions}
    extras: dict[str, Schema] = {"model": {"type": ["string", "null"]}, "x_diagnostics": {"type": "boolean"}}
    usage = _object({"input_tokens": _COUNT, "output_tokens": _COUNT})
    answers = _map(_ref("Answer"))
    read = {"confidence": _SHARE, "probabilities": _map(_SHARE)}
    answer = _one_of(
        _object({"type": _const("noul"), "noul": _SHARE}),
        _object({"type": _const("choice"), "choice": _TEXT, **read}),
        _object({"type": _const("score"), "score": {"type": "number"}, **read, "legend": _map(_ANY)}),
    )
    place = _object({"loc": _array({"type": ["string", "integer"]}), "msg": _TEXT, "type": _TEXT})
    fault = _object({"error_type": _TEXT, "message": _TEXT})
    return {
        "Question": question,
        "SystemOneRequest": _object(evaluation, extras),
        "SystemOneResponse": _object({"model": _TEXT, "answers": answers, "usage": _ref("Usage")}),
        "BatchRequest": _object({"evaluations": _array(_object(evaluation), 1, 512)}, extras),
        "BatchResponse": _object(
            {
                "model": _TEXT,
                "results": _array(_object({"answers": answers, "usage": _ref("Usage")})),
                "usage": _ref("Usage"),
            }
        ),
        "Answer": answer,
        "Usage": usage,
        "Error": _object({"detail": _one_of(_array(place), fault)}),
    }


def _decisions() -> dict[str, Schema]:
    part = _one_of(
        _object({"type": _const("input_text"), "text": _TEXT}), _object({"type": _const("input_json"), "data": _ANY})
    )
    content = _one_of(_TEXT, _array(part, 1))
    message = _object({"role": {"enum": ["user", "developer", "system", "assistant"]}, "content": content})
    asked = {"instructions": content}
    choice = _object({"value": {"type": ["string", "boolean"]}}, {"description": _TEXT})
    level = _object({"label": _TEXT}, {"description": _TEXT})
    name = {"name": _TEXT}
    question = _one_of(
        _object({"type": _const("predicate"), **asked}, name),
        _object({"type": _const("choice"), **asked, "choices": _array(choice, 2, 255)}, name),
        _object({"type": _const("score"), **asked, "levels": _array(level, 2, 10)}, name),
    )
    named = {"name": {"type": ["string", "null"]}}
    value = {"value": {"type": ["string", "boolean"]}, "probability": _SHARE}
    rated = {"value": _COUNT, "label": _TEXT, "probability": _SHARE}
    answer = _one_of(
        _object({"type": _const("predicate"), **named, "probability": _SHARE}),
        _object(
            {
                "type": _const("choice"),
                **named,
                "choice": {"type": ["string", "boolean"]},
                "confidence": _SHARE,
                "probabilities": _array(_object(value)),
            }
        ),
        _object(
            {
                "type": _const("score"),
                **named,
                "score": {"type": "number"},
                "confidence": _SHARE,
                "probabilities": _array(_object(rated)),
            }
        ),
    )
    usage = _object(
        {
            "input_tokens": _COUNT,
            "input_tokens_details": _object({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
            "output_tokens": _COUNT,
            "output_tokens_details": _object({"reasoning_tokens": _COUNT}),
            "total_tokens": _COUNT,
        }
    )
    text_or_null: Schema = {"type": ["string", "null"]}
    error = _object({"message": _TEXT, "type": _TEXT, "param": text_or_null, "code": text_or_null})
    items = _array(_one_of(message, _object({"type": _TEXT})), 1)
    return {
        "DecisionRequest": _object(
            {"input": _one_of(_TEXT, items), "questions": _array(question, 1, 400)}, {"model": text_or_null}
        ),
        "Decision": _object({"model": _TEXT, "answers": _array(answer), "usage": usage}),
        "OpenAIError": _object({"error": error}),
    }


def _judge(settings: Settings) -> dict[str, Schema]:
    evaluation = _object(
        {
            "id": {"type": "string", "pattern": r"\S"},
            "state": {"type": ["string", "object", "array"]},
            "questions": _map(_ref("Question"), minProperties=1),
        },
        additionalProperties=False,
    )
    optional: dict[str, Schema] = {
        "timeout_ms": {"type": "integer", "minimum": 1, "maximum": settings.max_timeout_ms},
        "expires_at_unix_ms": {"type": "integer"},
        "model": _TEXT,
        "provider": _const("decider"),
        "request_id": {"type": "string", "pattern": "^[ -~]{1,128}$"},
    }
    status = {"status": {"enum": ["ok", "error"]}}
    more: dict[str, Schema] = {
        "code": _TEXT,
        "model": _TEXT,
        "results": _map(_ANY),
        "provider_error": _ANY,
        "retry_after_ms": _COUNT,
    }
    model = _object(
        {"name": _TEXT, "description": _TEXT, "release_date": _TEXT, "context_window": _COUNT, "max_options": _COUNT}
    )
    return {
        "JudgeRequest": _object({"evaluations": _array(evaluation, 1, 512)}, optional, additionalProperties=False),
        "JudgeEnvelope": _object({**status, "stats": _object({"elapsed_ms": _COUNT})}, more),
        "JudgeCancel": _object({"request_id": _TEXT}, additionalProperties=False),
        "JudgeCancelled": _object({"status": _const("ok"), "cancelled": {"type": "boolean"}}),
        "JudgeModels": _object({"status": _const("ok"), "models": _array(model), "stats": _ANY}),
        "Empty": {"type": "object", "additionalProperties": False},
    }


def _state() -> dict[str, Schema]:
    state = {"enum": ["idle", "loading", "ready", "failed"]}
    text_or_null: Schema = {"type": ["string", "null"]}
    listed = _object({"name": _TEXT, "description": _TEXT, "release_date": _TEXT})
    identified = _object({"id": _TEXT, "object": _const("model")})
    return {
        "Models": _object({"models": _array(listed, 1), "object": _const("list"), "data": _array(identified, 1)}),
        "Ready": _object({"ready": {"type": "boolean"}, "status": state}),
        "Health": _object(
            {
                "status": state,
                "model": _TEXT,
                "device": text_or_null,
                "revision": text_or_null,
                "context_window": {"type": ["integer", "null"]},
                "reason": text_or_null,
            }
        ),
    }
