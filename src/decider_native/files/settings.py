"""What the file tools can be told, in code or by the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..deadline import check_timeout
from ..errors import InvalidRequest

__all__ = ["PREFIX", "Settings"]

PREFIX = "DECIDER_NATIVE_FILES_"
"""What the names of the environment variables start with."""

_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the file tools.

    Attributes
    ----------
    enabled
        False: every tool refuses.
    timeout
        Seconds that a tool may take; a judge's own limit may be lower.
    concurrency
        Calls at once, 1 to 64, where a judge is asked file by file. A model in this process is asked once for all.
    max_files
        Most files of one question, 1 to 255.
    max_state_files
        Most files of one state, 1 to 255.
    price_in, price_out
        USD per million tokens; the ledger tells money when both are set.

    Raises
    ------
    InvalidRequest
        A value out of range; names it.
    """

    enabled: bool = True
    timeout: float = 300.0
    concurrency: int = 8
    max_files: int = 255
    max_state_files: int = 20
    price_in: float | None = None
    price_out: float | None = None

    def __post_init__(self) -> None:
        """Refuse what would only fail later."""
        for name, most in (("concurrency", 64), ("max_files", 255), ("max_state_files", 255)):
            count = getattr(self, name)
            if not isinstance(count, int) or not 1 <= count <= most:
                raise InvalidRequest(f"must be from 1 to {most}; got {count!r}", field=name)
        check_timeout(self.timeout)
        for name in ("price_in", "price_out"):
            price = getattr(self, name)
            if price is not None and not (isinstance(price, int | float) and 0 <= price < math.inf):
                raise InvalidRequest(f"must be USD per million tokens, 0 or more; got {price!r}", field=name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Settings from ``DECIDER_NATIVE_FILES_ENABLED``, ``_TIMEOUT``, ``_CONCURRENCY``, ``_MAX_FILES`` and so on.

        A variable that is not there or empty leaves the default.

        Raises
        ------
        InvalidRequest
            A value that cannot be read; names the variable.
        """
        readers: dict[str, Callable[[str], Any]] = {
            "enabled": lambda text: _SWITCH[text.lower()],
            "timeout": float,
            "concurrency": int,
            "max_files": int,
            "max_state_files": int,
            "price_in": float,
            "price_out": float,
        }
        values = {}
        for name, read in readers.items():
            variable = PREFIX + name.upper()
            if text := environment.get(variable):
                try:
                    values[name] = read(text)
                except (KeyError, ValueError):
                    raise InvalidRequest(f"cannot be read: {text!r}", field=variable) from None
        return cls(**values)
