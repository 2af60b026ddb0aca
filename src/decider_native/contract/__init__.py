"""The judge::evaluate contract: strict JSON requests in, envelopes out. A fault of a request is an answer too."""

from .call import MAX_MESSAGE, RETRY_AFTER_MS, Call, Evaluation, Reply
from .errors import JudgeError, NotServed
from .judge import Judge, Measure, Request
from .local import DeciderJudge
from .request import Limits, parse_question

__all__ = [
    "MAX_MESSAGE",
    "RETRY_AFTER_MS",
    "Call",
    "DeciderJudge",
    "Evaluation",
    "Judge",
    "JudgeError",
    "Limits",
    "Measure",
    "NotServed",
    "Reply",
    "Request",
    "parse_question",
]
