"""Plain-text tables for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["answers", "clean", "size", "table"]

_SHOWN_OPTIONS = 4
_CELL = 40  # widest cell in columns; the last one may be longer


def clean(text: object) -> str:
    """Text that a terminal shows as it is: control characters, which could steer the terminal, are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lines of aligned columns; numbers to the right, the last column as long as it is."""
    cells = [list(header), *([_text(value) for value in row] for row in rows)]
    for line in cells:
        line[:-1] = [_cut(cell) for cell in line[:-1]]
    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = [
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def answers(wire: Mapping[str, Mapping[str, Any]]) -> str:
    """The answers of one evaluation in their wire form, one line each."""
    header = ("QUESTION", "ANSWER", "P", "CONFIDENCE", "PROBABILITIES")
    return table(header, [(name, *_answer(answer)) for name, answer in wire.items()])


def _answer(answer: Mapping[str, Any]) -> tuple[object, ...]:
    if answer["type"] == "noul":
        yes = answer["noul"]
        return ("yes", yes, "", "") if yes > 0.5 else ("no", 1.0 - yes, "", "")
    options = list(answer["probabilities"].items())
    if answer["type"] == "score":
        word, shown = f"{answer['score']:.2f} of {len(options) - 1}", options  # levels stay in their order
    else:
        word, shown = answer["choice"], sorted(options, key=lambda item: -item[1])[:_SHOWN_OPTIONS]
    listing = "  ".join(f"{_cut(clean(name), 24)} {p:.3f}" for name, p in shown)
    more = f"  and {len(options) - len(shown)} more" if len(shown) < len(options) else ""
    return word, max(p for _, p in options), f"{answer['confidence']:.3f}", listing + more


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else clean(value)


def _cut(text: str, width: int = _CELL) -> str:
    if _width(text) <= width:
        return text
    text = text[:width]
    while _width(text) >= width:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """Columns that a terminal gives a text: wide letters take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
