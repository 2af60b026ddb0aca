"""Bearer keys."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from decider_native.errors import InvalidRequest

from .errors import HttpError

__all__ = ["Keys", "keys_from_environment"]


class Keys:
    """The keys that are let in, held as digests.

    Parameters
    ----------
    keys
        Names of clients to their keys; empty: everyone is let in.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}

    def client(self, authorization: str | None, peer: str) -> str:
        """Return who asks: the name of the key, or the peer's address where no key is needed.

        Raises
        ------
        HttpError
            401: a key is needed, and this is none.
        """
        if not self._digests:
            return peer
        scheme, _, token = (authorization or "").strip().partition(" ")
        given = _digest(token.strip())
        found = None
        for name, known in self._digests.items():  # all of them, so that the time does not tell which one came close
            if hmac.compare_digest(given, known):
                found = name
        if found is None or scheme.lower() != "bearer":
            what = "a key is needed" if not authorization else "this key is not known here"
            raise HttpError(401, f"{what}; send `Authorization: Bearer KEY`", headers={"www-authenticate": "Bearer"})
        return found


def keys_from_environment(variables: Iterable[str]) -> dict[str, str]:
    """Return the keys that environment variables hold, each named after its variable.

    Raises
    ------
    InvalidRequest
        A variable is not set, or empty.
    """
    keys = {}
    for name in variables:
        if not (key := os.environ.get(name, "").strip()):
            raise InvalidRequest(f"the environment variable {name} holds no key; set it, or leave --api-key-env out")
        keys[name] = key
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
