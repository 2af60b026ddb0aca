"""The real decider-4b v2 weights, where DECIDER_NATIVE_GGUF names a file of them: ``pytest -m real_model``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decider_native import Decider

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif("DECIDER_NATIVE_GGUF" not in os.environ, reason="DECIDER_NATIVE_GGUF names no file"),
]

CASES = json.loads((Path(__file__).parent / "fixtures" / "decider_4b_v2.json").read_text())["cases"]

# How far the published conversions are from the float32 reference; the 12 options of "wide" are nearly equally likely.
BOUNDS = {"F16": 0.01, "BF16": 0.01, "Q8_0": 0.02, "Q4_K": 0.05}
WIDE_BOUND = 0.15


@pytest.fixture(scope="module")
def decider() -> Iterator[Decider]:
    with Decider("decider-4b-v2", context_tokens=2048) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_probabilities_are_near_the_reference(case: dict[str, Any], decider: Decider) -> None:
    description = decider.info()["description"]
    bound = next((bound for name, bound in BOUNDS.items() if name in description), 0.1)
    answers = decider.evaluate(case["state"], case["questions"]).to_dict(diagnostics=True)["answers"]
    rows = iter(case["row_probabilities"])
    for answer in answers.values():
        if answer["type"] == "noul":
            assert answer["noul"] == pytest.approx(next(rows)[1], abs=bound)
        elif answer["type"] == "score":
            fits = [next(rows)[1] for _ in answer["x_level_fit"]]
            assert list(answer["x_level_fit"].values()) == pytest.approx(fits, abs=bound)
        else:
            expected = next(rows)
            near = max(bound, WIDE_BOUND) if case["id"] == "wide" else bound
            assert list(answer["probabilities"].values()) == pytest.approx(expected, abs=near)
