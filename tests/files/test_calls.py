"""What a call of a tool leaves behind and how it ends: secrets, the ledger, settings, timeouts, cancels."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from decider_native import Cancelled, DeadlineExceeded, DeciderError, InvalidRequest, Noul
from decider_native.contract import DeciderJudge
from decider_native.files import FileStateError, FileTools, Settings

from .conftest import ASKED, LEVELS, SECRET, MockTools, words


def test_no_file_text_is_in_any_result_or_log(
    tools: FileTools, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (project / "long.txt").write_text(f"{SECRET} " * 3000)
    results = [
        tools.ask_file_bool("README.md", ASKED),
        tools.ask_file_choice("README.md", ASKED, {"a": None}),
        tools.ask_file_score("README.md", ASKED, LEVELS),
        tools.ask_files(["."], Noul(ASKED), recursive=True),
        tools.pick_file(ASKED, {"README.md": None, "src/app.py": None}),
        tools.ask({"q": Noul(ASKED)}, paths=["README.md", "src/app.py"]),
        tools.ledger.totals(),
    ]
    told = [json.dumps(result.to_dict()) + repr(result) for result in results]
    for refused in (
        lambda: tools.ask_file_bool("long.txt", ASKED),
        lambda: tools.ask({"q": Noul(ASKED)}, paths=["long.txt", "README.md"]),
        lambda: tools.ask_file_bool("src/zeros.dat", ASKED),
    ):
        with pytest.raises(DeciderError) as caught:
            refused()
        told.append(repr(caught.value) + str(caught.value))
    assert SECRET not in "".join(told)
    assert SECRET not in caplog.text


def test_the_ledger_counts_what_was_answered(tools: FileTools, judge: DeciderJudge, project: Path) -> None:
    assert tools.ledger.totals().line == "0 decision calls, 0 questions, 0 tokens in, 0 out, 0.0s, no price configured"
    metas = [
        tools.ask_files(["src/app.py", "README.md"], Noul(ASKED)).meta,
        tools.ask_file_bool("README.md", ASKED).meta,
        tools.ask({"a": Noul("?"), "b": Noul("Is it?")}, state="x").meta,
    ]
    with pytest.raises(FileStateError):
        tools.ask_file_bool("nowhere", ASKED)
    totals = tools.ledger.totals()
    tokens = sum(meta.usage.input_tokens for meta in metas)
    elapsed = sum(meta.elapsed_ms for meta in metas)
    assert (totals.calls, totals.questions, totals.input_tokens, totals.elapsed_ms) == (3, 5, tokens, elapsed)
    assert totals.cost_usd is None
    priced = FileTools(judge, project, settings=Settings(price_in=2.0, price_out=8.0))
    used = priced.ask_file_bool("README.md", ASKED).meta.usage.input_tokens
    assert priced.ledger.totals().cost_usd == pytest.approx(used * 2e-6)
    assert priced.ledger.totals().line.startswith(f"1 decision call, 1 question, {used} tokens in, 0 out, ")
    assert priced.ledger.totals().line.endswith(f"s, ${used * 2e-6:.6f}")
    half_priced = FileTools(judge, project, settings=Settings(price_in=2.0))
    assert half_priced.ledger.totals().line.endswith("no price configured")


def test_settings_of_the_environment() -> None:
    names = {"ENABLED": "off", "TIMEOUT": "1.5", "CONCURRENCY": "64", "MAX_FILES": "7", "MAX_STATE_FILES": "3"}
    prices = {"PRICE_IN": "0.04", "PRICE_OUT": "0"}
    environment = {f"DECIDER_NATIVE_FILES_{name}": text for name, text in {**names, **prices}.items()}
    assert Settings.from_environment(environment) == Settings(
        enabled=False, timeout=1.5, concurrency=64, max_files=7, max_state_files=3, price_in=0.04, price_out=0.0
    )
    assert Settings.from_environment({"DECIDER_NATIVE_FILES_TIMEOUT": ""}) == Settings()
    for name, text in {
        "ENABLED": "maybe",
        "TIMEOUT": "0",
        "CONCURRENCY": "65",
        "MAX_FILES": "256",
        "MAX_STATE_FILES": "0",
        "PRICE_IN": "-1",
        "PRICE_OUT": "nan",
    }.items():
        with pytest.raises(InvalidRequest) as caught:
            Settings.from_environment({f"DECIDER_NATIVE_FILES_{name}": text})
        assert name.lower() in str(caught.value).lower()
    for name in ("timeout", "concurrency", "max_files", "max_state_files", "price_in", "price_out"):
        with pytest.raises(InvalidRequest) as caught:
            Settings(**{name: "8"})  # type: ignore[arg-type]
        assert caught.value.field == name


def test_tools_that_are_switched_off_refuse(mock_tools: MockTools) -> None:
    tools = mock_tools({}, enabled=False)
    for ask in (
        lambda: tools.ask_file_bool("README.md", ASKED),
        lambda: tools.ask_files(["."], Noul(ASKED)),
        lambda: tools.pick_file(ASKED, {"README.md": None}),
        lambda: tools.ask({"q": Noul(ASKED)}, state="x"),
    ):
        with pytest.raises(DeciderError, match="DECIDER_NATIVE_FILES_ENABLED=1"):
            ask()


def test_a_timeout_stops_the_judge(tools: FileTools, project: Path) -> None:
    for i in range(30):
        (project / f"long{i}.txt").write_text(f"{i} " + words(3000))
    with pytest.raises(DeadlineExceeded):
        tools.ask_files(["long*.txt"], Noul(ASKED), timeout=1.0)
    assert tools.ask_file_bool("README.md", ASKED).path == "README.md"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cancel_stops_the_judge(tools: FileTools, project: Path, asynchronous: bool) -> None:
    for i in range(30):
        (project / f"long{i}.txt").write_text(f"{i} " + words(3000))
    if asynchronous:

        async def cancelled() -> None:
            call = asyncio.create_task(tools.aask_files(["long*.txt"], Noul(ASKED)))
            await asyncio.sleep(1)
            call.cancel()
            await call

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
    else:
        cancel = threading.Event()
        threading.Timer(1, cancel.set).start()
        with pytest.raises(Cancelled):
            tools.ask_files(["long*.txt"], Noul(ASKED), cancel=cancel)
    assert tools.ledger.totals().calls == 0
    assert tools.ask_file_bool("README.md", ASKED).path == "README.md"


def test_a_model_of_this_process_tells_its_progress(tools: FileTools, project: Path) -> None:
    for i in range(3):
        (project / f"long{i}.txt").write_text(f"{i} " + words(2000))
    told: list[tuple[int, int]] = []
    tools.ask_files(["long*.txt"], Noul(ASKED), progress=lambda done, total: told.append((done, total)))
    assert len(told) > 1
    assert told == sorted(told)
    assert {total for _, total in told} == {told[-1][0]}


def test_the_asynchronous_twins_answer_alike(tools: FileTools) -> None:
    async def answers() -> list[Any]:
        return [
            await tools.aask_file_bool("README.md", ASKED, yes="y"),
            await tools.aask_file_choice("README.md", ASKED, {"a": None}),
            await tools.aask_file_score("README.md", ASKED, LEVELS),
            await tools.aask_files(["*.md"], Noul(ASKED)),
            await tools.apick_file(ASKED, {"README.md": None}),
            await tools.aask({"q": Noul(ASKED)}, state="x"),
        ]

    ours = [
        tools.ask_file_bool("README.md", ASKED, yes="y"),
        tools.ask_file_choice("README.md", ASKED, {"a": None}),
        tools.ask_file_score("README.md", ASKED, LEVELS),
        tools.ask_files(["*.md"], Noul(ASKED)),
        tools.pick_file(ASKED, {"README.md": None}),
        tools.ask({"q": Noul(ASKED)}, state="x"),
    ]
    for twin, one in zip(asyncio.run(answers()), ours, strict=True):
        wires = [result.to_dict() for result in (twin, one)]
        for wire in wires:
            del wire["meta"]["elapsedMs"]
        assert wires[0] == wires[1]
