"""In exact mode an answer is the same bits whatever else is in its call, however its tokens are cut and who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from decider_native import Cancelled, Choice, Decider, ModelNotFound, Noul, Score
from decider_native.decider import Questions
from decider_native.engine import Engine, Reading, TokenIds
from decider_native.models import resolve
from decider_native.questions import Json
from token_rows import comb, random_tree, tokens

LABELS = 64
HIDDEN = {"F32": 64, "F16": 64, "Q8_0": 256, "Q4_K_M": 256}  # quantized matrices need the wider model
MODELS = [(architecture, dtype) for architecture in ("qwen35", "qwen3") for dtype in HIDDEN]
CONTEXT_TOKENS = 4096
TEMPERATURE = 1.935

TICKET: Json = {
    "subject": "Duplicate charge on invoice #4411",
    "body": "We were billed twice for March. Refund the duplicate today or we cancel.",
}
TRIAGE: Questions = {
    "department": Choice("Which department should handle this request?", {"billing": "invoices", "sales": None}),
    "urgency": Score("How urgent is this request?", ["not urgent", "soon", "critical"]),
    "urgency_in_one": Score("How urgent is this request?", ["not urgent", "soon", "critical"], isolated=False),
    "churn": Noul("Does the user threaten to cancel or leave?"),
    "month": Choice("Which month is it about?", [f"month {i}" for i in range(1, 13)]),
}
REFUND: Questions = {"refund": Noul("Does the user ask for a refund?", {"true": "a refund is requested"})}
EVALUATIONS: list[tuple[Json, Questions]] = [
    (TICKET, TRIAGE),
    ("The parcel arrived, thank you.", REFUND),
    (TICKET, REFUND),
    ("The parcel arrived, thank you very much. It is all there.", TRIAGE),
    (TICKET, {"department": TRIAGE["department"], "again": TRIAGE["department"]}),
]


class Reader:
    """An engine, and what another one reads for a row that is alone in its call."""

    def __init__(self, engine: Engine, one_row_a_step: Engine) -> None:
        self.engine = engine
        self._one_row_a_step = one_row_a_step
        self._alone: dict[bytes, Reading] = {}

    def alone(self, row: TokenIds) -> Reading:
        key = row.tobytes()
        if key not in self._alone:
            self._alone[key] = self._one_row_a_step.read([row], [LABELS]).rows[0]
        return self._alone[key]

    def check(
        self, rows: Sequence[TokenIds], engine: Engine | None = None, contexts: Sequence[int] | None = None
    ) -> None:
        """Read all rows in one call; each must say what it says alone."""
        together = (engine or self.engine).read(rows, [LABELS] * len(rows), contexts).rows
        expected = [self.alone(row) for row in rows]
        different = [
            f"row {i} of {len(rows)}, {len(row)} tokens: {np.abs(got.logits - want.logits).max():.2g}"
            for i, (row, got, want) in enumerate(zip(rows, together, expected, strict=True))
            if got.logits.tobytes() != want.logits.tobytes() or got.label_mass != want.label_mass
        ]
        assert not different


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def path(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> Path:
    architecture, dtype = request.param
    return make_model(architecture, dtype, hidden=HIDDEN[dtype])


@pytest.fixture(scope="module")
def decider(path: Path) -> Iterator[Decider]:
    with Decider(
        path,
        device="cpu",
        threads=1,
        context_tokens=CONTEXT_TOKENS,
        temperature=TEMPERATURE,
        parallel_questions=1,
        mode="exact",
    ) as decider:
        yield decider


@pytest.fixture(scope="module", params=["a_row_a_step", "short_rows_together"])
def reader(request: pytest.FixtureRequest, path: Path, decider: Decider) -> Iterator[Reader]:
    if request.param == "a_row_a_step":
        yield Reader(decider._engine, decider._engine)
        return
    engine = Engine(path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS, mode="exact", context_cache_bytes=0)
    assert engine.parallel_questions == 4
    yield Reader(engine, decider._engine)
    engine.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(sum(request.node.originalname.encode()))  # the same rows for every model


def test_random_trees(reader: Reader, rng: np.random.Generator) -> None:
    for context in (3, 40):
        rows = random_tree(rng, context=context, most=12)
        reader.check(rows)
        reader.check(rows[::-1])
        cuts = [0, *sorted(rng.integers(0, len(rows), 3)), len(rows)]
        for start, end in pairwise(cuts):
            reader.check(rows[start:end])


def test_duplicates(reader: Reader, rng: np.random.Generator) -> None:
    rows = random_tree(rng, most=4)
    reader.check([rows[i] for i in rng.integers(0, len(rows), 12)])


def test_suffixes_of_1_to_12_tokens(reader: Reader, rng: np.random.Generator) -> None:
    context = tokens(rng, 30)
    suffixes = [np.concatenate([context, tokens(rng, count)]) for count in range(1, 13)]
    longest = suffixes[-1]
    prefixes = [longest[:count] for count in range(1, len(longest))]  # every row a prefix of the next
    reader.check(suffixes)
    reader.check([*suffixes[:4], *prefixes[-13:]])
    reader.check(prefixes[:12])


def test_more_branch_points_than_sequences(reader: Reader, rng: np.random.Generator) -> None:
    rows = comb(rng, teeth=reader.engine._engine.sequences + 2, run=reader.engine._engine.min_step_tokens)
    reader.check(rows)
    reader.check(rows[::-1][:4])


def test_states_side_by_side(reader: Reader, rng: np.random.Generator) -> None:
    """States that share nothing share steps, cut where the shortest ends or not, and so do their questions."""
    states = [tokens(rng, count) for count in (30, 30, 33, 30, 47, 31)]
    rows = [np.concatenate([state, tokens(rng, 12 + question)]) for state in states for question in range(3)]
    reader.check(rows)
    reader.check(rows[::-1][2:11])
    common = tokens(rng, 20)
    reader.check([np.concatenate([common, row]) for row in rows[:9]])


def test_rows_longer_than_a_step(reader: Reader, rng: np.random.Generator) -> None:
    step = reader.engine._engine.step_tokens
    long = tokens(rng, step + 40)
    rows = [long, *(np.concatenate([long[:cut], tokens(rng, 9)]) for cut in (step - 1, step + 8)), long[: step + 1]]
    reader.check(rows)
    reader.check(rows[2:])


def test_label_counts(reader: Reader, rng: np.random.Generator) -> None:
    rows = random_tree(rng, most=5)
    counts = [1, 2, LABELS, 7, 30]
    for row, count, reading in zip(rows, counts, reader.engine.read(rows, counts).rows, strict=True):
        assert reading.logits.tobytes() == reader.alone(row).logits[:count].tobytes()


def test_other_settings(path: Path, reader: Reader, rng: np.random.Generator) -> None:
    """A larger context, which means shorter steps, more threads, and a long row among short ones."""
    engine = Engine(path, device="cpu", threads=2, context_tokens=6 * CONTEXT_TOKENS, mode="exact")
    assert engine._engine.step_tokens < reader.engine._engine.step_tokens
    reader.check([*random_tree(rng, most=3), tokens(rng, engine._engine.step_tokens + 30)], engine)
    short = random_tree(rng, most=4)
    reader.check(short, engine)
    reader.check([*short, tokens(rng, engine.parallel_tokens + 1)], engine)
    engine.close()


def test_as_many_rows_a_step_as_there_may_be(path: Path, reader: Reader, rng: np.random.Generator) -> None:
    engine = Engine(path, device="cpu", threads=1, context_tokens=256, parallel_questions=64, mode="exact")
    assert engine.parallel_questions == 7
    context = tokens(rng, 20)
    reader.check([np.concatenate([context, tokens(rng, 20 + i % 3)]) for i in range(15)], engine)
    engine.close()


def test_cached_contexts(path: Path, reader: Reader, rng: np.random.Generator) -> None:
    """Contexts are kept, found whole, and found as the beginning of a longer one."""
    engine = Engine(
        path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS, context_cache_bytes=2**27, mode="exact"
    )
    context = tokens(rng, 190)
    for length in (130, 190, 190, 130):
        rows = [np.concatenate([context[:length], tokens(rng, count)]) for count in (2, 12)]
        reader.check(rows, engine, contexts=[length] * len(rows))
    rows = [np.concatenate([context, tokens(rng, 9)]), tokens(rng, 9), context[:140]]
    reader.check(rows, engine)
    assert engine.context_cache[0] == 2
    engine.close()


def test_after_a_cancelled_call(reader: Reader, rng: np.random.Generator) -> None:
    rows = random_tree(rng, most=5)
    with pytest.raises(Cancelled):
        reader.engine.read([tokens(rng, CONTEXT_TOKENS)], [2], cancelled=lambda: True)
    reader.check(rows)


def test_four_threads_at_once(reader: Reader, rng: np.random.Generator) -> None:
    rows = random_tree(rng, most=8)
    for row in rows:
        reader.alone(row)
    calls = [[rows[i] for i in rng.permutation(len(rows))[:3]] for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reader.check, calls))


def test_questions_and_evaluations(decider: Decider) -> None:
    alone = [
        {question_id: decider.evaluate(state, {question_id: question}).answers[question_id]}
        for state, questions in EVALUATIONS
        for question_id, question in questions.items()
    ]
    together = decider.evaluate_many(EVALUATIONS)
    assert [{name: answer} for result in together for name, answer in result.answers.items()] == alone
    backwards = decider.evaluate_many(EVALUATIONS[::-1])[::-1]
    assert [result.answers for result in backwards] == [result.answers for result in together]
    assert together[4].answers["department"] == together[4].answers["again"] == together[0].answers["department"]


def test_the_demo_model(rng: np.random.Generator) -> None:
    """Real weights, and layers that look back no further than 512 tokens."""
    try:
        path = resolve("demo").path
    except ModelNotFound:
        pytest.skip("the demo model is not installed")
    engine, packing = (
        Engine(path, device="cpu", threads=1, context_tokens=1024, parallel_questions=rows, mode="exact")
        for rows in (1, 4)
    )
    reader = Reader(engine, engine)
    context = tokens(rng, 520)
    for rows in (random_tree(rng, most=5), [np.concatenate([context, tokens(rng, count)]) for count in (3, 14)]):
        reader.check(rows)
        reader.check(rows, packing)
    engine.close()
    packing.close()


def test_fast_mode_is_close(path: Path, decider: Decider) -> None:
    with Decider(
        path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS, temperature=TEMPERATURE, mode="fast"
    ) as fast:
        assert fast.mode == "fast"
        for one, other in zip(decider.evaluate_many(EVALUATIONS), fast.evaluate_many(EVALUATIONS), strict=True):
            for question_id, answer in one.answers.items():
                np.testing.assert_allclose(other.answers[question_id].array(), answer.array(), rtol=0, atol=0.1)
