"""`decider-native ask` for people: a table on a terminal, JSON lines in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from decider_native import Decider, Noul
from decider_native.cli import main

from .conftest import SECRET

OPTIONS = ("--device", "cpu", "--threads", "1", "--context-tokens", "4096")


@pytest.fixture
def judges(project: Path) -> str:
    """A file of judges whose default says what it is told."""
    path = project / "judges.toml"
    path.write_text('default = "sure"\n[judges.sure]\nprovider = "mock"\nanswers = { answer = 0.75 }\n')
    path.with_name("picky.toml").write_text(
        'default = "picky"\n[judges.picky]\nprovider = "mock"\nanswers = { answer = "code" }\n'
    )
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["ask", *arguments]) == code
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    return out, err


def test_json_lines_in_a_pipe_are_the_models_answers(project: Path, tiny_path: Path) -> None:
    command = [sys.executable, "-m", "decider_native", "ask", "src", "*.md", "-q", "Is `content` code?"]
    done = subprocess.run(
        [*command, "--root", str(project), "--model", str(tiny_path), *OPTIONS], capture_output=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
    names = ["src/app.py", "src/billing.py", "README.md", "alias.md"]
    with Decider(tiny_path, device="cpu", threads=1, context_tokens=4096) as decider:
        states = [{"path": name, "content": (project / name).read_text()} for name in names]
        answers = decider.evaluate_many([(state, {"q": Noul("Is `content` code?")}) for state in states])
    nouls = [answer.answers["q"].to_dict()["noul"] for answer in answers]
    assert lines[:4] == [
        {"path": name, "answer": noul > 0.5, "noul": noul} for name, noul in zip(names, nouls, strict=True)
    ]
    assert {line["path"]: line["reason"] for line in lines[4:]} == {
        "src/blank.py": "empty",
        "src/empty.py": "empty",
        "src/escape.txt": "outside",
        "src/logo.png": "binary",
        "src/zeros.dat": "binary",
    }


def test_a_table_for_each_type(capsys: pytest.CaptureFixture[str], project: Path, judges: str) -> None:
    common = ("--root", str(project), "--judges", judges, "--table")
    out, _ = ask(capsys, "src/*.py", "-q", "?", "--yes", "it is", *common)
    lines = out.splitlines()
    assert lines[0].split() == ["PATH", "ANSWER", "P(YES)"]
    assert lines[1].split() == ["src/app.py", "yes", "0.750"]
    assert "left out: src/empty.py: empty" in lines
    assert lines[-1].startswith("mock: 0 tokens, ")
    out, _ = ask(capsys, "*.md", "-q", "?", "--type", "score", "--option", "bad", "--option", "good", *common)
    assert out.splitlines()[0].split() == ["PATH", "SCORE", "CONFIDENCE", "LIKELIEST", "LEVEL"]
    assert out.splitlines()[1].split()[:2] == ["README.md", "0.750"]
    assert out.splitlines()[1].split()[-1] == "good"
    picky = ("--root", str(project), "--judges", str(project / "picky.toml"), "--judge", "picky", "--table")
    out, _ = ask(
        capsys, "*.md", "-q", "?", "--type", "choice", "--option", "code=a program", "--option", "text", *picky
    )
    assert out.splitlines()[1].split() == ["README.md", "code", "1.000", "1.000"]


def test_what_to_scan(capsys: pytest.CaptureFixture[str], project: Path, judges: str) -> None:
    (project / ".gitignore").write_text("*.md\n")
    out, _ = ask(
        capsys, ".", "-q", "?", "--recursive", "--gitignore", "--root", str(project), "--judges", judges, "--json"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    answered = [line["path"] for line in lines if "answer" in line]
    assert answered == ["judges.toml", "picky.toml", "src/app.py", "src/billing.py", "src/deep/er/notes.txt"]
    assert {"path": "README.md", "reason": "ignored"} in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("README.md",), "required: -q/--question"),
        (("-q", "?"), "required: FILE"),
        (("nowhere", "-q", "?"), "no file can be asked about (nowhere: not_found)"),
        (("README.md", "-q", "?", "--option", "a"), "field 'options': is not for a bool question"),
        (("README.md", "-q", "?", "--type", "score", "--option", "a"), "field 'levels': needs 2 to 10 levels"),
        (("README.md", "-q", "?", "--type", "choice"), "field 'options'"),
        (("README.md", "-q", "?", "--type", "choice", "--option", "a", "--option", "a=b"), "names 'a' twice"),
        (("README.md", "-q", "?", "--root", "nowhere"), "nowhere is no directory"),
        (("README.md", "-q", "?", "--judge", "sure"), "give that file with --judges"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    project: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(project)
    out, err = ask(capsys, *arguments, code=2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_without_the_extra_gitignore_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pathspec", None)
    _, err = ask(capsys, "README.md", "-q", "?", "--gitignore", "--root", str(project), code=5)
    assert 'pip install "decider-native[mcp]"' in err
