"""What each command does. A command returns its exit code; the package is imported when one runs, not for --help."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from decider_native.errors import DeadlineExceeded, InvalidRequest

from . import tables

if TYPE_CHECKING:
    from decider_native.decider import Decider

Command: TypeAlias = Callable[[argparse.Namespace], int]

_EXIT_BY_CODE = {"invalid_request": 2, "payload_too_large": 2, "deadline": 4, "attempt_timeout": 4, "cancelled": 4}


def decider_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `Decider` that the options of a command name."""
    names = ("config", "device", "gpu_layers", "self_check", "threads", "context_tokens", "mode", "layout")
    return {name: getattr(arguments, name) for name in names}


def port(text: str) -> int:
    """Read a TCP port for an argument parser; 0: a free one."""
    if not (text.isascii() and text.isdecimal() and int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, got {text!r}")
    return int(text)


def version() -> str:
    """Return the version of the installed package."""
    return importlib.metadata.version("decider-native")


def one_line(text: str) -> str:
    """Return a message on one line, without characters that steer a terminal."""
    return tables.clean(" ".join(text.split()))


def evaluate(arguments: argparse.Namespace) -> int:
    """Answer one evaluation, or an envelope of several."""
    started = time.monotonic()
    request = _read_request(arguments.request)
    if arguments.diagnostics and "evaluations" in request:
        raise InvalidRequest(
            "--diagnostics is for one {state, questions}; the answers of an envelope have no x_ fields"
        )
    with _open_decider(arguments) as decider:
        timeout = arguments.timeout
        if timeout is not None:
            timeout -= time.monotonic() - started
            if timeout <= 0:
                raise DeadlineExceeded(
                    f"the model took all of the {arguments.timeout:g} s to load; give a longer --timeout"
                )
        if "evaluations" in request:
            return _judge(decider, request, timeout, as_json=wants_json(arguments))
        result = decider.evaluate(request["state"], request["questions"], timeout=timeout)
    wire = result.to_dict(diagnostics=arguments.diagnostics)
    if wants_json(arguments):
        print_json(wire)
        return 0
    print(tables.answers(wire["answers"]))
    usage = f"{result.usage.input_tokens} tokens, {result.diagnostics.elapsed_ms:.0f} ms"
    print(f"\n{tables.clean(result.model)}: {usage}")
    if arguments.diagnostics:
        print(_lines({name: answer.to_dict(diagnostics=True) for name, answer in result.answers.items()}, "x_"))
        print(_lines(wire["x_diagnostics"]))
    return 0


def rows(arguments: argparse.Namespace) -> int:
    """Show the text and the token ids of every row."""
    request = _read_request(arguments.request)
    listing: list[dict[str, Any]] = []
    with _open_decider(arguments) as decider:
        for evaluation in _evaluations(request):
            for row in decider.rows(evaluation["state"], evaluation["questions"]):
                named = {"evaluation": evaluation["id"]} if "evaluations" in request else {}
                listing.append(
                    {
                        **named,
                        "question": row.question_id,
                        "type": row.kind,
                        "options": list(row.options),
                        "text": row.text,
                        "ids": [int(token) for token in row.ids],
                    }
                )
    if arguments.json:
        print_json(listing)
        return 0
    for number, entry in enumerate(listing):
        where = "/".join(tables.clean(entry[key]) for key in ("evaluation", "question") if key in entry)
        print(f"{chr(10) if number else ''}--- {where} ({entry['type']}, {len(entry['ids'])} tokens)")
        print("\n".join(map(tables.clean, entry["text"].split("\n"))))
        print("ids:", *entry["ids"])
    return 0


def devices(arguments: argparse.Namespace) -> int:
    """List the devices of this machine, and the backend modules that found them or were left out."""
    from decider_native import engine

    found, modules, features = engine.devices(), engine.modules(), engine.cpu_features()
    if arguments.json:
        facts = {"devices": map(dataclasses.asdict, found), "modules": map(dataclasses.asdict, modules)}
        print_json({**{name: list(items) for name, items in facts.items()}, "cpu_features": features})
        return 0
    cells = [
        (d.name, d.kind, d.backend, tables.size(d.memory_free), tables.size(d.memory_total), d.description)
        for d in found
    ]
    print(tables.table(("NAME", "KIND", "BACKEND", "FREE", "TOTAL", "DESCRIPTION"), cells))
    print()
    print(
        tables.table(("MODULE", "BACKEND", "NOT IN USE"), [(m.file, m.backend or "", m.reason or "") for m in modules])
    )
    print("\nCPU features:", " ".join(name if value == "1" else f"{name}={value}" for name, value in features.items()))
    return 0


def models_list(arguments: argparse.Namespace) -> int:
    """List the catalogue and what of it is on this machine."""
    from decider_native.models import CATALOGUE, DEFAULT_MODEL, local_path

    listing: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "aliases": list(entry.aliases),
            "default": entry.name == DEFAULT_MODEL,
            "source": entry.source,
            "bytes": entry.size_bytes,
            "licence": entry.licence,
            "summary": entry.summary,
            "path": str(path) if (path := local_path(entry)) else None,
        }
        for entry in CATALOGUE
    ]
    if arguments.json:
        print_json(listing)
        return 0
    cells = [
        (
            entry["name"],
            tables.size(entry["bytes"]) if entry["bytes"] else "",
            "yes" if entry["path"] else "no",
            entry["licence"],
            entry["summary"],
        )
        for entry in listing
    ]
    print(tables.table(("NAME", "SIZE", "LOCAL", "LICENCE", "ABOUT"), cells))
    return 0


