"""What a judge gets to read: the shape of a state, and the check that it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import InvalidRequest
from ..questions import Json, copy_json
from .asking import Asking
from .errors import StateTooLarge
from .reading import Document

__all__ = ["FILES", "as_object", "check_fits", "file_state", "whole_state"]

FILES = "files"
"""The field of a state in which files land."""

_NOTE_SHARE = 4  # the own note may take one part in so many of the budget


def file_state(document: Document) -> dict[str, Json]:
    """The state of a question about one file."""
    return {"path": document.path, "content": document.content}


def whole_state(own: Mapping[str, Json], documents: Sequence[Document]) -> dict[str, Json]:
    """The state of questions about a note and files."""
    files: dict[str, Json] = {document.path: document.content for document in documents}
    return {**own, FILES: files} if files else dict(own)


def as_object(state: Json) -> dict[str, Json]:
    """The fields of a note; none when it says nothing."""
    own = copy_json(state, "state")
    if own is None or (isinstance(own, str) and not own.strip()):
        return {}
    if isinstance(own, dict):
        return own
    if isinstance(own, str):
        return {"text": own}
    if isinstance(own, list):
        return {"items": own}
    raise InvalidRequest(f"must be text, an object or an array; got {type(own).__name__}", field="state")


def check_fits(asking: Asking, tokens: int, own: Mapping[str, Json], documents: Sequence[Document]) -> None:
    """Refuse a state that does not fit.

    Parameters
    ----------
    asking
        The questions.
    tokens
        What the whole state was found to have.
    own, documents
        What it is made of.

    Raises
    ------
    StateTooLarge
        With the size of every part, and a split that fits.
    """
    note = asking.tokens(own) if own else 0
    most = asking.budget // _NOTE_SHARE
    if tokens <= asking.budget and note <= most:
        return
    parts = {document.path: asking.tokens(whole_state({}, [document])) for document in documents}
    kept = own if note <= most else {}
    split: list[list[Document]] = []
    for document in documents:
        if split and asking.tokens(whole_state(kept, [*split[-1], document])) <= asking.budget:
            split[-1].append(document)
        elif asking.tokens(whole_state(kept, [document])) <= asking.budget:
            split.append([document])
    calls = [[document.path for document in group] for group in split]
    told = [f"the state has {tokens} tokens and the questions leave {asking.budget}"]
    if own:
        told.append(f"the own note has {note} and may have {most}")
    told += [f"{path} has {size}" for path, size in parts.items()]
    told += [f"call {i} could take {', '.join(paths)}" for i, paths in enumerate(calls, start=1)]
    if large := [path for path in parts if not any(path in paths for paths in calls)]:
        told.append(f"no call can take {', '.join(large)}")
    if note > most:
        told.append("shorten the note, or put it in a file")
    raise StateTooLarge("; ".join(told), tokens=tokens, limit=asking.budget, note=note, parts=parts, split=calls)
