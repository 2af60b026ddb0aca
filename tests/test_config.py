"""Configuration: decider_config.json with decider-ai's defaults, GGUF metadata and a caller's overrides."""

from __future__ import annotations

import math
from typing import Any

import pytest

from decider_native.config import (
    OptionsTemperature,
    ReadoutConfig,
    Temperatures,
    config_from_mapping,
    config_from_metadata,
)
from decider_native.errors import ConfigError
from decider_native.questions import KINDS

FILE = "models/x/decider_config.json"


def test_without_any_config() -> None:
    config = ReadoutConfig()
    assert config == ReadoutConfig(Temperatures(), "plain", isolated_levels=True, neutralize_none=False)
    assert config.temperatures.of("choice", 5) == 1.0


class TestMapping:
    def test_absent_keys_take_decider_ais_defaults(self) -> None:
        assert config_from_mapping({}, FILE) == ReadoutConfig(
            Temperatures(1.0), "plain", isolated_levels=False, neutralize_none=True
        )

    def test_decider_4b_v2(self) -> None:
        data = {"version": "4b-v2", "temperature": 1.935, "isolated_levels": True, "neutralize_none": False}
        assert config_from_mapping(data, FILE) == ReadoutConfig(Temperatures(1.935))

    def test_types_fall_back_to_the_temperature(self) -> None:
        data = {"temperature": 1.6, "temperature_by_type": {"choice": 1.48, "noul": 2}}
        temperatures = config_from_mapping(data, FILE).temperatures
        assert [temperatures.of(kind, 2) for kind in KINDS] == [2.0, 1.48, 1.6]

    def test_by_options(self) -> None:
        data = {"temperature": 9, "temperature_by_options": {"a": 10.12, "b": -1.63, "min": 0.5}}
        temperatures = config_from_mapping(data, FILE).temperatures
        assert temperatures.of("choice", 8) == pytest.approx(10.12 - 1.63 * math.log(8))
        assert temperatures.of("score", 1) == temperatures.of("noul", 2) == pytest.approx(10.12 - 1.63 * math.log(2))
        assert OptionsTemperature(1.0, -1.0, 0.5).of(255) == 0.5

    @pytest.mark.parametrize(
        ("data", "temperatures"),
        [
            ({"temperature_schema_first": 1.2, "temperature_schema_first_by_type": {"noul": 3}}, [3, 1.2, 1.2]),
            ({"temperature": 1.6, "temperature_by_type": {"choice": 1.4}}, [1.6, 1.4, 1.6]),
            (
                {
                    "temperature_by_type": {"noul": 2, "choice": 3},
                    "temperature_schema_first_by_type": {"noul": 4},
                },
                [4, 3, 1],
            ),
            ({"temperature": 2, "temperature_by_options": {"a": 9, "b": 1}}, [2, 2, 2]),
        ],
    )
    @pytest.mark.parametrize("declared", ["schema_first", "schema_first_trained"])
    def test_questions_first(self, data: dict[str, Any], temperatures: list[float], declared: str) -> None:
        """As decider-ai's temperature.from_config has it."""
        config = config_from_mapping(data | {declared: True}, FILE)
        assert config.layout == "plain"
        asked = config.override(layout="schema_first")
        assert asked.layout == "schema_first"
        assert [asked.temperatures.of(kind, 2) for kind in KINDS] == temperatures
        assert config.override(5, layout="schema_first").temperatures == Temperatures(5)

    def test_questions_first_is_refused_where_the_model_does_not_know_it(self) -> None:
        for data in ({}, {"schema_first": False, "temperature_schema_first": 2}):
            with pytest.raises(ConfigError, match="trained for it"):
                config_from_mapping(data, FILE).override(layout="schema_first")
        with pytest.raises(ConfigError, match="layout must be one of plain, chat, got 'schema_first'"):
            config_from_mapping({"layout": "schema_first", "schema_first": True}, FILE)
        with pytest.raises(ConfigError, match="schema_first must be true or false"):
            config_from_mapping({"schema_first": 1}, FILE)

    def test_by_options_has_a_floor_of_its_own(self) -> None:
        data = {"temperature_by_options": {"a": 0, "b": -1}}
        assert config_from_mapping(data, FILE).temperatures.of("choice", 9) == 0.05

    @pytest.mark.parametrize(
        ("data", "layout"),
        [
            ({}, "plain"),
            ({"layout": None}, "plain"),
            ({"layout": "plain", "chat_template": False}, "plain"),
            ({"chat_template": "true"}, "plain"),
            ({"chat_template": True}, "chat"),
            ({"layout": "chat"}, "chat"),
            ({"layout": "chat", "chat_template": True}, "chat"),
        ],
    )
    def test_layout(self, data: dict[str, Any], layout: str) -> None:
        assert config_from_mapping(data, FILE).layout == layout

    @pytest.mark.parametrize(
        "data",
        [
            {"temperature": "1.935"},
            {"temperature_by_type": None, "temperature_by_options": None},
            {"temperature_by_type": {}, "temperature_by_options": {"a": 1, "b": 0}},
            {"temperature_schema_first": 1.2, "temperature_schema_first_by_type": {"noul": 3.0}},
            {"schema_first": True, "second_reading": {"below": 0.5}, "anything": [1]},
        ],
    )
    def test_accepted(self, data: dict[str, Any]) -> None:
        config_from_mapping(data, FILE)

    @pytest.mark.parametrize(
        ("data", "key"),
        [
            *[({"temperature": bad}, "temperature") for bad in (0, -1, math.nan, math.inf, True, None, "hot", [1])],
            ({"temperature": 10**400}, "temperature"),
            ({"temperatures": 1.0}, "temperatures"),
            ({"temperature_by_kind": {}}, "temperature_by_kind"),
            ({"temperature_by_type": {"bool": 1.0}}, "'bool'"),
            ({"temperature_by_type": {"noul": 0}}, "temperature_by_type.noul"),
            ({"temperature_by_type": {"noul": "1.5"}}, "temperature_by_type.noul"),
            ({"temperature_by_type": 1.5}, "temperature_by_type"),
            ({"temperature_by_options": {"a": 1}}, "lacks 'b'"),
            ({"temperature_by_options": {"a": 1, "b": 0, "max": 2}}, "'max'"),
            ({"temperature_by_options": {"a": math.inf, "b": 0}}, "temperature_by_options.a"),
            ({"temperature_by_options": {"a": 1, "b": "0"}}, "temperature_by_options.b"),
            ({"temperature_by_options": {"a": 1, "b": 0, "min": 0}}, "temperature_by_options.min"),
            ({"temperature_by_options": {"a": 1e308, "b": 1e308}}, "temperature_by_options"),
            ({"temperature_by_options": [1, 2]}, "temperature_by_options"),
            ({"temperature_by_options": {"a": 1, "b": 0}, "temperature_by_type": {"noul": 1.0}}, "exclude"),
            ({"temperature_schema_first": 0}, "temperature_schema_first"),
            ({"temperature_schema_first_by_type": {"x": 1}}, "'x'"),
            ({"layout": "Chat"}, "layout"),
            ({"layout": ["chat"]}, "layout"),
            ({"layout": "plain", "chat_template": True}, "contradict"),
            ({"isolated_levels": "false"}, "isolated_levels"),
            ({"neutralize_none": None}, "neutralize_none"),
        ],
    )
    def test_refused_with_file_and_key(self, data: dict[str, Any], key: str) -> None:
        with pytest.raises(ConfigError) as caught:
            config_from_mapping(data, FILE)
        assert str(caught.value).startswith(f"{FILE}: ")
        assert key in str(caught.value)

    def test_must_be_an_object(self) -> None:
        data: Any = [1]
        with pytest.raises(ConfigError, match="must be a JSON object, got list"):
            config_from_mapping(data, FILE)


