"""How a model is read: temperatures, prompt layout and flags, from decider_config.json or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from .errors import ConfigError
from .questions import KINDS, MAX_OPTIONS, Kind

__all__ = [
    "LayoutName",
    "OptionsTemperature",
    "ReadoutConfig",
    "Temperatures",
    "config_from_mapping",
    "config_from_metadata",
]

LayoutName: TypeAlias = Literal["plain", "chat", "schema_first"]

_FILE_LAYOUTS: tuple[LayoutName, ...] = ("plain", "chat")  # the third is only chosen by a caller
_LAYOUTS: tuple[LayoutName, ...] = (*_FILE_LAYOUTS, "schema_first")
_TEMPERATURE_KEYS = (
    "temperature",
    "temperature_by_type",
    "temperature_by_options",
    "temperature_schema_first",
    "temperature_schema_first_by_type",
)
_DEFAULT_FLOOR = 0.05

# llama.cpp's names for ranges of option counts: the first four of most models, the last three of lev.
_BUCKETS = {
    "2": (1, 2),
    "3_5": (3, 5),
    "6_10": (6, 10),
    "11": (11, MAX_OPTIONS),
    "small": (1, 8),
    "mid": (9, 26),
    "large": (27, MAX_OPTIONS),
}


@dataclass(frozen=True, slots=True)
class OptionsTemperature:
    """T(n) = max(floor, a + b ln n) for a row of n options, natural logarithm; n = 1 reads as 2."""

    a: float
    b: float
    floor: float = _DEFAULT_FLOOR

    def of(self, n_options: int) -> float:
        """Temperature of a row with `n_options` options."""
        return max(self.floor, self.a + self.b * math.log(max(n_options, 2)))


@dataclass(frozen=True, slots=True)
class Temperatures:
    """The temperature of each answer. The first of these that has one counts.

    Attributes
    ----------
    by_options
        One formula of the option count for all types.
    by_bucket
        Per type and range of option counts, as in ``"choice.3_5"`` (GGUF metadata only).
    by_type
        Per type; the level rows of a score use ``"score"``.
    default
        For everything else.
    """

    default: float = 1.0
    by_type: Mapping[Kind, float] = field(default_factory=dict)
    by_options: OptionsTemperature | None = None
    by_bucket: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what a caller wrote and own the map."""
        object.__setattr__(self, "default", _positive(self.default, "temperature"))
        object.__setattr__(self, "by_type", _by_type(self.by_type, "temperature_by_type"))

    def of(self, kind: Kind, n_options: int) -> float:
        """Temperature of a row of a question of type `kind` with `n_options` options."""
        if self.by_options is not None:
            return self.by_options.of(n_options)
        for bucket, (low, high) in _BUCKETS.items():
            if low <= n_options <= high and (found := self.by_bucket.get(f"{kind}.{bucket}")) is not None:
                return found
        return self.by_type.get(kind, self.default)


@dataclass(frozen=True, slots=True)
class ReadoutConfig:
    """How a model is asked and how its logits become probabilities.

    Attributes
    ----------
    temperatures
        Divisors of the logits.
    layout
        ``"plain"``, ``"chat"`` for stock instruct models, or ``"schema_first"``: questions before the state.
    isolated_levels
        Each level of a score is judged in a row of its own.
    neutralize_none
        Options that read "none of the above" are shown as "not listed here".
    schema_first
        Temperatures of the layout of that name; None: the model was not trained for it.
    """

    temperatures: Temperatures = field(default_factory=Temperatures)
    layout: LayoutName = "plain"
    isolated_levels: bool = True
    neutralize_none: bool = False
    schema_first: Temperatures | None = None

    def __post_init__(self) -> None:
        """Check what a caller wrote."""
        _layout(self.layout, "layout")
        _flag(self.isolated_levels, "isolated_levels")
        _flag(self.neutralize_none, "neutralize_none")

    def override(
        self,
        temperature: float | None = None,
        temperature_by_type: Mapping[Kind, float] | None = None,
        layout: LayoutName | None = None,
        isolated_levels: bool | None = None,
    ) -> ReadoutConfig:
        """Return this configuration with a caller's arguments in place; None keeps what is there.

        Either temperature argument replaces every map and formula; `temperature_by_type` alone keeps the default.

        Raises
        ------
        ConfigError
            A temperature that is not finite and > 0, an unknown type, an unknown layout or one that the model was not
            trained for.
        """
        changed = self
        if layout == "schema_first":
            if self.schema_first is None:
                raise ConfigError(
                    "layout 'schema_first' is for models that were trained for it, whose decider_config.json has "
                    '"schema_first" or "schema_first_trained"; use the plain layout'
                )
            changed = replace(changed, temperatures=self.schema_first)
        if temperature is not None or temperature_by_type is not None:
            default = self.temperatures.default if temperature is None else temperature
            changed = replace(changed, temperatures=Temperatures(default, temperature_by_type or {}))
        if layout is not None:
            changed = replace(changed, layout=layout)
        if isolated_levels is not None:
            changed = replace(changed, isolated_levels=isolated_levels)
        return changed


