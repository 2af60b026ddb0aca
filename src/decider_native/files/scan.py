"""Patterns to files: paths, globs and directories, without what is not worth a question."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import DeciderError, InvalidRequest
from .errors import FileStateError, OutsideRoot
from .reading import Root, shown
from .results import Skipped

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

__all__ = ["LOCK_NAMES", "MAX_SKIPPED", "SKIPPED_DIRECTORIES", "scan"]

SKIPPED_DIRECTORIES = frozenset({"node_modules", ".git", ".sessions", "dist", "build", "coverage", ".pi"})
LOCK_NAMES = frozenset({"package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "go.sum"})
MAX_SKIPPED = 1000
"""Most matches that are dropped before a scan is refused: its answer would be a list of what it is not about."""

_LONGEST_GITIGNORE = 1 << 20  # bytes
_BINARY_SUFFIX = re.compile(
    r"\.(7z|a|avi|bin|bmp|bz2|class|db|dll|dmg|docx?|dylib|eot|exe|flac|gguf|gif|gz|heic|ico|iso|jar|jpe?g|lib|m4a|mkv|"
    r"mov|mp3|mp4|npy|npz|o|obj|ogg|onnx|otf|parquet|pdf|png|pptx?|pt|pyc|pyd|rar|safetensors|so|sqlite|tar|tgz|tiff?|"
    r"ttf|wasm|wav|webm|webp|whl|woff2?|xlsx?|xz|zip|zst)"
)


def scan(
    root: Root,
    patterns: Sequence[str],
    *,
    recursive: bool = False,
    gitignore: bool = False,
    max_files: int = 255,
    check: Callable[[], object] = lambda: None,
) -> tuple[list[str], list[Skipped]]:
    """Find the files that patterns name; nothing is read, but ``.gitignore`` files where asked.

    Parameters
    ----------
    patterns
        Paths, directories (the files directly in one) and globs: ``*``, ``?`` and ``[...]`` within a name, which match
        no leading dot, and ``**`` for any directories, which follows no links. Relative to the root.
    recursive
        Take the files under a directory at any depth.
    gitignore
        Drop what the ``.gitignore`` files under the root say.
    max_files
        Most files to find.
    check
        Called again and again; what it raises ends the scan.

    Returns
    -------
    files, skipped
        Paths relative to the root, each once; in the order of the patterns, names in order.

    Raises
    ------
    InvalidRequest
        No pattern, a blank one, or more matches than `max_files` or `MAX_SKIPPED`.
    """
    if (
        isinstance(patterns, str)
        or not isinstance(patterns, Sequence)
        or not patterns
        or not all(isinstance(pattern, str) and pattern.strip() for pattern in patterns)
    ):
        raise InvalidRequest("needs a list of paths, globs or directories, none of them blank", field="patterns")
    scanner = _Scanner(root, recursive, _GitIgnore(root) if gitignore else None, max_files, check)
    for pattern in patterns:
        scanner.add(pattern)
    return list(scanner.files), [Skipped(shown(path) or ".", reason) for path, reason in scanner.skipped.items()]


class _Scanner:
    """One scan. Names are relative to the root, which is ``""`` itself; that of a directory may end in ``/``."""

    def __init__(
        self, root: Root, recursive: bool, ignored: _GitIgnore | None, max_files: int, check: Callable[[], object]
    ) -> None:
        self.files: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self._root = root
        self._recursive = recursive
        self._ignored = ignored
        self._max_files = max_files
        self._check = check
        self._inside = {""}  # directories whose real place is known to be under the root

    def add(self, pattern: str) -> None:
        """Find what one pattern names."""
        name = self._entered(pattern)
        if name is None:
            return
        if os.path.isdir(self._absolute(name)):
            found, nothing = self._expand(name, ("**", "*") if self._recursive else ("*",)), "empty"
        elif glob.has_magic(name) and not os.path.lexists(self._absolute(name)):
            found, nothing = self._expand("", tuple(name.split("/"))), "not_found"
        else:
            found, nothing = iter([name]), ""
        before = len(self.files) + len(self.skipped)
        match = None
        for match in found:
            self._take(match)
        if match is None and before == len(self.files) + len(self.skipped):
            self._skip(name, nothing)

    def _absolute(self, name: str) -> str:
        return os.path.join(self._root.path, name)

    def _entered(self, path: str) -> str | None:
        """The name of a path, or None where its real place may not be looked at."""
        try:
            name = self._root.locate(path)[0]
        except OutsideRoot:
            self._skip(path, "outside")
        except FileStateError as error:
            self._skip(path, error.reason)
        else:
            return "" if name == "." else name
        return None

    def _expand(self, start: str, parts: tuple[str, ...]) -> Iterator[str]:
        """Files that a glob matches. Iterative: a tree may be deeper than Python's stack."""
        parts = tuple(part for i, part in enumerate(parts) if (part, *parts[:i][-1:]) != ("**", "**"))
        pending = [(start, parts if parts[-1] != "**" else (*parts, "*"))]
        seen = set()
        while pending:
            self._check()
            name, parts = pending.pop()
            if (name, len(parts)) in seen:  # several ``**`` lead to one place in many ways
                continue
            seen.add((name, len(parts)))
            if not parts:
                if not os.path.isdir(self._absolute(name)):
                    yield name
                continue
            if not self._enters(name):
                continue
            head, rest = parts[0], parts[1:]
            if head == "**":
                found = [(name, rest), *((child, parts) for child in self._subdirectories(name))]
            elif glob.has_magic(head):
                children = [entry.name for entry in self._entries(name) if _matches(entry.name, head)]
                found = [(os.path.join(name, child), rest) for child in children]
            else:
                child = os.path.join(name, head)
                found = [(child, rest)] if os.path.lexists(self._absolute(child)) else []
            pending += reversed(found)

    def _enters(self, name: str) -> bool:
        """Whether a glob may go on in a directory."""
        if name in self._inside:
            return True
        if not os.path.isdir(self._absolute(name)) or not self._is_inside(name):
            return False
        if reason := self._dropped(os.path.join(name, "")):
            self._skip(name, reason)
            return False
        self._inside.add(name)
        return True

    def _is_inside(self, name: str) -> bool:
        """Whether a path may be looked at; only a link can lead out of a directory that may be."""
        if os.path.dirname(name) in self._inside and not os.path.islink(self._absolute(name)):
            return True
        return self._entered(name) is not None

    def _subdirectories(self, name: str) -> Iterator[str]:
        for entry in self._entries(name):
            child = os.path.join(name, entry.name)
            if entry.name.startswith(".") or not os.path.isdir(self._absolute(child)):
                continue
            if entry.is_symlink():
                self._skip(child, "linked_directory")
            else:
                yield child

    def _entries(self, name: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._absolute(name)) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError:
            self._skip(name, "unreadable")
            return []

    def _take(self, name: str) -> None:
        """Put a match among the files, or among what is skipped."""
        if name in self.files or not self._is_inside(name):
            return
        if reason := self._dropped(name) or _unfit(self._absolute(name)):
            self._skip(name, reason)
            return
        self.files[name] = None
        if len(self.files) > self._max_files:
            raise InvalidRequest(f"match more than {self._max_files} files; narrow them", field="patterns")

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.setdefault(path, reason)
        if len(self.skipped) > MAX_SKIPPED:
            raise InvalidRequest(
                f"match more than {MAX_SKIPPED} paths that cannot be asked about; narrow them", field="patterns"
            )

    def _dropped(self, name: str) -> str | None:
        """Why a file or a directory is dropped for where it lies."""
        if not SKIPPED_DIRECTORIES.isdisjoint(name.split("/")[:-1]):
            return "skipped_directory"
        return "ignored" if self._ignored and self._ignored.drops(name) else None


