"""A model in this process: loaded when it is wanted, released when it is not."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from ..contract import RETRY_AFTER_MS, Call, DeciderJudge, Judge, JudgeError, Limits, Measure, Reply
from ..decider import Decider
from ..errors import Closed, DeciderError, ModelNotFound
from ..models import resolve
from ..questions import Json, Question
from .settings import DeciderSettings
from .status import Status

__all__ = ["LocalJudge", "ModelKeeper"]

KeeperState: TypeAlias = Literal["released", "loading", "ready", "failed", "closed"]

_STOP_SECONDS = 0.05

_logger = logging.getLogger("decider_native.judges")


class LocalJudge(Judge):
    """A judge over a model that it loads and releases itself.

    Parameters
    ----------
    settings
        The model and how to load it.
    limits
        As for `Judge`.

    Attributes
    ----------
    keeper
        Holds the model.
    """

    def __init__(self, settings: DeciderSettings, *, limits: Limits | None = None) -> None:
        super().__init__(settings.name, limits=limits)
        self.settings = settings
        self.keeper = ModelKeeper(lambda: Decider(settings.model, **settings.options))

    def answer(self, call: Call) -> Reply:
        """Answer a call, after loading the model where needed; the call's deadline counts that too."""
        with self._loaded(call) as judge:
            return judge.answer(call)

    def list_models(self) -> list[dict[str, Any]]:
        """The one model; it is loaded for that."""
        with self._loaded(Call()) as judge:
            return judge.list_models()

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure`, in the model's own tokens; it is loaded for that."""
        with self._loaded(call or Call()) as judge:
            return judge.measure(state, questions)

    def status(self) -> Status:
        """Whether the model is loaded, or can be."""
        state, reason = self.keeper.state, self.keeper.reason
        if state == "loading":
            return Status("loading")
        if state == "failed":
            return Status("model_unknown" if self.keeper.not_found else "unreachable", reason)
        if state == "ready":
            return Status("ready")
        try:
            resolve(self.settings.model, config=self.settings.options.get("config"), download=False)
        except ModelNotFound as error:
            return Status("model_unknown", str(error))
        except DeciderError as error:
            return Status("unreachable", str(error))
        return Status("ready", "the first call loads it")

    def close(self) -> None:
        """Release the model; calls that run are stopped."""
        self.keeper.close()

    @contextmanager
    def _loaded(self, call: Call) -> Iterator[DeciderJudge]:
        with self.keeper.use(call) as decider:
            yield DeciderJudge(decider, limits=self.limits, provider=self.provider)


class ModelKeeper:
    """Holds at most one loaded model. Thread-safe.

    Parameters
    ----------
    load
        Makes the `Decider`; called on a thread of its own.

    Attributes
    ----------
    idle_seconds
        When a model that is not to be kept is released, after its last use.
    state
        ``"released"``, ``"loading"``, ``"ready"``, ``"failed"`` (a load, a moment ago) or ``"closed"``.
    reason, not_found
        Why the last load failed, and whether that was for want of the model's file.
    """

    def __init__(self, load: Callable[[], Decider]) -> None:
        self.idle_seconds = 600.0
        self.state: KeeperState = "released"
        self.reason = ""
        self.not_found = False
        self._load = load
        self._changed = threading.Condition()
        self._decider: Decider | None = None
        self._retry_at = 0.0
        self._users = 0
        self._kept = False
        self._release_when_free = False
        self._idle_timer: threading.Timer | None = None

    def keep(self, wanted: bool, *, load: bool = True) -> None:
        """Keep the model once it is loaded; or give it up: it is released when the last call has ended.

        `load`: a model that is wanted is loaded at once, in the background.
        """
        with self._changed:
            if wanted == self._kept:
                return
            self._kept = wanted
            self._release_when_free = not wanted and self.state in ("loading", "ready")
            if wanted and load:
                self._start()
            self._rest()

    @contextmanager
    def use(self, call: Call) -> Iterator[Decider]:
        """Hold the model, loading it first where needed; a load goes on when its waiter has to stop.

        Raises
        ------
        JudgeError
            The load failed, now or a moment ago; it says when it may be tried again.
        DeadlineExceeded, Cancelled
            The call had to stop before the model was there.
        Closed
            The keeper is closed.
        """
        with self._changed:
            self._users += 1
            self._stop_timer()
        try:
            yield self._wait(call)
        finally:
            with self._changed:
                self._users -= 1
                self._rest()

    def close(self) -> None:
        """Release the model; calls that run are stopped, and so are those that wait for it."""
        with self._changed:
            self._stop_timer()
            self._release()
            self.state = "closed"
            self._changed.notify_all()

    def _wait(self, call: Call) -> Decider:
        with self._changed:
            if self.state == "failed" and (left := self._retry_at - time.monotonic()) > 0:
                raise self._load_failed(1 + int(1000 * left))
            self._start()
            while self._decider is None:
                if self.state == "closed":
                    raise Closed("the judge is closed; make a new hub")
                if self.state == "failed":
                    raise self._load_failed(RETRY_AFTER_MS)
                left_s = call.remaining("while the model was loading")
                self._changed.wait(_STOP_SECONDS if left_s is None else min(left_s, _STOP_SECONDS))
            return self._decider

    def _load_failed(self, retry_after_ms: int) -> JudgeError:
        return JudgeError(f"the model failed to load: {self.reason}", retry_after_ms=retry_after_ms)

    def _start(self) -> None:
        if self.state in ("released", "failed"):
            self.state = "loading"
            # daemon: a process that has to end does not wait for a load or a download
            threading.Thread(target=self._run, name="model-load", daemon=True).start()

    def _run(self) -> None:
        decider: Decider | None = None
        try:
            decider = self._load()
        except Exception as error:
            reason = str(error) if isinstance(error, DeciderError) else f"{type(error).__name__}: {error}"
            _logger.error("the model failed to load: %s", reason)
            with self._changed:
                if self.state == "loading":
                    self.state, self.reason, self.not_found = "failed", reason, isinstance(error, ModelNotFound)
                    self._retry_at = time.monotonic() + RETRY_AFTER_MS / 1000
                    self._release_when_free = False
                self._changed.notify_all()
            return
        with self._changed:
            if self.state == "closed":
                decider.close()
                return
            self._decider, self.state, self.reason = decider, "ready", ""
            _logger.info("loaded %s", decider.name)
            self._changed.notify_all()
            self._rest()

    def _rest(self) -> None:
        """Release the model, now or later, when nobody needs it."""
        if self._users or self._kept or self.state != "ready":
            return
        if self._release_when_free:
            self._release()
            return
        self._stop_timer()
        self._idle_timer = threading.Timer(self.idle_seconds, self._release_idle)
        self._idle_timer.daemon = True
        self._idle_timer.start()

    def _release_idle(self) -> None:
        with self._changed:
            if threading.current_thread() is self._idle_timer and not (self._users or self._kept):
                self._release()

    def _release(self) -> None:
        decider, self._decider, self.state = self._decider, None, "released"
        self._release_when_free = False
        if decider is not None:
            _logger.info("released %s", decider.name)
            decider.close()
            _trim()

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _trim() -> None:
    """Give freed memory back to the system: glibc keeps small blocks, such as those of a vocabulary."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
