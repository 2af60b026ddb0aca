"""Files under one root, read whole or refused. What was checked is what is read: both go through one descriptor."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidRequest
from .errors import FileStateError, OutsideRoot, Reason

__all__ = ["Document", "Root", "shown"]

_BINARY_PREFIX = 8192  # bytes in which a NUL makes a file binary
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Document:
    """A file's path, relative to its root, and its text."""

    path: str
    content: str = field(repr=False)


class Root:
    """The directory outside of which nothing is opened.

    Raises
    ------
    InvalidRequest
        It is no directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError):  # what no path can be: another type, half a character, a NUL
            self.path = ""
        if not os.path.isdir(self.path):
            raise InvalidRequest(f"{shown(str(path))} is no directory; name one that exists", field="root")

    def locate(self, path: str | os.PathLike[str]) -> tuple[str, str]:
        """Return a path's name and its real place, links followed, both relative to the root.

        ``..`` is resolved before links are, so that the name always says what is read.

        Raises
        ------
        OutsideRoot
            The real place is not under the root.
        FileStateError
            A path that no file can have, or one that changes right now.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"must be text; got {type(path).__name__}", field="path")
        given = os.fsdecode(path)
        try:
            possible = b"\0" not in os.fsencode(given)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise _error(given, "not_found", "no file has a NUL or half a character in its path")
        named = os.path.normpath(os.path.join(self.path, given))
        try:
            real = os.path.realpath(named)
        except OSError:  # a link that was there a moment ago
            raise _error(given, "unreadable", "changes right now; try again") from None
        if not Path(real).is_relative_to(self.path):
            raise OutsideRoot(f"{shown(given)} lies outside the project root; name a file under it")
        if not Path(named).is_relative_to(self.path):
            named = real
        return os.path.relpath(named, self.path), os.path.relpath(real, self.path)

    def read(self, path: str | os.PathLike[str], most_bytes: int) -> Document:
        """Read a text file as UTF-8; bytes that are none become U+FFFD.

        Parameters
        ----------
        path
            Absolute, or relative to the root.
        most_bytes
            A longer file is refused without being read.

        Raises
        ------
        FileStateError
            It cannot be a state; `reason` says why.
        OutsideRoot
            It is not under the root.
        """
        name, real = self.locate(path)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _error(name, "unreadable", "its name is not Unicode; rename it") from None
        try:
            with self._opened(name, real.split(os.sep), most_bytes) as file:
                data = os.fdopen(file, "rb", closefd=False).read(most_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise _error(name, "not_found", "there is no such file; check the path") from None
        except OSError as error:
            raise _error(name, "unreadable", f"cannot be read: {error.strerror}") from None
        if len(data) > most_bytes:  # it grew since its size was checked
            raise _too_many_bytes(name, len(data), most_bytes)
        if b"\0" in data[:_BINARY_PREFIX]:
            raise _error(name, "binary", "holds a NUL byte, so it is no text; name a text file")
        content = data.decode("utf-8-sig", errors="replace")
        if not content.strip():
            raise _error(name, "empty", "holds nothing but white space; there is nothing to ask about")
        return Document(name, content)

    @contextmanager
    def _opened(self, name: str, parts: list[str], most_bytes: int) -> Iterator[int]:
        """Open a real path step by step: a link that has taken a step's place since is not followed."""
        directory = os.open(self.path, _DIRECTORY)
        try:
            for part in parts[:-1]:
                child = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = child
            # before the file is opened: opening a pipe or a device can have effects
            _check(name, os.stat(parts[-1], dir_fd=directory, follow_symlinks=False), most_bytes)
            file = os.open(parts[-1], _FILE, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            _check(name, os.fstat(file), most_bytes)
            yield file
        finally:
            os.close(file)


def shown(path: str) -> str:
    """A path as text that can be sent: bytes of its name that are not Unicode are escaped."""
    return path.encode(errors="backslashreplace").decode()


def _check(name: str, status: os.stat_result, most_bytes: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _error(name, "unreadable", "is a link in a circle, or one that was put there just now")
    if not stat.S_ISREG(status.st_mode):
        raise _error(name, "not_a_file", "is no regular file; name a file, not a directory or a device")
    if status.st_size > most_bytes:
        raise _too_many_bytes(name, status.st_size, most_bytes)


def _too_many_bytes(name: str, size: int, most_bytes: int) -> FileStateError:
    return _error(
        name, "too_large", f"has {size} bytes or more; what the question leaves holds {most_bytes} at most; split it"
    )


def _error(path: str, reason: Reason, message: str) -> FileStateError:
    return FileStateError(f"{shown(path)}: {reason}: {message}", path=shown(path), reason=reason)
