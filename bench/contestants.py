"""The contestants of compare.py and sweep.py, opened once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from guests import Guest
from harness import Texts
from peers import LeftOut, LlamaBench, Reader, open_decider_ai, open_llama_cpp, restored_prefix, rows_alone

from decider_native import Decider
from decider_native.engine import Engine, Mode

OURS = "decider_native"
ALONE = "rows alone"
PREFIX = "restored prefix"
DECIDER_AI = "decider-ai"
LLAMA_CPP = "llama-cpp-python"

ROW_READERS = (ALONE, PREFIX, LLAMA_CPP, DECIDER_AI)

T = TypeVar("T")


class Bench:
    """The contestants: one file, one machine, the same threads; and new states. A context manager.

    Takes what `add_options` adds to a command line, and guests as ``NAME=PYTHON``.
    """

    def __init__(self, options: argparse.Namespace, guests: Sequence[str] = ()) -> None:
        self.model: Path = options.model
        self.threads: int = options.threads
        self.context_tokens: int = options.context_tokens
        self.repeats: int = options.repeats
        self._scale: float = options.scale
        self._options = options
        self._invited = dict(guest.partition("=")[::2] for guest in guests)
        self._opened = ExitStack()
        self.decider = self._open()
        self.bare = Engine(
            self.model,
            device="cpu",
            threads=self.threads,
            context_tokens=self.context_tokens,
            mode="exact",
            context_cache_bytes=0,
        )
        self._opened.callback(self.bare.close)
        self.texts = Texts(self.bare)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _open(self, *, mode: Mode = "exact", parallel_questions: int | None = None) -> Decider:
        opened = Decider(
            self.model,
            device="cpu",
            threads=self.threads,
            context_tokens=self.context_tokens,
            parallel_questions=parallel_questions,
            mode=mode,
        )
        return self._opened.enter_context(opened)

    def scaled(self, size: int) -> int:
        """Return a size times the scale, at least 1."""
        return max(1, round(self._scale * size))

    def state(self, tokens: int) -> str:
        """Return a new state of so many tokens, times the scale."""
        return self.texts.words(self.scaled(tokens))

    @cached_property
    def fast(self) -> Decider:
        """The model in fast mode."""
        return self._open(mode="fast")

    @cached_property
    def one_row(self) -> Decider:
        """The model with a decode step for every row."""
        return self._open(parallel_questions=1)

    @property
    def readers(self) -> dict[str, Reader]:
        """The peers that read rows."""
        readers: dict[str, Reader] = {
            ALONE: partial(rows_alone, self.bare),
            PREFIX: partial(restored_prefix, self.bare),
        }
        return readers | {name: peer for name, peer in self._optional.items() if not isinstance(peer, str)}

    @property
    def left_out(self) -> dict[str, str]:
        """Why others are not among the readers and guests."""
        return {name: why for name, why in (self._optional | self._guests).items() if isinstance(why, str)}

    @property
    def guests(self) -> dict[str, Guest]:
        """Packages in environments of their own."""
        return {name: guest for name, guest in self._guests.items() if not isinstance(guest, str)}

    @cached_property
    def _guests(self) -> dict[str, Guest | str]:
        def invite(name: str, python: str) -> Guest:
            guest = Guest(name, python, self.model, self.threads, self.context_tokens)
            return self._opened.enter_context(closing(guest))

        return _opened({name: partial(invite, name, python) for name, python in self._invited.items()})

    @cached_property
    def _optional(self) -> dict[str, Reader | str]:
        limits = (self.threads, self.context_tokens)
        tokenizer = self._options.tokenizer or self.model.parent
        return _opened(
            {
                LLAMA_CPP: partial(open_llama_cpp, self.model, *limits),
                DECIDER_AI: partial(open_decider_ai, self.model, tokenizer, *limits),
            }
        )

    @cached_property
    def llama_bench(self) -> LlamaBench:
        """llama.cpp's benchmark. Raises `LeftOut`."""
        return LlamaBench(self._options.llama_bench)


def _opened(openers: Mapping[str, Callable[[], T]]) -> dict[str, T | str]:
    """Open contestants by name; of one that is left out, the reason."""
    opened: dict[str, T | str] = {}
    for name, opens in openers.items():
        try:
            opened[name] = opens()
        except LeftOut as reason:
            opened[name] = str(reason)
    return opened
