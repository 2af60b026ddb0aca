"""JSON as the specification has it: what `json.loads` lets pass but leaves open is refused, with its place."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from .errors import InvalidRequest

__all__ = ["loads"]

_LONGEST_SHOWN = 60


class _LooseError(ValueError):
    """What the standard parser would let pass."""


def loads(data: bytes | str, where: str) -> Any:
    """Parse one JSON text in UTF-8: no duplicate keys, no NaN, no number beyond a float, nothing after the value.

    Parameters
    ----------
    data
        The text; a byte order mark is allowed.
    where
        What to call it in errors, e.g. a file name.

    Raises
    ------
    InvalidRequest
        It is not such a text; says where (line and column from 1) or which key or number.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float)
    except json.JSONDecodeError as error:
        what = "something follows the JSON value" if error.msg == "Extra data" else error.msg
        raise InvalidRequest(f"{where}: line {error.lineno} column {error.colno}: {what}") from None
    except _LooseError as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"{where}: is nested too deeply; flatten it") from None
    except ValueError:  # Python's own limit on the length of an integer
        digits = sys.get_int_max_str_digits()
        raise InvalidRequest(f"{where}: an integer has more than {digits} digits; give it as a string") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise _LooseError(f"the key {_shown(ascii(twice))} appears twice in one object; keep one")
    return result


def _refuse(constant: str) -> NoReturn:
    raise _LooseError(f"{constant} is not JSON; use a number or null")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _LooseError(f"the number {_shown(digits)} is too large for a float; give it as a string")
    return value


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
