"""The cases of compare.py: what is asked, of whom, and the ratio that must come out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from contestants import ALONE, LLAMA_CPP, OURS, PREFIX, ROW_READERS, Bench
from guests import Guest
from harness import EIGHT, FOUR, TWO, seconds, take_turns
from peers import UBATCHES, LeftOut, Reader, common_prefix, last_line

from decider_native import Decider
from decider_native.decider import Questions

Unit: TypeAlias = Literal["s", "tokens/s", "bytes"]

LLAMA = "llama-bench"
FIRST, CALLS, FAST, ONE_ROW = "first call", "64 calls", "mode='fast'", "one row a step"
TICKETS, TICKET_TOKENS = 64, 60


@dataclass
class Outcome:
    """Samples by contestant (seconds, tokens per second or bytes), why others have none, and what explains them."""

    samples: dict[str, list[float]]
    left_out: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A comparison. For times the ratio is the peer's to ours, for rates and bytes ours to the peer's.

    Attributes
    ----------
    peer
        The contestant that the target is about.
    target
        The ratio must be at least this; for bytes, at most.
    """

    title: str
    unit: Unit
    peer: str
    target: float
    measure: Callable[[Bench], Outcome]

    @property
    def bound(self) -> str:
        """``"at least"`` or ``"at most"``."""
        return "at most" if self.unit == "bytes" else "at least"

    def ratio(self, ours: float, peer: float) -> float:
        """What is compared with the target."""
        return peer / ours if self.unit == "s" else ours / peer

    def met(self, ratio: float) -> bool:
        """Whether the target is."""
        return ratio <= self.target if self.bound == "at most" else ratio >= self.target


def token_counts(bench: Bench, state_tokens: int, questions: Questions) -> dict[str, int]:
    """Tokens that each way decodes for questions about a new state."""
    state = bench.state(state_tokens)
    rows = bench.decider.rows(state, questions)
    total, shared = sum(len(row.ids) for row in rows), common_prefix(rows)
    ours = bench.decider.evaluate(state, questions).diagnostics.decoded_tokens
    return {OURS: ours, ALONE: total, PREFIX: total - shared * (len(rows) - 1)}


def one_state(bench: Bench, state_tokens: int, questions: Questions) -> Outcome:
    """Questions about a state that is new each time, against every reader and guest."""

    def ours() -> float:
        state = bench.state(state_tokens)
        return seconds(lambda: bench.decider.evaluate(state, questions))

    def peer(reader: Reader) -> float:
        rows = bench.decider.rows(bench.state(state_tokens), questions)
        return seconds(lambda: reader(rows))

    def ask(guest: Guest) -> float:
        state = bench.state(state_tokens)
        return seconds(lambda: guest(state, questions))

    details = {"tokens": token_counts(bench, state_tokens, questions)}
    contestants = {OURS: ours} | {name: partial(peer, reader) for name, reader in bench.readers.items()}
    left_out = bench.left_out
    for name, guest in bench.guests.items():
        try:
            ask(guest)  # it may be unable to, and the first call may do more than others
        except LeftOut as reason:
            left_out[name] = str(reason)
        else:
            contestants[name] = partial(ask, guest)
    return Outcome(take_turns(contestants, bench.repeats), left_out, details)


def rate(bench: Bench) -> Outcome:
    """Decoded tokens per second, against llama.cpp's own at its best ubatch.

    Which one that is, by its median, is found first: the best of several medians out of the samples that are compared
    would be the luckiest.
    """
    tokens = token_counts(bench, 300, EIGHT)[OURS]

    def ours() -> float:
        state = bench.state(300)
        return tokens / seconds(lambda: bench.decider.evaluate(state, EIGHT))

    def llama(*sizes: int) -> dict[int, float]:
        return bench.llama_bench.rates(bench.model, tokens, bench.threads, sizes)

    try:
        runs = [llama(*UBATCHES) for _ in range(min(3, bench.repeats))]
    except LeftOut as reason:
        return Outcome(take_turns({OURS: ours}, bench.repeats), {LLAMA: str(reason)}, {"tokens": tokens})
    by_size = {size: median(run[size] for run in runs) for size in UBATCHES}
    best = max(UBATCHES, key=by_size.__getitem__)
    samples = take_turns({OURS: ours, LLAMA: lambda: llama(best)[best]}, bench.repeats)
    return Outcome(samples, details={"tokens": tokens, "ubatch": best, "rates_by_ubatch": by_size})


