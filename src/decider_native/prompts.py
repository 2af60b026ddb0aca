"""decider's prompt layouts: a state and its questions become rows of text pieces.

A row is read at its last token, always `` (``: the next-token logits of the option labels are the answer. Pieces are
tokenized one by one, which is part of the layout: two pieces do not always give the tokens of their joined text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from .config import ReadoutConfig
from .errors import ModelLoadError
from .questions import Choice, Json, Kind, Noul, Question, Score, copy_json, is_blank

__all__ = [
    "DEFAULT_QUESTION",
    "INDEXED_LENGTH",
    "NARROW",
    "USER_CONTENT",
    "ChatLayout",
    "Control",
    "Label",
    "Layout",
    "Piece",
    "PlainLayout",
    "PromptRow",
    "SchemaFirstLayout",
    "question_rows",
    "render_state",
]

NARROW = 10
"""Most options whose labels are plain letters in the text; with more, each label is a token of its own."""

INDEXED_LENGTH = 8
"""Length from which the elements of an array carry their position, so that `records[47]` is found by reading."""

DEFAULT_QUESTION = "Which answer fits the context?"
USER_CONTENT = "@@decider-user-content@@"
"""Stands for the user's text when a chat template is rendered to be split."""

_LETTERS = "ABCDEFGHIJ"
_ANSWER = "Answer: ("
_LEVEL_QUESTION = "{question}\nProposed answer: {level}\nDoes the proposed answer fit?"
_LEVEL_NUMBER = re.compile(r"^\s*-?\d+\s*:\s*")
_NEUTRAL = "not listed here"
_THINKING = (("<think>\n", "</think>\n\n"), ("<think>", "</think>\n\n"), ("<|channel>thought\n", "<channel|>"))


@dataclass(frozen=True, slots=True)
class Label:
    """One label token, by its place in the model's label table: A, B, ..."""

    index: int


@dataclass(frozen=True, slots=True)
class Control:
    """Text of a chat template, which may hold control tokens; a caller's text never is one."""

    text: str


Piece: TypeAlias = str | Label | Control


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row: its answer is read over the labels of `options`.

    Attributes
    ----------
    question_id, kind
        The question it belongs to and that question's type, which sets its temperature.
    options
        Option texts as the model sees them.
    pieces
        The question's block; `Layout.state_first` says on which side of the state's it stands.
    """

    question_id: str
    kind: Kind
    options: tuple[str, ...]
    pieces: tuple[Piece, ...]


class Layout(Protocol):
    """Where the context and a question stand in a prompt. A row ends where the label is read.

    Attributes
    ----------
    state_first
        A row is the state's pieces and then a question's; otherwise the question's come first.
    """

    state_first: ClassVar[bool]

    def context(self, state_text: str) -> tuple[Piece, ...]:
        """Pieces of the state, the same in every row of an evaluation."""

    def block(self, question_text: str, options: Sequence[str]) -> tuple[Piece, ...]:
        """Pieces of one question."""


@dataclass(frozen=True, slots=True)
class PlainLayout:
    """The layout decider models are trained in."""

    state_first: ClassVar[bool] = True

    def context(self, state_text: str) -> tuple[Piece, ...]:
        """One piece."""
        return (_context_text(state_text),)

    def block(self, question_text: str, options: Sequence[str]) -> tuple[Piece, ...]:
        """One piece for up to `NARROW` options, else pieces around the labels."""
        head, answer = _question_text(question_text), f"\n{_ANSWER}"
        if len(options) <= NARROW:
            return (head + _lettered(options) + answer,)
        return (head, *_labelled(options), answer)


@dataclass(frozen=True, slots=True)
class SchemaFirstLayout:
    """Questions stand before the state: many states share what is read of a question. Some decider models know it."""

    state_first: ClassVar[bool] = False

    def context(self, state_text: str) -> tuple[Piece, ...]:
        """Three pieces: what announces the state, the state, and the answer's start."""
        return ("\n\nContext:\n", state_text, f"\n\n{_ANSWER}")

    def block(self, question_text: str, options: Sequence[str]) -> tuple[Piece, ...]:
        """The question, then one piece for up to `NARROW` options, else pieces around the labels."""
        return (_question_text(question_text).removeprefix("\n\n"), *_shown(options))


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """One user turn of a chat template holds context and question; the assistant turn starts the answer.

    Attributes
    ----------
    head, tail
        The template's text before and after the user's text.
    """

    state_first: ClassVar[bool] = True

    head: str
    tail: str

    @classmethod
    def from_rendered(cls, rendered: str) -> ChatLayout:
        """Split a chat template rendered for one user turn that says `USER_CONTENT`, with the assistant's turn opened.

        A thinking block that the template leaves open is closed.

        Raises
        ------
        ModelLoadError
            The rendered text does not hold `USER_CONTENT` exactly once.
        """
        parts = rendered.split(USER_CONTENT)
        if len(parts) != 2:
            raise ModelLoadError(
                f"the model's chat template shows the user's text {len(parts) - 1} times instead of once; "
                "give another chat template, or use the plain layout"
            )
        head, tail = parts
        for opened, closed in _THINKING:
            if tail.endswith(opened):
                tail += closed
        return cls(head, tail)

    def context(self, state_text: str) -> tuple[Piece, ...]:
        """Two pieces: the template's head and the context."""
        return (Control(self.head), _context_text(state_text))

    def block(self, question_text: str, options: Sequence[str]) -> tuple[Piece, ...]:
        """Question, options, the template's tail and the answer's start, each a piece of its own."""
        return (_question_text(question_text), *_shown(options), Control(self.tail), _ANSWER)


