"""The pipeline: typed questions about states in, typed answers out, in one native call."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .answers import Answer, Diagnostics, Result, Usage
from .chat import chat_layout
from .config import LayoutName, ReadoutConfig, Temperatures, config_from_metadata
from .context import Context
from .deadline import deadline, seconds_left
from .errors import InvalidRequest, PayloadTooLarge
from .off_loop import off_loop
from .progress import Progress, showing
from .prompts import Layout, Piece, PlainLayout, SchemaFirstLayout, question_rows, render_state
from .questions import Json, Kind, Question, Questions, parse_questions

if TYPE_CHECKING:
    from .contract import DeciderJudge
    from .engine import Mode, Readings, TokenIds
    from .models import ConfigSource
    from .scoring import RowScore

__all__ = ["Decider", "Questions", "Row", "evaluate"]


@dataclass(frozen=True, slots=True)
class Row:
    """What the model reads for one answer, or for one level of a score.

    Attributes
    ----------
    question_id, kind
        The question it belongs to and that question's type.
    options
        Option texts as the model sees them; the answer is read over the first ``len(options)`` labels.
    ids
        Token ids, int32 of shape (tokens,).
    text
        The text these tokens stand for.
    """

    question_id: str
    kind: Kind
    options: tuple[str, ...]
    ids: TokenIds = field(repr=False)
    text: str


@dataclass(frozen=True, slots=True)
class _Row:
    kind: Kind
    options: tuple[str, ...]
    ids: TokenIds
    context: int  # leading tokens that later calls may share: the state, or the question where that comes first


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One evaluation on its way: its questions, and each question's rows."""

    questions: dict[str, Question]
    rows: dict[str, list[_Row]]

    def all_rows(self) -> list[_Row]:
        return [row for rows in self.rows.values() for row in rows]


