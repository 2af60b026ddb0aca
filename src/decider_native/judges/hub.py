"""Several judges by name, one of them the default or none, as a file says and keeps saying."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..contract import Call, Judge, Limits, Measure, NotServed, Reply
from ..errors import Closed, InvalidRequest
from ..questions import Json, Question
from .local import LocalJudge
from .mock import MockJudge
from .openai import OpenAIJudge
from .settings import NONE, DeciderSettings, HubSettings, JudgeSettings, MockSettings, read_settings
from .status import JudgeStatus, Status
from .systemone import SystemOneJudge

__all__ = ["DefaultJudge", "Hub"]

AnyJudge: TypeAlias = LocalJudge | MockJudge | SystemOneJudge | OpenAIJudge

_logger = logging.getLogger("decider_native.judges")


@dataclass(slots=True)
class _Seat:
    """A judge in use: how many calls it answers now, and whether the configuration still has it."""

    settings: JudgeSettings
    judge: AnyJudge
    users: int = 0
    retired: bool = False


class Hub(Judge):
    """Named judges behind one contract: a request's ``provider`` names the judge, else the default answers.

    Parameters
    ----------
    settings
        The judges and the default.
    path
        The file that the settings came from. It is looked at on every call, and a change takes effect at once; a change
        to something invalid does not (see `fault`). None: the settings stay.
    preload
        Load the default's model, where it runs in this process, at once and not on its first call.
    limits
        As for `Judge`.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        path: str | os.PathLike[str] | None = None,
        preload: bool = True,
        limits: Limits | None = None,
    ) -> None:
        super().__init__("hub", limits=limits)
        self._path = None if path is None else Path(path)
        self._preload = preload
        self._lock = threading.RLock()
        self._stamp: tuple[int, ...] | None = ()  # not looked at yet
        self._seats: dict[str, _Seat] = {}
        self._fault: str | None = None
        self._closed = False
        self._settings = settings
        self._apply(settings)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, preload: bool = True, limits: Limits | None = None) -> Hub:
        """Make a hub that follows a ``judges.toml``.

        Raises
        ------
        InvalidRequest
            The file cannot be read or is invalid.
        """
        return cls(read_settings(path), path=path, preload=preload, limits=limits)

    @property
    def provider(self) -> str:
        """Name of the default judge, or ``"none"``."""
        return self.settings.default

    @property
    def settings(self) -> HubSettings:
        """The settings in effect."""
        with self._lock:
            self._follow()
            return self._settings

    @property
    def fault(self) -> str | None:
        """What is wrong with the file as it is now, so that the settings before it stay in effect; None: nothing."""
        with self._lock:
            self._follow()
            return self._fault

    def answer(self, call: Call) -> Reply:
        """Hand a call to the judge that it names, or to the default."""
        with self.judge(call.provider) as judge:
            return judge.answer(call)

    def list_models(self) -> list[dict[str, Any]]:
        """The models of the default judge."""
        with self.judge() as judge:
            return judge.list_models()

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure` of the default judge."""
        with self.judge() as judge:
            return judge.measure(state, questions, call)

    @contextmanager
    def judge(self, name: str | None = None) -> Iterator[AnyJudge]:
        """Hold a judge, the default where none is named; while it is held it is not closed.

        Raises
        ------
        NotServed
            There is no such judge, or no default.
        Closed
            The hub is closed.
        """
        with self._lock:
            if self._closed:
                raise Closed("the hub is closed; make a new one")
            self._follow()
            seat = self._seat(self._settings.default if name is None else name)
            seat.users += 1
        try:
            yield seat.judge
        finally:
            with self._lock:
                seat.users -= 1
                over = seat.retired and seat.users == 0
            if over:
                seat.judge.close()

    def judges(self) -> list[JudgeStatus]:
        """Every judge with its state; those on other machines are asked, all at once, for ten seconds at most."""
        with self._lock:
            self._follow()
            default, seats = self._settings.default, list(self._seats.values())
        if not seats:
            return []
        with ThreadPoolExecutor(len(seats)) as pool:
            states = pool.map(_status, (seat.judge for seat in seats))
            return [
                JudgeStatus(
                    name=seat.settings.name,
                    provider=seat.settings.provider,
                    host=seat.settings.host,
                    model=seat.settings.model,
                    price=seat.settings.price,
                    default=seat.settings.name == default,
                    state=status.state,
                    fix=status.fix,
                )
                for seat, status in zip(seats, states, strict=True)
            ]

    def close(self) -> None:
        """Close every judge; calls that run are stopped."""
        with self._lock:
            self._closed = True
            seats, self._seats = list(self._seats.values()), {}
        for seat in seats:
            seat.judge.close()

    def _seat(self, name: str) -> _Seat:
        if name == NONE:
            raise NotServed("none is chosen, so no judge is asked; choose one, e.g. `decider-native judges use NAME`")
        if name not in self._seats:
            raise NotServed(f"there is no judge {name!r}; known: {', '.join(self._seats) or 'none at all'}")
        return self._seats[name]

    def _stat(self) -> tuple[int, ...] | None:
        """What changes when the file does; None: it is not there."""
        try:
            facts = None if self._path is None else self._path.stat()
        except OSError:
            facts = None
        return None if facts is None else (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_size)

    def _follow(self) -> None:
        """Take up a change of the file."""
        if self._path is None or self._closed or (stamp := self._stat()) == self._stamp:
            return
        self._stamp = stamp
        try:
            settings = read_settings(self._path)
        except InvalidRequest as error:
            self._fault = str(error)
            _logger.error("%s; the settings before it stay in effect", error)
            return
        self._fault = None
        if settings != self._settings:
            self._settings = settings
            self._apply(settings)
            _logger.info("%s has changed; the default judge is %s", self._path, settings.default)

    def _apply(self, settings: HubSettings) -> None:
        before, self._seats = self._seats, {}
        for name, wanted in settings.judges.items():
            seat = before.get(name)
            if seat is None or seat.settings != wanted:
                seat = _Seat(wanted, _make(wanted, self.limits))
            else:
                del before[name]
            self._seats[name] = seat
        for seat in before.values():
            seat.retired = True
            if seat.users == 0:
                seat.judge.close()
        # released before the next one is loaded
        for seat in sorted(self._seats.values(), key=lambda seat: seat.settings.name == settings.default):
            if isinstance(seat.judge, LocalJudge):
                seat.judge.keeper.idle_seconds = 60 * settings.idle_minutes
                kept = settings.preload_all or seat.settings.name == settings.default
                seat.judge.keeper.keep(kept, load=self._preload)


class DefaultJudge(Judge):
    """A hub's default and no other, for callers who choose no judge: where content goes is the owner's choice."""

    def __init__(self, hub: Hub, *, limits: Limits | None = None) -> None:
        super().__init__("default", limits=limits)
        self._hub = hub

    def answer(self, call: Call) -> Reply:
        """Hand a call to the default judge."""
        if call.provider is not None:
            raise NotServed("callers choose no judge here, its owner does; leave provider out")
        return self._hub.answer(call)

    def list_models(self) -> list[dict[str, Any]]:
        """The models of the default judge."""
        return self._hub.list_models()

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure` of the default judge."""
        return self._hub.measure(state, questions, call)

    def close(self) -> None:
        """Do nothing: the hub is not the judge's own."""


def _make(settings: JudgeSettings, limits: Limits) -> AnyJudge:
    if isinstance(settings, DeciderSettings):
        return LocalJudge(settings, limits=limits)
    if isinstance(settings, MockSettings):
        return MockJudge(settings, limits=limits)
    kind = SystemOneJudge if settings.provider == "systemone" else OpenAIJudge
    return kind(settings, limits=limits)


def _status(judge: AnyJudge) -> Status:
    return Status("ready") if isinstance(judge, MockJudge) else judge.status()