class TestMetadata:
    def metadata(self, **temperatures: str) -> dict[str, str]:
        keys = {f"qwen35.decision.temperature.{name}": value for name, value in temperatures.items()}
        return {"general.architecture": "qwen35", "qwen35.block_count": "32", **keys}

    def test_without_temperatures(self) -> None:
        assert config_from_metadata(self.metadata(), "x.gguf") is None
        assert config_from_metadata({}, "x.gguf") is None
        other = {"general.architecture": "qwen35", "llama.decision.temperature.noul": "2.0"}
        assert config_from_metadata(other, "x.gguf") is None

    def test_types(self) -> None:
        config = config_from_metadata(self.metadata(choice="1.480000", noul="2.220000"), "x.gguf")
        assert config == ReadoutConfig(Temperatures(1.0, {"choice": 1.48, "noul": 2.22}))

    @pytest.mark.parametrize(
        ("n", "expected"), [(2, 1.1), (3, 1.2), (5, 1.2), (6, 1.0), (10, 1.0), (11, 1.3), (255, 1.3)]
    )
    def test_ranges_of_option_counts(self, n: int, expected: float) -> None:
        names = {"choice": "1.0", "choice.2": "1.1", "choice.3_5": "1.2", "choice.11": "1.3", "noul.2": "4"}
        config = config_from_metadata(self.metadata(**names), "x.gguf")
        assert config is not None
        assert config.temperatures.of("choice", n) == expected

    @pytest.mark.parametrize(("n", "expected"), [(8, 1.1), (9, 1.2), (26, 1.2), (27, 1.3)])
    def test_levs_ranges(self, n: int, expected: float) -> None:
        names = {"choice.small": "1.1", "choice.mid": "1.2", "choice.large": "1.3"}
        config = config_from_metadata(self.metadata(**names), "x.gguf")
        assert config is not None
        assert config.temperatures.of("choice", n) == expected

    @pytest.mark.parametrize(
        ("name", "value"), [("bool", "1.0"), ("choice.4", "1.0"), ("noul", "0.000000"), ("noul", "nan"), ("noul", "x")]
    )
    def test_refused_with_file_and_key(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=rf"^x\.gguf: .*qwen35\.decision\.temperature\.{name}"):
            config_from_metadata(self.metadata(**{name: value}), "x.gguf")


