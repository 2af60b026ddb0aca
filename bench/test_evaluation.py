"""Times of the parts of an evaluation.

    pytest bench                                  # a tiny random model: what the code around the model costs
    DECIDER_NATIVE_BENCH_MODEL=demo pytest bench  # a real model: what the user waits for

README.md beside this file says how two runs are kept and compared.
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
LONG = TICKET * 8
QUESTIONS: Questions = {
    "team": Choice("Which team?", {"billing": "invoices", "technical": "outages", "sales": None}),
    "urgency": Score("How urgent is it?", ["not urgent", "soon", "blocking"]),
    "refund": Noul("Is a refund asked for?"),
    "angry": Noul("Is the writer angry?"),
    "lost": Noul("Does the writer threaten to leave?"),
}
ONE: Questions = {"refund": QUESTIONS["refund"]}
SCORES: Questions = {
    name: Score(f"How much does the writer speak of {name}, in any of the messages?", ["not", "a little", "much"])
    for name in ("money", "time", "people", "the law", "the future")
}


@pytest.fixture(scope="module")
def decider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decider]:
    named = os.environ.get("DECIDER_NATIVE_BENCH_MODEL")
    model: str | Path = named or make_tiny_gguf.make_tiny_gguf(
        tmp_path_factory.mktemp("bench") / "tiny.gguf", dtype="F16"
    )
    with Decider(model, device="cpu", context_tokens=4096, context_cache_bytes=64 << 20) as opened:
        yield opened


def test_import(benchmark: BenchmarkFixture) -> None:
    benchmark(lambda: subprocess.run([sys.executable, "-c", "import decider_native"], check=True))


def test_tokenize_a_long_text(benchmark: BenchmarkFixture, decider: Decider) -> None:
    benchmark(lambda: decider._engine.tokenize([LONG], {}))


def test_questions_to_token_rows(benchmark: BenchmarkFixture, decider: Decider) -> None:
    benchmark(lambda: decider._prepare(TICKET, QUESTIONS, {}))


def test_200_questions_to_token_rows(benchmark: BenchmarkFixture, decider: Decider) -> None:
    questions = {f"q{i}": Noul(f"Is message {i} about an invoice?") for i in range(200)}
    benchmark(lambda: decider._prepare(TICKET, questions, {}))


def test_logits_to_answers(benchmark: BenchmarkFixture) -> None:
    question = Choice("Which?", [str(i) for i in range(255)])
    logits = np.linspace(-5, 5, 255, dtype=np.float32)
    benchmark(lambda: answer_question(question, [score_row("q", logits, 1.935, 0.9)]))


@pytest.mark.parametrize("state", [TICKET, LONG], ids=["short", "long"])
@pytest.mark.parametrize("questions", [ONE, QUESTIONS, SCORES], ids=["one", "five", "scores"])
def test_new_state(benchmark: BenchmarkFixture, decider: Decider, state: str, questions: Questions) -> None:
    count = itertools.count()
    benchmark(lambda: decider.evaluate(f"{next(count)} {state}", questions))


def test_state_seen_before(benchmark: BenchmarkFixture, decider: Decider) -> None:
    decider.evaluate(LONG, QUESTIONS)
    assert benchmark(decider.evaluate, LONG, QUESTIONS).diagnostics.reused_tokens


def test_context_read(benchmark: BenchmarkFixture, decider: Decider) -> None:
    count = itertools.count()
    benchmark(lambda: decider.context(f"{next(count)} {LONG}").close())


def test_context_ask(benchmark: BenchmarkFixture, decider: Decider) -> None:
    with decider.context(LONG) as context:
        benchmark(context.ask, QUESTIONS)


def test_16_small_states_in_one_call(benchmark: BenchmarkFixture, decider: Decider) -> None:
    many = [(f"Ticket {i}: please refund order {i * 7}.", ONE) for i in range(16)]
    benchmark(decider.evaluate_many, many)
