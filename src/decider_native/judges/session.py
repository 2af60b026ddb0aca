"""A judge chosen for one line of work, with a record of every choice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..contract import Call, Judge, Measure, NotServed, Reply
from ..errors import DeciderError, InvalidRequest
from ..questions import Json, Question
from .hub import Hub
from .remote import RemoteJudge
from .settings import NONE, JudgeSettings

__all__ = ["Record", "Session"]


@dataclass(frozen=True, slots=True)
class Record:
    """One choice of a judge, a line of the log.

    Attributes
    ----------
    server
        The judge's name; None: no judge was chosen.
    provider, host, model
        Its kind, address and model as configured at that time.
    actor, at
        Who chose, and when (ISO 8601, UTC).
    """

    server: str | None
    provider: str | None
    host: str | None
    model: str | None
    actor: str
    at: str


class Session(Judge):
    """A judge of its own choice among those of a hub. Thread-safe. Made by `open` or `resume`.

    The choice is looked up in the hub on every call, as it was recorded: when the configuration no longer has that
    judge, or has it with another host or model, a call is refused and never sent elsewhere.

    Attributes
    ----------
    note
        Why a resumed session has no judge; None: it has what was recorded.
    """

    def __init__(self, hub: Hub, log: Path, actor: str) -> None:
        super().__init__("session", limits=hub.limits)
        self.note: str | None = None
        self._hub = hub
        self._log = log
        self._actor = actor
        self._choice: Record | None = None
        self._lock = threading.Lock()
        self._running = 0

    @classmethod
    def open(cls, hub: Hub, log: str | os.PathLike[str], judge: str = "default", *, actor: str = "user") -> Session:
        """Begin a session, which is recorded at the end of a log.

        Parameters
        ----------
        hub
            Where the judges are.
        log
            A JSONL file of `Record`; it is made where there is none.
        judge
            A name, ``"default"`` for the hub's default as it is now, or ``"none"``.
        actor
            Who chooses, for the record.

        Raises
        ------
        DeciderError
            As for `set_judge`.
        """
        session = cls(hub, Path(log), actor)
        session.set_judge(judge)
        return session

    @classmethod
    def resume(cls, hub: Hub, log: str | os.PathLike[str], *, actor: str = "user") -> Session:
        """Go on with the judge of the log's last record, or with none where that judge is not to be had (`note`)."""
        session = cls(hub, Path(log), actor)
        try:
            last = _last_record(session._log)
            if last.server is not None:
                with hub.judge(last.server) as judge:
                    _check_same(last, judge.settings)
            session._choice = last
        except DeciderError as error:
            session.note = f"the session has no judge: {error}"
        return session

    @property
    def provider(self) -> str:
        """Name of the session's judge, or ``"none"``."""
        choice = self._choice
        return NONE if choice is None or choice.server is None else choice.server

    def set_judge(self, judge: str, *, actor: str | None = None) -> None:
        """Choose another judge, between calls: checked first, then recorded, then in effect.

        Parameters
        ----------
        judge
            As for `open`.
        actor
            Who chooses; None: the session's own.

        Raises
        ------
        InvalidRequest
            There is no such judge, the hub's file is invalid as it is now, or a call runs. Nothing has changed.
        MissingKey
            The judge has no key. Nothing has changed.
        DeciderError
            The record cannot be written. Nothing has changed.
        """
        with self._lock:
            if self._running:
                raise InvalidRequest("a call runs; choose a judge between calls", field="judge")
            record = self._record(judge, self._actor if actor is None else actor)
            _append(self._log, record)
            self._choice, self.note = record, None

    def answer(self, call: Call) -> Reply:
        """Hand a call to the session's judge."""
        if call.provider not in (None, self.provider):
            raise NotServed(f"this session's judge is {self.provider!r}; leave provider out, or choose another first")
        with self._judge() as judge:
            return judge.answer(call)

    def list_models(self) -> list[dict[str, Any]]:
        """The models of the session's judge."""
        with self._judge() as judge:
            return judge.list_models()

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure` of the session's judge."""
        with self._judge() as judge:
            return judge.measure(state, questions, call)

    def close(self) -> None:
        """Do nothing: the hub is not the session's own."""

    @contextmanager
    def _judge(self) -> Iterator[Judge]:
        """Hold the session's judge, and with it the choice."""
        with self._lock:
            choice = self._choice
            self._running += 1
        try:
            if choice is None or choice.server is None:
                raise NotServed(self.note or "this session has no judge; choose one with set_judge")
            with self._hub.judge(choice.server) as judge:
                _check_same(choice, judge.settings)
                yield judge
        finally:
            with self._lock:
                self._running -= 1

    def _record(self, judge: str, actor: str) -> Record:
        """Check a choice and the configuration it comes from."""
        settings = self._hub.settings
        if (fault := self._hub.fault) is not None:
            raise InvalidRequest(f"the judges' file is invalid as it is now: {fault}; correct it first", field="judge")
        name = settings.default if judge == "default" else judge
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        if name == NONE:
            return Record(None, None, None, None, actor, at)
        if not isinstance(name, str) or name not in settings.judges:
            known = ", ".join((*settings.judges, NONE))
            raise InvalidRequest(f"there is no judge {str(name)[:60]!r}; known: {known}", field="judge")
        with self._hub.judge(name) as held:
            if isinstance(held, RemoteJudge):
                held.check_key()
            chosen = held.settings
        return Record(name, chosen.provider, chosen.host, chosen.model, actor, at)


def _check_same(choice: Record, now: JudgeSettings) -> None:
    """Refuse a choice that the configuration no longer offers as it was made."""
    for part in ("provider", "host", "model"):
        was, is_now = getattr(choice, part), getattr(now, part)
        if was != is_now:
            raise NotServed(f"the {part} of {choice.server!r} was {was} and is {is_now} now; choose it again")


def _append(log: Path, record: Record) -> None:
    """Write a line at the end of a log, whole or not at all."""
    try:
        line = json.dumps(asdict(record)).encode() + b"\n"
        with log.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":  # a line that was not finished
                line = b"\n" + line
            try:
                if file.write(line) != len(line):
                    raise OSError("it is full")
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):  # what is no plain file cannot be cut
                    file.truncate(end)
                raise
    except (OSError, TypeError, ValueError) as error:  # a full disk; an actor that is no text; a NUL in the path
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise DeciderError(f"cannot write the record to {log}: {reason}; the judge is what it was") from error


def _last_record(log: Path) -> Record:
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
        last = Record(**json.loads(lines[-1]))
        if not all(isinstance(value, str | None) for value in asdict(last).values()):
            raise TypeError("its values must be text or null")
        return last
    except (OSError, ValueError, TypeError, IndexError, RecursionError) as error:
        raise DeciderError(f"the last record of {log} cannot be read ({error}); choose one with set_judge") from None