def render_state(state: Json) -> str:
    """Text of a state: a string as it is, anything else as JSON with positions written into long arrays.

    Every array of `INDEXED_LENGTH` or more elements, at any depth, becomes ``{"_index": i, ...}`` per object and
    ``{"_index": i, "value": ...}`` per other element; an object's own ``_index`` keeps its value and moves first.

    Raises
    ------
    InvalidRequest
        A value that is not JSON; `field` is its path, which starts with ``state``.
    """
    return _text(_indexed(copy_json(state, "state")))


def question_rows(question_id: str, question: Question, config: ReadoutConfig, layout: Layout) -> list[PromptRow]:
    """Rows that answer a question: one, or one per level of a score with isolated levels; none for a single option."""

    def row(text: str, options: Sequence[str]) -> PromptRow:
        shown = tuple(map(_neutral, options)) if config.neutralize_none else tuple(options)
        return PromptRow(question_id, question.kind, shown, layout.block(text, shown))

    asked = DEFAULT_QUESTION if is_blank(question.instructions) else _text(question.instructions)
    match question:
        case Noul(criteria=ends):
            return [row(asked, [_described("no", ends.get("false")), _described("yes", ends.get("true"))])]
        case Choice(criteria=options):
            described = [_described(name, description) for name, description in options.items()]
            return [row(asked, described)] if len(described) > 1 else []
        case Score(criteria=criteria, isolated=isolated):
            levels = [_text(level) for level in criteria]
            if isolated and config.isolated_levels:
                return [row(_level_question(asked, level), ["no", "yes"]) for level in levels]
            return [row(asked, [f"{i}: {level}" for i, level in enumerate(levels)])]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _indexed(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _indexed(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_indexed(item) for item in value]
        if len(items) < INDEXED_LENGTH:
            return items
        return [
            {"_index": i, **item} if isinstance(item, dict) else {"_index": i, "value": item}
            for i, item in enumerate(items)
        ]
    return value


def _described(name: str, description: Json) -> str:
    return name if is_blank(description) else f"{name}: {_text(description)}"


def _level_question(asked: str, level: str) -> str:
    return _LEVEL_QUESTION.format(question=asked, level=_LEVEL_NUMBER.sub("", level))


def _neutral(option: str) -> str:
    # Older decider models learned these very words as a signal to abstain, even where another option fits.
    folded = option.strip().lower()
    abstains = folded.startswith("none of the above") or folded in ("none", "n/a", "none of these")
    return _NEUTRAL if abstains else option


def _context_text(state_text: str) -> str:
    return f"Context:\n{state_text}"


def _question_text(question_text: str) -> str:
    return f"\n\nQuestion: {question_text}\nOptions:"


def _shown(options: Sequence[str]) -> tuple[Piece, ...]:
    return (_lettered(options),) if len(options) <= NARROW else _labelled(options)


def _lettered(options: Sequence[str]) -> str:
    return "".join(f"\n({letter}) {option}" for letter, option in zip(_LETTERS, options, strict=False))


def _labelled(options: Sequence[str]) -> tuple[Piece, ...]:
    return tuple(piece for i, option in enumerate(options) for piece in ("\n(", Label(i), f") {option}"))
