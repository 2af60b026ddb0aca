"""The Python API: what a user of `Decider` and `evaluate` relies on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import decider_native
from decider_native import (
    Cancelled,
    Choice,
    ConfigError,
    Decider,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    Noul,
    PayloadTooLarge,
    Score,
)
from decider_native.decider import Questions
from decider_native.questions import Json

STATE: Json = {"subject": "Billed twice", "body": "Refund the duplicate today or we cancel."}
QUESTIONS: Questions = {
    "team": Choice("Which team?", {"billing": "invoices", "technical": None}),
    "urgency": Score("How urgent?", ["not urgent", "soon", "blocking"]),
    "refund": Noul("Is a refund asked for?", {"true": "a refund is requested"}),
}


def test_answers_are_typed(tiny: Decider) -> None:
    result = tiny.evaluate(STATE, QUESTIONS)
    assert list(result.answers) == ["team", "urgency", "refund"]
    team, urgency, refund = result.answers.values()
    assert isinstance(team, decider_native.ChoiceAnswer)
    assert set(team.probabilities) == {"billing", "technical"}
    assert sum(team.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert team.choice == max(team.probabilities, key=team.probabilities.__getitem__)
    assert isinstance(urgency, decider_native.ScoreAnswer)
    assert urgency.score == pytest.approx(urgency.p[1] + 2 * urgency.p[2])
    assert urgency.array().dtype == np.float64
    assert isinstance(refund, decider_native.NoulAnswer)
    assert 0 < refund.noul < 1
    assert 0 < refund.label_mass < 1


def test_wire_dicts_and_typed_questions_are_the_same(tiny: Decider) -> None:
    wire: Questions = {
        "team": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "invoices", "technical": None},
        },
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["not urgent", "soon", "blocking"]},
        "refund": {"type": "bool", "question": "Is a refund asked for?", "criteria": {"true": "a refund is requested"}},
    }
    assert tiny.evaluate(STATE, wire).answers == tiny.evaluate(STATE, QUESTIONS).answers


def test_every_token_is_decoded_once(tiny: Decider) -> None:
    rows = tiny.rows(STATE, QUESTIONS)
    result = tiny.evaluate(STATE, QUESTIONS)
    prefixes = {tuple(row.ids[: n + 1]) for row in rows for n in range(len(row.ids))}
    # Every distinct prefix is one token of the tree; the runs that are too short to be cut off come on top.
    assert len(prefixes) <= result.diagnostics.decoded_tokens <= len(prefixes) + 7 * len(rows)
    assert result.diagnostics.rows == len(rows) == 5


def test_usage_counts_the_common_prefix_once(tiny: Decider) -> None:
    rows = [row.ids.tolist() for row in tiny.rows(STATE, QUESTIONS)]
    shared = next(i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1)
    expected = shared + sum(len(row) - shared for row in rows)
    assert tiny.evaluate(STATE, QUESTIONS).usage.input_tokens == expected


def test_evaluate_many_answers_in_order_and_like_single_calls(tiny: Decider) -> None:
    states: list[Json] = ["My card was charged twice.", STATE, ["a", 1, None], "My card was charged twice."]
    many = tiny.evaluate_many([(state, QUESTIONS) for state in states])
    assert [result.answers for result in many] == [tiny.evaluate(state, QUESTIONS).answers for state in states]


def test_no_evaluations_is_no_answers(tiny: Decider) -> None:
    assert tiny.evaluate_many([]) == []


def test_one_bad_evaluation_fails_the_call_and_names_the_question(tiny: Decider) -> None:
    with pytest.raises(InvalidRequest, match=r"question 'q', field 'criteria': needs 1 to 255 options, got 0"):
        tiny.evaluate_many([(STATE, QUESTIONS), (STATE, {"q": {"criteria": {}}})])


def test_a_single_option_answers_itself(tiny: Decider) -> None:
    result = tiny.evaluate(STATE, {"only": Choice("Which?", ["one"])})
    assert result.to_dict() == {
        "model": tiny.name,
        "answers": {
            "only": {"type": "choice", "choice": "one", "confidence": 1.0, "probabilities": {"one": 1.0}},
        },
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    assert result.diagnostics.decoded_tokens == 0


def test_a_row_that_does_not_fit_is_refused_with_its_size(tiny: Decider) -> None:
    with pytest.raises(PayloadTooLarge, match=r"question 'refund': \d+ tokens, \d+ of them the state") as caught:
        tiny.evaluate(" ".join(["word"] * 5000), {"refund": QUESTIONS["refund"]})
    # "Context", ":" and a newline, 5,000 words of one token each, and the question block
    assert caught.value.tokens == 3 + 5000 + 29
    assert caught.value.limit == tiny.context_tokens == 4096


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "2"])
def test_a_timeout_that_is_no_time_is_refused(tiny: Decider, timeout: float) -> None:
    with pytest.raises(InvalidRequest, match="'timeout': must be a finite number of seconds > 0"):
        tiny.evaluate(STATE, QUESTIONS, timeout=timeout)


def test_temperatures_can_be_overridden(tiny: Decider, tiny_path: Path) -> None:
    cold = {"noul": 0.5, "choice": 1.935}
    with Decider(tiny_path, device="cpu", temperature=1.935, temperature_by_type=cold) as decider:  # type: ignore[arg-type]
        changed, base = decider.evaluate(STATE, QUESTIONS).answers, tiny.evaluate(STATE, QUESTIONS).answers
    assert changed["team"] == base["team"]
    assert changed["urgency"] == base["urgency"]
    odds = base["refund"].array()[1] / base["refund"].array()[0]
    assert changed["refund"].array()[1] == pytest.approx(1 / (1 + odds ** -(1.935 / 0.5)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"temperature": 0}, ConfigError, "temperature must be a finite number > 0, got 0"),
        ({"temperature_by_type": {"bool": 1.0}}, ConfigError, "unknown key 'bool'"),
        ({"layout": "fancy"}, ConfigError, "layout must be one of plain, chat"),
        ({"mode": "turbo"}, InvalidRequest, "'mode': must be one of auto, exact, fast"),
        ({"threads": 0}, InvalidRequest, "'threads': must be an integer from 1 to 512"),
        ({"context_tokens": 1.5}, InvalidRequest, "'context_tokens': must be an integer"),
        ({"parallel_questions": True}, InvalidRequest, "'parallel_questions': must be an integer"),
        ({"gpu_layers": -1}, InvalidRequest, "'gpu_layers': must be an integer"),
        ({"layout": "chat", "chat_template": "{{ nothing }}"}, ModelLoadError, "shows the user's text 0 times"),
        ({"layout": "chat", "chat_template": "{% if %}"}, ModelLoadError, "cannot be rendered"),
    ],
)
def test_arguments_out_of_range_are_refused(
    tiny_path: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Decider(tiny_path, device="cpu", **arguments)  # type: ignore[arg-type]


def test_aevaluate_leaves_the_loop_free_and_answers_alike(tiny: Decider) -> None:
    async def both() -> tuple[decider_native.Result, int]:
        ticks = 0
        call = asyncio.create_task(tiny.aevaluate(STATE, QUESTIONS))
        while not call.done():
            ticks += 1
            await asyncio.sleep(0.001)
        return await call, ticks

    result, ticks = asyncio.run(both())
    assert result.answers == tiny.evaluate(STATE, QUESTIONS).answers
    assert ticks > 1


def test_cancelling_the_task_stops_the_model(tiny: Decider) -> None:
    async def start_and_cancel() -> None:
        call = asyncio.create_task(tiny.aevaluate("word " * 3900, {"refund": QUESTIONS["refund"]}))
        await asyncio.sleep(0.05)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(start_and_cancel())
    assert tiny.evaluate(STATE, QUESTIONS).answers  # at once, and not behind the cancelled call


def test_a_set_event_cancels(tiny: Decider) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        tiny.evaluate("word " * 3900, {"refund": QUESTIONS["refund"]}, cancel=cancel)


def test_module_level_evaluate_uses_the_default_model_from_many_threads(tiny: Decider, tiny_path: Path) -> None:
    code = f"""
