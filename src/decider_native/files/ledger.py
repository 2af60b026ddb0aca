"""What the decision calls of a process have cost so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..answers import Usage
from .results import Result

__all__ = ["Ledger", "Totals"]


@dataclass(frozen=True, slots=True)
class Totals(Result):
    """Sums over decision calls, and all of them on one `line`; `cost_usd` is None unless both prices are known."""

    calls: int
    questions: int
    input_tokens: int
    output_tokens: int
    elapsed_ms: int
    cost_usd: float | None
    line: str


class Ledger:
    """Counts decision calls. Thread-safe.

    Parameters
    ----------
    price_in, price_out
        USD per million tokens; None: not known.
    """

    def __init__(self, price_in: float | None = None, price_out: float | None = None) -> None:
        self._prices = price_in, price_out
        self._lock = threading.Lock()
        self._calls = self._questions = self._input = self._output = self._elapsed_ms = 0

    def record(self, questions: int, usage: Usage, elapsed_ms: int) -> None:
        """Add one answered call."""
        with self._lock:
            self._calls += 1
            self._questions += questions
            self._input += usage.input_tokens
            self._output += usage.output_tokens
            self._elapsed_ms += elapsed_ms

    def totals(self) -> Totals:
        """The sums so far."""
        price_in, price_out = self._prices
        with self._lock:
            calls, questions, elapsed_ms = self._calls, self._questions, self._elapsed_ms
            read, written = self._input, self._output
        cost, money = None, "no price configured"
        if price_in is not None and price_out is not None:
            cost = (read * price_in + written * price_out) / 1e6
            money = f"${cost:.6f}"
        line = (
            f"{calls} decision call{'s' * (calls != 1)}, {questions} question{'s' * (questions != 1)}, "
            f"{_short(read)} tokens in, {_short(written)} out, {elapsed_ms / 1000:.1f}s, {money}"
        )
        return Totals(calls, questions, read, written, elapsed_ms, cost, line)


def _short(count: int) -> str:
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"
