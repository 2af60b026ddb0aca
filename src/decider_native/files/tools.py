"""The six tools: typed questions about files, whose text goes to the judge and into no result."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..contract import Call, Judge
from ..deadline import check_timeout
from ..errors import DeciderError, InvalidRequest
from ..off_loop import off_loop
from ..progress import Progress
from ..questions import MAX_OPTIONS, Choice, Json, Kind, Question
from .asking import Asking, Replies
from .errors import FileStateError, OutsideRoot
from .ledger import Ledger
from .questions import bool_question, choice_question, parse, score_question
from .reading import Document, Root, shown
from .results import (
    Answers,
    BoolAnswer,
    ChoiceAnswer,
    FileAnswer,
    FileAnswers,
    FileBool,
    FileChoice,
    FilePick,
    FileScore,
    Meta,
    QuestionType,
    ScoreAnswer,
    Skipped,
    StateSummary,
)
from .scan import scan
from .settings import PREFIX, Settings
from .states import FILES, as_object, check_fits, file_state, whole_state

__all__ = ["QUESTION_ID", "FileTools"]

P = ParamSpec("P")
T = TypeVar("T")

QUESTION_ID = "answer"
"""The id under which the tools with one question ask it."""

_STATE_ID = "state"
_NONE = "none"
_SHOWN_SKIPS = 10


def _asynchronous(
    method: Callable[Concatenate[FileTools, P], T],
) -> Callable[Concatenate[FileTools, P], Coroutine[Any, Any, T]]:
    """The same method off the event loop; cancelling the task stops the judge."""

    @functools.wraps(method)
    async def twin(self: FileTools, /, *args: P.args, **kwargs: P.kwargs) -> T:
        cancel = kwargs.get("cancel")
        if not isinstance(cancel, threading.Event):
            cancel = kwargs["cancel"] = threading.Event()
        return await off_loop(lambda: method(self, *args, **kwargs), cancel)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"FileTools.{twin.__name__}"
    twin.__doc__ = f"As `{method.__name__}`, without blocking the event loop; cancelling the task stops the judge."
    return twin


class FileTools:
    """Typed questions about the files under a root. Thread-safe.

    Every method has an async twin whose name starts with ``a``. All of them take `timeout` (seconds; None: that of the
    settings) and `cancel` (set it from another thread to stop the call).

    Parameters
    ----------
    judge
        Who answers; or a function that is called on every call and gives a context with the judge of that call, such as
        ``functools.partial(hub.judge, "name")``.
    root
        The directory outside of which nothing is read. Paths are relative to it.
    settings
        None: from the environment.
    model
        The model to ask the judge for; None: its own.

    Raises
    ------
    InvalidRequest
        A root that is no directory, or a setting that cannot be read.

    Attributes
    ----------
    ledger
        What the calls have cost.
    """

    def __init__(
        self,
        judge: Judge | Callable[[], AbstractContextManager[Judge]],
        root: str | os.PathLike[str] = ".",
        *,
        settings: Settings | None = None,
        model: str | None = None,
    ) -> None:
        self._judge = judge
        self._root = Root(root)
        self.settings = settings or Settings.from_environment()
        self._model = model
        self.ledger = Ledger(self.settings.price_in, self.settings.price_out)

    def ask_file_bool(
        self,
        path: str,
        question: str,
        *,
        yes: str | None = None,
        no: str | None = None,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> FileBool:
        """Ask a yes/no question about one file.

        Parameters
        ----------
        path
            The file.
        question
            What is asked; it calls the file's text `content`, in backticks.
        yes, no
            What each answer means.

        Raises
        ------
        FileStateError, OutsideRoot
            The file cannot be asked about.
        DeciderError
            The question cannot be asked, or the judge failed; the type says how.
        """
        asked = bool_question(question, yes, no)
        name, answer, meta = self._about_file(path, asked, timeout, cancel)
        return FileBool.read(name, answer, meta=meta)

    def ask_file_choice(
        self,
        path: str,
        question: str,
        options: Mapping[str, str | None],
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> FileChoice:
        """Ask which option fits one file.

        `options` maps names to descriptions (None: none). ``other`` joins them unless one of them is called ``other``,
        ``none`` or ``none_of_the_above``. The rest is as for `ask_file_bool`.
        """
        asked = choice_question(question, options)
        name, answer, meta = self._about_file(path, asked, timeout, cancel)
        return FileChoice.read(name, answer, options=asked.criteria, meta=meta)

    def ask_file_score(
        self,
        path: str,
        question: str,
        levels: Sequence[str],
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> FileScore:
        """Rate one file on 2 to 10 levels, lowest first. The rest is as for `ask_file_bool`."""
        asked = score_question(question, levels)
        name, answer, meta = self._about_file(path, asked, timeout, cancel)
        return FileScore.read(name, answer, legend=answer["legend"], meta=meta)

    def ask_files(
        self,
        patterns: Sequence[str],
        question: Question | Mapping[str, Any],
        *,
        recursive: bool = False,
        gitignore: bool = False,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> FileAnswers:
        """Ask one question about many files: in a call each where the judge is on another machine, else in one call.

        Parameters
        ----------
        patterns, recursive, gitignore
            Which files, as for `decider_native.files.scan.scan`.
        question
            What is asked about each, as for `ask`; it calls the file's text `content`, in backticks.
        progress
            Called with what is done and what there is to do, from any thread.

        Raises
        ------
        InvalidRequest
            Not one file can be asked about, or too many match. Files that cannot be asked about beside others that can
            are in `skipped`.
        DeciderError
            As for `ask_file_bool`.
        """
        call = self._call(timeout, cancel)
        asked = parse({QUESTION_ID: question})[QUESTION_ID]
        files, skipped = scan(
            self._root,
            patterns,
            recursive=recursive,
            gitignore=gitignore,
            max_files=self.settings.max_files,
            check=call.remaining,
        )
        _check_any(files, skipped)
        documents = {}
        with self._asking({QUESTION_ID: asked}, call) as asking:
            for file in files:
                try:
                    document = self._fitting(asking, file)
                except FileStateError as error:
                    skipped.append(Skipped(error.path, error.reason))
                except OutsideRoot:  # since the scan
                    skipped.append(Skipped(shown(file), "outside"))
                else:
                    documents[os.path.join(".", file)] = document  # an id must not be blank; a name may be
            _check_any(documents, skipped)
            states = {name: file_state(document) for name, document in documents.items()}
            replies = asking.ask_each(states, self.settings.concurrency, progress)
        skipped += [Skipped(documents[name].path, code) for name, code in replies.failed.items()]
        kind, read = _READERS[asked.kind]
        wires = {documents[name].path: answers[QUESTION_ID] for name, answers in replies.answers.items()}
        return FileAnswers(
            kind,
            [read(path, wire) for path, wire in wires.items()],
            skipped,
            self._recorded(
                asking,
                replies,
                calls=replies.calls,
                concurrency=replies.concurrency,
                max_files=self.settings.max_files,
            ),
            options=asked.criteria if isinstance(asked, Choice) else None,
            legend=next(iter(wires.values())).get("legend"),
        )

    def pick_file(
        self,
        question: str,
        candidates: Mapping[str, str | None],
        *,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> FilePick:
        """Ask which of up to 254 files fits a question best, or none. All of them are read together.

        Parameters
        ----------
        question
            What is asked; it may call a file's text by its path in `files`, in backticks.
        candidates
            Paths to what is worth knowing about the file (None: nothing).

        Raises
        ------
        StateTooLarge
            The files do not fit one call; says how to split them.
        DeciderError
            As for `ask_files`.
        """
        if not isinstance(candidates, Mapping):
            raise InvalidRequest("must be a map of paths to notes, which may be None", field="candidates")
        if not 1 <= len(candidates) < MAX_OPTIONS:
            raise InvalidRequest(
                f"needs 1 to {MAX_OPTIONS - 1} paths, got {len(candidates)}; ask in several calls", field="candidates"
            )
        notes = {self._name(path): note for path, note in candidates.items()}
        if len(notes) < len(candidates):
            raise InvalidRequest("names a file in two ways; name each once", field="candidates")
        if _NONE in notes:
            raise InvalidRequest(f"{_NONE!r} stands for no file; rename that file", field="candidates")

        def choice(paths: Iterable[str]) -> Choice:
            return Choice(question, {**{path: notes[path] for path in paths}, _NONE: "None of these files"})

        asked = choice(notes)
        with self._asking({QUESTION_ID: asked}, self._call(timeout, cancel)) as asking:
            documents, skipped = self._read(notes, asking.most_bytes)
            if skipped:
                asked = choice(document.path for document in documents)
                asking = Asking(asking.judge, {QUESTION_ID: asked}, model=self._model, call=asking.call)
            state = whole_state({}, documents)
            check_fits(asking, asking.tokens(state), {}, documents)
            replies = asking.ask({_STATE_ID: state})
        answer = replies.answers[_STATE_ID][QUESTION_ID]
        return FilePick(
            None if answer["choice"] == _NONE else answer["choice"],
            answer["confidence"],
            answer["probabilities"],
            asked.criteria,
            skipped,
            self._recorded(asking, replies),
        )

    def ask(
        self,
        questions: Mapping[str, Question | Mapping[str, Any]],
        *,
        state: Json = None,
        paths: Sequence[str] = (),
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Answers:
        """Ask several questions about one situation: an own note, files, or both.

        Parameters
        ----------
        questions
            Ids to `Noul`, `Choice`, `Score` or their wire form in the judge contract.
        state
            The own note: an object keeps its fields, an array becomes ``{"items": ...}``, text ``{"text": ...}``. It
            may take a quarter of the budget.
        paths
            Files; the text of one is in the state as ``files["path"]``.

        Raises
        ------
        StateTooLarge
            Note and files do not fit one call; names every part with its tokens, and a split that fits.
        DeciderError
            As for `ask_files`.
        """
        own = as_object(state)
        if isinstance(paths, str) or not isinstance(paths, Sequence):
            raise InvalidRequest("must be several paths, in a list", field="paths")
        if len(paths) > self.settings.max_state_files:
            raise InvalidRequest(
                f"names {len(paths)} files; one state holds {self.settings.max_state_files}; split the call",
                field="paths",
            )
        if not own and not paths:
            raise InvalidRequest("is empty and there are no paths; give a note, files or both", field="state")
        if paths and FILES in own:
            raise InvalidRequest("is where the files go; call that field of the note otherwise", field="state.files")
        documents: list[Document] = []
        skipped: list[Skipped] = []
        with self._asking(parse(questions), self._call(timeout, cancel)) as asking:
            if paths:
                documents, skipped = self._read(dict.fromkeys(map(self._name, paths)), asking.most_bytes)
            whole = whole_state(own, documents)
            tokens = asking.tokens(whole)
            check_fits(asking, tokens, own, documents)
            replies = asking.ask({_STATE_ID: whole})
        summary = StateSummary(list(own), [document.path for document in documents], skipped, tokens, asking.budget)
        return Answers(replies.answers[_STATE_ID], summary, self._recorded(asking, replies))

    aask_file_bool = _asynchronous(ask_file_bool)
    aask_file_choice = _asynchronous(ask_file_choice)
    aask_file_score = _asynchronous(ask_file_score)
    aask_files = _asynchronous(ask_files)
    apick_file = _asynchronous(pick_file)
    aask = _asynchronous(ask)

    def _about_file(
        self, path: str, question: Question, timeout: float | None, cancel: threading.Event | None
    ) -> tuple[str, dict[str, Any], Meta]:
        with self._asking({QUESTION_ID: question}, self._call(timeout, cancel)) as asking:
            document = self._fitting(asking, path)
            replies = asking.ask({_STATE_ID: file_state(document)})
        return document.path, replies.answers[_STATE_ID][QUESTION_ID], self._recorded(asking, replies)

    def _call(self, timeout: float | None, cancel: threading.Event | None) -> Call:
        if not self.settings.enabled:
            raise DeciderError(f"the file tools are switched off; set {PREFIX}ENABLED=1 to switch them on")
        seconds = check_timeout(self.settings.timeout if timeout is None else timeout)
        return Call(deadline=time.monotonic() + seconds, cancel=cancel or threading.Event())

    @contextmanager
    def _asking(self, questions: Mapping[str, Question], call: Call) -> Iterator[Asking]:
        with nullcontext(self._judge) if isinstance(self._judge, Judge) else self._judge() as judge:
            yield Asking(judge, questions, model=self._model, call=call)

    def _fitting(self, asking: Asking, path: str) -> Document:
        """Read a file that fits beside the question."""
        document = self._root.read(path, asking.most_bytes)
        state = file_state(document)
        if not asking.surely_fits(state) and (tokens := asking.tokens(state)) > asking.budget:
            raise FileStateError(
                f"{document.path}: too_large: has {tokens} tokens and the question leaves {asking.budget}; ask about "
                "a part of it, or load the model with more context_tokens",
                path=document.path,
                reason="too_large",
            )
        return document

    def _name(self, path: str) -> str:
        """What a path is called in a state; one that leads nowhere is found out when it is read."""
        try:
            return self._root.locate(path)[0]
        except (OutsideRoot, FileStateError):
            return shown(path)

    def _read(self, paths: Iterable[str], most_bytes: int) -> tuple[list[Document], list[Skipped]]:
        """Read files, without those that cannot be a state; but one that is too large could have been the answer."""
        documents: list[Document] = []
        skipped: list[Skipped] = []
        for path in paths:
            try:
                documents.append(self._root.read(path, most_bytes))
            except OutsideRoot:
                skipped.append(Skipped(path, "outside"))
            except FileStateError as error:
                if error.reason == "too_large":
                    raise
                skipped.append(Skipped(error.path, error.reason))
        _check_any(documents, skipped)
        return documents, skipped

    def _recorded(self, asking: Asking, replies: Replies, **many: int) -> Meta:
        """Put an answered call into the ledger, and tell how it came about."""
        provider, elapsed_ms = asking.judge.provider, asking.call.elapsed_ms
        self.ledger.record(len(asking.questions) * len(replies.answers), replies.usage, elapsed_ms)
        return Meta(provider, replies.model, self._model, elapsed_ms, replies.attempts, replies.usage, **many)


def _check_any(found: Sized, skipped: Sequence[Skipped]) -> None:
    if not found:
        listed = ", ".join(f"{skip.path}: {skip.reason}" for skip in skipped[:_SHOWN_SKIPS])
        more = f" and {len(skipped) - _SHOWN_SKIPS} more" if len(skipped) > _SHOWN_SKIPS else ""
        raise InvalidRequest(f"no file can be asked about ({listed}{more}); name text files under the root")


_READERS: dict[Kind, tuple[QuestionType, Callable[[str, Mapping[str, Any]], FileAnswer]]] = {
    "noul": ("bool", BoolAnswer.read),
    "choice": ("choice", ChoiceAnswer.read),
    "score": ("score", ScoreAnswer.read),
}
