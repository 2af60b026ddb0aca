"""Answer requests with another package, in a virtual environment of its own; guests.py starts it there.

    PYTHON bench/guest_program.py NAME MODEL THREADS CONTEXT_TOKENS

A line of JSON for each request, ``{"state": ..., "questions": {id: {"type", "instructions", "criteria"}}}``, and a line
of JSON in return. The first line says that the model is open; a line with ``"error"`` says what went wrong. It imports
that package and nothing else.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def turbojev(model: str, threads: int, context_tokens: int) -> Answer:
    """TurboJev asks its own questions: yes or no, one of several, a number on a scale."""
    package: Any = importlib.import_module("turbojev")
    limits = {"n_ctx": context_tokens, "n_threads": threads, "n_threads_batch": threads}
    client = package.TurboJev.load(model, device="cpu", **limits)

    def translated(question: dict[str, Any]) -> dict[str, Any]:
        asked = {"instructions": question["instructions"], "return_probabilities": True}
        match question["type"]:
            case "noul":
                return asked | {"type": "boolean"}
            case "choice":
                choices = [
                    {"value": name} | ({"description": text} if text else {})
                    for name, text in question["criteria"].items()
                ]
                return asked | {"type": "string", "choices": choices}
            case _:
                return asked | {"type": "number", "levels": [{"label": level} for level in question["criteria"]]}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        questions = {name: translated(question) for name, question in request["questions"].items()}
        result: dict[str, Any] = client.generate(context=request["state"], questions=questions)
        return result

    return answer


def typed_gguf(model: str, threads: int, context_tokens: int) -> Answer:
    """typed-gguf, the way its resident host answers: a model that stays open, a context for each request."""
    package: Any = importlib.import_module("typed_gguf.cli")
    session: Any = importlib.import_module("typed_gguf.engine.session")
    options = {"threads": threads, "n_ctx": context_tokens, "backend": "cpu", "state_cache": False}
    question = {"type": "noul", "instructions": "Is it?"}
    first = {"model": model, "options": options, "state": "It is.", "questions": {"it": question}}
    prepared = package.prepare_decision(first)
    handle = session.open_model(
        prepared.model_path, fit_plan=prepared.plan, fit_disabled=not prepared.fit_enabled
    ).__enter__()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        for question in request["questions"].values():
            if not question["criteria"]:  # refused when they are empty
                del question["criteria"]
        payload = request | {"model": model, "options": options}
        result: dict[str, Any] = package.decide_on_handle(prepared, payload, handle)
        return result

    return answer


def xllamacpp(model: str, threads: int, context_tokens: int) -> Answer:
    """llama.cpp's server in process: its decision endpoint, for models that declare themselves as decision models."""
    package: Any = importlib.import_module("xllamacpp")
    params = package.CommonParams()
    params.model.path = model
    params.n_ctx = context_tokens
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = package.Server(params)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = server.handle_systemone(request)
        if "error" in result:
            raise ValueError(result["error"]["message"])
        return result

    return answer


GUESTS = {"turbojev": turbojev, "typed-gguf": typed_gguf, "xllamacpp": xllamacpp}


def main() -> None:
    """Answer until there is nothing more to read."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else writes to standard output does not speak to guests.py

    def reply(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=replies, flush=True)

    name, model, threads, context_tokens = sys.argv[1:]
    try:
        answer = GUESTS[name](model, int(threads), int(context_tokens))
    except Exception as error:  # another project's: whatever it is, the other contestants still run
        reply({"error": f"does not open the model: {error}"})
        return
    reply({})
    for line in sys.stdin:
        try:
            reply(answer(json.loads(line)))
        except Exception as error:
            reply({"error": str(error)})


if __name__ == "__main__":
    main()
