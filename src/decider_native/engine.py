"""One loaded model: pieces of text to token ids, rows of token ids to label logits. The only door to `_native`."""

from __future__ import annotations

import atexit
import logging
import os
import time
import unicodedata
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _native
from .errors import BackendError, Cancelled, Closed, InvalidRequest, ModelLoadError, PayloadTooLarge
from .prompts import Control, Label, Piece

__all__ = [
    "Device",
    "Engine",
    "KeptContext",
    "Mode",
    "Module",
    "Reading",
    "Readings",
    "cpu_features",
    "devices",
    "modules",
    "quantize",
]

KeptContext = _native.KeptContext
Mode: TypeAlias = Literal["auto", "exact", "fast"]
TokenIds: TypeAlias = NDArray[np.int32]

MODES: tuple[Mode, ...] = ("auto", "exact", "fast")

# Tokenizers whose Hugging Face original normalizes to NFC before its BPE; llama.cpp's does not.
_NFC_TOKENIZERS = frozenset({"deepseek-r1-qwen", "olmo", "qwen2", "qwen35"})

_logger = logging.getLogger("decider_native.engine")
_llama_logger = logging.getLogger("decider_native.llama")
# llama.cpp's levels: 1 debug, 2 info, 3 warning, 4 error.
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}

# What a GPU and the CPU must agree on before the GPU is trusted. Kernels round differently, by about 0.02 on weights of
# four bits; a faulty driver is wrong by far more.
_CHECK_TEXTS = (
    "Context:\nThe invoice was paid twice.",
    "Context:\nLogin fails since today.\n\nWhich team?",
    "A. yes\nB. no\nAnswer:",
)
_CHECK_TOKENS = 16
_CHECK_LABELS = 26
_CHECK_BOUND = 0.1

_GPU_KINDS = ("gpu", "igpu")

_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a backend module of this package offers; memory in bytes."""

    name: str
    description: str
    kind: str
    backend: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class Module:
    """A backend module of this package: the backend it brings, or the reason why it is not in use."""

    file: str
    backend: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What the model says at the end of one row.

    Attributes
    ----------
    logits
        Logits of the row's labels before any temperature, float32 of shape (labels,).
    label_mass
        Share of the full next-token probability that these labels hold, 0 to 1.
    """

    logits: NDArray[np.float32]
    label_mass: float


@dataclass(frozen=True, slots=True)
class Readings:
    """The readings of one call, in row order, and the tokens that were decoded or reused for them (padding apart)."""

    rows: tuple[Reading, ...] = ()
    decoded_tokens: int = 0
    padded_tokens: int = 0
    reused_tokens: int = 0


