"""Checks of a weight file on disk: is it a GGUF, is it whole, are its bytes the expected ones."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import struct
import sys
from pathlib import Path

from ..errors import ModelLoadError, ModelNotFound

CACHE_VARIABLE = "DECIDER_NATIVE_CACHE"

_HEADER = struct.Struct("<4sIQQ")  # magic, version, tensor count, metadata count
_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # bytes of a tensor's entry: name with length, rank, one dimension, type, offset
_LEAST_METADATA = 8 + 1 + 4 + 1  # bytes of a metadata entry: key with length, type, value
_NOT_GGUF = {
    b"vers": "a Git LFS pointer, not the weights: run `git lfs pull` where it was cloned",
    b"<!DO": "a web page: download the file itself, not the page about it",
    b"<htm": "a web page: download the file itself, not the page about it",
    b"FUGG": "a big-endian GGUF: convert it for this machine",
}

logger = logging.getLogger("decider_native")


def cache_dir() -> Path:
    """Return the directory of this package's own cache; it need not exist.

    ``$DECIDER_NATIVE_CACHE``, else ``$XDG_CACHE_HOME/decider_native``, else ``~/Library/Caches/decider_native`` on
    macOS and ``~/.cache/decider_native`` elsewhere. Files from the Hugging Face Hub lie in the Hub's cache, not here.
    """
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "decider_native"
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():  # a user without an entry and without HOME, as in some containers
        import tempfile  # here and not above: slow to import, as hashlib is

        return Path(tempfile.gettempdir()) / f"decider_native-{os.getuid()}"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "decider_native"


def check_gguf(path: Path, label: str | None = None) -> None:
    """Refuse what cannot be a GGUF file, before native code opens it.

    Parameters
    ----------
    path
        The file.
    label
        What to call it in errors, e.g. the environment variable that named it; its path by default.

    Raises
    ------
    ModelNotFound
        There is no such file.
    ModelLoadError
        It is a directory or a device, unreadable, of another format, or cut off.
    """
    name = label or str(path)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise ModelNotFound(f"{name}: no such file; give the path of an existing .gguf file") from None
    except OSError as error:
        raise ModelLoadError(f"{name}: {error.strerror}; give the path of a readable .gguf file") from error
    if stat.S_ISDIR(status.st_mode):
        inside = sorted(child.name for child in path.glob("*.gguf"))
        hint = f"name one of its files: {', '.join(inside[:5])}" if inside else "give the path of a .gguf file"
        raise ModelLoadError(f"{name}: is a directory; {hint}")
    if not stat.S_ISREG(status.st_mode):
        raise ModelLoadError(f"{name}: is not a regular file; give the path of a .gguf file on disk")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise ModelLoadError(f"{name}: {error.strerror}; make the file readable for this user") from error
    if header[:4] != b"GGUF":
        kind = _NOT_GGUF.get(header[:4], "not a GGUF file: give a model converted for llama.cpp")
        raise ModelLoadError(f"{name}: is {kind if header else 'empty: fetch the file again'}")
    least = _HEADER.size
    if len(header) == least:
        _, version, tensors, metadata = _HEADER.unpack(header)
        if version < 2 or version & 0xFFFF == 0:  # a byte-swapped version has its low half empty
            raise ModelLoadError(f"{name}: is GGUF version {version}; convert the model again with a current llama.cpp")
        least += tensors * _LEAST_TENSOR + metadata * _LEAST_METADATA
    if status.st_size < least:
        raise ModelLoadError(
            f"{name}: is cut off: {status.st_size} bytes, its header speaks of at least {least}; fetch the file again"
        )


def verify_sha256(path: Path, sha256: str, *, size: int | None = None, remedy: str) -> None:
    """Compare a file with its known SHA-256 once; later calls for the unchanged file only compare size and time.

    Parameters
    ----------
    path
        An existing file. What is hashed and named in errors is the file behind any links.
    sha256
        The expected digest, 64 lower-case hexadecimal digits.
    size
        The expected size in bytes, when known: a cheaper proof of damage.
    remedy
        What to do after the damaged file was deleted.

    Raises
    ------
    ModelLoadError
        The contents differ, or cannot be read.
    """
    import hashlib

    real = path.resolve()
    try:
        status = real.stat()
        record = {"path": str(real), "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
        marker = cache_dir() / "verified" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"
        if _read_marker(marker) == record:
            return
        if size is not None and status.st_size != size:
            raise ModelLoadError(f"{real} is damaged: {status.st_size} bytes, expected {size}; delete it and {remedy}")
        logger.info("verifying the sha256 of %s; this is done once", real)
        with real.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelLoadError(f"cannot read {real}: {error.strerror}; make it readable for this user") from error
    if actual != sha256:
        raise ModelLoadError(f"{real} is damaged: its sha256 is {actual}, expected {sha256}; delete it and {remedy}")
    _write_marker(marker, record)


def _write_marker(marker: Path, record: object) -> None:
    """Write a small JSON file in one step; a cache that cannot be written only costs time later."""
    partial = marker.with_name(f"{marker.name}.{os.getpid()}")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(record), encoding="utf-8")
        os.replace(partial, marker)
    except OSError as error:
        logger.debug("cannot write %s: %s", marker, error)
        with contextlib.suppress(OSError):
            partial.unlink()


def _read_marker(marker: Path) -> object:
    try:
        return json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
