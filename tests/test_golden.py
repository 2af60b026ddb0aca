"""Against decider-ai 1.5.0's own answers with the same weights, recorded by fixtures/make_decider_prompts.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decider_native import Decider

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "decider_prompts.json").read_text())
CASES = {case["id"]: case for case in RECORDED["cases"]}


@pytest.fixture(scope="module")
def deciders(tiny_path: Path) -> dict[str, Decider]:
    return {
        name: Decider(tiny_path, device="cpu", parse_special=True, config=config, threads=1)
        for name, config in RECORDED["configs"].items()
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
    result = deciders[case["config"]].evaluate(case["state"], case["questions"])
    assert result.usage.input_tokens == case["usage"]["input_tokens"]
    answers = result.to_dict(diagnostics=True)["answers"]
    assert list(answers) == list(case["answers"])
    rows = iter(case["rows"])
    for question_id, expected in case["answers"].items():
        answer = answers[question_id]
        assert answer["type"] == expected["type"]
        if "level_fit" in expected:
            fits = [next(rows)["probs"][1] for _ in expected["level_fit"]]
            assert list(answer["x_level_fit"].values()) == pytest.approx(fits, abs=1e-5)
            check_rounded(answer, expected, {"x_fit_mass": "fit_mass"})
        else:
            probabilities = (
                [1 - answer["noul"], answer["noul"]] if "noul" in answer else answer["probabilities"].values()
            )
            assert list(probabilities) == pytest.approx(next(rows)["probs"], abs=1e-5)
        check_rounded(answer, expected, {name: name for name in ("noul", "confidence", "x_p_max", "score")})
        check_rounded(answer, expected, {"x_certainty": "certainty"})
        assert answer.get("choice") == expected.get("choice")


def check_rounded(answer: dict[str, Any], expected: dict[str, Any], names: dict[str, str]) -> None:
    # decider-ai rounds to four decimals, a score to two
    for ours, theirs in names.items():
        if theirs in expected:
            assert answer[ours] == pytest.approx(expected[theirs], abs=5.1e-3 if theirs == "score" else 6.1e-5), theirs
