"""A GPU, where there is one. Mesa's llvmpipe is one for ggml when GGML_VK_VISIBLE_DEVICES=0 is set."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decider_native import BackendError, Decider, ModelLoadError, Noul, devices, engine
from decider_native.engine import Engine
from golden import CASES, CONFIGS, check_answers, configured
from token_rows import tokens

GPUS = [device for device in devices() if device.kind in ("gpu", "igpu")]
pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU; with a Vulkan module GGML_VK_VISIBLE_DEVICES=0 makes one")
LABELS = 9


@pytest.mark.parametrize("config", CONFIGS)
def test_answers_are_those_of_decider_ai(config: str, make_model: Callable[..., Path]) -> None:
    every = [case for case in CASES.values() if case["config"] == config]
    every.sort(key=lambda case: sum(len(row["ids"]) for row in case["rows"]))
    cases = every[:15:3]  # short ones: llvmpipe is slow
    decider = Decider(make_model("qwen35", "F16"), parse_special=True, self_check=False, **configured(config))
    with decider:
        assert (decider.device, decider.mode) == (GPUS[0].name, "fast")
        results = decider.evaluate_many((case["state"], case["questions"]) for case in cases)
    for case, result in zip(cases, results, strict=True):
        check_answers(case, result, within=2e-2)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3"])
def test_in_exact_mode_a_row_is_the_same_bits_in_every_call(architecture: str, make_model: Callable[..., Path]) -> None:
    rng = np.random.default_rng(11)
    context, question = tokens(rng, 70), tokens(rng, 12)
    ends = [tokens(rng, count) for count in (1, 4, 40)]
    rows = [np.concatenate([context, question, end]) for end in ends] + [np.concatenate([context, tokens(rng, 9)])]
    alone: list[NDArray[np.float32]] = []
    for parallel, order in ((1, [0, 1, 2, 3]), (8, [3, 2, 1, 0])):  # a row a step, or as many as may share one
        reader = Engine(
            make_model(architecture, "F16"),
            mode="exact",
            context_tokens=512,
            parallel_questions=parallel,
            context_cache_bytes=0,
            self_check=False,
        )
        assert (reader.device, reader.parallel_questions) == (GPUS[0].name, parallel)
        alone = alone or [reader.read([row], [LABELS]).rows[0].logits for row in rows]
        together = reader.read([rows[i] for i in order], [LABELS] * len(rows))
        assert together.decoded_tokens < sum(map(len, rows))
        for i, reading in zip(order, together.rows, strict=True):
            assert reading.logits.tobytes() == alone[i].tobytes()
        reader.close()


def test_a_context_that_the_device_cannot_hold_is_an_error(
    make_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    too_large: dict[str, Any] = {"context_tokens": 2**20, "parallel_questions": 8, "mode": "exact", "self_check": False}
    path = make_model("qwen3", "F32")
    if "llvmpipe" not in GPUS[0].description:
        pytest.skip("how much is too much is known for llvmpipe: a tensor of more than 128 MiB")
    with pytest.raises(ModelLoadError, match=f"makes no context .* on {GPUS[0].name}: .* smaller context_tokens"):
        Engine(path, device=GPUS[0].name, **too_large)
    with caplog.at_level(logging.WARNING, "decider_native.engine"):
        reader = Engine(path, threads=1, **too_large)
    assert reader.device == "CPU"
    assert "makes no context" in caplog.text
    reader.close()


def test_layers_stay_where_they_are_told_to(make_model: Callable[..., Path]) -> None:
    path = make_model("qwen3", "F16")
    row = [tokens(np.random.default_rng(3), 40)]

    def read(**options: object) -> tuple[str, np.ndarray]:
        reader = Engine(path, threads=1, context_tokens=64, self_check=False, **options)  # type: ignore[arg-type]
        logits = reader.read(row, [LABELS]).rows[0].logits
        reader.close()
        return reader.device, np.exp(logits) / np.exp(logits).sum()

    name, cpu = read(device="cpu")
    assert name == "CPU"
    same, no_layers = read(gpu_layers=0)
    assert same == "CPU"
    assert no_layers.tobytes() == cpu.tobytes()
    for options in ({"gpu_layers": 1}, {"device": GPUS[0].name.lower()}, {"device": GPUS[0].backend}):
        name, probabilities = read(**options)
        assert name == GPUS[0].name
        assert probabilities == pytest.approx(cpu, abs=2e-2)


def test_a_gpu_that_disagrees_with_the_cpu_is_not_used(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_model("qwen3", "F16")
    with caplog.at_level(logging.INFO, "decider_native.engine"):
        Engine(path, context_tokens=64, threads=1).close()
    assert any(record.message.startswith(f"self-check of {GPUS[0].name}") for record in caplog.records)

    monkeypatch.setattr(engine, "_CHECK_BOUND", -1.0)  # as if every device were faulty
    with pytest.raises(BackendError, match="fails the self-check"):
        Engine(path, device=GPUS[0].name, context_tokens=64, threads=1)
    caplog.clear()
    with Decider(path, context_tokens=256, threads=1) as decider:
        assert (decider.device, decider.mode) == ("CPU", "exact")
        assert decider.evaluate("Billed twice.", {"q": Noul("Refund?")}).answers["q"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