class Engine:
    """A GGUF file on a device, ready to read rows. Thread-safe; calls run one after another on a thread of its own.

    Parameters
    ----------
    path
        The GGUF file.
    device, gpu_layers
        A device as `Decider` takes it, and how many layers go to a GPU (None: all).
    threads
        CPU threads; None: the cores this process may use, at most 8.
    context_tokens
        Longest row in tokens; never more than the model was trained for.
    parallel_questions
        Rows that share one decode step. In exact mode at most 7 (8 on a GPU), and each has memory of its own then:
        `context_tokens` cells for so many rows and four more. None: 8 in fast mode; in exact mode 4 (8 on a GPU) where
        all rows of a call have at most 1016 tokens or what half of the weights' size holds for them, else 1.
    mode
        ``"exact"``: a row's logits are the same bits whatever else is in the call. ``"fast"`` gives that up.
        ``"auto"``: exact unless a GPU does the work.
    context_cache_bytes
        Bound of the memory that keeps prefilled contexts between calls; 0: none. None: an eighth of the weights' size.
    parse_special
        Whether the text of control tokens in a caller's text becomes those tokens.
    self_check
        Whether a GPU must give the CPU's probabilities, within 0.1, for three short rows before it is used.

    Raises
    ------
    ModelLoadError
        The file is no causal language model that llama.cpp can load, or memory does not suffice.
    BackendError
        There is no such device, or it fails the self-check. With ``device="auto"`` a GPU that fails, or cannot hold the
        model, is a warning in the log and the CPU does the work.
    InvalidRequest
        An argument out of range.

    Attributes
    ----------
    context_tokens, label_count
        Longest row in tokens; how many labels the vocabulary holds.
    parallel_questions, parallel_tokens
        How many rows share a decode step at most, and how many tokens such a row has at most.
    device, mode, threads
        What does the work, and how.
    description, parameters, size_bytes, metadata
        llama.cpp's words for the model, its number of weights, their size, and the file's metadata as text.
    chat_template
        The file's own chat template (Jinja), empty where it has none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        gpu_layers: int | None = None,
        threads: int | None = None,
        context_tokens: int = 16384,
        parallel_questions: int | None = None,
        mode: Mode = "auto",
        context_cache_bytes: int | None = None,
        parse_special: bool = False,
        self_check: bool = True,
    ) -> None:
        if mode not in MODES:
            raise InvalidRequest(f"must be one of {', '.join(MODES)}; got {mode!r}", field="mode")
        threads = _in_range(threads if threads is not None else min(8, _usable_cores()), "threads", 1, 512)
        context_tokens = _in_range(context_tokens, "context_tokens", 64, 2**24)
        if parallel_questions is not None:
            parallel_questions = _in_range(parallel_questions, "parallel_questions", 1, 64)
        if context_cache_bytes is not None:
            context_cache_bytes = _in_range(context_cache_bytes, "context_cache_bytes", 0, 2**48)
        if gpu_layers is not None:
            gpu_layers = _in_range(gpu_layers, "gpu_layers", 0, 2**16)
        _native.set_log_level(_wanted_log_level())
        exact = None if mode == "auto" else mode == "exact"

        def open_on(device: str, gpu_layers: int | None) -> tuple[_native.Model, _native.Engine]:
            model = _native.Model(os.fspath(path), device, gpu_layers, exact)
            cache_bytes = model.size_bytes // 8 if context_cache_bytes is None else context_cache_bytes
            engine = _native.Engine(model, threads, context_tokens, parallel_questions, cache_bytes)
            if model.on_gpu and self_check:
                _check_device(os.fspath(path), model, engine, threads)
            return model, engine

        try:
            try:
                model, self._engine = open_on(device, gpu_layers)
            except (BackendError, ModelLoadError) as error:
                if device.lower() != "auto" or not any(d.kind in _GPU_KINDS for d in _native.devices()):
                    raise
                _logger.warning("the GPU does not serve, the CPU does the work: %s", error)
                model, self._engine = open_on("cpu", None)
        finally:
            _forward_log()
        self._open_model: _native.Model | None = model
        self.threads = threads
        self.mode: Mode = "exact" if model.exact else "fast"
        self.parse_special = parse_special
        self.context_tokens = self._engine.context_tokens
        self.parallel_questions = self._engine.parallel_rows
        self.parallel_tokens = self._engine.parallel_rows_tokens
        self.label_count = len(model.labels)
        self.device = model.device
        self.description = model.description
        self.parameters = model.parameters
        self.size_bytes = model.size_bytes
        self.chat_template = model.chat_template
        self.metadata: Mapping[str, str] = model.metadata
        self._labels = model.labels
        self._leading = model.leading_token
        self._normalizes = self.metadata.get("tokenizer.ggml.pre") in _NFC_TOKENIZERS
        self._longest_text = model.longest_token_bytes * self.context_tokens
        _live.add(self)
        _logger.info("selected inference device: %s (%s)", self.device, model.device_description)

    @property
    def _model(self) -> _native.Model:
        if self._open_model is None:
            raise Closed("the model is closed; make a new Decider")
        return self._open_model

    def token_text(self, token: int) -> str:
        """Text of one token, that of a control token included."""
        return self.text(np.array([token], dtype=np.int32))

    def text(self, ids: TokenIds) -> str:
        """Text that token ids of shape (tokens,) stand for."""
        return self._model.detokenize(np.ascontiguousarray(ids)).decode("utf-8", errors="replace")

    def leading_ids(self, ids: TokenIds) -> TokenIds:
        """Put the BOS token before the ids of a prompt where the vocabulary wants one and it is not there yet."""
        if self._leading is None or (len(ids) and ids[0] == self._leading):
            return ids
        return np.concatenate([np.array([self._leading], dtype=np.int32), ids])

    def tokenize(self, pieces: Sequence[Piece], known: dict[Piece, TokenIds]) -> TokenIds:
        """Token ids of pieces, each tokenized on its own, int32 of shape (tokens,).

        Parameters
        ----------
        pieces
            What `prompts` makes.
        known
            Pieces tokenized before in this call; new ones are added.

        Raises
        ------
        PayloadTooLarge
            A text so long that it cannot fit however it is tokenized.
        """
        parts = []
        for piece in pieces:
            ids = known.get(piece)
            if ids is None:
                ids = known[piece] = self._tokenize_piece(piece)
            parts.append(ids)
        return self.join(parts)

    @staticmethod
    def join(parts: Sequence[TokenIds]) -> TokenIds:
        """Token ids one behind the other, int32 of shape (tokens,)."""
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def _tokenize_piece(self, piece: Piece) -> TokenIds:
        if isinstance(piece, Label):
            return self._labels[piece.index : piece.index + 1]
        if isinstance(piece, Control):
            return self._model.tokenize(piece.text, True)
        size = len(piece) if piece.isascii() else len(piece.encode())
        if size > self._longest_text:  # the tokenizer need not see it: no token stands for more than so many bytes
            tokens = -(-size // self._model.longest_token_bytes)
            raise PayloadTooLarge(
                f"a text of {size} bytes is at least {tokens} tokens; the context holds {self.context_tokens}",
                tokens=tokens,
                limit=self.context_tokens,
            )
        text = unicodedata.normalize("NFC", piece) if self._normalizes else piece
        return self._model.tokenize(text, self.parse_special)

    def read(
        self,
        rows: Sequence[TokenIds],
        label_counts: Sequence[int],
        contexts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Readings:
        """Read the first `label_counts[i]` labels at the end of row i; shared prefixes are decoded once.

        Parameters
        ----------
        rows
            Token ids, int32 of shape (tokens,) each.
        label_counts
            1 to 255 per row.
        contexts
            How many leading tokens of each row are its context, which a later call may ask about again: what the cache
            keeps. None, or 0: nothing of it.
        timeout
            Seconds for the whole call, waiting included.
        cancelled
            Asked about 50 times a second on the calling thread; true stops the call.
        progress
            Told as often how many tokens are read and how many there are, those of calls that are read at the same time
            included. What it raises stops the call.

        Raises
        ------
        PayloadTooLarge
            A row longer than `context_tokens`.
        DeadlineExceeded, Cancelled, Closed
            What stopped the call. The engine stays usable, but for the last.
        BackendError
            The device failed, or this process is a fork of the one that loaded the model.
        """
        kept = [0] * len(rows) if contexts is None else contexts
        evaluation = self._run(rows, label_counts, kept, timeout, cancelled, progress)
        logits = np.split(evaluation.logits, np.cumsum(label_counts)[:-1]) if rows else []
        readings = (
            Reading(row, min(1.0, float(np.exp(row.astype(np.float64) - normalizer).sum())))
            for row, normalizer in zip(logits, evaluation.log_normalizers, strict=True)
        )
        return Readings(tuple(readings), evaluation.decoded_tokens, evaluation.padded_tokens, evaluation.reused_tokens)

    def keep(
        self,
        context: TokenIds,
        *,
        timeout: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> KeptContext | None:
        """Read a context, token ids of shape (tokens,), and keep its state outside the cache's bound.

        Rows that start with it start from that state for as long as the result is held. None where it is not kept: the
        context is shorter than a decode step may be, or the model's attention slides and it is longer than the window.
        Arguments and errors as for `read`; the context must be shorter than `context_tokens`.
        """
        row = np.append(context, context[-1:])  # a row reads at least one token behind its context
        return self._run([row], [1], [len(context)], timeout, cancelled, progress, pin=True).context

    def _run(
        self,
        rows: Sequence[TokenIds],
        label_counts: Sequence[int],
        contexts: Sequence[int],
        timeout: float | None,
        cancelled: Callable[[], bool] | None,
        progress: Callable[[int, int], None] | None,
        *,
        pin: bool = False,
    ) -> _native.Evaluation:
        if cancelled is not None and cancelled():
            raise Cancelled("the call was cancelled before the model was asked")
        arrays = _arrays(rows, label_counts, contexts)
        try:
            return self._engine.evaluate(*arrays, pin=pin, timeout=timeout, cancelled=cancelled, progress=progress)
        finally:
            _forward_log()

    @property
    def context_cache(self) -> tuple[int, int]:
        """How many contexts are kept, and their bytes."""
        return self._engine.context_cache

    def close(self) -> None:
        """Stop what runs (it raises `Closed`) and free context and weights. Closing again does nothing."""
        self._engine.close()
        self._open_model = None


def _check_device(path: str, model: _native.Model, engine: _native.Engine, threads: int) -> None:
    """Read the same rows on the model's device and on the CPU; `BackendError` when they disagree."""
    started = time.monotonic()
    rows = [model.tokenize(text, False)[:_CHECK_TOKENS] for text in _CHECK_TEXTS]
    labels = min(_CHECK_LABELS, len(model.labels))
    reference = _native.Engine(_native.Model(path, "cpu", 0, True), threads, 4 * _CHECK_TOKENS, 1, 0)
    on_device, on_cpu = (_label_probabilities(each, rows, labels) for each in (engine, reference))
    difference = float(np.abs(on_device - on_cpu).max())
    if not difference <= _CHECK_BOUND:
        engine.close()
        raise BackendError(
            f"{model.device} ({model.device_description}) fails the self-check: its probabilities differ from the "
            f"CPU's by {difference:.3f}, more than {_CHECK_BOUND}; update its driver, or use device='cpu'"
        )
    _logger.info("self-check of %s: differs by %.1e, %.2f s", model.device, difference, time.monotonic() - started)


