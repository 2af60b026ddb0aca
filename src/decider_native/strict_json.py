"""JSON as the specification has it: what `json.loads` lets pass but leaves open is refused, with its place."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, NoReturn

from .errors import InvalidRequest

__all__ = ["loads"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONSTANTS = {"NaN", "Infinity", "-Infinity"}


class _LooseError(ValueError):
    """Raised inside the parser, which does not say where it stands."""


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
        It is not such a text; names the line and column, both counted from 1.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float)
    except json.JSONDecodeError as error:
        what = "something follows the JSON value" if error.msg == "Extra data" else error.msg
        raise _at(text, error.pos, what, where) from None
    except _LooseError:
        position, what = _find_loose(text)
        raise _at(text, position, what, where) from None
    except RecursionError:
        raise InvalidRequest(f"{where}: is nested too deeply; flatten it") from None
    except ValueError:  # Python's own limit on the length of an integer
        digits = sys.get_int_max_str_digits()
        raise InvalidRequest(f"{where}: an integer has more than {digits} digits; give it as a string") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _LooseError
    return result


def _refuse(constant: str) -> NoReturn:
    raise _LooseError


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _LooseError
    return value


def _find_loose(text: str) -> tuple[int, str]:
    """Return place and name of the first fault in a text that is well formed up to there."""
    open_keys: list[set[str] | None] = []  # the keys so far of every open object; None for an array
    before = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "{":
            open_keys.append(set())
        elif token == "[":
            open_keys.append(None)
        elif token in "}]":
            open_keys.pop()
        elif token[0] == '"' and before in ("{", ",") and open_keys and (keys := open_keys[-1]) is not None:
            key = json.loads(token)
            if key in keys:
                return match.start(), f"the key {json.dumps(key, ensure_ascii=False)} appears twice in one object"
            keys.add(key)
        elif token in _CONSTANTS:
            return match.start(), f"{token} is not JSON; use a number or null"
        elif token[0] in "-0123456789" and not math.isfinite(float(token)):
            return match.start(), "a number is too large for a float"
        before = token
    return len(text), "invalid JSON"


def _at(text: str, position: int, what: str, where: str) -> InvalidRequest:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return InvalidRequest(f"{where}: line {line} column {column}: {what}")
