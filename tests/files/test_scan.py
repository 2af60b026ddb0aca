"""Patterns to files: what a scan finds, what it leaves out and says so, and what it never touches."""

from __future__ import annotations

import glob
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decider_native import Cancelled, InvalidRequest
from decider_native.contract import Call
from decider_native.files import FileStateError
from decider_native.files.reading import Root
from decider_native.files.results import Skipped
from decider_native.files.scan import MAX_SKIPPED, SKIPPED_DIRECTORIES, scan

from .conftest import watched


def found(
    root: Path, *patterns: str, recursive: bool = False, gitignore: bool = False
) -> tuple[list[str], dict[str, str]]:
    with watched(root) as opened:
        files, skipped = scan(Root(root), patterns, recursive=recursive, gitignore=gitignore)
    assert set(opened) <= {".gitignore"}
    return files, {skip.path: skip.reason for skip in skipped}


LEFT_BY_A_WALK = {"escape": "linked_directory", "node_modules": "skipped_directory", "src/loop": "linked_directory"}


@pytest.mark.parametrize(
    ("pattern", "recursive", "files", "skipped"),
    [
        ("README.md", False, ["README.md"], {}),
        ("./src/../README.md", False, ["README.md"], {}),
        ("alias.md", False, ["alias.md"], {}),
        ("src/.hidden.py", False, ["src/.hidden.py"], {}),
        ("src/*.py", False, ["src/app.py", "src/billing.py", "src/blank.py"], {"src/empty.py": "empty"}),
        ("src/.*.py", False, ["src/.hidden.py"], {}),
        ("*/a??.py", False, ["src/app.py"], {"escape": "outside", "node_modules": "skipped_directory"}),
        ("[!a-z]*.md", False, ["README.md"], {}),
        ("**/notes.txt", False, ["src/deep/er/notes.txt"], LEFT_BY_A_WALK),
        ("src/loop/README.md", False, ["src/loop/README.md"], {}),
        ("nowhere", False, [], {"nowhere": "not_found"}),
        ("*.rs", False, [], {"*.rs": "not_found"}),
        ("src/logo.png", False, [], {"src/logo.png": "binary"}),
        ("package-lock.json", False, [], {"package-lock.json": "lock"}),
        ("node_modules/left-pad/index.js", False, [], {"node_modules/left-pad/index.js": "skipped_directory"}),
        ("node_modules", True, [], {"node_modules": "skipped_directory"}),
        ("node_modules/*/index.js", False, [], {"node_modules": "skipped_directory"}),
        ("src/loop/node_modules/left-pad/*", False, [], {"src/loop/node_modules": "skipped_directory"}),
        ("../outside/secret.txt", False, [], {"../outside/secret.txt": "outside"}),
        ("../outside/*", False, [], {"../outside/*": "outside"}),
        ("/etc/*", False, [], {"/etc/*": "outside"}),
        ("escape/*", False, [], {"escape/*": "outside"}),
        ("src/escape.txt", False, [], {"src/escape.txt": "outside"}),
        ("src/deep", False, [], {"src/deep": "empty"}),
        ("src/deep", True, ["src/deep/er/notes.txt"], {}),
        (
            "src",
            False,
            ["src/app.py", "src/billing.py", "src/blank.py", "src/zeros.dat"],
            {"src/empty.py": "empty", "src/escape.txt": "outside", "src/logo.png": "binary"},
        ),
        (
            ".",
            True,
            [
                *("README.md", "alias.md", "src/app.py", "src/billing.py", "src/blank.py", "src/zeros.dat"),
                "src/deep/er/notes.txt",
            ],
            {
                **LEFT_BY_A_WALK,
                "package-lock.json": "lock",
                "src/empty.py": "empty",
                "src/escape.txt": "outside",
                "src/logo.png": "binary",
            },
        ),
    ],
)
def test_patterns(project: Path, pattern: str, recursive: bool, files: list[str], skipped: dict[str, str]) -> None:
    assert found(project, pattern, recursive=recursive) == (files, skipped)


def test_patterns_together_name_each_file_once_in_their_order(project: Path) -> None:
    files, _ = found(project, "src/billing.py", "src/*.py", "src", "README.md")
    assert files[:2] == ["src/billing.py", "src/app.py"]
    assert files[-1] == "README.md"
    assert len(set(files)) == len(files)


def test_a_file_whose_name_looks_like_a_glob(project: Path) -> None:
    for name in ("a[1].txt", "a1.txt"):
        (project / name).write_text("text")
    assert found(project, "a[1].txt")[0] == ["a[1].txt"]
    (project / "a[1].txt").unlink()
    assert found(project, "a[1].txt")[0] == ["a1.txt"]