import threading, json
from decider_native import evaluate, Noul
import decider_native.decider as module
answers = []
ask = lambda: answers.append(evaluate({STATE!r}, {{"q": Noul("Refund?")}}).answers["q"].noul)
threads = [threading.Thread(target=ask) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps([sorted(set(answers)), module._default.name]))
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "DECIDER_NATIVE_GGUF": str(tiny_path), "HOME": str(Path.home())},
    )
    expected = tiny.evaluate(STATE, {"q": Noul("Refund?")}).answers["q"]
    assert isinstance(expected, decider_native.NoulAnswer)
    assert out.stdout.strip() == f'[[{expected.noul!r}], "decider-4b-v2"]'
    assert out.stderr == ""


def test_info_says_what_is_loaded(tiny: Decider, tiny_path: Path) -> None:
    info = tiny.info()
    assert info["path"] == str(tiny_path)
    assert info["file_bytes"] == tiny_path.stat().st_size
    assert info["architecture"] == "qwen35"
    assert info["labels"] == 255
    assert info["temperatures"] == {"noul": 1.935, "choice": 1.935, "score": 1.935}
    assert (info["device"], info["mode"], info["layout"]) == ("CPU", "exact", "plain")


def test_an_unknown_model_is_named_with_what_there_is() -> None:
    with pytest.raises(ModelNotFound, match=r"unknown model 'decider-5b'.*did you mean decider-4b"):
        Decider("decider-5b")


def test_a_config_beside_the_file_is_read(tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(tiny_path)
    (tmp_path / "decider_config.json").write_text('{"temperature": 1.3, "isolated_levels": false}')
    with Decider(tmp_path / "model.gguf", device="cpu", context_tokens=512) as decider:
        assert decider.config.temperatures.default == 1.3
        assert len(decider.rows(STATE, {"urgency": QUESTIONS["urgency"]})) == 1


def test_a_timeout_longer_than_any_clock_counts_is_no_deadline(tiny: Decider) -> None:
    assert tiny.evaluate(STATE, QUESTIONS, timeout=1e300).answers == tiny.evaluate(STATE, QUESTIONS).answers
