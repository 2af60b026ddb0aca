"""The six tools over a real tiny model, and over forced answers where arithmetic is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from decider_native import (
    Choice,
    Decider,
    DeciderError,
    InvalidRequest,
    Noul,
    PayloadTooLarge,
    Question,
    Score,
)
from decider_native.contract import Call, DeciderJudge
from decider_native.files import FileStateError, FileTools, OutsideRoot, StateTooLarge, make_question
from decider_native.questions import Json

from .conftest import ASKED, LEVELS, MockTools, words


def state(project: Path, name: str) -> dict[str, Json]:
    return {"path": name, "content": (project / name).read_text()}


# -- one file


def test_a_yes_no_question_is_the_models_own_answer(tools: FileTools, tiny: Decider, project: Path) -> None:
    result = tools.ask_file_bool("src/app.py", ASKED, yes="it calls send", no="anything else")
    question = Noul(ASKED, {"true": "it calls send", "false": "anything else"})
    direct = tiny.evaluate(state(project, "src/app.py"), {"any": question})
    wire = direct.to_dict()["answers"]["any"]
    assert (result.path, result.noul, result.answer) == ("src/app.py", wire["noul"], wire["noul"] > 0.5)
    meta = result.to_dict()["meta"]
    assert 0 <= meta.pop("elapsedMs") < 60_000
    assert meta == {
        "provider": "decider",
        "model": tiny.name,
        "requestedModel": None,
        "attempts": 1,
        "usage": direct.to_dict()["usage"],
    }
    assert list(result.to_dict()) == ["path", "answer", "noul", "meta"]


@pytest.mark.parametrize(("noul", "answer"), [(0.5, False), (0.500001, True), (0.0, False), (1.0, True)])
def test_an_answer_is_yes_over_a_half(mock_tools: MockTools, noul: float, answer: bool) -> None:
    assert mock_tools({"answer": noul}).ask_file_bool("README.md", ASKED).answer is answer


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"code": "a program", "prose": None}, {"code": "a program", "prose": None, "other": "None of the above"}),
        ({"code": None, "other": "not code"}, {"code": None, "other": "not code"}),
        ({"none": None, "code": None}, {"none": None, "code": None}),
        ({"none_of_the_above": None, "code": None}, {"none_of_the_above": None, "code": None}),
    ],
)
def test_a_choice_has_a_way_out(
    tools: FileTools, tiny: Decider, project: Path, options: dict[str, str | None], shown: dict[str, str | None]
) -> None:
    result = tools.ask_file_choice("README.md", "What is `content`?", options).to_dict()
    direct = tiny.evaluate(state(project, "README.md"), {"q": Choice("What is `content`?", shown)})
    wire = direct.to_dict()["answers"]["q"]
    assert (result["path"], result["options"]) == ("README.md", shown)
    assert {name: result[name] for name in ("choice", "confidence", "probabilities")} == {
        name: wire[name] for name in ("choice", "confidence", "probabilities")
    }
    assert list(result) == ["path", "choice", "confidence", "probabilities", "options", "meta"]


def test_a_score_is_told_in_four_ways(mock_tools: MockTools, tools: FileTools, tiny: Decider, project: Path) -> None:
    forced = mock_tools({"answer": [0.45, 0.05, 0.1, 0.4]}).ask_file_score("README.md", "How?", [*LEVELS, "all"])
    assert forced.score == pytest.approx(0.05 + 0.2 + 1.2)
    assert (forced.top, forced.nearest) == (0, 1)
    assert forced.normalized == pytest.approx(1.45 / 3)
    half = mock_tools({"answer": 0.5}).ask_file_score("README.md", "How?", LEVELS)
    assert (half.score, half.nearest, half.normalized) == (0.5, 1, 0.25)
    result = tools.ask_file_score("README.md", "How much?", LEVELS).to_dict()
    wire = tiny.evaluate(state(project, "README.md"), {"q": Score("How much?", LEVELS)}).to_dict()["answers"]["q"]
    assert (result["score"], result["confidence"], result["legend"]) == (
        wire["score"],
        wire["confidence"],
        {"0": "not at all", "1": "a little", "2": "a lot"},
    )
    assert list(result) == ["path", "score", "top", "nearest", "normalized", "confidence", "legend", "meta"]


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("src/empty.py", FileStateError, "src/empty.py: empty: "),
        ("src/zeros.dat", FileStateError, "src/zeros.dat: binary: "),
        ("src", FileStateError, "src: not_a_file: "),
        ("src/nowhere", FileStateError, "src/nowhere: not_found: "),
        ("escape/secret.txt", OutsideRoot, "outside the project root"),
    ],
)
def test_a_file_that_is_no_state_raises(tools: FileTools, path: str, error: type[DeciderError], text: str) -> None:
    for ask in (
        lambda: tools.ask_file_bool(path, ASKED),
        lambda: tools.ask_file_choice(path, ASKED, {"a": None}),
        lambda: tools.ask_file_score(path, ASKED, LEVELS),
    ):
        with pytest.raises(error) as caught:
            ask()
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda tools: tools.ask_file_bool("README.md", ""), "asks nothing"),
        (lambda tools: tools.ask_file_choice("README.md", "?", {}), "field 'options': needs at least one"),
        (lambda tools: tools.ask_file_choice("README.md", "?", dict.fromkeys(map(str, range(255)))), "256 options"),
        (lambda tools: tools.ask_file_score("README.md", "?", ["one"]), "field 'levels': needs 2 to 10 levels"),
        (lambda tools: tools.ask_files(["README.md"], Score("?", LEVELS, isolated=False)), "field 'isolated'"),
        (lambda tools: tools.ask({}, state="note"), "field 'questions'"),
        (lambda tools: tools.ask({"q": {"type": "bool"}}, state="note"), "question 'q', field 'type'"),
        (lambda tools: tools.ask({"q": Noul("?")}), "no paths"),
        (lambda tools: tools.ask({"q": Noul("?")}, state=" "), "no paths"),
        (lambda tools: tools.ask({"q": Noul("?")}, state=5), "text, an object or an array"),
        (lambda tools: tools.ask({"q": Noul("?")}, state={"x": math.nan}), "state.x"),
        (lambda tools: tools.ask({1: Noul("?")}, state="note"), "an id of type int"),
        (lambda tools: tools.ask([Noul("?")], state="note"), "field 'questions': must be an object"),
        (lambda tools: tools.ask({"q": Noul("?")}, paths=[1]), "field 'path': must be text"),
        (lambda tools: tools.ask({"q": Noul("?")}, paths=iter(["README.md"])), "field 'paths': must be several"),
        (lambda tools: tools.ask_file_bool(None, "?"), "field 'path': must be text"),
        (lambda tools: tools.ask_file_choice("README.md", "?", ["a", "b"]), "field 'options': must be a map"),
        (lambda tools: tools.ask_file_score("README.md", "?", ["a", {1}]), "field 'levels[1]'"),
        (lambda tools: tools.ask_files([Path("README.md")], Noul("?")), "field 'patterns'"),
        (lambda tools: tools.ask_files(["README.md"], {"type": "bool"}), "field 'type'"),
        (lambda tools: tools.pick_file("?", ["README.md"]), "field 'candidates': must be a map"),
        (lambda tools: tools.pick_file("?", {"README.md": "a", "./README.md": "b"}), "in two ways"),
        (lambda tools: tools.ask_file_bool("README.md", "?", timeout="1"), "field 'timeout'"),
        (lambda tools: tools.ask({"q": Noul("?")}, state={"files": 1}, paths=["README.md"]), "'state.files'"),
        (lambda tools: tools.ask({"q": Noul("?")}, paths="README.md"), "field 'paths': must be several"),
        (lambda tools: tools.ask_file_bool("README.md", "?", timeout=math.nan), "field 'timeout'"),
        (lambda tools: tools.pick_file("?", {}), "needs 1 to 254 paths, got 0"),
        (lambda tools: tools.pick_file("?", dict.fromkeys(map(str, range(255)))), "needs 1 to 254 paths, got 255"),
        (lambda tools: tools.pick_file("?", {"./none": None}), "'none' stands for no file"),
    ],
)
def test_a_question_that_cannot_be_asked_raises(tools: FileTools, ask: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(tools)
    assert text in str(caught.value)
    assert tools.ledger.totals().calls == 0


def test_questions_by_type() -> None:
    assert make_question("bool", "?", yes="y") == Noul("?", {"true": "y", "false": None})
    assert make_question("choice", "?", options={"a": None, "none": None}) == Choice("?", {"a": None, "none": None})
    assert make_question("score", "?", levels=LEVELS) == Score("?", LEVELS)
    for kind, extra, field in (
        ("bool", {"options": {"a": None}}, "options"),
        ("bool", {"levels": LEVELS}, "levels"),
        ("choice", {"options": {"a": None}, "yes": "y"}, "yes"),
        ("score", {"levels": LEVELS, "options": {}}, "options"),
        ("choice", {}, "options"),
        ("score", {}, "levels"),
        ("noul", {}, "question_type"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            make_question(kind, "?", **extra)  # type: ignore[arg-type]
        assert caught.value.field == field


# -- budgets


def test_a_file_fits_to_the_token_and_not_one_more(tools: FileTools, tiny: Decider, project: Path) -> None:
    def row(count: int) -> int:
        return tiny.longest_row({"path": "w.txt", "content": words(count)}, {"q": Noul(ASKED)})

    most = 1000 + tiny.context_tokens - row(1000)  # " word" is one token
    (project / "w.txt").write_text(words(most))
    assert tools.ask_file_bool("w.txt", ASKED).meta.usage.input_tokens == tiny.context_tokens
    (project / "w.txt").write_text(words(most + 1))
    with pytest.raises(FileStateError) as caught:
        tools.ask_file_bool("w.txt", ASKED)
    assert caught.value.reason == "too_large"
    budget = tiny.context_tokens - tiny.longest_row({}, {"q": Noul(ASKED)})
    assert f"has {budget + 1} tokens and the question leaves {budget};" in str(caught.value)


def test_a_question_that_fills_the_context_is_refused(tools: FileTools) -> None:
    with pytest.raises(PayloadTooLarge, match=r"the question alone has .* the judge reads 4096"):
        tools.ask_file_bool("README.md", words(5000))


def test_a_remote_judges_limit_is_its_published_one(mock_tools: MockTools, project: Path) -> None:
    (project / "long.txt").write_text("x" * 17_000)
    with pytest.raises(FileStateError, match=r"long.txt: too_large"):
        mock_tools({}).ask_file_bool("long.txt", ASKED)
    (project / "long.txt").write_text("x" * 15_000)
    assert mock_tools({}).ask_file_bool("long.txt", ASKED).path == "long.txt"


def test_a_state_that_does_not_fit_is_refused_with_a_split_that_does(tools: FileTools, project: Path) -> None:
    sizes = {"a.txt": 1500, "b.txt": 1500, "c.txt": 1500, "d.txt": 100, "huge.txt": 4500}
    for name, count in sizes.items():
        (project / name).write_text(words(count))
    questions = {"q": Noul(ASKED), "longer": Noul(f"Now, {ASKED} Think of all that was said.")}
    with pytest.raises(StateTooLarge) as caught:
        tools.ask(questions, state={"who": "me"}, paths=list(sizes))
    error = caught.value
    assert list(error.parts) == list(sizes)
    assert error.tokens > error.limit
    assert error.split == (("a.txt", "b.txt"), ("c.txt", "d.txt"))
    for name, size in error.parts.items():
        assert f"{name} has {size}" in str(error)
        assert sizes[name] <= size <= sizes[name] + 20 or name == "huge.txt"
    assert f"leave {error.limit};" in str(error)
    assert f"the own note has {error.note}" in str(error)
    assert "call 1 could take a.txt, b.txt" in str(error)
    assert "no call can take huge.txt" in str(error)
    for paths in error.split:
        summary = tools.ask(questions, state={"who": "me"}, paths=paths).state_summary
        assert summary.tokens <= summary.budget_tokens == error.limit
    with pytest.raises(StateTooLarge) as picked:
        tools.pick_file(ASKED, dict.fromkeys(("a.txt", "b.txt", "c.txt")))
    assert picked.value.split == (("a.txt", "b.txt"), ("c.txt",))


def test_the_own_note_may_take_a_quarter(tools: FileTools) -> None:
    questions = {"q": Noul(ASKED)}
    budget = tools.ask(questions, state="note").state_summary.budget_tokens
    assert tools.ask(questions, state=words(budget // 4 - 10)).state_summary.tokens <= budget // 4
    with pytest.raises(StateTooLarge) as caught:
        tools.ask(questions, state=words(budget // 4 + 10), paths=["README.md"])
    assert f"may have {budget // 4}" in str(caught.value)
    assert "shorten the note" in str(caught.value)
    assert caught.value.split == (("README.md",),)


# -- many files


def test_many_files_are_one_native_call_with_the_same_answers(
    tools: FileTools, tiny: Decider, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = tiny._engine.read

    def counted(*arguments: Any, **options: Any) -> Any:
        reads.append(arguments)
        return read(*arguments, **options)

    monkeypatch.setattr(tiny._engine, "read", counted)
    result = tools.ask_files(["src/*.py", "README.md"], Noul(ASKED))
    assert len(reads) == 1
    names = ["src/app.py", "src/billing.py", "README.md"]
    direct = tiny.evaluate_many([(state(project, name), {"q": Noul(ASKED)}) for name in names])
    wire = result.to_dict()
    assert wire["answers"] == [
        {"path": name, "answer": each.answers["q"].answer, "noul": each.answers["q"].noul}  # type: ignore[union-attr]
        for name, each in zip(names, direct, strict=True)
    ]
    assert wire["skipped"] == [
        {"path": "src/empty.py", "reason": "empty"},
        {"path": "src/blank.py", "reason": "empty"},
    ]
    assert wire["meta"]["usage"]["input_tokens"] == sum(each.usage.input_tokens for each in direct)
    assert [wire["meta"][name] for name in ("calls", "concurrency", "maxFiles")] == [1, 1, 255]
    assert list(wire) == ["type", "answers", "skipped", "meta"]


def test_only_what_may_not_fit_is_measured_and_that_once(
    tools: FileTools, judge: DeciderJudge, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []
    measure = judge.measure

    def counted(measured_state: Json, questions: Mapping[str, Question], call: Call) -> Any:
        measured.append(measured_state)
        return measure(measured_state, questions, call)

    monkeypatch.setattr(judge, "measure", counted)
    (project / "long.txt").write_text(words(900))
    (project / "accents.txt").write_text("\N{GREEK DIALYTIKA TONOS}" * 800)  # NFC makes two characters of each
    result = tools.ask_files(["src/app.py", "long.txt", "accents.txt", "README.md"], Noul(ASKED))
    assert len(result.answers) == 4
    assert [each["path"] for each in measured if each] == ["long.txt", "accents.txt"]


def test_many_files_of_each_type(mock_tools: MockTools) -> None:
    choice = mock_tools({"answer": "b"}).ask_files(
        ["*.md"], make_question("choice", "?", options={"a": None, "b": "B"})
    )
    assert choice.to_dict()["answers"][0] == {
        "path": "README.md",
        "choice": "b",
        "confidence": 1.0,
        "probabilities": {"a": 0.0, "b": 1.0, "other": 0.0},
    }
    assert choice.to_dict()["options"] == {"a": None, "b": "B", "other": "None of the above"}
    score = mock_tools({"answer": 2}).ask_files(["*.md"], Score("?", LEVELS)).to_dict()
    assert (score["type"], score["legend"]) == ("score", {"0": LEVELS[0], "1": LEVELS[1], "2": LEVELS[2]})
    assert score["answers"][1] == {
        "path": "alias.md",
        "score": 2.0,
        "top": 2,
        "nearest": 2,
        "normalized": 1.0,
        "confidence": 1.0,
    }
    assert "options" not in score


def test_a_total_failure_raises_and_says_why(tools: FileTools, mock_tools: MockTools) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tools.ask_files(["src/empty.py", "src/blank.py", "*.rs", "src/logo.png", "escape/*"], Noul(ASKED))
    for part in ("src/empty.py: empty", "src/blank.py: empty", "*.rs: not_found", "src/logo.png: binary"):
        assert part in str(caught.value)
    assert "escape/*: outside" in str(caught.value)
    with pytest.raises(InvalidRequest, match="more than 2 files"):
        mock_tools({}, max_files=2).ask_files(["src"], Noul(ASKED))


# -- several questions, and picks


@pytest.mark.parametrize(
    ("own", "landed"),
    [
        ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}),
        ([1, "two"], {"items": [1, "two"]}),
        ("a note", {"text": "a note"}),
        (None, {}),
    ],
)
def test_a_state_always_lands_as_an_object(
    tools: FileTools, tiny: Decider, project: Path, own: Json, landed: dict[str, Json]
) -> None:
    questions: dict[str, Any] = {"one": Noul("Is it?"), "two": {"type": "choice", "criteria": {"a": None, "b": None}}}
    result = tools.ask(questions, state=own, paths=["./README.md", "src/empty.py", "../x", "src/app.py", "README.md"])
    names = ["README.md", "src/app.py"]
    whole: dict[str, Json] = {**landed, "files": {name: (project / name).read_text() for name in names}}
    direct = tiny.evaluate(whole, questions)
    assert result.to_dict()["answers"] == direct.to_dict()["answers"]
    summary = result.to_dict()["stateSummary"]
    alone = tiny.longest_row({}, questions)
    assert summary == {
        "own_fields": list(landed),
        "files": names,
        "skipped": [{"path": "src/empty.py", "reason": "empty"}, {"path": "../x", "reason": "outside"}],
        "tokens": tiny.longest_row(whole, questions) - alone,
        "budgetTokens": 4096 - alone,
    }


def test_too_many_files_are_refused_before_any_is_read(tools: FileTools) -> None:
    with pytest.raises(InvalidRequest, match="names 21 files; one state holds 20"):
        tools.ask({"q": Noul(ASKED)}, paths=[f"{i}.txt" for i in range(21)])


def test_a_state_of_which_no_file_is_left_raises(tools: FileTools) -> None:
    with pytest.raises(InvalidRequest, match=r"src/empty.py: empty, nowhere: not_found"):
        tools.ask({"q": Noul(ASKED)}, state="note", paths=["src/empty.py", "nowhere"])


def test_a_file_too_large_for_any_state_is_not_left_out(tools: FileTools, project: Path) -> None:
    with (project / "huge.txt").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(FileStateError, match=r"huge.txt: too_large"):
        tools.ask({"q": Noul(ASKED)}, paths=["README.md", "huge.txt"])
    with pytest.raises(FileStateError, match=r"huge.txt: too_large"):
        tools.pick_file(ASKED, {"README.md": None, "huge.txt": None})


def test_a_pick_is_a_choice_among_the_files_that_are_there(tools: FileTools, tiny: Decider, project: Path) -> None:
    candidates = {"src/app.py": None, "src/empty.py": "nothing", "./README.md": "what it is", "escape/x": None}
    result = tools.pick_file("Which sends invoices?", candidates).to_dict()
    options = {"src/app.py": None, "README.md": "what it is", "none": "None of these files"}
    files: Json = {name: (project / name).read_text() for name in ("src/app.py", "README.md")}
    direct = tiny.evaluate({"files": files}, {"q": Choice("Which sends invoices?", options)}).to_dict()["answers"]["q"]
    assert (result["options"], result["probabilities"]) == (options, direct["probabilities"])
    assert result["confidence"] == direct["confidence"]
    assert result["path"] == (None if direct["choice"] == "none" else direct["choice"])
    assert result["skipped"] == [
        {"path": "src/empty.py", "reason": "empty"},
        {"path": "escape/x", "reason": "outside"},
    ]
    assert list(result) == ["path", "confidence", "probabilities", "options", "skipped", "meta"]


@pytest.mark.parametrize(("forced", "path"), [("README.md", "README.md"), ("none", None)])
def test_a_pick_may_be_none(mock_tools: MockTools, forced: str, path: str | None) -> None:
    result = mock_tools({"answer": forced}).pick_file("Which?", {"README.md": None, "src/app.py": None})
    assert (result.path, result.to_dict()["path"], result.confidence) == (path, path, 1.0)
