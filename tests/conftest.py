"""Models for the tests: built once per machine from a fixed seed, with the real Qwen3.5 tokenizer."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import make_tiny_gguf
from decider_native import Decider
from decider_native.engine import quantize
from make_tiny_gguf import Architecture

ModelMaker = Callable[..., Path]

# A shell's background command ignores Ctrl-C, and so would every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_model() -> ModelMaker:
    """Return a function that makes a tiny model: ``make_model("qwen35", "F32", hidden=64)``.

    The files are kept between runs, under a name that holds the maker's own hash.
    """
    source = Path(make_tiny_gguf.__file__).read_bytes()
    cache = Path(tempfile.gettempdir()) / f"decider-native-tests-{hashlib.sha256(source).hexdigest()[:12]}"
    cache.mkdir(exist_ok=True)

    def make(architecture: Architecture = "qwen35", dtype: str = "F32", *, hidden: int = 64) -> Path:
        path = cache / f"{architecture}-h{hidden}-{dtype}.gguf"
        if path.exists():
            return path
        scratch = path.with_suffix(f".{os.getpid()}")
        if dtype in ("F32", "F16"):
            make_tiny_gguf.make_tiny_gguf(
                scratch, architecture=architecture, hidden=hidden, dtype="F32" if dtype == "F32" else "F16"
            )
        else:
            quantize(make(architecture, "F16", hidden=hidden), scratch, dtype)
        scratch.replace(path)
        return path

    return make


@pytest.fixture(scope="session")
def tiny_path(make_model: ModelMaker) -> Path:
    """The tiny hybrid model in F32, whose answers decider-ai has recorded."""
    return make_model("qwen35", "F32")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[Decider]:
    """A Decider over `tiny_path` at decider-4b v2's temperature."""
    with Decider(tiny_path, device="cpu", temperature=1.935, context_tokens=4096, threads=1) as decider:
        yield decider
