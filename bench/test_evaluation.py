"""Times of the parts of an evaluation.

    pytest bench                                  # a tiny random model: what the code around the model costs
    DECIDER_NATIVE_BENCH_MODEL=demo pytest bench  # a real model: what the user waits for

`pytest bench --benchmark-json=FILE` keeps the figures, `pytest-benchmark compare FILE FILE` compares two runs.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import make_tiny_gguf
from decider_native import Choice, Decider, Noul, Score
from decider_native.decider import Questions
from decider_native.scoring import answer_question, score_row

TICKET = " ".join(f"Message {i}: the invoice was paid twice and nobody answered." for i in range(8))
QUESTIONS: Questions = {
    "team": Choice("Which team?", {"billing": "invoices", "technical": "outages", "sales": None}),
    "urgency": Score("How urgent is it?", ["not urgent", "soon", "blocking"]),
    "refund": Noul("Is a refund asked for?"),
    "angry": Noul("Is the writer angry?"),
    "lost": Noul("Does the writer threaten to leave?"),
}


@pytest.fixture(scope="module")
def decider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decider]:
    named = os.environ.get("DECIDER_NATIVE_BENCH_MODEL")
    model: str | Path = named or make_tiny_gguf.make_tiny_gguf(
        tmp_path_factory.mktemp("bench") / "tiny.gguf", dtype="F16"
    )
    with Decider(model, device="cpu", context_tokens=4096) as opened:
        yield opened


def test_import(benchmark: BenchmarkFixture) -> None:
    benchmark(lambda: subprocess.run([sys.executable, "-c", "import decider_native"], check=True))


def test_questions_to_token_rows(benchmark: BenchmarkFixture, decider: Decider) -> None:
    benchmark(lambda: decider._prepare(TICKET, QUESTIONS, {}))


def test_logits_to_answers(benchmark: BenchmarkFixture) -> None:
    question = Choice("Which?", [str(i) for i in range(255)])
    logits = np.linspace(-5, 5, 255, dtype=np.float32)
    benchmark(lambda: answer_question(question, [score_row("q", logits, 1.935, 0.9)]))


def test_one_question(benchmark: BenchmarkFixture, decider: Decider) -> None:
    count = itertools.count()
    benchmark(lambda: decider.evaluate(f"{next(count)} {TICKET}", {"refund": QUESTIONS["refund"]}))


def test_five_questions(benchmark: BenchmarkFixture, decider: Decider) -> None:
    count = itertools.count()
    benchmark(lambda: decider.evaluate(f"{next(count)} {TICKET}", QUESTIONS))


def test_five_questions_on_a_state_seen_before(benchmark: BenchmarkFixture, decider: Decider) -> None:
    decider.evaluate(TICKET * 4, QUESTIONS)
    benchmark(decider.evaluate, TICKET * 4, QUESTIONS)


def test_many_small_states_in_one_call(benchmark: BenchmarkFixture, decider: Decider) -> None:
    many = [(f"Ticket {i}: please refund order {i * 7}.", {"refund": QUESTIONS["refund"]}) for i in range(16)]
    benchmark(decider.evaluate_many, many)