class _GitIgnore:
    """What the ``.gitignore`` files under a root say, the nearest first."""

    def __init__(self, root: Root) -> None:
        try:
            from pathspec import GitIgnoreSpec
        except ModuleNotFoundError:
            raise DeciderError('.gitignore files need more packages; run `pip install "decider-native[mcp]"`') from None
        self._parse = GitIgnoreSpec.from_lines
        self._root = root
        self._says = functools.cache(self._find_out)
        self._rules = functools.cache(self._read)

    def drops(self, name: str) -> bool:
        """Whether a file, or a directory whose name ends in ``/``, or one it lies in, is ignored."""
        ends = [i + 1 for i, letter in enumerate(name) if letter == "/"]
        return any(self._says(name[:end]) for end in (*ends, len(name)) if end)

    def _find_out(self, name: str) -> bool:
        directory = os.path.dirname(name.rstrip("/"))
        while True:
            below = name[len(directory) + 1 :] if directory else name
            for rule in reversed(self._rules(directory)):
                if rule.regex and rule.include is not None and _is_about(rule.regex, below):
                    return rule.include
            if not directory:
                return False
            directory = os.path.dirname(directory)

    def _read(self, directory: str) -> list[GitIgnoreSpecPattern]:
        try:
            text = self._root.read(os.path.join(directory, ".gitignore"), _LONGEST_GITIGNORE).content
        except (FileStateError, OutsideRoot):
            return []
        # pathspec has a/** match the directory itself; to git both mean what lies in it
        return list(self._parse(re.sub(r"/\*\*(/?)\s*$", r"/**/*\1", line) for line in text.splitlines()).patterns)


def _is_about(rule: re.Pattern[str], name: str) -> bool:
    """Whether a rule matches a path itself, not a directory above it, which git asks about on its own.

    Where pathspec matched a directory, the group ``ps_d`` is the separator after it.
    """
    return any("ps_d" not in match.groupdict() or match.end("ps_d") in (-1, len(name)) for match in rule.finditer(name))


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _unfit(path: str) -> str | None:
    """Why a file cannot be asked about, as far as it shows without reading it."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "not_found"
    except OSError:
        return "unreadable"
    if not stat.S_ISREG(status.st_mode):
        return "not_a_file"
    if status.st_size == 0:
        return "empty"
    name = os.path.basename(path).lower()
    suffix = os.path.splitext(name)[1]
    if suffix == ".lock" or name in LOCK_NAMES:
        return "lock"
    return "binary" if _BINARY_SUFFIX.fullmatch(suffix) else None
