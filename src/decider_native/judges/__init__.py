"""Judges by name: a model in this process, a server elsewhere, or forced answers, all behind one contract.

Judges on other machines need the extra ``decider-native[judges]``.
"""

from .errors import AttemptTimeout, HttpFailure, InvalidResponse, MissingKey, TransportFailure
from .hub import DefaultJudge, Hub
from .session import Record, Session
from .settings import DeciderSettings, HubSettings, MockSettings, RemoteSettings, read_settings, write_default
from .status import JudgeStatus, State

__all__ = [
    "AttemptTimeout",
    "DeciderSettings",
    "DefaultJudge",
    "HttpFailure",
    "Hub",
    "HubSettings",
    "InvalidResponse",
    "JudgeStatus",
    "MissingKey",
    "MockSettings",
    "Record",
    "RemoteSettings",
    "Session",
    "State",
    "TransportFailure",
    "read_settings",
    "write_default",
]
