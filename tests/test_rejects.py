"""Odd and invalid requests: for each one what becomes of it, stated.

decider-ai 1.5.0 answers or refuses the same requests; where the outcome here differs, the comment says how.
"""

from __future__ import annotations

from typing import Any

import pytest

from decider_native.config import ReadoutConfig
from decider_native.errors import InvalidRequest
from decider_native.prompts import PlainLayout, PromptRow, question_rows, render_state
from decider_native.questions import parse_questions

NAN, INF = float("nan"), float("inf")
DEFAULT = "Which answer fits the context?"
LEVEL = "x\nProposed answer: {}\nDoes the proposed answer fit?"
YES_NO = ("no", "yes")


def ask(state: Any, questions: Any) -> list[PromptRow]:
    render_state(state)
    return [
        row
        for question_id, question in parse_questions(questions).items()
        for row in question_rows(question_id, question, ReadoutConfig(), PlainLayout())
    ]


# Id, the one question asked of the state "s", and per row: the question's text and its options.
ACCEPTED: list[tuple[str, dict[str, Any], list[tuple[str, tuple[str, ...]]]]] = [
    # decider-ai refuses these two and renders "null" for the third; here all three ask the default question
    ("no_instructions_choice", {"type": "choice", "criteria": ["a", "b"]}, [(DEFAULT, ("a", "b"))]),
    (
        "empty_instructions_choice",
        {"type": "choice", "instructions": "", "criteria": ["a", "b"]},
        [(DEFAULT, ("a", "b"))],
    ),
    (
        "null_instructions_choice",
        {"type": "choice", "instructions": None, "criteria": ["a", "b"]},
        [(DEFAULT, ("a", "b"))],
    ),
    (
        "space_instructions_choice",
        {"type": "choice", "instructions": " ", "criteria": ["a", "b"]},
        [(" ", ("a", "b"))],
    ),
    ("empty_list_instructions", {"type": "choice", "instructions": [], "criteria": ["a", "b"]}, [("[]", ("a", "b"))]),
    ("false_instructions", {"type": "noul", "instructions": False}, [("false", YES_NO)]),
    (
        "noul_unknown_keys",
        {"type": "noul", "instructions": "x", "criteria": {"yes": "a", "no": "b"}},
        [("x", YES_NO)],
    ),
    # decider-ai refuses it; here a single option answers itself and needs no row
    ("choice_1_option", {"type": "choice", "instructions": "x", "criteria": ["a"]}, []),
    ("choice_dup_list_3", {"type": "choice", "instructions": "x", "criteria": ["a", "b", "a"]}, [("x", ("a", "b"))]),
    (
        "choice_list_of_dicts",
        {"type": "choice", "instructions": "x", "criteria": [{"a": 1, "b": "é"}, {"a": 2}]},
        [("x", ("{'a': 1, 'b': 'é'}", "{'a': 2}"))],
    ),
    (
        "choice_list_of_lists",
        {"type": "choice", "instructions": "x", "criteria": [[1, "a"], ["b", None]]},
        [("x", ("[1, 'a']", "['b', None]"))],
    ),
    (
        "score_dup_levels",
        {"type": "score", "instructions": "x", "criteria": ["a", "a"]},
        [(LEVEL.format("a"), YES_NO), (LEVEL.format("a"), YES_NO)],
    ),
    (
        "score_empty_levels",
        {"type": "score", "instructions": "x", "criteria": ["", ""]},
        [(LEVEL.format(""), YES_NO), (LEVEL.format(""), YES_NO)],
    ),
    (
        "isolated_string",
        {"type": "score", "instructions": "x", "criteria": ["a", "b"], "isolated": "no"},
        [(LEVEL.format("a"), YES_NO), (LEVEL.format("b"), YES_NO)],
    ),
    ("extra_keys_ignored", {"type": "noul", "instructions": "x", "weird": 1, "id": "z"}, [("x", YES_NO)]),
]