class TestOverride:
    config = ReadoutConfig(Temperatures(1.6, {"noul": 2.2}), "plain", isolated_levels=False)

    def test_nothing_given(self) -> None:
        assert self.config.override() == self.config

    def test_a_temperature_is_the_only_one(self) -> None:
        formula = ReadoutConfig(Temperatures(by_options=OptionsTemperature(1.0, 1.0)))
        for config in (self.config, formula):
            changed = config.override(temperature=3)
            assert [changed.temperatures.of(kind, 9) for kind in KINDS] == [3.0] * 3
            assert changed.isolated_levels is config.isolated_levels

    def test_a_map_keeps_the_default(self) -> None:
        temperatures = self.config.override(temperature_by_type={"choice": 1.1}).temperatures
        assert [temperatures.of(kind, 2) for kind in KINDS] == [1.6, 1.1, 1.6]

    def test_both(self) -> None:
        temperatures = self.config.override(temperature=3, temperature_by_type={"choice": 1.1}).temperatures
        assert [temperatures.of(kind, 2) for kind in KINDS] == [3.0, 1.1, 3.0]

    def test_layout_and_levels(self) -> None:
        changed = self.config.override(layout="chat", isolated_levels=True)
        assert (changed.layout, changed.isolated_levels) == ("chat", True)
        assert changed.temperatures == self.config.temperatures

    @pytest.mark.parametrize(
        ("arguments", "fragment"),
        [
            ({"temperature": 0}, "temperature must be"),
            ({"temperature": "1.5"}, "temperature must be"),
            ({"temperature_by_type": {"scale": 1.0}}, "'scale'"),
            ({"layout": "fancy"}, "layout must be one of plain, chat"),
            ({"isolated_levels": "no"}, "isolated_levels must be true or false"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, Any], fragment: str) -> None:
        with pytest.raises(ConfigError, match=fragment):
            self.config.override(**arguments)

    def test_the_configuration_owns_its_map(self) -> None:
        by_type: dict[Any, float] = {"noul": 2.0}
        temperatures = Temperatures(1.0, by_type)
        by_type["noul"] = -1.0
        assert temperatures.of("noul", 2) == 2.0