def second_call(bench: Bench) -> Outcome:
    """The same call twice: the first reads the state, the second only the questions."""
    samples: dict[str, list[float]] = {OURS: [], FIRST: []}
    reused = 0
    for _ in range(bench.repeats):
        state = bench.state(1500)
        for name in (FIRST, OURS):
            result = bench.decider.evaluate(state, TWO)
            samples[name].append(result.diagnostics.elapsed_ms / 1000)
        reused = result.diagnostics.reused_tokens
    keeps_nothing = dict.fromkeys(ROW_READERS, "keeps nothing between evaluations")
    return Outcome(samples, keeps_nothing, {"reused_tokens": reused})


def many(bench: Bench) -> Outcome:
    """Small states in one call, against a call each."""

    def tickets() -> list[tuple[str, Questions]]:
        return [(bench.state(TICKET_TOKENS), FOUR) for _ in range(bench.scaled(TICKETS))]

    def together() -> float:
        evaluations = tickets()
        return seconds(lambda: bench.decider.evaluate_many(evaluations))

    def apart() -> float:
        evaluations = tickets()
        return seconds(lambda: [bench.decider.evaluate(state, questions) for state, questions in evaluations])

    one_at_a_time = dict.fromkeys(ROW_READERS, "has no call of several evaluations")
    return Outcome(take_turns({OURS: together, CALLS: apart}, bench.repeats), one_at_a_time)


def settings(bench: Bench, deciders: dict[str, Decider]) -> Outcome:
    """The same questions to the same model, opened in different ways."""

    def ask(decider: Decider) -> float:
        state = bench.state(300)
        return seconds(lambda: decider.evaluate(state, EIGHT))

    for decider in deciders.values():
        ask(decider)
    return Outcome(take_turns({name: partial(ask, decider) for name, decider in deciders.items()}, bench.repeats))


def memory(bench: Bench) -> Outcome:
    """The most memory beyond the weights, each contestant in a process of its own that does nothing else."""
    program = Path(__file__).with_name("peak_memory.py")
    state = bench.state(8000)
    rows = bench.decider.rows(state, EIGHT)
    asked = json.dumps({"state": state, "rows": [(row.ids.tolist(), len(row.options)) for row in rows]})
    weights = bench.decider.info()["weight_bytes"]
    outcome = Outcome({})
    for name in (OURS, PREFIX, LLAMA_CPP):
        arguments = (name, bench.model, bench.threads, bench.context_tokens)
        command = [sys.executable, str(program), *map(str, arguments)]
        ran = subprocess.run(command, input=asked, capture_output=True, text=True)
        if ran.returncode:
            outcome.left_out[name] = last_line(ran.stderr)
            continue
        measured = json.loads(ran.stdout)
        outcome.samples[name] = [measured["peak"] - weights]
        outcome.details[name] = measured | {"weights": weights}
    return outcome


CASES = {
    "short": Case(
        "8 questions about a state of 300 tokens", "s", ALONE, 3.5, lambda bench: one_state(bench, 300, EIGHT)
    ),
    "long": Case(
        "8 questions about a state of 1,500 tokens", "s", ALONE, 6.0, lambda bench: one_state(bench, 1500, EIGHT)
    ),
    "rate": Case("tokens decoded per second, 8 questions about a state of 300 tokens", "tokens/s", LLAMA, 0.92, rate),
    "scores": Case(
        "6 scores of 5 levels with instructions of 40 tokens, about a state of 300 tokens",
        "s",
        PREFIX,
        1.5,
        lambda bench: one_state(bench, 300, bench.texts.scores(6, 40)),
    ),
    "again": Case("the second call about a state of 1,500 tokens, 2 questions", "s", FIRST, 8.0, second_call),
    "many": Case("64 states of 60 tokens, 4 questions each, in one call", "s", CALLS, 1.05, many),
    "modes": Case(
        "8 questions about a state of 300 tokens, exact against fast",
        "s",
        FAST,
        1 / 1.03,
        lambda bench: settings(bench, {OURS: bench.decider, FAST: bench.fast}),
    ),
    "steps": Case(
        "8 questions about a state of 300 tokens, four rows a step against one",
        "s",
        ONE_ROW,
        1.0,
        lambda bench: settings(bench, {OURS: bench.decider, ONE_ROW: bench.one_row}),
    ),
    "memory": Case("peak memory beyond the weights, 8 questions about 8,000 tokens", "bytes", LLAMA_CPP, 0.6, memory),
}