class Decider:
    """A model that answers typed questions about a state. Thread-safe; a context manager.

    Parameters
    ----------
    model
        A catalogue name (``"decider-4b-v2"``, ``"demo"``), the path of a GGUF file,
        ``"hf:owner/repository/file.gguf"``, or None for the default model.
    device
        ``"auto"`` (the first GPU, else the CPU), ``"cpu"``, a backend such as ``"vulkan"``, or a device's exact name.
    gpu_layers
        Layers kept on the GPU; None: all of them, 0: none.
    threads
        CPU threads; None: the cores this process may use, at most 8.
    context_tokens
        The longest row (a state and one question) in tokens, at most what the model was trained for.
    parallel_questions
        Rows that share one decode step. It changes the speed, and in exact mode no answer; but there it is at most 7
        (8 on a GPU) and takes memory: cells for `context_tokens` of so many rows and four more. None: 8 in fast mode;
        in exact mode 4 (8 on a GPU) where all rows of a call have at most 1016 tokens, or what half of the weights'
        size holds for them, else 1.
    mode
        ``"exact"``: an answer is the same, bit for bit, whatever else is in the call. ``"fast"`` gives that up for
        speed. ``"auto"``: exact unless a GPU does the work.
    context_cache_bytes
        Bound of the memory that keeps prefilled states between calls: a state that is asked about again costs only its
        questions, and the answers are the same bits. 0: none are kept; None: an eighth of the weights' size.
    parse_special
        True: text such as ``<|im_end|>`` in a state becomes that control token, as decider-ai reads it. False: text is
        text.
    self_check
        Whether a GPU must give the CPU's probabilities, within 0.1, for three short rows before it is used. One that
        fails is an error, or with ``device="auto"`` a warning, and the CPU does the work.
    temperature, temperature_by_type, layout, isolated_levels
        Override what the model's configuration says. The layout ``"schema_first"`` puts the questions before the state:
        then it is the same questions about many states that share what is read. Only for models trained for it, with
        temperatures of its own.
    chat_template
        Jinja source for the chat layout, in place of the file's own.
    config
        A decider_config.json (path or contents), in place of the one beside the model.

    Raises
    ------
    ModelNotFound, ModelLoadError, ConfigError, BackendError, InvalidRequest
        The model cannot be had, loaded or configured as asked; each says what to do.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
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
        temperature: float | None = None,
        temperature_by_type: Mapping[Kind, float] | None = None,
        layout: LayoutName | None = None,
        isolated_levels: bool | None = None,
        chat_template: str | None = None,
        config: ConfigSource | None = None,
    ) -> None:
        # what only an open model needs comes with it: numpy and these take most of an import's time
        from .contract import DeciderJudge
        from .engine import Engine
        from .models import resolve

        overrides = (temperature, temperature_by_type, layout, isolated_levels)
        # a faulty argument fails before the model loads
        ReadoutConfig(schema_first=Temperatures()).override(*overrides)
        resolved = resolve(model, config=config)
        self.name = resolved.name
        self.path = resolved.path
        self._engine = Engine(
            resolved.path,
            device=device,
            gpu_layers=gpu_layers,
            threads=threads,
            context_tokens=context_tokens,
            parallel_questions=parallel_questions,
            mode=mode,
            context_cache_bytes=context_cache_bytes,
            parse_special=parse_special,
            self_check=self_check,
        )
        try:
            known = resolved.config or config_from_metadata(self._engine.metadata, str(self.path)) or ReadoutConfig()
            self.config = known.override(*overrides)
            self._layout = self._make_layout(chat_template)
        except BaseException:
            self._engine.close()
            raise
        self._file_bytes = self.path.stat().st_size
        self._judge = DeciderJudge(self)

    def _make_layout(self, chat_template: str | None) -> Layout:
        if self.config.layout == "plain":
            return PlainLayout()
        if self.config.layout == "schema_first":
            return SchemaFirstLayout()
        tokens = [self._engine.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")]
        bos, eos = ("" if token is None else self._engine.token_text(int(token)) for token in tokens)
        return chat_layout(chat_template or self._engine.chat_template, bos, eos)

    @property
    def device(self) -> str:
        """Name of the device that does the work."""
        return self._engine.device

    @property
    def mode(self) -> Mode:
        """``"exact"`` or ``"fast"``."""
        return self._engine.mode

    @property
    def context_tokens(self) -> int:
        """Longest row in tokens."""
        return self._engine.context_tokens

    def evaluate(
        self,
        state: Json,
        questions: Questions,
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Result:
        """Answer questions about one state.

        Parameters
        ----------
        state
            Text, or any JSON value.
        questions
            Question ids (never shown to the model) to `Noul`, `Choice`, `Score` or their wire form.
        timeout
            Seconds for the whole call, waiting for other calls included.
        cancel
            Set it from another thread to stop the call within about one decode step.

        Raises
        ------
        InvalidRequest
            A state or question that cannot be asked; names the question and field.
        PayloadTooLarge
            A row that does not fit the context; nothing is ever truncated.
        DeadlineExceeded, Cancelled, Closed
            What stopped the call.
        BackendError
            The device failed.
        """
        return self.evaluate_many([(state, questions)], timeout=timeout, cancel=cancel)[0]

    def evaluate_many(
        self,
        evaluations: Iterable[tuple[Json, Questions]],
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | bool = False,
    ) -> list[Result]:
        """Answer questions about several states in one native call, in order; text they share is decoded once.

        All or nothing: one evaluation that cannot be asked fails the call before anything is decoded. Errors as for
        `evaluate`; `Diagnostics` counts the whole call.

        Parameters
        ----------
        progress
            Called about 50 times a second, on the calling thread, with the tokens that are read and those there are in
            all; what it raises stops the call. True: a bar on standard error.
        """
        with showing(progress) as report:
            return self._evaluate(evaluations, {}, timeout, cancel, report)

    def context(
        self,
        state: Json,
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | bool = False,
    ) -> Context:
        """Read a state once and keep what the model made of it, to ask, look, and ask again.

        The answers are the same bits as those of `evaluate`. The memory it holds comes on top of `context_cache_bytes`;
        closing the context frees it. Parameters and errors as for `evaluate_many`; `InvalidRequest` in the
        ``"schema_first"`` layout, where no row begins with the state.
        """
        if not self._layout.state_first:
            raise InvalidRequest(
                f"the model is asked in the {self.config.layout!r} layout, where no row begins with the state: "
                "there is nothing to keep of it; use evaluate, or the plain layout"
            )
        until = deadline(timeout)
        known: dict[Piece, TokenIds] = {}
        ids = self._context_ids(state, known)
        if len(ids) >= self.context_tokens:
            raise PayloadTooLarge(
                f"the state has {len(ids)} tokens; the context holds {self.context_tokens}; shorten the state or raise "
                "context_tokens",
                tokens=len(ids),
                limit=self.context_tokens,
            )
        with showing(progress) as report:
            cancelled = None if cancel is None else cancel.is_set
            kept = self._engine.keep(ids, timeout=seconds_left(until), cancelled=cancelled, progress=report)

        def ask(questions: Questions, timeout: float | None, cancel: threading.Event | None) -> Result:
            return self._evaluate([(state, questions)], dict(known), timeout, cancel, None)[0]

        return Context(ask, len(ids), kept)

    def _evaluate(
        self,
        evaluations: Iterable[tuple[Json, Questions]],
        known: dict[Piece, TokenIds],
        timeout: float | None,
        cancel: threading.Event | None,
        progress: Progress | None,
    ) -> list[Result]:
        started = time.monotonic()
        until = deadline(timeout)
        prepared = [self._prepare(state, questions, known) for state, questions in evaluations]
        rows = [row for evaluation in prepared for row in evaluation.all_rows()]
        readings = self._engine.read(
            [row.ids for row in rows],
            [len(row.options) for row in rows],
            [row.context for row in rows],
            timeout=seconds_left(until),
            cancelled=None if cancel is None else cancel.is_set,
            progress=progress,
        )
        return self._results(prepared, readings, started)

    async def aevaluate(self, state: Json, questions: Questions, *, timeout: float | None = None) -> Result:
        """As `evaluate`, without blocking the event loop; cancelling the task stops the model."""
        cancel = threading.Event()
        return await off_loop(lambda: self.evaluate(state, questions, timeout=timeout, cancel=cancel), cancel)

    def rows(self, state: Json, questions: Questions) -> list[Row]:
        """What the model reads for these questions, row by row. Errors as for `evaluate`."""
        prepared = self._prepare(state, questions, {})
        return [
            Row(question_id, row.kind, row.options, row.ids, self._engine.text(row.ids))
            for question_id, rows in prepared.rows.items()
            for row in rows
        ]

    def longest_row(self, state: Json, questions: Questions) -> int:
        """Tokens of the longest row that a state and questions make; 0: nothing to ask. Errors as for `evaluate`."""
        return max((len(row.ids) for row in self._prepare(state, questions, {}).all_rows()), default=0)

    def judge(self, request: Mapping[str, Any] | str | bytes) -> dict[str, Any]:
        """Answer a judge::evaluate request, or the JSON text of one. A bad request is an error envelope."""
        return self._judge.evaluate(request)

    @property
    def as_judge(self) -> DeciderJudge:
        """This model behind the judge contract: `evaluate`, `cancel` and `models`."""
        return self._judge

    def info(self) -> dict[str, Any]:
        """Facts about the loaded model, as JSON values; sizes in bytes."""
        temperatures = self.config.temperatures
        return {
            "name": self.name,
            "path": str(self.path),
            "file_bytes": self._file_bytes,
            "description": self._engine.description,
            "architecture": self._engine.metadata.get("general.architecture", ""),
            "parameters": self._engine.parameters,
            "weight_bytes": self._engine.size_bytes,
            "context_tokens": self.context_tokens,
            "labels": self._engine.label_count,
            "temperatures": {kind: temperatures.of(kind, 2) for kind in ("noul", "choice", "score")},
            "layout": self.config.layout,
            "isolated_levels": self.config.isolated_levels,
            "neutralize_none": self.config.neutralize_none,
            "parse_special": self._engine.parse_special,
            "device": self.device,
            "threads": self._engine.threads,
            "mode": self.mode,
            "parallel_questions": self._engine.parallel_questions,
            "parallel_tokens": self._engine.parallel_tokens,
            "cached_contexts": self._engine.context_cache[0],
            "cached_bytes": self._engine.context_cache[1],
        }

    def close(self) -> None:
        """Free the model. A call that runs is stopped and raises `Closed`; closing again does nothing."""
        self._engine.close()

    def __enter__(self) -> Decider:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, state: Json, questions: Questions, known: dict[Piece, TokenIds]) -> _Prepared:
        parsed = parse_questions(questions)
        context = self._context_ids(state, known)
        rows = {
            question_id: self._token_rows(question_id, question, context, known)
            for question_id, question in parsed.items()
        }
        return _Prepared(parsed, rows)

    def _context_ids(self, state: Json, known: dict[Piece, TokenIds]) -> TokenIds:
        ids = self._engine.tokenize(self._layout.context(render_state(state)), known)
        return self._engine.leading_ids(ids) if self._layout.state_first else ids

    def _token_rows(
        self, question_id: str, question: Question, context: TokenIds, known: dict[Piece, TokenIds]
    ) -> list[_Row]:
        rows = []
        for row in question_rows(question_id, question, self.config, self._layout):
            if len(row.options) > self._engine.label_count:
                raise InvalidRequest(
                    f"has {len(row.options)} options; the model's vocabulary holds {self._engine.label_count} labels "
                    "that are one token; use fewer options or another model",
                    question=question_id,
                    field="criteria",
                )
            block = self._engine.tokenize(row.pieces, known)
            parts = [context, block] if self._layout.state_first else [self._engine.leading_ids(block), context]
            ids = self._engine.join(parts)
            if len(ids) > self.context_tokens:
                raise PayloadTooLarge(
                    f"question {question_id[:60]!r}: {len(ids)} tokens, {len(context)} of them the state; "
                    f"the context holds {self.context_tokens}; shorten the state or raise context_tokens",
                    tokens=len(ids),
                    limit=self.context_tokens,
                )
            rows.append(_Row(row.kind, row.options, ids, len(parts[0])))
        return rows

    def _results(self, prepared: Sequence[_Prepared], readings: Readings, started: float) -> list[Result]:
        from .scoring import answer_question, input_tokens, score_row

        remaining = iter(readings.rows)

        def score(question_id: str, row: _Row) -> RowScore:
            reading = next(remaining)
            temperature = self.config.temperatures.of(row.kind, len(row.options))
            return score_row(question_id, reading.logits, temperature, reading.label_mass)

        def answer(evaluation: _Prepared) -> dict[str, Answer]:
            answers: dict[str, Answer] = {}
            for question_id, question in evaluation.questions.items():
                scores = [score(question_id, row) for row in evaluation.rows[question_id]]
                answers[question_id] = answer_question(question, scores)
            return answers

        diagnostics = Diagnostics(
            rows=len(readings.rows),
            decoded_tokens=readings.decoded_tokens,
            padded_tokens=readings.padded_tokens,
            reused_tokens=readings.reused_tokens,
            elapsed_ms=1000 * (time.monotonic() - started),
        )
        return [
            Result(
                self.name,
                answer(evaluation),
                Usage(input_tokens([row.ids for row in evaluation.all_rows()])),
                diagnostics,
            )
            for evaluation in prepared
        ]


_default: Decider | None = None
_default_lock = threading.Lock()


def evaluate(state: Json, questions: Questions, *, timeout: float | None = None) -> Result:
    """Answer questions about one state with the default model, which is loaded on first use and kept.

    Thread-safe. Arguments and errors as for `Decider.evaluate` and `Decider`; the timeout does not count loading.
    """
    global _default
    with _default_lock:
        if _default is None:
            _default = Decider()
    return _default.evaluate(state, questions, timeout=timeout)
