"""Files are read whole or refused with a reason, and nothing outside the root is opened."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from decider_native import InvalidRequest
from decider_native.files import FileStateError, OutsideRoot
from decider_native.files.errors import REASONS, Reason
from decider_native.files.reading import Root

from .conftest import SECRET, watched

MOST = 1 << 20


def refused(root: Path, path: str, most_bytes: int = MOST) -> FileStateError:
    with pytest.raises(FileStateError) as caught, watched(root):
        Root(root).read(path, most_bytes)
    assert SECRET not in str(caught.value)
    return caught.value


def test_a_text_is_read_whole_and_as_it_is(project: Path) -> None:
    text = "first\r\nzwölf 🦉\n"
    (project / "text").write_bytes(b"\xef\xbb\xbf" + text.encode())
    with watched(project) as opened:
        document = Root(project).read("./src/../text", MOST)
    assert (document.path, document.content) == ("text", text)
    assert opened == ["text"]
    assert SECRET not in repr(Root(project).read("README.md", MOST))


def test_bytes_that_are_no_utf8_are_marked(project: Path) -> None:
    (project / "latin").write_bytes("Grüße".encode("latin-1"))
    assert Root(project).read("latin", MOST).content == "Gr��e"


def test_a_link_within_the_root_is_read_under_its_own_name(project: Path) -> None:
    document = Root(project).read("alias.md", MOST)
    assert (document.path, document.content) == ("alias.md", (project / "README.md").read_text())


def test_an_absolute_path_is_named_from_the_root(project: Path) -> None:
    assert Root(project).read(str(project / "README.md"), MOST).path == "README.md"
    link = project.parent / "link"
    link.symlink_to(project)
    assert Root(link).read(str(link / "README.md"), MOST).path == "README.md"
    assert Root(project).read(str(link / "README.md"), MOST).path == "README.md"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere.py", "not_found"),
        ("README.md/deeper", "not_found"),
        ("a\0b", "not_found"),
        ("half a \ud83e", "not_found"),
        ("src", "not_a_file"),
        (".", "not_a_file"),
        ("", "not_a_file"),
        ("pipe", "not_a_file"),
        ("src/zeros.dat", "binary"),
        ("late.dat", "binary"),
        ("src/empty.py", "empty"),
        ("src/blank.py", "empty"),
        ("knot", "unreadable"),
        ("x" * 300, "unreadable"),
        (os.fsdecode(b"\xff.txt"), "unreadable"),
        ("huge.txt", "too_large"),
    ],
)
def test_every_reason(project: Path, path: str, reason: Reason) -> None:
    os.mkfifo(project / "pipe")
    (project / "late.dat").write_bytes(b"x" * 8191 + b"\0")
    (project / "knot").symlink_to("knot")
    (project / os.fsdecode(b"\xff.txt")).write_text("text")
    with (project / "huge.txt").open("wb") as file:
        file.truncate(10 * 10**9)
    error = refused(project, path)
    assert error.reason == reason
    assert f": {reason}: " in str(error)
    assert error.path in str(error)
    assert str(error).isprintable() or "\0" in path
    error.path.encode()
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.reason, copy.code) == (str(error), error.path, reason, "invalid_request")


def test_there_are_six_reasons() -> None:
    assert set(REASONS) == {"not_found", "not_a_file", "too_large", "binary", "empty", "unreadable"}


def test_a_nul_further_on_is_text(project: Path) -> None:
    (project / "late.dat").write_bytes(b"x" * 8192 + b"\0")
    assert len(Root(project).read("late.dat", MOST).content) == 8193


def test_too_large_is_told_by_the_size_alone(project: Path) -> None:
    (project / "exact").write_text("x" * 100)
    assert len(Root(project).read("exact", 100).content) == 100
    with watched(project) as opened:
        error = refused(project, "exact", 99)
    assert opened == []
    assert "100 bytes" in str(error)
    assert "99" in str(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(project: Path) -> None:
    (project / "README.md").chmod(0)
    assert refused(project, "README.md").reason == "unreadable"


@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", "src/escape.txt", "escape/secret.txt", "escape", "/etc/passwd", "..", "/"]
)
def test_nothing_outside_the_root_is_opened(project: Path, path: str) -> None:
    with pytest.raises(OutsideRoot, match="outside the project root"), watched(project) as opened:
        Root(project).read(path, MOST)
    assert opened == []


@pytest.mark.parametrize("step", ["src", "src/deep", "src/deep/er/notes.txt"])
def test_a_link_that_appears_after_the_check_is_not_followed(
    project: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    root, real = Root(project), os.path.realpath
    outside = project.parent / "outside"
    for name in ("deep/er/notes.txt", "er/notes.txt", "notes.txt"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("not of this project\n")

    def swap(path: str) -> str:
        resolved = real(path)
        (project / step).rename(project.parent / "moved")
        (project / step).symlink_to(outside / "notes.txt" if step.endswith(".txt") else outside)
        return resolved

    monkeypatch.setattr(os.path, "realpath", swap)
    with pytest.raises(FileStateError) as caught:
        root.read("src/deep/er/notes.txt", MOST)
    assert caught.value.reason in ("unreadable", "not_found", "not_a_file")


def test_a_link_that_goes_while_it_is_resolved(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: object, **options: object) -> str:
        raise OSError(errno.EINVAL, "Invalid argument")  # what the system says of a file that is no link any more

    monkeypatch.setattr(os, "readlink", gone)
    with pytest.raises(FileStateError, match="unreadable: changes right now"):
        Root(project).read("alias.md", MOST)


def test_a_root_must_be_a_directory(project: Path) -> None:
    for path in (project / "README.md", project / "nowhere", "\0", "\ud800", None):
        with pytest.raises(InvalidRequest, match=r"field 'root': .* is no directory"):
            Root(path)  # type: ignore[arg-type]
