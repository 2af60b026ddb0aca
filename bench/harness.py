"""What the benchmark programs share: taking turns, facts about the machine, requests of a given size."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from decider_native import Choice, Decider, Noul, Score
from decider_native.engine import Engine, cpu_features
from decider_native.questions import Question

ROOT = Path(__file__).resolve().parents[1]
BUILD: str = json.loads((ROOT / "vendor" / "llama.cpp.json").read_text())["build"]

TEAMS = {"billing": "invoices and refunds", "technical": "outages and errors", "sales": None}
EIGHT: dict[str, Question] = {
    "refund": Noul("Does the writer ask for a refund?"),
    "team": Choice("Which team should answer?", TEAMS),
    "angry": Noul("Is the writer angry?"),
    "language": Choice("Which language is it written in?", ["English", "German", "French", "another one"]),
    "leaves": Noul("Does the writer threaten to cancel the contract?"),
    "product": Choice("What is it about?", ["the web shop", "the app", "a delivery", "a payment"]),
    "deadline": Noul("Is a date named by which something must be done?"),
    "reply": Choice("What should happen next?", {"answer": "a person writes back", "close": None, "wait": None}),
}
TWO = {name: EIGHT[name] for name in ("refund", "team")}
FOUR = {name: EIGHT[name] for name in ("refund", "team", "angry", "language")}
LEVELS = ["not at all", "a little", "clearly", "strongly", "as much as can be"]

# Common words, mostly one token each.
WORDS = """
the order invoice was paid twice and nobody has answered my message since last week please send money back to our
account or tell me when it will arrive because we need this product before next month your team said that service
would be better now but there is still an error on every page after login thank you for help with another question
"""


class Texts:
    """Random English words by the number of their tokens; every text is new, so nothing of it is cached."""

    def __init__(self, engine: Engine) -> None:
        self._words = [word for word in WORDS.split() if len(engine.tokenize([f" {word}"], {})) == 1]
        self._rng = random.Random(1)

    def words(self, tokens: int) -> str:
        """Return a text of so many tokens."""
        return " ".join(self._rng.choices(self._words, k=tokens))

    def nouls(self, questions: int, tokens: int) -> dict[str, Question]:
        """Return yes-or-no questions with instructions of so many tokens."""
        return {f"noul{i}": Noul(self.words(tokens)) for i in range(questions)}

    def scores(self, questions: int, tokens: int) -> dict[str, Question]:
        """Return score questions of five levels with instructions of so many tokens."""
        return {f"score{i}": Score(self.words(tokens), LEVELS) for i in range(questions)}


def seconds(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def take_turns(contestants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Samples of contestants that run one after another, `repeats` times; a new one begins each time."""
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for i in range(repeats):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            samples[name].append(contestants[name]())
    return samples


def summary(samples: list[float]) -> dict[str, Any]:
    """Median and samples, for JSON."""
    return {"median": statistics.median(samples), "samples": samples}


def facts(decider: Decider, options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine, the versions, the model and the command, for JSON."""
    info = decider.info()
    shown = ("name", "description", "parameters", "file_bytes", "weight_bytes", "context_tokens", "device")
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "cpu_features": sorted(name for name, value in cpu_features().items() if value == "1"),
            "system": platform.platform(),
            "load": os.getloadavg()[0],
        },
        "decider_native": version("decider-native"),
        "commit": _commit(),
        "llama_cpp": BUILD,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "model": {"file": decider.path.name, **{name: info[name] for name in shown}},
        "threads": options.threads,
        "repeats": options.repeats,
        "scale": options.scale,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every program that measures takes."""
    parser.add_argument("model", type=Path, help="GGUF file; bench/make_model.py writes one")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of every contestant (default: 2)")
    parser.add_argument("--context-tokens", type=int, default=16384, help="longest row (default: 16384)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every contestant (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes, to try it out (default: 1)")
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="for decider-ai (default: the model's folder)")
    parser.add_argument("--llama-bench", type=Path, metavar="FILE", help="a llama-bench (default: one is built)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")


def write(document: dict[str, Any], path: Path | None) -> None:
    """Write results as JSON, where a path is given."""
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of the checkout, with a plus sign when it has been changed; None outside of a repository."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return found.stdout.strip() or None
