"""How time and decoded tokens grow: with the number of questions, the length of the state, the threads.

    python bench/sweep.py MODEL.gguf [--sweep NAME ...] [--repeats 5] [--threads 2] --json FILE

report.py draws what this writes. The contestants are those of compare.py that read rows.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from cases import Outcome, one_state, token_counts
from contestants import OURS, Bench
from harness import EIGHT, add_options, facts, seconds, write

from decider_native import Decider

QUESTION_COUNTS = (1, 2, 4, 8, 16)
STATE_TOKENS = (100, 200, 400, 800, 1600)
THREADS = (1, 2, 4, 8, 16, 32)


def by_questions(bench: Bench) -> list[dict[str, Any]]:
    """More questions about a state of 300 tokens."""
    outcomes = {n: one_state(bench, 300, bench.texts.nouls(n, 12)) for n in QUESTION_COUNTS}
    return list(_figures("questions", "a state of 300 tokens", "questions", outcomes))


def by_state(bench: Bench) -> list[dict[str, Any]]:
    """Eight questions about longer states."""
    outcomes = {bench.scaled(n): one_state(bench, n, EIGHT) for n in STATE_TOKENS}
    return list(_figures("state", "8 questions", "tokens of the state", outcomes))


def by_threads(bench: Bench) -> list[dict[str, Any]]:
    """The rate with more threads, each number with a model of its own."""
    counts = [n for n in THREADS if n <= (os.cpu_count() or 1)]
    tokens = token_counts(bench, 300, EIGHT)[OURS]
    rates = []
    for threads in counts:
        with Decider(
            bench.model, device="cpu", threads=threads, context_tokens=bench.context_tokens, mode="exact"
        ) as decider:
            decider.evaluate("warm up", EIGHT)
            calls = [partial(decider.evaluate, bench.state(300), EIGHT) for _ in range(bench.repeats)]
            rates.append(tokens / median(map(seconds, calls)))
    title = "Rate: 8 questions, a state of 300 tokens"
    return [_figure("rate-by-threads", title, "threads", "tokens per second", counts, {OURS: rates})]


SWEEPS = {"questions": by_questions, "state": by_state, "threads": by_threads}


def _figures(name: str, asked: str, x_label: str, outcomes: Mapping[int, Outcome]) -> Iterator[dict[str, Any]]:
    """Yield the times and the decoded tokens of the same requests."""
    first = next(iter(outcomes.values()))
    times = {who: [median(outcome.samples[who]) for outcome in outcomes.values()] for who in first.samples}
    tokens = {who: [outcome.details["tokens"][who] for outcome in outcomes.values()] for who in first.details["tokens"]}
    yield _figure(f"time-by-{name}", f"Time: {asked}", x_label, "seconds", list(outcomes), times)
    yield _figure(f"tokens-by-{name}", f"Tokens decoded: {asked}", x_label, "tokens", list(outcomes), tokens)


def _figure(
    name: str, title: str, x_label: str, y_label: str, x: list[int], series: Mapping[str, list[float]]
) -> dict[str, Any]:
    return {"name": name, "title": title, "x_label": x_label, "y_label": y_label, "x": x, "series": series}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--sweep", nargs="+", choices=SWEEPS, default=list(SWEEPS), metavar="NAME")
    arguments = parser.parse_args()
    with Bench(arguments) as bench:
        document = facts(bench.decider, arguments) | {"figures": []}
        for name in arguments.sweep:
            print(f"{name}: {SWEEPS[name].__doc__}", flush=True)
            document["figures"] += SWEEPS[name](bench)
            write(document, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
