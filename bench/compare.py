"""decider_native beside other ways to answer the same requests: one GGUF file, one machine, one run, in turns.

    python bench/compare.py MODEL.gguf [--case NAME ...] [--repeats 5] [--threads 2] [--json FILE]

Contestants that read the same rows:

- rows alone: every row decoded from nothing, one per call, by this package's engine;
- restored prefix: an evaluation's longest common prefix decoded once, its state saved, and restored for every row;
- llama-cpp-python: the same pattern with that package, where it is installed;
- decider-ai: its own GGUF engine, where `pip install "decider-ai[gguf]"` has worked.

They get token rows; decider_native's time counts the text's way to tokens and answers too. llama-bench is llama.cpp's
own measure of a prompt of as many tokens, at its best ubatch size. Guests (turbojev, typed-gguf, xllamacpp) answer the
same questions with prompts of their own, each in a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Any

from cases import CASES, Case, Outcome
from contestants import OURS, Bench
from harness import add_options, facts, summary, write

_UNITS = {"s": (1.0, "s"), "tokens/s": (1.0, "tokens/s"), "bytes": (1 / (1 << 20), "MiB")}


def result(name: str, case: Case, outcome: Outcome) -> dict[str, Any]:
    """What came out of a case, for JSON; `met` is null where its peer could not be measured."""
    contestants: dict[str, dict[str, Any]] = {name: summary(samples) for name, samples in outcome.samples.items()}
    for contestant in contestants.values():
        if OURS in contestants and contestant is not contestants[OURS]:
            contestant["ratio"] = case.ratio(contestants[OURS]["median"], contestant["median"])
    ratio = contestants.get(case.peer, {}).get("ratio")
    contestants |= {name: {"left_out": reason} for name, reason in outcome.left_out.items()}
    return {
        "name": name,
        "title": case.title,
        "unit": case.unit,
        "peer": case.peer,
        "bound": case.bound,
        "target": case.target,
        "met": None if ratio is None else case.met(ratio),
        "contestants": contestants,
        "details": outcome.details,
    }


def show(measured: dict[str, Any]) -> None:
    """Print a case as lines of a table."""
    print(f"\n{measured['name']}: {measured['title']}")
    scale, unit = _UNITS[measured["unit"]]
    for name, contestant in measured["contestants"].items():
        if "left_out" in contestant:
            print(f"  {name:<16} not measured: {contestant['left_out']}")
            continue
        samples = [scale * sample for sample in contestant["samples"]]
        line = f"  {name:<16} {median(samples):10.3f} {unit:<9} {min(samples):10.3f} to {max(samples):10.3f}"
        if "ratio" in contestant:
            line += f"   {contestant['ratio']:7.2f}x"
        if name == measured["peer"]:
            verdict = {True: "met", False: "NOT MET", None: "not measured"}[measured["met"]]
            line += f"   target {measured['bound']} {measured['target']:.2f}x: {verdict}"
        print(line, flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument(
        "--guest",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="a package and the Python it is installed in",
    )
    arguments = parser.parse_args()
    with Bench(arguments, arguments.guest) as bench:
        document = facts(bench.decider, arguments) | {"cases": []}
        for name in arguments.case:
            measured = result(name, CASES[name], CASES[name].measure(bench))
            document["cases"].append(measured)
            show(measured)
            write(document, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