@pytest.mark.parametrize(("question", "rows"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_accepted(question: dict[str, Any], rows: list[tuple[str, tuple[str, ...]]]) -> None:
    layout = PlainLayout()
    asked = ask("s", {"q": question})
    assert [row.options for row in asked] == [options for _, options in rows]
    assert [row.pieces for row in asked] == [layout.block(text, options) for text, options in rows]


NOUL = {"type": "noul", "instructions": "x"}


def choice(criteria: Any) -> dict[str, Any]:
    return {"q": {"type": "choice", "instructions": "x", "criteria": criteria}}


def score(criteria: Any) -> dict[str, Any]:
    return {"q": {"type": "score", "instructions": "x", "criteria": criteria}}


# Id, state, questions, and the error: its question, its field and a part of its message.
REFUSED: list[tuple[str, Any, Any, str | None, str | None, str]] = [
    ("noul_nothing", "s", {"q": {"type": "noul"}}, "q", "instructions", "asks nothing"),
    (
        "noul_empty_criteria_noins",
        "s",
        {"q": {"type": "noul", "criteria": {"true": "", "false": None}}},
        "q",
        "instructions",
        "asks nothing",
    ),
    (
        "noul_noins_list_criteria",
        "s",
        {"q": {"type": "noul", "criteria": ["a", "b"]}},
        "q",
        "criteria",
        'a map with "true" and/or "false", or nothing; got list',
    ),
    (
        "noul_list_criteria",
        "s",
        {"q": {"type": "noul", "instructions": "x", "criteria": ["a", "b"]}},
        "q",
        "criteria",
        'a map with "true" and/or "false", or nothing; got list',
    ),
    (
        "noul_str_criteria",
        "s",
        {"q": {"type": "noul", "instructions": "x", "criteria": "a"}},
        "q",
        "criteria",
        'a map with "true" and/or "false", or nothing; got str',
    ),
    ("choice_0_options", "s", choice([]), "q", "criteria", "needs 1 to 255 options, got 0"),
    ("choice_dup_list", "s", choice(["a", "a"]), "q", "criteria", "lists the same option 2 times"),
    ("choice_256", "s", choice([f"o{i}" for i in range(256)]), "q", "criteria", "needs 1 to 255 options, got 256"),
    (
        "choice_no_criteria",
        "s",
        {"q": {"type": "choice", "instructions": "x"}},
        "q",
        "criteria",
        "needs 1 to 255 options, got 0",
    ),
    ("choice_str_criteria", "s", choice("ab"), "q", "criteria", "or a list of names; got str"),
    ("score_1_level", "s", score(["a"]), "q", "criteria", "needs 2 to 10 levels, got 1"),
    ("score_11_levels", "s", score([f"l{i}" for i in range(11)]), "q", "criteria", "needs 2 to 10 levels, got 11"),
    (
        "score_no_criteria",
        "s",
        {"q": {"type": "score", "instructions": "x"}},
        "q",
        "criteria",
        "needs 2 to 10 levels, got 0",
    ),
    ("score_str_criteria", "s", score("ab"), "q", "criteria", "must be a list of level descriptions"),
    ("score_map_bad_key", "s", score({"low": "a", "high": "b"}), "q", "criteria", "has the key 'low'"),
    ("score_map_1", "s", score({"0": "a"}), "q", "criteria", "needs 2 to 10 levels, got 1"),
    (
        "unknown_type",
        "s",
        {"q": {"type": "scale", "instructions": "x", "criteria": ["a", "b"]}},
        "q",
        "type",
        "is unknown: 'scale'",
    ),
    (
        "unknown_type_case",
        "s",
        {"q": {"type": "Choice", "instructions": "x", "criteria": ["a", "b"]}},
        "q",
        "type",
        "is unknown: 'Choice'",
    ),
    (
        "type_null",
        "s",
        {"q": {"type": None, "instructions": "x", "criteria": ["a", "b"]}},
        "q",
        "type",
        "is unknown: None",
    ),
    ("unknown_type_noins", "s", {"q": {"type": "scale"}}, "q", "type", "is unknown: 'scale'"),
    ("spec_not_dict", "s", {"q": "is it?"}, "q", None, "got str"),
    ("spec_null", "s", {"q": None}, "q", None, "got null"),
    ("spec_list", "s", {"q": ["a"]}, "q", None, "got list"),
    ("questions_list", "s", [NOUL], None, "questions", "got list"),
    ("questions_null", "s", None, None, "questions", "got null"),
    ("questions_empty", "No questions at all.", {}, None, "questions", "ask at least one question"),
    (
        "second_bad",
        "s",
        {"ok": NOUL, "bad": {"type": "choice", "instructions": "x"}},
        "bad",
        "criteria",
        "needs 1 to 255 options, got 0",
    ),
    (
        "lone_surrogate_state",
        "bad \ud800 surrogate",
        {"q": NOUL},
        None,
        "state",
        "lone surrogate \\ud800 at character 4",
    ),
    (
        "lone_surrogate_json",
        {"a": "bad \udfff"},
        {"q": NOUL},
        None,
        "state.a",
        "lone surrogate \\udfff at character 4",
    ),
    (
        "lone_surrogate_instructions",
        "s",
        {"q": {"type": "noul", "instructions": "bad \ud83d"}},
        "q",
        "instructions",
        "lone surrogate \\ud83d at character 4",
    ),
    # decider-ai renders NaN, Infinity and -Infinity in both
    ("nan_state", NAN, {"q": NOUL}, None, "state", "nan is not JSON"),
    ("inf_in_state", {"a": [INF, -INF, NAN]}, {"q": NOUL}, None, "state.a[0]", "inf is not JSON"),
]


@pytest.mark.parametrize(
    ("state", "questions", "question", "field", "fragment"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_refused(state: Any, questions: Any, question: str | None, field: str | None, fragment: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(state, questions)
    assert (caught.value.question, caught.value.field) == (question, field)
    assert fragment in caught.value.message
