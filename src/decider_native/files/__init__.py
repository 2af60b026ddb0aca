"""Typed questions about files: the text of a file goes to the judge, only the answer comes back."""

from .errors import FileStateError, OutsideRoot, StateTooLarge
from .ledger import Ledger, Totals
from .questions import bool_question, choice_question, make_question, score_question
from .results import Answers, FileAnswers, FileBool, FileChoice, FilePick, FileScore, Meta, Skipped, StateSummary
from .settings import Settings
from .tools import FileTools

__all__ = [
    "Answers",
    "FileAnswers",
    "FileBool",
    "FileChoice",
    "FilePick",
    "FileScore",
    "FileStateError",
    "FileTools",
    "Ledger",
    "Meta",
    "OutsideRoot",
    "Settings",
    "Skipped",
    "StateSummary",
    "StateTooLarge",
    "Totals",
    "bool_question",
    "choice_question",
    "make_question",
    "score_question",
]
