"""``judges.toml``: strict reading, and the one change that is written back."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from ..contract.request import provider_name
from ..errors import DeciderError, InvalidRequest
from ..models import DEFAULT_MODEL

__all__ = [
    "NONE",
    "DeciderSettings",
    "HubSettings",
    "JudgeSettings",
    "MockSettings",
    "RemoteSettings",
    "parse_settings",
    "read_settings",
    "write_default",
]

NONE = "none"
"""The name of no judge; it is never the default's."""

PRICES = {("https://api.typesafe.ai", "jev-latest"): 0.042}
"""USD per million input tokens, by host and model."""

_RESERVED = (NONE, "default")
_REMOTE_MODELS = {"systemone": "jev-latest", "openai": "gpt-6-luna"}
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_SECRETS = re.compile(r"(api_?)?key|token|secret|password|bearer|authorization", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeciderSettings:
    """A model in this process; `options` are further keyword arguments of `Decider`."""

    name: str
    model: str = DEFAULT_MODEL
    options: Mapping[str, Any] = field(default_factory=dict)
    provider: ClassVar[str] = "decider"
    host: ClassVar[str | None] = None
    price: ClassVar[float | None] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """A judge on another machine.

    Attributes
    ----------
    provider
        ``"systemone"`` (any /v1/systemone server) or ``"openai"`` (the Decisions API).
    host, model
        Its address without ``/v1``, and the model to ask for.
    key_env
        The environment variable that holds its key; None: it needs none.
    price
        USD per million input tokens; None: not known.
    context_window
        Tokens that it reads at most in a row.
    attempt_timeout_ms
        How long one try of a request may take.
    """

    name: str
    provider: str
    host: str
    model: str
    key_env: str | None = None
    price: float | None = None
    context_window: int = 16384
    attempt_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """A judge that is told its answers: question ids to what it answers."""

    name: str
    answers: Mapping[str, Any] = field(default_factory=dict)
    model: str = "mock"
    provider: ClassVar[str] = "mock"
    host: ClassVar[str | None] = None
    price: ClassVar[float | None] = None


JudgeSettings: TypeAlias = DeciderSettings | RemoteSettings | MockSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """All judges of a hub.

    Attributes
    ----------
    judges
        Their names to their settings.
    default
        The judge of a request that names none, or ``"none"``.
    preload_all
        Models in this process are loaded at once and kept, whichever judge is the default.
    idle_minutes
        When a model that was loaded for a call, and not as the default, is released.
    """

    judges: Mapping[str, JudgeSettings]
    default: str
    preload_all: bool = False
    idle_minutes: float = 10.0


def read_settings(path: str | os.PathLike[str]) -> HubSettings:
    """Read a ``judges.toml``.

    Raises
    ------
    InvalidRequest
        It cannot be read, is no TOML, or says what a hub cannot do; names the key.
    """
    try:
        return parse_settings(tomllib.loads(_read(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"{error.message} ({path})", field=error.field) from None


def parse_settings(data: Mapping[str, Any]) -> HubSettings:
    """Check the contents of a ``judges.toml``. Errors as for `read_settings`."""
    top = _Table(data, "", ("default", "preload_all", "idle_minutes", "judges"))
    tables = top.table("judges")
    judges = {name: _judge(name, value) for name, value in tables.items()}
    default = top.text("default")
    if default != NONE and default not in judges:
        known = ", ".join((*judges, NONE))
        raise InvalidRequest(f"names no judge of this file: {default[:60]!r}; write one of {known}", field="default")
    return HubSettings(
        judges=judges,
        default=default,
        preload_all=top.flag("preload_all", False),
        idle_minutes=top.number("idle_minutes", 10.0),
    )


def write_default(path: str | os.PathLike[str], name: str) -> None:
    """Make a judge, or ``"none"``, the default of a ``judges.toml``; comments and layout stay.

    Raises
    ------
    InvalidRequest
        The file cannot be read, is invalid, or has no such judge; it is left as it is.
    DeciderError
        It cannot be written, or tomlkit is not installed.
    """
    settings = read_settings(path)
    if name != NONE and name not in settings.judges:
        known = ", ".join((*settings.judges, NONE))
        raise InvalidRequest(f"there is no judge {name[:60]!r} in {path}; known: {known}")
    try:
        import tomlkit
    except ImportError as error:
        raise DeciderError('changing the file needs tomlkit; run pip install "decider-native[judges]"') from error
    document = tomlkit.parse(_read(path))
    document["default"] = name
    target = Path(path).resolve()  # a link stays one
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(document.as_string(), encoding="utf-8", newline="")
        scratch.chmod(target.stat().st_mode)
        scratch.replace(target)  # readers see the old file or the new one
    except OSError as error:
        with suppress(OSError):  # it may not be there, and where nothing can be written nothing can be removed
            scratch.unlink()
        raise DeciderError(f"cannot write {path}: {error.strerror}; the default is what it was") from error


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeError) else getattr(error, "strerror", error)
        raise InvalidRequest(f"cannot read {path}: {reason}; give a judges.toml") from None


def _judge(name: str, value: object) -> JudgeSettings:
    where = f"judges.{name}"
    try:
        provider_name(name)
    except InvalidRequest as error:
        raise InvalidRequest(f"is no name for a judge: {error.message}", field=where[:80]) from None
    if name in _RESERVED:
        raise InvalidRequest(f"{name!r} has a meaning of its own; choose another name", field=where)
    kinds: dict[str, Callable[[str, _Table], JudgeSettings]] = {
        "decider": _decider,
        "systemone": _remote,
        "openai": _remote,
        "mock": _mock,
    }
    provider = _Table(value, where).text("provider")
    if provider not in kinds:
        raise InvalidRequest(f"must be one of {', '.join(kinds)}; got {provider[:60]!r}", field=f"{where}.provider")
    return kinds[provider](name, _Table(value, where, _KEYS[provider]))


_OPTIONS: dict[str, type] = {
    "device": str,
    "gpu_layers": int,
    "threads": int,
    "context_tokens": int,
    "parallel_questions": int,
    "mode": str,
    "layout": str,
    "config": str,
    "parse_special": bool,
}
_REMOTE_KEYS = ("provider", "host", "model", "key_env", "price", "context_window", "attempt_timeout_ms")
_KEYS = {
    "decider": ("provider", "model", *_OPTIONS),
    "systemone": _REMOTE_KEYS,
    "openai": _REMOTE_KEYS,
    "mock": ("provider", "model", "answers"),
}


def _decider(name: str, table: _Table) -> DeciderSettings:
    options = {key: table.value(key, kind) for key, kind in _OPTIONS.items() if key in table.values}
    return DeciderSettings(name=name, model=table.text("model", DEFAULT_MODEL), options=options)


def _mock(name: str, table: _Table) -> MockSettings:
    return MockSettings(name=name, answers=table.table("answers"), model=table.text("model", "mock"))


def _remote(name: str, table: _Table) -> RemoteSettings:
    provider = table.text("provider")
    host = _host(table.text("host"), table.place("host"))
    model = table.text("model", _REMOTE_MODELS[provider])
    key_env = table.text("key_env") if "key_env" in table.values else None
    if key_env is not None and not _VARIABLE.fullmatch(key_env):
        raise InvalidRequest(
            "must be the name of an environment variable, such as TYPESAFE_API_KEY; a key itself never stands here",
            field=table.place("key_env"),
        )
    if key_env is None and provider == "openai":
        raise InvalidRequest(
            "is missing: an openai judge needs an API key, and a subscription sign-in is none; name the environment "
            "variable that holds the key",
            field=table.place("key_env"),
        )
    price = PRICES.get((host, model))
    return RemoteSettings(
        name=name,
        provider=provider,
        host=host,
        model=model,
        key_env=key_env,
        price=table.number("price", 0.0) if "price" in table.values else price,
        context_window=table.count("context_window", 16384),
        attempt_timeout_ms=table.count("attempt_timeout_ms", 60_000),
    )


def _host(text: str, where: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise InvalidRequest("must be an address such as https://api.typesafe.ai", field=where)
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("holds a user name or a password; put the key in an environment variable", field=where)
    if parts.path.rstrip("/").endswith("/v1"):
        raise InvalidRequest("ends with /v1, which is added to it; leave /v1 out", field=where)
    return text.rstrip("/")


class _Table:
    """A TOML table whose keys are checked, with its place for errors; no `known`: any key will do."""

    def __init__(self, values: object, where: str, known: tuple[str, ...] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise InvalidRequest("must be a table", field=where)
        self.values: Mapping[str, Any] = values
        self._where = where
        for key in values:
            if known is not None and key not in known:
                raise InvalidRequest(_unknown(key, known), field=self.place(key[:60]))

    def place(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def value(self, key: str, kind: type) -> Any:
        value = self.values[key]
        if type(value) is not kind:
            wanted = {str: "text", int: "an integer", bool: "true or false", dict: "a table"}[kind]
            raise InvalidRequest(f"must be {wanted}", field=self.place(key))
        return value

    def text(self, key: str, default: str | None = None) -> str:
        if key not in self.values and default is not None:
            return default
        if key not in self.values:
            raise InvalidRequest("is missing", field=self.place(key))
        text: str = self.value(key, str)
        if not text.strip():
            raise InvalidRequest("is empty", field=self.place(key))
        return text

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.value(key, bool)) if key in self.values else default

    def count(self, key: str, default: int) -> int:
        count: int = self.value(key, int) if key in self.values else default
        if not 1 <= count < 1 << 31:
            raise InvalidRequest("must be from 1 to 2147483647", field=self.place(key))
        return count

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e6:
            raise InvalidRequest("must be a number above 0", field=self.place(key))
        return float(value)

    def table(self, key: str) -> Mapping[str, Any]:
        table: Mapping[str, Any] = self.value(key, dict) if key in self.values else {}
        return table


def _unknown(key: str, known: tuple[str, ...]) -> str:
    if _SECRETS.fullmatch(key):
        return "a key never stands in this file; put it in an environment variable and name that in key_env"
    return f"is unknown; known here: {', '.join(known)}"