@pytest.mark.parametrize("patterns", [[], [""], ["README.md", " "], "README.md"])
def test_no_pattern_and_blank_ones_are_refused(project: Path, patterns: Sequence[str]) -> None:
    with pytest.raises(InvalidRequest, match="field 'patterns'"):
        scan(Root(project), patterns)


def test_too_many_matches_are_refused_before_any_is_read(project: Path) -> None:
    for i in range(MAX_SKIPPED + 1):
        (project / f"{i}.txt").write_text("text")
        (project / f"{i}.gz").write_text("text")
    with pytest.raises(InvalidRequest, match="more than 255 files"), watched(project) as opened:
        scan(Root(project), ["*.txt"])
    assert opened == []
    assert len(scan(Root(project), ["1*.txt"], max_files=112)[0]) == 112
    with pytest.raises(InvalidRequest, match="more than 111 files"):
        scan(Root(project), ["1*.txt"], max_files=111)
    with pytest.raises(InvalidRequest, match="more than 1000 paths that cannot be asked about"):
        scan(Root(project), ["*.gz"])


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A root, and the name of a file in it that lies deeper than Python's stack."""
    root, step = tmp_path / "deep", "d" * 3
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir(step, dir_fd=here)
        below = os.open(step, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with open(os.open("f.txt", os.O_CREAT | os.O_WRONLY, dir_fd=here), "w") as file:
        file.write("text")
    os.close(here)
    yield root, f"{step}/" * 1000 + "f.txt"
    subprocess.run(["rm", "-r", root], check=True)  # Python's own ways give up


def test_a_tree_deeper_than_the_stack(deep: tuple[Path, str]) -> None:
    root, name = deep
    assert scan(Root(root), ["**/*.txt"]) == ([name], [])
    assert Root(root).read(name, 100).content == "text"


def test_many_ways_to_one_place_are_one(tmp_path: Path) -> None:
    (tmp_path / "/".join("a" * 24)).mkdir(parents=True)
    (tmp_path / "/".join("a" * 24) / "f.txt").write_text("text")
    names, _ = scan(Root(tmp_path), ["/".join(["**", "*"] * 12) + "/*.txt"])  # 2.7 million ways
    assert names == ["a/" * 24 + "f.txt"]


def test_an_empty_root_is_named(tmp_path: Path) -> None:
    assert scan(Root(tmp_path), ["."]) == ([], [Skipped(".", "empty")])


def test_a_scan_ends_when_the_call_is_over(project: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        scan(Root(project), ["**/*"], check=Call(cancel=cancel).remaining)


# -- generated trees

NAMES = st.sampled_from(
    ["a", "b.py", "c.txt", "Ü 日.md", ".dot", ".git", "build", "dist", "x.png", "y.lock", "[z]", "*", "new\nline"]
)
LINKS = st.sampled_from(["..", ".", "../..", "a", "a/a", "b.py", "/", "/etc/passwd", "nowhere", "self"])
LEAVES = st.one_of(
    st.sampled_from(["text", "empty", "huge", "locked", "pipe", "not unicode"]), st.tuples(st.just("link"), LINKS)
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=5),
    lambda below: st.dictionaries(NAMES, st.one_of(LEAVES, below), max_size=5),
    max_leaves=12,
)
PATTERNS = st.lists(
    st.one_of(
        st.sampled_from(
            [".", "*", "**", "**/*", "a", "a/*", "*/*", "**/a/**/*", "..", "../*", ".*", "**/.*", "/etc", "*/../*"]
        ),
        st.lists(
            st.sampled_from(["a", "*", "**", "?", "[ab]*", "..", "*.py", "build", ".git"]), min_size=1, max_size=4
        ).map("/".join),
    ),
    min_size=1,
    max_size=3,
)


def grow(directory: Path, tree: dict[str, object]) -> None:
    for name, kind in tree.items():
        path = directory / name
        if isinstance(kind, dict):
            path.mkdir()
            grow(path, kind)
        elif isinstance(kind, tuple):
            path.symlink_to(path.name if kind[1] == "self" else kind[1])
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            if kind == "not unicode":
                path = directory / os.fsdecode(name.encode() + b"\xff")
            path.write_bytes(b"" if kind == "empty" else b"text")
            if kind == "huge":
                os.truncate(path, 10**12)
            if kind == "locked":
                path.chmod(0)


@settings(max_examples=150, deadline=None)
@given(TREES, PATTERNS, st.booleans(), st.booleans())
def test_any_tree(tree: dict[str, object], patterns: list[str], recursive: bool, gitignore: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place, "x", "project")
        project.mkdir(parents=True)
        (project.parent / "a").write_text("not of this project")
        grow(project, tree)
        root = Root(project)
        with watched(project):
            files, skipped = scan(root, patterns, recursive=recursive, gitignore=gitignore)
            contents = set()
            for file in files:
                try:
                    contents.add(root.read(file, 1000).content)
                except FileStateError as error:
                    contents.add(error.reason)
        assert contents <= {"text", "too_large", "unreadable"}
        assert len(set(files)) == len(files)
        assert set(files).isdisjoint(skip.path for skip in skipped)
        for file in files:
            assert (project / file).resolve().is_relative_to(project.resolve())
            assert (project / file).is_file()
            assert SKIPPED_DIRECTORIES.isdisjoint(Path(file).parts[:-1])
            assert Path(file).suffix not in (".png", ".lock")
        for skip in skipped:
            skip.path.encode()
        if recursive and "." in patterns and not gitignore:
            check_walk(project, files, {skip.path for skip in skipped})


def check_walk(project: Path, files: list[str], skipped: set[str]) -> None:
    """Every file that a walk meets is found or left out with a reason."""
    for directory, below, names in os.walk(project):
        below[:] = [name for name in below if name[0] != "." and name not in SKIPPED_DIRECTORIES]
        for name in names:
            path = os.path.relpath(os.path.join(directory, name), project)
            if name[0] != "." and not os.path.isdir(os.path.join(directory, name)):
                assert (path in files) != (path.encode(errors="backslashreplace").decode() in skipped)


PLAIN_NAMES = st.sampled_from(["a", "b.py", "c.txt", "dd", ".dot", ".py", "Ü.md", "[z]"])
PLAIN_TREES = st.recursive(
    st.dictionaries(PLAIN_NAMES, st.just("text"), max_size=4),
    lambda below: st.dictionaries(PLAIN_NAMES, st.one_of(st.just("text"), below), max_size=4),
    max_leaves=10,
)
GLOBS = st.lists(
    st.sampled_from(["a", "dd", "*", "**", "?", "*.py", ".*", "[a-d]*", "[!a]*", "*d"]), min_size=1, max_size=4
).map("/".join)


@settings(max_examples=150, deadline=None)
@given(PLAIN_TREES, GLOBS)
def test_globs_match_what_pythons_glob_matches(tree: dict[str, object], pattern: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place)
        grow(project, tree)
        if os.path.lexists(project / pattern):  # then it is a path
            return
        matched = glob.glob(pattern, root_dir=project, recursive=True)
        files, _ = scan(Root(project), [pattern])
        assert set(files) == {path for path in matched if os.path.isfile(project / path) and path[-1] != "/"}


RULES = st.lists(
    st.sampled_from(
        [
            "*.py",
            "a",
            "a/",
            "/a",
            "!b.py",
            "dd/*",
            "!dd/a",
            "**/c.txt",
            "a/**",
            "# none",
            "",
            "*",
            "!*/",
            "!*.txt",
            "\\[z]",
        ]
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN_TREES, RULES, RULES)
def test_gitignore_says_what_git_says(tree: dict[str, object], rules: list[str], deeper: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place)
        grow(project, tree)
        subprocess.run(["git", "init", "-q", project], check=True)
        (project / ".gitignore").write_text("\n".join(rules))
        if (project / "dd").is_dir():
            (project / "dd" / ".gitignore").write_text("\n".join(deeper))
        every, _ = scan(Root(project), ["."], recursive=True)
        listed = "\0".join(every).encode()
        told = subprocess.run(["git", "check-ignore", "-z", "--stdin"], cwd=project, input=listed, capture_output=True)
        ignored = set(told.stdout.decode().split("\0"))
        with watched(project):
            files, _ = scan(Root(project), ["."], recursive=True, gitignore=True)
        assert files == [file for file in every if file not in ignored]


def test_a_gitignore_that_leads_outside_is_not_opened(project: Path) -> None:
    (project / ".gitignore").symlink_to(project.parent / "outside" / "secret.txt")
    assert found(project, "README.md", gitignore=True)[0] == ["README.md"]
    (project / ".gitignore").unlink()
    (project / ".gitignore").write_text("*.md\nsrc/deep/\n")
    files, skipped = found(project, ".", recursive=True, gitignore=True)
    assert files == ["src/app.py", "src/billing.py", "src/blank.py", "src/zeros.dat"]
    assert (skipped["README.md"], skipped["src/deep"]) == ("ignored", "ignored")
