"""A state that is asked about again costs only its questions, and no bit of an answer changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from decider_native import Decider, InvalidRequest, Noul, Result
from decider_native.decider import Questions
from decider_native.questions import Json

ONE: Questions = {"refund": Noul("Is a refund asked for?")}
OTHER: Questions = {"angry": Noul("Is the writer angry?"), "urgent": Noul("Is it urgent?")}
STORY = " ".join(f"On day {day} the parcel was at depot {day * 7 % 13}." for day in range(40))


def open_decider(path: Path, cache_bytes: int | None = 2**26) -> Decider:
    return Decider(path, device="cpu", threads=1, context_tokens=2048, context_cache_bytes=cache_bytes)


def state_tokens(decider: Decider, state: str) -> int:
    ids = decider.rows(state, ONE)[0].ids.tolist()
    return next(i for i in range(len(ids)) if ids[i : i + 3] == [271, 14162, 25])  # two newlines, "Question", ":"


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3"])
@pytest.mark.parametrize(("dtype", "hidden"), [("F32", 64), ("Q4_K_M", 256)])
def test_hits_and_misses_give_the_same_bits(
    make_model: Callable[..., Path], architecture: str, dtype: str, hidden: int
) -> None:
    path = make_model(architecture, dtype, hidden=hidden)
    grown = STORY + " Now it is lost, and nobody at any depot knows where it could be."
    states: list[Json] = [STORY, grown, "short", STORY, {"log": [STORY, 1]}, grown]
    with open_decider(path) as caching, open_decider(path, 0) as plain:
        for state in states:
            for questions in (ONE, OTHER):
                assert caching.evaluate(state, questions).answers == plain.evaluate(state, questions).answers
        together = [(state, OTHER) for state in states]
        assert [r.answers for r in caching.evaluate_many(together)] == [
            r.answers for r in plain.evaluate_many(together)
        ]


def test_a_known_state_costs_only_its_questions(tiny_path: Path) -> None:
    with open_decider(tiny_path) as decider:
        first = decider.evaluate(STORY, ONE)
        again = decider.evaluate(STORY, OTHER)
        state = state_tokens(decider, STORY)
        rows = decider.rows(STORY, OTHER)
    assert first.diagnostics.reused_tokens == 0
    assert again.diagnostics.reused_tokens == state
    assert again.diagnostics.decoded_tokens == sum(len(row.ids) - state for row in rows)
    asked_alike = 4  # the two newlines, "Question", ":" and " Is"
    assert again.usage.input_tokens == state + asked_alike + sum(len(row.ids) - state - asked_alike for row in rows)


def test_a_state_that_grew_reuses_what_it_was(tiny_path: Path) -> None:
    with open_decider(tiny_path) as decider:
        before = state_tokens(decider, STORY)
        decider.evaluate(STORY, ONE)
        grown = decider.evaluate(STORY + " Now it is lost, and nobody at any depot knows where it could be.", ONE)
        assert grown.diagnostics.reused_tokens == before
        assert (
            decider.evaluate(
                STORY + " Now it is lost, and nobody at any depot knows where it could be.", ONE
            ).diagnostics.reused_tokens
            > before
        )


def test_the_bound_holds_and_the_oldest_leaves_first(tiny_path: Path) -> None:
    states = [f"{number} {STORY}" for number in range(4)]
    with open_decider(tiny_path) as decider:
        decider.evaluate(states[0], ONE)
        each = decider.info()["cached_bytes"]

    def reused(decider: Decider, state: str) -> bool:
        result: Result = decider.evaluate(state, ONE)
        return result.diagnostics.reused_tokens > 0

    with open_decider(tiny_path, int(2.5 * each)) as decider:
        assert [reused(decider, state) for state in states[:2]] == [False, False]
        assert reused(decider, states[0])  # now the most recently used
        assert not reused(decider, states[2])
        assert reused(decider, states[0])
        assert not reused(decider, states[1])
        info = decider.info()
        assert info["cached_contexts"] == 2
        assert info["cached_bytes"] <= 2.5 * each


def test_with_questions_first_it_is_the_questions_that_are_known(tiny_path: Path) -> None:
    config = {"schema_first_trained": True}
    question: Questions = {"depot": Noul(f"Was the parcel at the depot that this story names? {STORY}")}
    states = ["On day 3 it was at depot 8.", "Nobody knows.", "It came on day 40."]
    apart = [Decider(tiny_path, device="cpu", threads=1, config=config, layout="schema_first") for _ in states]
    alone = [decider.evaluate(state, question) for decider, state in zip(apart, states, strict=True)]
    rows = [apart[0].rows(state, question)[0].ids.tolist() for state in states]
    shared = next(i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1)
    together = apart[0].evaluate_many((state, question) for state in [*states[1:], states[0]])
    block = together[0].diagnostics.reused_tokens
    assert block == shared - 4  # two newlines, "Context", ":" and a newline are shared too
    assert together[0].diagnostics.decoded_tokens == sum(len(row) - block for row in rows)
    assert [result.answers for result in together] == [result.answers for result in [*alone[1:], alone[0]]]
    assert apart[1].evaluate_many((state, question) for state in states)[0].diagnostics.reused_tokens == block
    with pytest.raises(InvalidRequest, match="'schema_first' layout"):
        apart[0].context(states[0])
    for decider in apart:
        decider.close()


def test_no_cache_keeps_nothing(tiny_path: Path) -> None:
    with open_decider(tiny_path, 0) as decider:
        decider.evaluate(STORY, ONE)
        assert decider.evaluate(STORY, ONE).diagnostics.reused_tokens == 0
        assert (decider.info()["cached_contexts"], decider.info()["cached_bytes"]) == (0, 0)
