"""Questions: what decider-ai's lenient dialect accepts, what is refused and where the error points."""

from __future__ import annotations

import json
import pickle
import sys
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from decider_native.errors import InvalidRequest, PayloadTooLarge
from decider_native.questions import (
    MAX_DEPTH,
    Choice,
    Noul,
    Score,
    copy_json,
    parse_question,
    parse_questions,
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


class TestDialect:
    def test_type_defaults_to_choice(self) -> None:
        assert parse_question("q", {"instructions": "x", "criteria": ["a", "b"]}) == Choice("x", ["a", "b"])

    def test_bool_means_noul(self) -> None:
        assert parse_question("q", {"type": "bool", "instructions": "x"}) == Noul("x")

    def test_question_and_options_stand_in(self) -> None:
        asked = parse_question("q", {"type": "score", "question": "How?", "options": ["l0", "l1"]})
        assert asked == Score("How?", ["l0", "l1"])

    def test_a_null_key_is_not_replaced_by_its_alias(self) -> None:
        asked = parse_question("q", {"instructions": None, "question": "How?", "criteria": ["a", "b"]})
        assert asked.instructions is None
        with pytest.raises(InvalidRequest, match="got 0"):
            parse_question("q", {"criteria": None, "options": ["a", "b"]})

    def test_list_items_become_names_with_str(self) -> None:
        asked = Choice("x", [1, 2.5, True, None, "1x", -3, 1e-07, 1e16, {"a": 1, "b": "é"}, (1, "a")])
        assert list(asked.criteria) == [
            *["1", "2.5", "True", "None", "1x", "-3", "1e-07", "1e+16", "{'a': 1, 'b': 'é'}", "[1, 'a']"]
        ]

    def test_repeated_names_merge_in_place(self) -> None:
        assert list(Choice("x", ["b", "a", "b", "c"]).criteria) == ["b", "a", "c"]

    def test_level_map_is_ordered_by_number(self) -> None:
        asked = Score("x", {"10": "ten", "2": "two", "0": {"zero": True}, "1.5": ["one", "half"]})
        assert asked.criteria == ({"zero": True}, ["one", "half"], "two", "ten")

    @pytest.mark.parametrize(
        ("value", "isolated"), [("no", True), (1, True), ("", False), (0, False), (None, False), ([], False)]
    )
    def test_isolated_is_a_truth_value(self, value: object, isolated: bool) -> None:
        asked = parse_question("q", {"type": "score", "criteria": ["a", "b"], "isolated": value})
        assert isinstance(asked, Score)
        assert asked.isolated is isolated

    def test_unknown_keys_are_ignored(self) -> None:
        asked = parse_question("q", {"type": "noul", "instructions": "x", "weird": object(), "id": "z"})
        assert asked == Noul("x", {"yes": object()})  # type: ignore[dict-item]

    def test_boolean_keys_describe_a_noul(self) -> None:
        criteria: Any = {True: "t", False: "f", 1.5: "ignored"}
        assert Noul(None, criteria).criteria == {"true": "t", "false": "f"}

    @pytest.mark.parametrize("instructions", [0, False, [], {}, " "])
    def test_falsy_json_is_an_instruction(self, instructions: Any) -> None:
        assert Noul(instructions).instructions == instructions

    @pytest.mark.parametrize("description", [0, False, [], {}])
    def test_falsy_json_is_a_description(self, description: Any) -> None:
        assert Noul(criteria={"false": description}).criteria == {"false": description}

    @pytest.mark.parametrize("instructions", [None, ""])
    def test_choice_and_score_need_no_instructions(self, instructions: Any) -> None:
        assert Choice(instructions, ["a", "b"]).instructions == instructions
        assert Score(instructions, ["a", "b"]).instructions == instructions

    @pytest.mark.parametrize("count", [1, 2, 255])
    def test_option_counts(self, count: int) -> None:
        assert len(Choice("x", [f"o{i}" for i in range(count)]).criteria) == count

    @pytest.mark.parametrize("count", [2, 10])
    def test_level_counts(self, count: int) -> None:
        assert len(Score("x", [None] * count).criteria) == count

    def test_typed_questions_pass_through(self) -> None:
        asked = Noul("x")
        assert parse_question("q", asked) is asked
        assert parse_questions({"a b": asked, "이": {"criteria": {"x": None}}}) == {
            "a b": asked,
            "이": Choice(None, {"x": None}),
        }

    def test_any_mapping_will_do(self) -> None:
        criteria = MappingProxyType({"a": MappingProxyType({"k": (1, 2)}), "b": None})
        assert Choice("x", criteria).criteria == {"a": {"k": [1, 2]}, "b": None}


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "field", "fragment"),
        [
            ({"type": "noul"}, "instructions", "asks nothing"),
            ({"type": "noul", "instructions": "", "criteria": {"true": "", "other": "x"}}, "instructions", "nothing"),
            ({"type": "noul", "criteria": "a"}, "criteria", "must be a map"),
            ({"criteria": {}}, "criteria", "got 0"),
            ({"criteria": ["a", "a", "a"]}, "criteria", "same option 3 times"),
            ({"criteria": {str(i): None for i in range(256)}}, "criteria", "got 256; split"),
            ({"criteria": {1, 2}}, "criteria", "got set"),
            ({"criteria": {"a": {1}, "b": None}}, "criteria.a", "set is not JSON"),
            ({"criteria": {"a": 1, "b": [0, {"k é": float("nan")}]}}, "criteria.b[1]['k é']", "nan is not JSON"),
            ({"criteria": ["a", "\ud800"]}, "criteria[1]", "lone surrogate \\ud800 at character 0"),
            ({"criteria": {"1": "a", 1: "b"}}, "criteria", "both written '1'"),
            ({"criteria": {("a", "b"): None, "c": None}}, "criteria", "key of type tuple"),
            ({"criteria": {float("inf"): None, "c": None}}, "criteria", "inf is not JSON"),
            ({"criteria": [1, np.int64(2)]}, "criteria[1]", "numpy.int64 is not JSON"),
            ({"instructions": float("inf"), "criteria": ["a", "b"]}, "instructions", "inf is not JSON"),
            ({"type": "score", "criteria": ["a"]}, "criteria", "got 1"),
            ({"type": "score", "criteria": list("abcdefghijk")}, "criteria", "got 11"),
            ({"type": "score", "criteria": "ab"}, "criteria", "got str"),
            ({"type": "score", "criteria": {"0": "a", "nan": "b"}}, "criteria", "key 'nan'"),
            ({"type": "score", "criteria": {"0": "a", True: "b"}}, "criteria", "key 'true'"),
            ({"type": "score", "criteria": ["a", "b"], "isolated": object()}, "isolated", "object is not JSON"),
            ({"type": ["noul"]}, "type", "unknown: list"),
            ("is it?", None, "got str"),
        ],
    )
    def test_names_the_question_and_the_field(self, value: Any, field: str | None, fragment: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_questions({"fine": Noul("x"), "team": value})
        assert caught.value.question == "team"
        assert caught.value.field == field
        assert fragment in caught.value.message
        assert str(caught.value).startswith("question 'team'")

    @pytest.mark.parametrize(
        ("questions", "fragment"),
        [
            ([Noul("x")], "got list"),
            (None, "got null"),
            ({}, "empty"),
            ({"": Noul("x")}, "empty id"),
            ({1: Noul("x")}, "type int"),
            ({"\udc00": Noul("x")}, "lone surrogate"),
        ],
    )
    def test_questions_must_be_a_map_of_ids(self, questions: Any, fragment: str) -> None:
        with pytest.raises(InvalidRequest, match=fragment) as caught:
            parse_questions(questions)
        assert caught.value.field == "questions"
        assert caught.value.code == "invalid_request"

    def test_constructors_refuse_too(self) -> None:
        with pytest.raises(ValueError, match="asks nothing"):
            Noul()
        with pytest.raises(ValueError, match="1 to 255 options"):
            Choice("x")
        with pytest.raises(ValueError, match="2 to 10 levels"):
            Score("x")


class TestCopyJson:
    def test_keys_are_written_as_json(self) -> None:
        value = {True: 1, None: 2, 7: 3, 1.5: 4, "s": 5, False: 6, 1e16: 7}
        expected = {"true": 1, "null": 2, "7": 3, "1.5": 4, "s": 5, "false": 6, "1e+16": 7}
        assert copy_json(value, "state") == json.loads(json.dumps(value)) == expected

    def test_subclasses_become_plain(self) -> None:
        class Colour(StrEnum):
            RED = "red"

        class Old(str, Enum):  # noqa: UP042 - what users still write
            BLUE = "blue"

        copied = copy_json([Colour.RED, Old.BLUE], "state")
        assert copied == ["red", "blue"]
        assert isinstance(copied, list)
        assert [type(item) for item in copied] == [str, str]

    @pytest.mark.parametrize(
        "value",
        [np.float64(1.5), np.float32(1.5), np.int8(1), np.bool_(True), np.str_("x"), np.arange(6).reshape(2, 3)],
    )
    def test_numpy_values_are_refused_and_what_the_error_advises_works(self, value: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"numpy\.\w+ is not JSON; convert it with \.tolist\(\)") as caught:
            copy_json({"a": [0, value]}, "state")
        assert caught.value.field == "state.a[1]"
        assert copy_json({"a": [0, value.tolist()]}, "state") == {"a": [0, value.tolist()]}

    @pytest.mark.parametrize("value", [b"x", bytearray(b"x"), {1, 2}, 1j, object(), np.zeros(2), range(3)])
    def test_other_types_are_refused(self, value: Any) -> None:
        with pytest.raises(InvalidRequest, match="is not JSON"):
            copy_json([value], "state")

    def test_numpy_keys_are_refused(self) -> None:
        for key in (np.str_("a"), np.float64(1.0)):
            with pytest.raises(InvalidRequest, match="key of type numpy"):
                copy_json({key: 1}, "state")

    def test_integers_are_exact_up_to_4300_digits(self) -> None:
        assert copy_json(10**4299, "state") == 10**4299
        with pytest.raises(InvalidRequest, match="4300 digits"):
            copy_json([10**4300], "state")

    def test_depth_is_bounded(self) -> None:
        assert copy_json(nested(MAX_DEPTH), "state") == nested(MAX_DEPTH)
        for depth in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(InvalidRequest, match="nested deeper than 200 levels"):
                copy_json(nested(depth), "state")

    def test_a_cycle_is_too_deep(self) -> None:
        cycle: dict[str, Any] = {}
        cycle["self"] = cycle
        with pytest.raises(InvalidRequest, match="nested deeper") as caught:
            copy_json(cycle, "state")
        assert caught.value.field is not None
        assert len(caught.value.field) < 120

    def test_a_calling_stack_near_its_limit_is_an_error_of_ours(self) -> None:
        def call_from(depth: int) -> None:
            if depth:
                call_from(depth - 1)
            else:
                copy_json(nested(MAX_DEPTH), "state")

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(1000)
        try:
            with pytest.raises(InvalidRequest, match="too deeply for this call"):
                call_from(700)
        finally:
            sys.setrecursionlimit(limit)

    def test_long_keys_are_shortened_in_errors(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            copy_json({"k" * 10_000: float("nan")}, "state")
        assert len(str(caught.value)) < 200


class TestOwnership:
    def test_later_changes_do_not_reach_the_question(self) -> None:
        description: dict[str, Any] = {"covers": ["login"]}
        criteria: dict[str, Any] = {"auth": description, "other": None}
        instructions: list[Any] = ["ask", {"k": 1}]
        levels: list[Any] = ["low", {"text": "high"}]
        choice, noul = Choice(instructions, criteria), Noul(instructions, {"true": description})
        score = Score(instructions, levels)
        description["covers"].append("tokens")
        criteria["third"] = None
        instructions[1]["k"] = 2
        levels[1]["text"] = "changed"
        assert choice == Choice(["ask", {"k": 1}], {"auth": {"covers": ["login"]}, "other": None})
        assert noul == Noul(["ask", {"k": 1}], {"true": {"covers": ["login"]}})
        assert score == Score(["ask", {"k": 1}], ["low", {"text": "high"}])

    @pytest.mark.parametrize("question", [Noul("x"), Choice("x", ["a", "b"]), Score("x", ["a", "b"])])
    def test_questions_are_frozen_and_travel(self, question: Noul | Choice | Score) -> None:
        with pytest.raises(AttributeError):
            question.instructions = "y"  # type: ignore[misc]
        assert pickle.loads(pickle.dumps(question)) == question


def test_errors_travel_between_processes() -> None:
    refused = InvalidRequest("is wrong", question="q", field="criteria")
    copied = pickle.loads(pickle.dumps(refused))
    assert str(copied) == str(refused) == "question 'q', field 'criteria': is wrong"
    large = pickle.loads(pickle.dumps(PayloadTooLarge("too long", tokens=20, limit=10)))
    assert (str(large), large.tokens, large.limit) == ("too long", 20, 10)