def config_from_mapping(data: Mapping[str, Any], where: str) -> ReadoutConfig:
    """Read the content of a decider_config.json with decider-ai's defaults.

    Absent keys mean temperature 1, the plain layout, levels not isolated and "none of the above" neutralized.

    Parameters
    ----------
    data
        The parsed JSON.
    where
        The file, for errors.

    Raises
    ------
    ConfigError
        A value that cannot be used, an unknown temperature key or an unknown layout; names the file and the key.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: must be a JSON object, got {type(data).__name__}")
    for key in data:
        if str(key).startswith("temperature") and key not in _TEMPERATURE_KEYS:
            raise ConfigError(f"{where}: unknown key {key!r}; the temperature keys are {', '.join(_TEMPERATURE_KEYS)}")
    by_type = _by_type(data.get("temperature_by_type"), f"{where}: temperature_by_type")
    by_options = _by_options(data.get("temperature_by_options"), f"{where}: temperature_by_options")
    if by_type and by_options is not None:
        raise ConfigError(f"{where}: temperature_by_type and temperature_by_options exclude each other; keep one")
    default = _positive_text(data.get("temperature", 1.0), f"{where}: temperature")
    trained = [_flag(data.get(key, False), f"{where}: {key}") for key in ("schema_first", "schema_first_trained")]
    schema_first = _schema_first(data, default, by_type, where)
    layout = data.get("layout")
    templated = data.get("chat_template") is True
    if layout is None:
        layout = "chat" if templated else "plain"
    elif layout == "plain" and templated:
        raise ConfigError(f'{where}: layout is "plain" and chat_template is true; these contradict each other')
    return ReadoutConfig(
        temperatures=Temperatures(
            default=default,
            by_type=by_type,
            by_options=by_options,
        ),
        layout=_layout(layout, f"{where}: layout", _FILE_LAYOUTS),
        isolated_levels=_flag(data.get("isolated_levels", False), f"{where}: isolated_levels"),
        neutralize_none=_flag(data.get("neutralize_none", True), f"{where}: neutralize_none"),
        schema_first=schema_first if any(trained) else None,
    )


def _schema_first(data: Mapping[str, Any], default: float, by_type: Mapping[Kind, float], where: str) -> Temperatures:
    # Without a value of its own the layout takes the others', by the type; a formula of the option count never.
    own = _by_type(data.get("temperature_schema_first_by_type"), f"{where}: temperature_schema_first_by_type")
    if "temperature_schema_first" not in data:
        return Temperatures(default, {**by_type, **own})
    return Temperatures(_positive_text(data["temperature_schema_first"], f"{where}: temperature_schema_first"), own)


def config_from_metadata(metadata: Mapping[str, str], where: str) -> ReadoutConfig | None:
    """Read temperatures from GGUF metadata, or return None where it holds none.

    The keys are llama.cpp's: ``<arch>.decision.temperature.<type>``, or ``.<type>.<range of option counts>``.

    Parameters
    ----------
    metadata
        Keys and values as text.
    where
        The file, for errors.

    Raises
    ------
    ConfigError
        A temperature that is not finite and > 0, or an unknown type or range; names the file and the key.
    """
    prefix = f"{metadata.get('general.architecture', '')}.decision.temperature."
    by_type: dict[Kind, float] = {}
    by_bucket: dict[str, float] = {}
    for key, value in metadata.items():
        if not key.startswith(prefix):
            continue
        kind, _, bucket = key.removeprefix(prefix).partition(".")
        if kind not in KINDS or (bucket and bucket not in _BUCKETS):
            raise ConfigError(
                f"{where}: unknown key {key!r}; it ends in one of {', '.join(KINDS)}, "
                f"alone or with one of {', '.join(_BUCKETS)}"
            )
        temperature = _positive_text(value, f"{where}: {key}")
        if bucket:
            by_bucket[f"{kind}.{bucket}"] = temperature
        else:
            by_type[kind] = temperature
    if not by_type and not by_bucket:
        return None
    return ReadoutConfig(temperatures=Temperatures(by_type=by_type, by_bucket=by_bucket))


def _number(value: object, where: str, wanted: str = "a finite number") -> float:
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be {wanted}, got {value!r}")
    return number


def _positive(value: object, where: str) -> float:
    wanted = "a finite number > 0"
    number = _number(value, where, wanted)
    if number <= 0:
        raise ConfigError(f"{where} must be {wanted}, got {value!r}")
    return number


def _positive_text(value: object, where: str) -> float:
    # decider-ai reads "1.3" as a temperature too, though not inside its maps
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return _positive(value, where)


def _by_type(value: object, where: str) -> dict[Kind, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must map {', '.join(KINDS)} to temperatures, got {value!r}")
    temperatures: dict[Kind, float] = {}
    for kind, temperature in value.items():
        if kind not in KINDS:
            raise ConfigError(f"{where} has the unknown key {kind!r}; the keys are {', '.join(KINDS)}")
        temperatures[kind] = _positive(temperature, f"{where}.{kind}")
    return temperatures


def _by_options(value: object, where: str) -> OptionsTemperature | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{where} must be {{"a", "b", "min"}}, got {value!r}')
    for key in value:
        if key not in ("a", "b", "min"):
            raise ConfigError(f"{where} has the unknown key {key!r}; the keys are a, b and min")
    for key in ("a", "b"):
        if key not in value:
            raise ConfigError(f"{where} lacks {key!r}; T(n) = max(min, a + b ln n)")
    formula = OptionsTemperature(
        a=_number(value["a"], f"{where}.a"),
        b=_number(value["b"], f"{where}.b"),
        floor=_positive_text(value.get("min", _DEFAULT_FLOOR), f"{where}.min"),
    )
    if not all(math.isfinite(formula.of(n)) for n in (2, MAX_OPTIONS)):
        raise ConfigError(f"{where} gives temperatures that are not finite; use smaller a and b")
    return formula


def _layout(value: object, where: str, known: tuple[LayoutName, ...] = _LAYOUTS) -> LayoutName:
    if value not in known:
        raise ConfigError(f"{where} must be one of {', '.join(known)}, got {value!r}")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, got {value!r}")
    return value
