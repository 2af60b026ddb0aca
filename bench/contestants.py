"""The contestants of compare.py and sweep.py, opened once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path

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
        """Why others are not among the readers."""
        return {name: peer for name, peer in self._optional.items() if isinstance(peer, str)}

    @cached_property
    def guests(self) -> dict[str, Guest | str]:
        """Packages in environments of their own, or why they are left out."""
        guests: dict[str, Guest | str] = {}
        for name, python in self._invited.items():
            try:
                guest = Guest(name, python, self.model, self.threads, self.context_tokens)
            except LeftOut as reason:
                guests[name] = str(reason)
            else:
                self._opened.callback(guest.close)
                guests[name] = guest
        return guests

    @cached_property
    def _optional(self) -> dict[str, Reader | str]:
        """Other packages' readers, or why there are none."""
        limits = (self.threads, self.context_tokens)
        tokenizer = self._options.tokenizer or self.model.parent
        peers: dict[str, Reader | str] = {}
        for name, opens in {
            LLAMA_CPP: partial(open_llama_cpp, self.model, *limits),
            DECIDER_AI: partial(open_decider_ai, self.model, tokenizer, *limits),
        }.items():
            try:
                peers[name] = opens()
            except LeftOut as reason:
                peers[name] = str(reason)
        return peers

    @cached_property
    def llama_bench(self) -> LlamaBench:
        """llama.cpp's benchmark. Raises `LeftOut`."""
        return LlamaBench(self._options.llama_bench)
