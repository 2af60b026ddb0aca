"""The benchmark programs run, on a model that is far too small to measure anything."""

from __future__ import annotations

import json
import math
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decider_native import Choice, Decider, Noul, Score
from decider_native.answers import NoulAnswer
from decider_native.decider import Questions, Row
from decider_native.engine import Engine
from make_tiny_gguf import make_tiny_gguf

BENCH = Path(__file__).resolve().parents[1] / "bench"
SMALL = ("--threads", 1, "--repeats", 1, "--scale", 0.02, "--context-tokens", 1024)


def run(program: str, *arguments: object) -> str:
    """Run a program as a user does and return what it prints."""
    command = [sys.executable, str(BENCH / program), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture(scope="module")
def compared(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "compare.json"
    missing = ("--llama-bench", path.parent / "missing", "--guest", f"turbojev={sys.executable}", "--guest", "nobody=")
    run("compare.py", tiny_path, *SMALL, *missing, "--json", path)
    return path


@pytest.fixture(scope="module")
def swept(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "sweep.json"
    run("sweep.py", tiny_path, *SMALL, "--sweep", "questions", "threads", "--json", path)
    return path


def test_a_made_model_answers_in_every_quantization(tiny_path: Path, tmp_path: Path) -> None:
    for merges in tiny_path.parent.glob("merges-*.txt"):  # made before: seconds of work
        shutil.copy(merges, tmp_path)
    printed = run("make_model.py", tmp_path, "--shape", "tiny", "--quantization", "F16", "Q4_K_M").split()
    assert [Path(path).name for path in printed] == ["qwen3.5-tiny-F16.gguf", "qwen3.5-tiny-Q4_K_M.gguf"]
    answers = []
    for path in printed:
        with Decider(path, device="cpu", threads=1, context_tokens=512) as decider:
            answer = decider.evaluate("The invoice was paid twice.", {"q": Noul("Is it?")}).answers["q"]
            assert isinstance(answer, NoulAnswer)
            answers.append(answer.noul)
    assert all(0 < answer < 1 for answer in answers)
    assert answers[0] != answers[1]  # the weights did become others


@pytest.mark.parametrize(("shape", "billions"), [("0.8b", 0.75), ("2b", 1.9), ("4b", 4.2)])
def test_the_shapes_have_as_many_weights_as_the_published_models(shape: str, billions: float) -> None:
    tensors = runpy.run_path(str(BENCH / "make_model.py"))["SHAPES"][shape].tensors()
    assert sum(math.prod(tensor.shape) for tensor in tensors) / 1e9 == pytest.approx(billions, rel=0.02)


QUESTIONS: Questions = {
    "a": Noul("Is it?"),
    "b": Choice("Which?", ["x", "y", "z"]),
    "c": Score("How?", ["no", "so", "yes"]),
}


@pytest.fixture
def engine(tiny_path: Path) -> Iterator[Engine]:
    opened = Engine(tiny_path, device="cpu", threads=1, context_tokens=1024, context_cache_bytes=0)
    yield opened
    opened.close()


def test_peers_read_what_decider_native_reads(tiny: Decider, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    import peers

    rows = tiny.rows("a state of some words, " * 20, QUESTIONS)
    expected = engine.read([row.ids for row in rows], [len(row.options) for row in rows]).rows
    for reader in (peers.rows_alone, peers.restored_prefix):
        for reading, wanted in zip(reader(engine, rows), expected, strict=True):
            np.testing.assert_array_equal(reading.logits, wanted.logits)


def test_llama_cpp_python_reads_the_same(
    tiny_path: Path, tiny: Decider, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.syspath_prepend(BENCH)
    import peers

    rows = tiny.rows("a state of some words, " * 20, QUESTIONS)
    read = peers.open_llama_cpp(tiny_path, threads=1, context_tokens=1024)(rows)
    labels = [int(engine.tokenize([letter], {})[0]) for letter in "ABC"]
    for logits, row in zip(read, rows, strict=True):
        count = len(row.options)
        np.testing.assert_allclose(logits[labels[:count]], engine.read([row.ids], [count]).rows[0].logits, atol=0.05)


def test_a_guest_answers_the_same_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.syspath_prepend(BENCH)
    import guests
    import make_model as maker
    import peers

    keys = {"qwen35.decision.type": maker.DECISION_TYPE, "tokenizer.chat_template.systemone": maker.DECISION_TEMPLATE}
    model = make_tiny_gguf(tmp_path / "decision.gguf", dtype="F16", metadata=keys)
    guest = guests.Guest("xllamacpp", sys.executable, model, threads=1, context_tokens=1024)
    answers = guest("a state of some words", QUESTIONS)["answers"]
    assert {name: answer["type"] for name, answer in answers.items()} == {"a": "noul", "b": "choice", "c": "score"}
    assert sum(answers["b"]["probabilities"].values()) == pytest.approx(1)
    with pytest.raises(peers.LeftOut, match="instructions"):
        guest("a state", {"a": {"type": "noul"}})
    guest.close()


@pytest.mark.parametrize(
    ("rows", "shared"),
    [([[1, 2, 3, 4], [1, 2, 5]], 2), ([[1, 2], [1, 2, 3]], 1), ([[7, 8], [9, 8]], 0), ([[4, 5, 6]], 2)],
)
def test_the_common_prefix_leaves_every_row_a_token(
    rows: list[list[int]], shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    import peers

    assert peers.common_prefix([Row("q", "noul", (), np.array(ids, np.int32), "") for ids in rows]) == shared


def test_compare_measures_every_case(compared: Path) -> None:
    cases = {case["name"]: case for case in read(compared)["cases"]}
    assert list(cases) == ["short", "long", "rate", "scores", "again", "many", "modes", "steps", "memory"]
    assert "missing" in cases["rate"]["contestants"]["llama-bench"]["left_out"]
    for name, case in cases.items():
        ours, peer = (case["contestants"][who] for who in ("decider_native", case["peer"]))
        if "left_out" in peer:  # llama-bench here, llama-cpp-python where it is not installed
            assert name in ("rate", "memory")
            assert case["met"] is None
            continue
        ratio = ours["median"] / peer["median"] if name == "memory" else peer["median"] / ours["median"]
        assert peer["ratio"] == pytest.approx(ratio)
        assert case["met"] == (ratio <= case["target"] if name == "memory" else ratio >= case["target"])


def test_what_a_peer_cannot_do_is_said(compared: Path) -> None:
    cases = {case["name"]: case["contestants"] for case in read(compared)["cases"]}
    assert cases["short"]["turbojev"] == {"left_out": "does not open the model: No module named 'turbojev'"}
    assert "none of turbojev, typed-gguf" in cases["short"]["nobody"]["left_out"]
    assert cases["again"]["restored prefix"] == {"left_out": "keeps nothing between evaluations"}
    assert cases["many"]["rows alone"] == {"left_out": "has no call of several evaluations"}


def test_sharing_decodes_fewer_tokens(swept: Path) -> None:
    figures = {figure["name"]: figure for figure in read(swept)["figures"]}
    tokens = figures["tokens-by-questions"]["series"]
    ours, prefix, alone = (tokens[name] for name in ("decider_native", "restored prefix", "rows alone"))
    assert ours[0] == prefix[0] == alone[0]  # one question shares nothing
    assert all(a <= b < c for a, b, c in zip(ours[1:], prefix[1:], alone[1:], strict=True))
    for figure in figures.values():
        assert all(len(values) == len(figure["x"]) for values in figure["series"].values())


def test_report_shows_all_of_it(compared: Path, swept: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = Path(run("report.py", compared, swept, "--folder", tmp_path / "page").strip()).read_text()
    for case in read(compared)["cases"]:
        assert case["title"] in page
        assert all(name in page for name in case["contestants"])
    assert read(compared)["command"] in page
    for figure in read(swept)["figures"]:
        assert f"({figure['name']}.png)" in page
        assert (tmp_path / "page" / f"{figure['name']}.png").read_bytes().startswith(b"\x89PNG")


def test_report_without_matplotlib_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    command = [sys.executable, str(BENCH / "report.py"), "compare.json"]
    ran = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert ran.returncode == 1
    assert 'pip install "decider-native[bench]"' in ran.stderr
