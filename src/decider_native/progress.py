"""How far a long call has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Progress", "showing"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told what is done and what there is to do: tokens, or what other unit a judge has."""


@contextmanager
def showing(progress: Progress | bool) -> Iterator[Progress | None]:
    """Give what a caller's ``progress=`` means: its own function, a bar on standard error, or nothing."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    else:
        from tqdm.auto import tqdm  # comes with huggingface_hub

        with tqdm(unit=" tokens", leave=False) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield show
