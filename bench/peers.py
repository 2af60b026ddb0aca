"""Other ways to read the same rows, and llama.cpp's own rate."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from harness import BUILD, ROOT

from decider_native.decider import Row
from decider_native.engine import Engine

Reader: TypeAlias = Callable[[Sequence[Row]], Sequence[Any]]  # a reading of each row, in its package's own form

LLAMA_BENCH = ROOT / "build" / "llama-bench"
UBATCHES = (32, 64, 128, 256, 512)


class LeftOut(Exception):  # noqa: N818 - it is no fault
    """A peer that cannot be measured here; the message says why."""


def rows_alone(engine: Engine, rows: Sequence[Row]) -> list[Any]:
    """Read every row in a call of its own, from nothing: no text is shared."""
    return [engine.read([row.ids], [len(row.options)]).rows[0] for row in rows]


def restored_prefix(engine: Engine, rows: Sequence[Row]) -> list[Any]:
    """Read the rows' longest common prefix once, save the state, and restore it for every row in turn."""
    shared = common_prefix(rows)
    kept = engine.keep(rows[0].ids[:shared])
    readings = rows_alone(engine, rows)
    del kept  # the engine finds the state for as long as it is held
    return readings


def common_prefix(rows: Sequence[Row]) -> int:
    """Tokens that all rows begin with; every row has at least one more."""
    shortest = min(len(row.ids) for row in rows) - 1
    columns = zip(*(row.ids[:shortest].tolist() for row in rows), strict=True)
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), shortest)


def open_decider_ai(model: Path, tokenizer: Path, threads: int, context_tokens: int) -> Reader:
    """Open decider-ai's own GGUF engine, which decodes every row from nothing.

    Parameters
    ----------
    tokenizer
        Folder with the model's Hugging Face tokenizer, out of which decider-ai takes the ids of its labels.

    Raises
    ------
    LeftOut
        It is not installed, or does not open the model.
    """
    try:
        package: Any = importlib.import_module("decider.engine_gguf")
    except ImportError as error:
        raise LeftOut(f'not installed (pip install "decider-ai[gguf]"): {error}') from error
    try:
        engine = package.GGUFEngine(str(model), str(tokenizer), n_ctx=context_tokens, n_gpu_layers=0, n_threads=threads)
    except Exception as error:  # another project's: whatever it is, the other contestants still run
        raise LeftOut(f"does not open the model: {last_line(str(error))}") from error

    def read(rows: Sequence[Row]) -> Any:
        return engine.score_items(
            [{"ids": row.ids.tolist(), "slots": [len(row.ids) - 1], "nopts": [len(row.options)]} for row in rows]
        )

    return read


def open_llama_cpp(model: Path, threads: int, context_tokens: int) -> Reader:
    """Open llama-cpp-python, whose sequence state is saved after the longest common prefix and restored for every row.

    Raises
    ------
    LeftOut
        It is not installed, or does not open the model.
    """
    try:
        package: Any = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise LeftOut(f"not installed (pip install llama-cpp-python): {error}") from error
    limits = {"n_ctx": context_tokens, "n_threads": threads, "n_threads_batch": threads}
    try:
        llama = package.Llama(str(model), n_gpu_layers=0, verbose=False, **limits)
    except Exception as error:
        raise LeftOut(f"does not open the model: {last_line(str(error))}") from error

    def read(rows: Sequence[Row]) -> list[Any]:
        shared = common_prefix(rows)
        llama.reset()
        llama.eval(rows[0].ids[:shared].tolist())
        state = llama.save_state()
        logits = []
        for row in rows:
            llama.load_state(state)
            llama.eval(row.ids[shared:].tolist())
            logits.append(np.ctypeslib.as_array(llama._ctx.get_logits(), (llama.n_vocab(),)).copy())
        return logits

    return read


class LlamaBench:
    """llama.cpp's own benchmark, out of the source that this package compiles.

    Parameters
    ----------
    program
        A built llama-bench; None: it is built into build/llama-bench, once, which takes minutes.

    Raises
    ------
    LeftOut
        It is not there and cannot be built.
    """

    def __init__(self, program: Path | None) -> None:
        self._program = program or _build()
        if not self._program.is_file():
            raise LeftOut(f"there is no llama-bench at {self._program}")

    def rates(self, model: Path, tokens: int, threads: int, sizes: Sequence[int]) -> dict[int, float]:
        """Tokens per second of one prompt of so many tokens, by ubatch size."""
        limits = ["-ub", ",".join(map(str, sizes)), "-t", threads, "-r", 1, "-ngl", 0]
        command = [self._program, "-m", model, "-p", tokens, "-n", 0, *limits]
        ran = subprocess.run([*map(str, command), "-o", "json"], capture_output=True, text=True)
        if ran.returncode:
            raise LeftOut(f"llama-bench failed: {last_line(ran.stderr)}")
        return {test["n_ubatch"]: test["avg_ts"] for test in json.loads(ran.stdout)}


def _build() -> Path:
    cmake = shutil.which("cmake")
    if cmake is None:
        raise LeftOut("llama-bench is not built: there is no cmake")
    named = os.environ.get("DECIDER_NATIVE_LLAMA_CPP")
    source = Path(named) if named else ROOT / "vendor" / "llama.cpp"
    off = ("BUILD_SHARED_LIBS", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_OPENSSL")
    options = [*(f"-D{name}=OFF" for name in off), f"-DLLAMA_BUILD_COMMIT={BUILD}", f"-DLLAMA_BUILD_NUMBER={BUILD[1:]}"]
    fetch = [] if named else [[sys.executable, str(ROOT / "vendor" / "fetch.py")]]
    commands = [
        *fetch,
        [cmake, "-S", str(source), "-B", str(LLAMA_BENCH), "-DCMAKE_BUILD_TYPE=Release", *options],
        [cmake, "--build", str(LLAMA_BENCH), "--config", "Release", "--parallel", "--target", "llama-bench"],
    ]
    program = LLAMA_BENCH / "bin" / "llama-bench"
    if not program.exists():
        print(f"building llama-bench in {LLAMA_BENCH}, which takes minutes", file=sys.stderr)
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise LeftOut(f"llama-bench is not built: {last_line(ran.stderr or ran.stdout)}")
    return program


def last_line(text: str) -> str:
    """Return where a program says what went wrong."""
    return (text.strip().splitlines() or ["no message"])[-1]
