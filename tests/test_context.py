"""A context handle: a state that is read once, asked about many times, and freed when it is closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from decider_native import Closed, Decider, Noul, PayloadTooLarge
from decider_native.questions import Questions

ONE: Questions = {"refund": Noul("Is a refund asked for?")}
OTHER: Questions = {"angry": Noul("Is the writer angry?"), "urgent": Noul("Is it urgent?")}
SHORT = "Billed twice, and nobody answers the phone."  # far shorter than what the cache keeps by itself
STORY = " ".join(f"On day {day} the parcel was at depot {day * 7 % 13}." for day in range(40))


def open_decider(path: Path) -> Decider:
    return Decider(path, device="cpu", threads=1, context_tokens=2048, context_cache_bytes=0)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3"])
@pytest.mark.parametrize("state", [SHORT, STORY, {"log": [STORY, 1]}])
def test_asking_costs_the_questions_alone_and_gives_the_same_bits(
    make_model: Callable[..., Path], architecture: str, state: str
) -> None:
    with open_decider(make_model(architecture, "F16")) as decider:
        fresh = [decider.evaluate(state, questions) for questions in (ONE, OTHER)]
        with decider.context(state) as context:
            assert context.bytes > 0
            assert decider.info()["cached_contexts"] == 0
            asked = [context.ask(questions) for questions in (ONE, OTHER)]
            through_the_front = decider.evaluate(state, ONE)
            questions_alone = [decider.rows(state, questions) for questions in (ONE, OTHER)]
        again = decider.evaluate(state, ONE)
    assert [result.answers for result in asked] == [result.answers for result in fresh]
    assert through_the_front.answers == fresh[0].answers
    for before, after, rows in zip(fresh, asked, questions_alone, strict=True):
        assert after.diagnostics.reused_tokens == context.tokens
        assert after.diagnostics.decoded_tokens == sum(len(row.ids) - context.tokens for row in rows)
        assert after.usage == before.usage
    assert again.diagnostics.reused_tokens == 0  # closing freed it


def test_many_contexts_at_once(tiny_path: Path) -> None:
    states = [SHORT, STORY, STORY + " Now it is lost."]
    with open_decider(tiny_path) as decider:
        expected = [decider.evaluate(state, ONE).answers for state in states]
        contexts = [decider.context(state) for state in states]
        for _ in range(2):
            assert [context.ask(ONE).answers for context in contexts] == expected
        contexts[1].close()
        assert [contexts[i].ask(ONE).diagnostics.reused_tokens for i in (0, 2)] == [
            contexts[0].tokens,
            contexts[2].tokens,
        ]


def test_a_closed_context_answers_nothing(tiny_path: Path) -> None:
    with open_decider(tiny_path) as decider:
        context = decider.context(SHORT)
        context.close()
        context.close()
        assert context.bytes == 0
        with pytest.raises(Closed, match="make a new one"):
            context.ask(ONE)
        kept = decider.context(SHORT)
    with pytest.raises(Closed):  # the model is gone, whatever the handle holds
        kept.ask(ONE)


def test_a_state_that_leaves_no_room_for_a_question_is_refused(tiny_path: Path) -> None:
    with open_decider(tiny_path) as decider, pytest.raises(PayloadTooLarge, match="the context holds 2048") as caught:
        decider.context(STORY * 10)
    assert caught.value.tokens > caught.value.limit == 2048


def test_progress_counts_every_token_once(tiny_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open_decider(tiny_path) as decider:
        told: list[tuple[int, int]] = []
        results = decider.evaluate_many(
            [(STORY, ONE), (STORY[:-30], OTHER)], progress=lambda done, total: told.append((done, total))
        )
        decoded = results[0].diagnostics.decoded_tokens
        assert told[-1] == (decoded, decoded)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert {total for _, total in told} == {decoded}

        told.clear()
        context = decider.context(STORY, progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (context.tokens + 1, context.tokens + 1)

        assert capfd.readouterr() == ("", "")
        decider.evaluate_many([(STORY, ONE)], progress=True)
        assert "tokens" in capfd.readouterr().err


def test_a_progress_callback_that_raises_stops_the_call(tiny_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with open_decider(tiny_path) as decider:
        with pytest.raises(RuntimeError, match="enough"):
            decider.evaluate_many([(STORY + str(i), ONE) for i in range(30)], progress=fail)
        assert decider.evaluate(SHORT, ONE).answers
