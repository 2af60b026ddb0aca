"""Whether a judge can be asked, and what to do when it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["JudgeStatus", "State", "Status"]

State: TypeAlias = Literal["ready", "loading", "missing_key", "unreachable", "model_unknown"]


@dataclass(frozen=True, slots=True)
class Status:
    """A judge's state, and in words what there is to know or to do; empty: nothing."""

    state: State
    fix: str = ""


@dataclass(frozen=True, slots=True)
class JudgeStatus:
    """One line of a hub's list.

    Attributes
    ----------
    name, provider, host, model
        As in the configuration; `host` is None for what runs in this process.
    price
        USD per million input tokens; None: not known.
    default
        Whether requests that name no judge go to it.
    state, fix
        As in `Status`.
    """

    name: str
    provider: str
    host: str | None
    model: str
    price: float | None
    default: bool
    state: State
    fix: str