def _label_probabilities(engine: _native.Engine, rows: list[TokenIds], labels: int) -> NDArray[np.float64]:
    """Softmax over the first labels at the end of each row, shape (rows, labels)."""
    read = engine.evaluate(*_arrays(rows, [labels] * len(rows), [0] * len(rows)))
    logits = read.logits.astype(np.float64).reshape(len(rows), labels)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return probabilities


def _arrays(
    rows: Sequence[TokenIds], label_counts: Sequence[int], contexts: Sequence[int]
) -> tuple[TokenIds, NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Rows as the extension takes them: all tokens, where each row ends, how many labels, how long its context is."""
    return (
        Engine.join(rows),
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        np.asarray(label_counts, dtype=np.int32),
        np.asarray(contexts, dtype=np.int32),
    )


def devices() -> list[Device]:
    """Every device of the backend modules that loaded on this machine.

    Raises
    ------
    BackendError
        Not even a CPU backend loaded; says which modules there are and why they failed.
    """
    try:
        found = _native.devices()
    finally:
        _forward_log()
    return [Device(d.name, d.description, d.kind, d.backend, d.memory_free, d.memory_total) for d in found]


def modules() -> list[Module]:
    """Every backend module that this package holds, in use or not. Raises as `devices` does."""
    return [Module(m.file, m.backend or None, m.reason or None) for m in _native.modules()]


def cpu_features() -> dict[str, str]:
    """Return what the CPU module in use was compiled for: ``{"AVX2": "1", ...}``. Raises as `devices` does."""
    return dict(_native.cpu_features())


def quantize(source: str | os.PathLike[str], target: str | os.PathLike[str], quantization: str) -> None:
    """Write a quantized copy of a GGUF file with llama.cpp's quantizer.

    Parameters
    ----------
    source, target
        GGUF files; the target is overwritten.
    quantization
        ``"Q4_K_M"``, ``"Q8_0"``, ``"F16"``, ...

    Raises
    ------
    InvalidRequest
        An unknown quantization; names the known ones.
    BackendError
        The quantizer failed; says why.
    """
    try:
        _native.quantize(os.fspath(source), os.fspath(target), quantization)
    finally:
        _forward_log()


def _forward_log() -> None:
    # llama.cpp logs from threads that must not take the GIL; the lines wait in the extension until a call returns
    for level, text in _native.drain_log():
        _llama_logger.log(_LOG_LEVELS.get(level, logging.ERROR), "%s", text)


def _wanted_log_level() -> int:
    return next((level for level, name in _LOG_LEVELS.items() if _llama_logger.isEnabledFor(name)), 5)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_range(value: int, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"must be an integer from {low} to {high}; got {value!r}", field=name)
    return value


@atexit.register
def _close_all() -> None:
    for engine in list(_live):
        engine.close()
