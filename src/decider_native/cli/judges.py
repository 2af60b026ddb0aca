"""``decider-native judges``: the judges of a ``judges.toml``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from . import commands, tables

__all__ = ["add_file_option", "choose", "show", "test"]

_TEST_QUESTION = {
    "id": "test",
    "state": "The printer on the second floor is on fire.",
    "questions": {"urgent": {"type": "noul", "instructions": "Does this need action now?"}},
}


def add_file_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file."""
    parser.add_argument("--judges", default="judges.toml", metavar="FILE", help="default: judges.toml")


def show(arguments: argparse.Namespace) -> int:
    """List the judges with their state."""
    from decider_native.judges import Hub

    hub = Hub.from_file(arguments.judges, preload=False)
    try:
        found = hub.judges()
    finally:
        hub.close()
    if arguments.json:
        commands.print_json([dataclasses.asdict(judge) for judge in found])
        return 0
    cells = [
        (
            ("* " if judge.default else "  ") + judge.name,
            judge.provider,
            judge.host or "",
            judge.model,
            "" if judge.price is None else f"${judge.price:g}",
            judge.state,
            judge.fix,
        )
        for judge in found
    ]
    print(tables.table(("  NAME", "PROVIDER", "HOST", "MODEL", "PER MTOK", "STATE", "FIX"), cells))
    if not any(judge.default for judge in found):
        print("\nNo judge is the default.")
    return 0


def test(arguments: argparse.Namespace) -> int:
    """Ask judges one question each; 5 when one of them has no answer."""
    from decider_native.errors import InvalidRequest
    from decider_native.judges import Hub

    hub = Hub.from_file(arguments.judges, preload=False)
    try:
        judges = hub.settings.judges  # the file may change meanwhile
        names = list(judges) if arguments.name is None else [arguments.name]
        if not set(names) <= set(judges):
            known = ", ".join(judges)
            raise InvalidRequest(f"there is no judge {names[0][:60]!r} in {arguments.judges}; known: {known}")
        envelopes = {}
        for name in names:
            request = {"provider": name, "timeout_ms": arguments.timeout_ms, "evaluations": [_TEST_QUESTION]}
            envelopes[name] = hub.evaluate(request)
    finally:
        hub.close()
    if arguments.json:
        commands.print_json(envelopes)
    else:
        cells = [(name, *_outcome(envelope, judges[name].price)) for name, envelope in envelopes.items()]
        print(tables.table(("NAME", "MODEL", "ANSWER", "MS", "TOKENS", "COST", "ERROR"), cells))
    return 0 if all(envelope["status"] == "ok" for envelope in envelopes.values()) else 5


def choose(arguments: argparse.Namespace) -> int:
    """Make a judge, or none, the default."""
    from decider_native.judges import write_default

    write_default(arguments.judges, arguments.name)
    print(f"the default judge of {tables.clean(arguments.judges)} is {arguments.name} now")
    return 0


def _outcome(envelope: dict[str, Any], price: float | None) -> tuple[object, ...]:
    stats = envelope["stats"]
    if envelope["status"] != "ok":
        message = commands.one_line(envelope["provider_error"]["message"])
        return "", "", stats["elapsed_ms"], "", "", f"{envelope['code']}: {message}"
    noul = envelope["results"]["test"]["answers"]["urgent"]["noul"]
    tokens = stats["input_tokens"]
    cost = "" if price is None else f"${tokens * price / 1e6:.6f}"
    return envelope["model"], f"{noul:.3f}", stats["elapsed_ms"], tokens, cost, ""
