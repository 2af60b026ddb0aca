"""A project to ask about, judges to ask, and a watch over what is opened."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from decider_native import Decider
from decider_native.contract import DeciderJudge
from decider_native.files import FileTools, Settings
from decider_native.judges import MockSettings
from decider_native.judges.mock import MockJudge

SECRET = "Wachstafel"
"""Stands in every file of the project, and so in no result and no log."""

ASKED = "Does `content` send invoices?"
LEVELS = ["not at all", "a little", "a lot"]

MockTools = Callable[..., FileTools]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project, with a file outside of it that links lead to."""
    root = tmp_path / "project"
    files = {
        "README.md": f"# Invoices\n\n{SECRET}: sends invoices.\n",
        "src/app.py": f"import billing  # {SECRET}\n\nbilling.send()\n",
        "src/billing.py": f"def send():\n    print('{SECRET}')\n",
        "src/deep/er/notes.txt": f"{SECRET} {SECRET}\n",
        "src/.hidden.py": f"# {SECRET}\n",
        "src/empty.py": "",
        "src/blank.py": " \n\t\n",
        "src/logo.png": "\x89PNG",
        "src/zeros.dat": f"{SECRET}\0",
        "package-lock.json": "{}",
        "node_modules/left-pad/index.js": f"// {SECRET}\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("not of this project\n")
    (root / "src" / "escape.txt").symlink_to(outside / "secret.txt")
    (root / "escape").symlink_to(outside)
    (root / "alias.md").symlink_to("README.md")
    (root / "src" / "loop").symlink_to(root)
    return root


@pytest.fixture(scope="session")
def judge(tiny: Decider) -> DeciderJudge:
    """The tiny model; its context holds 4096 tokens."""
    return tiny.as_judge


@pytest.fixture
def tools(judge: DeciderJudge, project: Path) -> FileTools:
    """The tools over the tiny model, with default settings whatever the environment says."""
    return FileTools(judge, project, settings=Settings())


@pytest.fixture
def mock_tools(project: Path) -> MockTools:
    """Return a function that makes tools with forced answers: ``mock_tools({"answer": True}, max_files=3)``."""

    def make(answers: Mapping[str, Any], **settings: Any) -> FileTools:
        return FileTools(MockJudge(MockSettings(name="mock", answers=answers)), project, settings=Settings(**settings))

    return make


def words(count: int) -> str:
    """A text of so many tokens, or one more."""
    return "word " * count


_seen: list[tuple[str, Any, int]] = []
_watched_thread = 0


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if threading.get_ident() == _watched_thread and event in ("open", "os.scandir", "os.listdir"):
        _seen.append((event, arguments[0], arguments[2] if event == "open" else 0))


sys.addaudithook(_hook)
for _name in ("encodings.utf_8_sig", "pathspec"):  # loaded on first use, which is not what the watch is about
    import_module(_name)


@contextmanager
def watched(root: Path) -> Iterator[list[str]]:
    """Record what this thread opens; fail where that lies, or could lie, outside of a root. Yields names of files."""
    global _watched_thread
    _seen.clear()
    opened: list[str] = []
    _watched_thread = threading.get_ident()
    try:
        yield opened
    finally:
        _watched_thread = 0
    real = os.path.realpath(root)
    for event, path, flags in _seen:
        if isinstance(path, int):  # a descriptor that was opened before
            continue
        name = os.fsdecode(path)
        if os.path.isabs(name):
            assert Path(os.path.realpath(name)).is_relative_to(real), (event, name)
        else:  # relative to the descriptor of a directory: it must be one step, and no link
            assert event == "open"
            assert os.sep not in name
            assert name not in ("", ".", "..")
            assert flags & os.O_NOFOLLOW, name
            if not flags & os.O_DIRECTORY:
                opened.append(name)
