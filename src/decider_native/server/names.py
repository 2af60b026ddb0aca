"""The model names that a server answers to, and its list of models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decider_native.models import DEFAULT_MODEL, lookup

from .errors import HttpError

__all__ = ["Names"]

_ALIASES = ("jev-latest", "gpt-6-luna")
_ALIAS = re.compile(r"jev-.*|typesafe/.*|gpt-6-luna", re.IGNORECASE | re.DOTALL)


class Names:
    """What requests may call the model.

    Parameters
    ----------
    model
        The model as `Decider` takes it.
    strict
        Only its own names will do.

    Attributes
    ----------
    name
        The real name, which answers echo.

    Raises
    ------
    ModelNotFound
        A ``hf:`` name that cannot be read.
    """

    def __init__(self, model: str | os.PathLike[str] | None, strict: bool) -> None:
        model = DEFAULT_MODEL if model is None else model
        entry = lookup(model) if isinstance(model, str) else None
        self.name = entry.name if entry else Path(model).stem
        self.revision = entry.revision if entry else None
        self._summary = entry.summary if entry else ""
        self._own = (self.name, *(entry.aliases if entry else ()))
        self._aliases = () if strict else _ALIASES
        self._strict = strict

    def check(self, asked: object) -> None:
        """Refuse a request's ``model`` that is not served here; none, or null, always is.

        Raises
        ------
        HttpError
            404 for another model, 422 for what is no text.
        """
        if asked is None:
            return
        if not isinstance(asked, str):
            raise HttpError(422, "must be text", place=("model",))
        own = asked.casefold() in (name.casefold() for name in self._own)
        if not own and (self._strict or not _ALIAS.fullmatch(asked)):
            raise HttpError(404, f"{asked[:60]!r} is not served here; ask for {self.name!r}, or leave model out")

    def listing(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The body of ``/v1/models``, for TypeSafe and OpenAI clients at once.

        Parameters
        ----------
        facts
            What `Decider.info` says; empty while the model has never been loaded.
        """
        summary = self._summary or str(facts.get("description", ""))
        known = {"x_context_window": facts["context_tokens"], "x_max_options": facts["labels"]} if facts else {}
        models, data = [], []
        for name in (*self._own, *self._aliases):
            text = summary if name == self.name else f"another name of {self.name}"
            models.append({"name": name, "description": text, "release_date": "", **known})
            data.append({"id": name, "object": "model", "created": 0, "owned_by": "decider-native"})
        return {"models": models, "object": "list", "data": data}