def models_pull(arguments: argparse.Namespace) -> int:
    """Fetch a model and print its path."""
    from decider_native.models import DEFAULT_MODEL, pull

    print(pull(DEFAULT_MODEL if arguments.name is None else arguments.name))
    return 0


def models_path(arguments: argparse.Namespace) -> int:
    """Print the path of a model that is on this machine."""
    from decider_native.models import resolve

    print(resolve(arguments.name, download=False).path)
    return 0


def info(arguments: argparse.Namespace) -> int:
    """Load a model and describe it."""
    with _open_decider(arguments) as decider:
        facts = decider.info()
    if arguments.json:
        print_json(facts)
    else:
        print(_lines(facts))
    return 0


def _open_decider(arguments: argparse.Namespace) -> Decider:
    from decider_native import Decider

    return Decider(arguments.model, **decider_options(arguments))


def _read_request(source: str) -> dict[str, Any]:
    """Read and check the outer shape, before the model is loaded."""
    from decider_native.questions import parse_questions
    from decider_native.strict_json import loads

    where = "standard input" if source == "-" else source
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"cannot read {where}: {reason}; give a JSON file, or - for standard input") from error
    request = loads(data, where)
    if not isinstance(request, dict):
        raise InvalidRequest(f"{where}: must be a JSON object with state and questions, or with evaluations")
    if "evaluations" in request:
        return request
    for field in ("state", "questions"):
        if field not in request:
            raise InvalidRequest(f"{where}: has no {field}; write {{state, questions}} or {{evaluations: [...]}}")
    if unknown := sorted(set(request) - {"state", "questions"}):
        raise InvalidRequest(f"{where}: unknown fields {', '.join(unknown)}; an evaluation has state and questions")
    parse_questions(request["questions"])
    return request


def _evaluations(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "evaluations" not in request:
        yield request
        return
    evaluations = request["evaluations"]
    if not isinstance(evaluations, list):
        raise InvalidRequest("must be an array", field="evaluations")
    for number, evaluation in enumerate(evaluations):
        if not isinstance(evaluation, dict) or not {"id", "state", "questions"} <= set(evaluation):
            raise InvalidRequest("must be an object with id, state and questions", field=f"evaluations[{number}]")
        yield evaluation


def _judge(decider: Decider, request: dict[str, Any], timeout: float | None, *, as_json: bool) -> int:
    if timeout is not None:
        limit = max(1, int(timeout * 1000))
        given = request.setdefault("timeout_ms", min(limit, decider.as_judge.limits.max_timeout_ms))
        if type(given) is int and given > limit:
            request["timeout_ms"] = limit
    response = decider.judge(request)
    failed = response["status"] != "ok"
    if as_json:
        print_json(response)
    elif not failed:
        for number, (name, result) in enumerate(response["results"].items()):
            print(f"{chr(10) if number else ''}{tables.clean(name)}\n{tables.answers(result['answers'])}")
        stats = response["stats"]
        print(f"\n{tables.clean(response['model'])}: {stats['input_tokens']} tokens, {stats['elapsed_ms']:.0f} ms")
    if not failed:
        return 0
    message = f"{response['code']}: {response.get('provider_error', {}).get('message', '')}"
    print(f"decider-native: error: {one_line(message)}", file=sys.stderr)
    return _EXIT_BY_CODE.get(response["code"], 5)


def wants_json(arguments: argparse.Namespace) -> bool:
    return arguments.json or not (arguments.table or sys.stdout.isatty())


def print_json(value: object) -> None:
    """One line in a pipe, indented on a terminal."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2 if sys.stdout.isatty() else None))


def _lines(facts: Mapping[str, Any], prefix: str = "", path: str = "") -> str:
    """``a.b: value`` for every leaf of nested objects whose last name starts with `prefix`."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping) and not name.startswith("x_"):
            lines.append(_lines(value, prefix, f"{path}{name}."))
        elif name.startswith(prefix):
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value
            lines.append(f"{tables.clean(path + name)}: {tables.clean(shown)}")
    return "\n".join(filter(None, lines))
