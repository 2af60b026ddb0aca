"""Against decider-ai 1.5.0's own answers with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from decider_native import Decider
from golden import CASES, CONFIGS, check_answers, configured


@pytest.fixture(scope="module")
def deciders(tiny_path: Path) -> dict[str, Decider]:
    return {
        name: Decider(tiny_path, device="cpu", parse_special=True, threads=1, **configured(name)) for name in CONFIGS
    }


@pytest.mark.parametrize("case_id", CASES)
def test_token_ids_are_those_of_decider_ai(case_id: str, deciders: dict[str, Decider]) -> None:
    case = CASES[case_id]
    rows = deciders[case["config"]].rows(case["state"], case["questions"])
    assert [row.ids.tolist() for row in rows] == [row["ids"] for row in case["rows"]]
    assert [list(row.options) for row in rows] == [row["options"] for row in case["rows"]]


@pytest.mark.parametrize("case_id", CASES)
def test_answers_are_those_of_decider_ai(case_id: str, deciders: dict[str, Decider]) -> None:
    case = CASES[case_id]
    check_answers(case, deciders[case["config"]].evaluate(case["state"], case["questions"]), within=1e-5)
