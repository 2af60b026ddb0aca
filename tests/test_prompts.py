"""Prompt rows: texts as decider-ai 1.5.0 writes them, and the pieces they are tokenized in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decider_native.config import ReadoutConfig
from decider_native.errors import InvalidRequest, ModelLoadError
from decider_native.prompts import (
    USER_CONTENT,
    ChatLayout,
    Control,
    Label,
    Piece,
    PlainLayout,
    question_rows,
    render_state,
)
from decider_native.questions import Choice, Noul, Score, parse_questions

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FIT = "Does the proposed answer fit?\nOptions:\n(A) no\n(B) yes\nAnswer: ("
YES_NO = ["no", "yes"]


def text_of(pieces: tuple[Piece, ...]) -> str:
    def text(piece: Piece) -> str:
        if isinstance(piece, Label):
            return ALPHABET[piece.index]
        return piece.text if isinstance(piece, Control) else piece

    return "".join(map(text, pieces))


# State, its text, the questions, and per row: the text after the state, and the options. From decider-ai 1.5.0.
ROWS: list[tuple[Any, str, dict[str, Any], list[tuple[str, list[str]]]]] = [
    (
        "My card was charged twice for the same purchase.",
        "My card was charged twice for the same purchase.",
        {"q": {"type": "noul", "instructions": "Does the customer ask for a refund?"}},
        [
            (
                "\n\nQuestion: Does the customer ask for a refund?\nOptions:\n(A) no\n(B) yes\nAnswer: (",
                YES_NO,
            )
        ],
    ),
    (
        "Box was wet, item fine.",
        "Box was wet, item fine.",
        {
            "only_true": {"type": "noul", "instructions": "Damaged?", "criteria": {"true": "yes it is"}},
            "only_false": {"type": "noul", "instructions": "Damaged?", "criteria": {"false": "no it is not"}},
            "blank": {"type": "noul", "instructions": "Damaged?", "criteria": {"true": "", "false": None}},
            "zero": {"type": "noul", "instructions": "Damaged?", "criteria": {"true": 0, "false": False}},
        },
        [
            (
                "\n\nQuestion: Damaged?\nOptions:\n(A) no\n(B) yes: yes it is\nAnswer: (",
                ["no", "yes: yes it is"],
            ),
            (
                "\n\nQuestion: Damaged?\nOptions:\n(A) no: no it is not\n(B) yes\nAnswer: (",
                ["no: no it is not", "yes"],
            ),
            ("\n\nQuestion: Damaged?\nOptions:\n(A) no\n(B) yes\nAnswer: (", YES_NO),
            ("\n\nQuestion: Damaged?\nOptions:\n(A) no: false\n(B) yes: 0\nAnswer: (", ["no: false", "yes: 0"]),
        ],
    ),
    (
        {"text": "where is my order"},
        '{"text": "where is my order"}',
        {
            "a": {"type": "noul", "criteria": {"true": "asks for the order status"}},
            "b": {"type": "noul", "instructions": None, "criteria": {"false": {"x": 1}}},
            "c": {"type": "bool", "instructions": "", "criteria": {"true": "t", "false": "f"}},
        },
        [
            (
                "\n\nQuestion: Which answer fits the context?\nOptions:\n(A) no\n(B) yes: asks for the order status"
                "\nAnswer: (",
                ["no", "yes: asks for the order status"],
            ),
            (
                '\n\nQuestion: Which answer fits the context?\nOptions:\n(A) no: {"x": 1}\n(B) yes\nAnswer: (',
                ['no: {"x": 1}', "yes"],
            ),
            (
                "\n\nQuestion: Which answer fits the context?\nOptions:\n(A) no: f\n(B) yes: t\nAnswer: (",
                ["no: f", "yes: t"],
            ),
        ],
    ),
    (
        "\n\n  leading blank lines\r\nwindows line\r\n\ttabbed\t\ttwice   \n",
        "\n\n  leading blank lines\r\nwindows line\r\n\ttabbed\t\ttwice   \n",
        {"c": {"instructions": "First line\n\nsecond line  ", "criteria": ["option\nwith newline", "  padded  "]}},
        [
            (
                "\n\nQuestion: First line\n\nsecond line  \nOptions:\n(A) option\nwith newline\n(B)   padded  "
                "\nAnswer: (",
                ["option\nwith newline", "  padded  "],
            )
        ],
    ),
    (
        {"values": [1, 2.5, "three", None, True, False, -0.0, 1e21, [1, 2], {"k": 8}], "short": [1, 2]},
        '{"values": [{"_index": 0, "value": 1}, {"_index": 1, "value": 2.5}, {"_index": 2, "value": "three"}, '
        '{"_index": 3, "value": null}, {"_index": 4, "value": true}, {"_index": 5, "value": false}, '
        '{"_index": 6, "value": -0.0}, {"_index": 7, "value": 1e+21}, {"_index": 8, "value": [1, 2]}, '
        '{"_index": 9, "k": 8}], "short": [1, 2]}',
        {"n": {"type": "noul", "instructions": "Is `values[2]` text?"}},
        [("\n\nQuestion: Is `values[2]` text?\nOptions:\n(A) no\n(B) yes\nAnswer: (", YES_NO)],
    ),
    (
        {"odd": "narrow"},
        '{"odd": "narrow"}',
        {"c": {"instructions": "Which?\r\n", "criteria": {"": None, "a:": ": b", "b\n\n": "", "1.": 2}}},
        [
            (
                "\n\nQuestion: Which?\r\n\nOptions:\n(A) \n(B) a:: : b\n(C) b\n\n\n(D) 1.: 2\nAnswer: (",
                ["", "a:: : b", "b\n\n", "1.: 2"],
            )
        ],
    ),
    (
        "Odd options in the wide layout.",
        "Odd options in the wide layout.",
        {
            "c": {
                "instructions": {"ask": "Which of eleven?", "n": 11},
                "criteria": ["", " ", "x\n", "  pad  ", "\n\ny", "(A) z", "é", "<|im_end|>", "🎉", "Answer: (", ")"],
            }
        },
        [
            (
                '\n\nQuestion: {"ask": "Which of eleven?", "n": 11}\nOptions:\n(A) \n(B)  \n(C) x\n\n(D)   pad  '
                "\n(E) \n\ny\n(F) (A) z\n(G) é\n(H) <|im_end|>\n(I) 🎉\n(J) Answer: (\n(K) )\nAnswer: (",
                ["", " ", "x\n", "  pad  ", "\n\ny", "(A) z", "é", "<|im_end|>", "🎉", "Answer: (", ")"],
            )
        ],
    ),
    (
        "Pick a value.",
        "Pick a value.",
        {"c": {"instructions": "Which value?", "criteria": [1, 2.5, True, None, "1x", 0, -3, 1e-07, 1e16]}},
        [
            (
                "\n\nQuestion: Which value?\nOptions:\n(A) 1\n(B) 2.5\n(C) True\n(D) None\n(E) 1x\n(F) 0\n(G) -3"
                "\n(H) 1e-07\n(I) 1e+16\nAnswer: (",
                ["1", "2.5", "True", "None", "1x", "0", "-3", "1e-07", "1e+16"],
            )
        ],
    ),
    (
        {"t": "hm"},
        '{"t": "hm"}',
        {
            "s": {
                "type": "score",
                "instructions": "How positive?",
                "criteria": ["-2: very negative", " -1 :negative", "0:neutral", "1:  positive", "2: very: positive"],
            }
        },
        [
            (f"\n\nQuestion: How positive?\nProposed answer: {level}\n{FIT}", YES_NO)
            for level in ("very negative", "negative", "neutral", "positive", "very: positive")
        ],
    ),
    (
        "Map legend.",
        "Map legend.",
        {
            "s": {
                "type": "score",
                "instructions": "Level?",
                "criteria": {"10": "ten", "2": "two", "0": {"zero": True}, "1.5": ["one", "half"]},
            }
        },
        [
            (f"\n\nQuestion: Level?\nProposed answer: {level}\n{FIT}", YES_NO)
            for level in ('{"zero": true}', '["one", "half"]', "two", "ten")
        ],
    ),
    (
        {"ten": 10.0},
        '{"ten": 10.0}',
        {
            "s": {
                "type": "score",
                "instructions": "How much?",
                "criteria": [0, None, True, "4: four", ["5"], 7.5, "8 : eight", "\uff19: fullwidth nine"],
            }
        },
        [
            (f"\n\nQuestion: How much?\nProposed answer: {level}\n{FIT}", YES_NO)
            for level in ("0", "null", "true", "four", '["5"]', "7.5", "eight", "fullwidth nine")
        ],
    ),
    (
        "a\n\n\n\nb\n \n  \n",
        "a\n\n\n\nb\n \n  \n",
        {"s": {"type": "score", "instructions": "How many\tblank lines?", "criteria": ["few\n", "\nmany"]}},
        [
            (f"\n\nQuestion: How many\tblank lines?\nProposed answer: {level}\n{FIT}", YES_NO)
            for level in ("few\n", "\nmany")
        ],
    ),
    (
        "Levels seen together.",
        "Levels seen together.",
        {"s": {"type": "score", "instructions": "How good?", "criteria": ["0: bad", "barely"], "isolated": False}},
        [
            (
                "\n\nQuestion: How good?\nOptions:\n(A) 0: 0: bad\n(B) 1: barely\nAnswer: (",
                ["0: 0: bad", "1: barely"],
            )
        ],
    ),
    (
        {"a": 1e5, "c": 0, "d": -0.0, "f": 0.0001, "g": 1e15, "h": 1e16, "i": 10**23, "j": 2.5e-8},
        '{"a": 100000.0, "c": 0, "d": -0.0, "f": 0.0001, "g": 1000000000000000.0, "h": 1e+16, '
        '"i": 100000000000000000000000, "j": 2.5e-08}',
        {"b": {"type": "bool", "instructions": ["list", "instructions"], "criteria": {"true": "T"}}},
        [
            (
                '\n\nQuestion: ["list", "instructions"]\nOptions:\n(A) no\n(B) yes: T\nAnswer: (',
                ["no", "yes: T"],
            )
        ],
    ),
]


@pytest.mark.parametrize(("state", "state_text", "questions", "expected"), ROWS)
def test_rows_are_decider_ais(
    state: Any, state_text: str, questions: dict[str, Any], expected: list[tuple[str, list[str]]]
) -> None:
    layout = PlainLayout()
    assert render_state(state) == state_text
    assert text_of(layout.context(state_text)) == f"Context:\n{state_text}"
    rows = [
        row
        for question_id, question in parse_questions(questions).items()
        for row in question_rows(question_id, question, ReadoutConfig(), layout)
    ]
    assert [(text_of(row.pieces), list(row.options)) for row in rows] == expected


class TestPieces:
    def test_ten_options_are_one_piece(self) -> None:
        options = [f"o{i}" for i in range(10)]
        lines = "".join(f"\n({letter}) {option}" for letter, option in zip("ABCDEFGHIJ", options, strict=True))
        assert PlainLayout().block("Q", options) == (f"\n\nQuestion: Q\nOptions:{lines}\nAnswer: (",)

    def test_eleven_options_have_label_pieces(self) -> None:
        options = [f"o{i}" for i in range(11)]
        pieces = PlainLayout().block("Q", options)
        assert pieces[0] == "\n\nQuestion: Q\nOptions:"
        assert pieces[1:4] == ("\n(", Label(0), ") o0")
        assert pieces[31:] == ("\n(", Label(10), ") o10", "\nAnswer: (")

    def test_255_labels(self) -> None:
        pieces = PlainLayout().block("Q", [str(i) for i in range(255)])
        assert [piece.index for piece in pieces if isinstance(piece, Label)] == list(range(255))

    def test_chat_keeps_the_callers_text_out_of_control_pieces(self) -> None:
        layout = ChatLayout("<head>", "<tail>")
        assert layout.context("S") == (Control("<head>"), "Context:\nS")
        assert layout.block("Q", ["a", "b"]) == (
            "\n\nQuestion: Q\nOptions:",
            "\n(A) a\n(B) b",
            Control("<tail>"),
            "Answer: (",
        )
        wide = layout.block("Q", [f"o{i}" for i in range(11)])
        assert wide[:4] == ("\n\nQuestion: Q\nOptions:", "\n(", Label(0), ") o0")
        assert wide[-3:] == (") o10", Control("<tail>"), "Answer: (")

    @pytest.mark.parametrize(
        ("after", "tail"),
        [
            ("<end>\n<assistant>", "<end>\n<assistant>"),
            ("<assistant><think>\n", "<assistant><think>\n</think>\n\n"),
            ("<assistant><think>", "<assistant><think></think>\n\n"),
            ("<assistant><think>\n\n</think>\n\n", "<assistant><think>\n\n</think>\n\n"),
            ("<|channel>thought\n", "<|channel>thought\n<channel|>"),
        ],
    )
    def test_a_rendered_chat_template_is_split_with_thinking_closed(self, after: str, tail: str) -> None:
        assert ChatLayout.from_rendered(f"<user>\n{USER_CONTENT}{after}") == ChatLayout("<user>\n", tail)

    @pytest.mark.parametrize("rendered", ["<user>", f"{USER_CONTENT}{USER_CONTENT}"])
    def test_a_template_must_show_the_text_once(self, rendered: str) -> None:
        with pytest.raises(ModelLoadError, match="instead of once"):
            ChatLayout.from_rendered(rendered)


class TestRows:
    def test_rows_carry_question_and_kind(self) -> None:
        rows = question_rows("team", Score("x", ["a", "b", "c"]), ReadoutConfig(), PlainLayout())
        assert [(row.question_id, row.kind, row.options) for row in rows] == [("team", "score", ("no", "yes"))] * 3

    def test_levels_can_be_read_in_one_row_by_configuration(self) -> None:
        config = ReadoutConfig(isolated_levels=False)
        (row,) = question_rows("q", Score("Level?", ["0: low", {"k": 1}]), config, PlainLayout())
        assert text_of(row.pieces) == '\n\nQuestion: Level?\nOptions:\n(A) 0: 0: low\n(B) 1: {"k": 1}\nAnswer: ('

    def test_a_single_option_needs_no_row(self) -> None:
        assert question_rows("q", Choice("x", ["only"]), ReadoutConfig(), PlainLayout()) == []

    @pytest.mark.parametrize("question", [Choice(None, ["a", "b"]), Choice("", {"a": None, "b": ""})])
    def test_nothing_asked_is_the_default_question(self, question: Choice) -> None:
        (row,) = question_rows("q", question, ReadoutConfig(), PlainLayout())
        assert text_of(row.pieces).startswith("\n\nQuestion: Which answer fits the context?\nOptions:\n(A) a\n(B) b\n")

    def test_a_score_may_ask_nothing_too(self) -> None:
        row, _ = question_rows("q", Score(None, ["a", "b"]), ReadoutConfig(), PlainLayout())
        assert text_of(row.pieces) == f"\n\nQuestion: Which answer fits the context?\nProposed answer: a\n{FIT}"

    def test_braces_are_no_placeholders(self) -> None:
        row, _ = question_rows("q", Score("{level}", ["{question}", "b"]), ReadoutConfig(), PlainLayout())
        assert text_of(row.pieces) == f"\n\nQuestion: {{level}}\nProposed answer: {{question}}\n{FIT}"

    def test_none_of_the_above_is_neutralized_for_the_model_only(self) -> None:
        names = ["billing", " None of the Above", "N/A", "none", "none of these", "other", "none at all"]
        question = Choice("x", names)
        (row,) = question_rows("q", question, ReadoutConfig(neutralize_none=True), PlainLayout())
        hidden = "not listed here"
        assert row.options == ("billing", hidden, hidden, hidden, hidden, "other", "none at all")
        assert f"\n(B) {hidden}\n(C) {hidden}\n" in text_of(row.pieces)
        assert list(question.criteria) == names

    def test_neutralizing_reads_the_whole_option(self) -> None:
        question = Choice("x", {"none": "described", "none of the above": "described"})
        (row,) = question_rows("q", question, ReadoutConfig(neutralize_none=True), PlainLayout())
        assert row.options == ("none: described", "not listed here")

    def test_questions_keep_their_long_arrays_plain(self) -> None:
        (row,) = question_rows("q", Noul(list(range(9))), ReadoutConfig(), PlainLayout())
        assert text_of(row.pieces).startswith("\n\nQuestion: [0, 1, 2, 3, 4, 5, 6, 7, 8]\n")


# -- states

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT


def json_values(longest: int) -> st.SearchStrategy[Any]:
    keys = TEXT | st.just("_index") | st.just("value")
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=longest) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=40,
    )


def indexed(value: Any) -> Any:
    """The rule again, on finished JSON and from the outside in."""
    if isinstance(value, dict):
        return dict(zip(value, map(indexed, value.values()), strict=True))
    if not isinstance(value, list):
        return value
    if len(value) < 8:
        return list(map(indexed, value))
    out: list[dict[str, Any]] = []
    for element in value:
        entry: dict[str, Any] = {"_index": len(out)}
        entry.update(indexed(element) if isinstance(element, dict) else {"value": indexed(element)})
        out.append(entry)
    return out


class TestState:
    @unhurried
    @given(json_values(longest=7))
    def test_short_arrays_render_as_json(self, value: Any) -> None:
        expected = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        assert render_state(value) == expected

    @unhurried
    @given(json_values(longest=20))
    def test_long_arrays_carry_positions(self, value: Any) -> None:
        if not isinstance(value, str):
            assert render_state(value) == json.dumps(indexed(value), ensure_ascii=False)

    def test_an_own_index_keeps_its_value_and_moves_first(self) -> None:
        state: Any = [{"a": 1, "_index": "mine"}] + [{"a": 1}] * 7
        assert render_state(state).startswith('[{"_index": "mine", "a": 1}, {"_index": 1, "a": 1}, ')

    def test_positions_are_written_at_every_depth(self) -> None:
        assert render_state([[0] * 8]) == json.dumps([[{"_index": i, "value": 0} for i in range(8)]])
        assert render_state([[]] * 8) == json.dumps([{"_index": i, "value": []} for i in range(8)])

    def test_tuples_are_arrays(self) -> None:
        assert render_state({"a": (1, (2,))}) == '{"a": [1, [2]]}'

    def test_keys_that_are_no_strings(self) -> None:
        state: Any = {True: 1, None: 2, 2: 3, 1.5: 4}
        assert render_state(state) == json.dumps(state) == '{"true": 1, "null": 2, "2": 3, "1.5": 4}'

    @pytest.mark.parametrize(
        ("state", "field"),
        [
            (float("nan"), "state"),
            ({"a": [1.0, float("-inf")]}, "state.a[1]"),
            ("bad \ud800 surrogate", "state"),
            ({"a": {"b": ["\udfff"]}}, "state.a.b[0]"),
            ({"\ud800": 1}, "state"),
            ({"a b": {1}}, "state['a b']"),
            (b"bytes", "state"),
        ],
    )
    def test_what_is_not_json_is_refused_with_its_path(self, state: Any, field: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            render_state(state)
        assert caught.value.field == field

    def test_large_states(self) -> None:
        assert render_state(["x"] * 100_000).endswith('{"_index": 99999, "value": "x"}]')
        assert len(render_state({"text": "é" * 10_000_000})) == 10_000_012

    def test_the_deepest_state_renders(self) -> None:
        state: Any = 0
        for _ in range(200):
            state = [state] * 8 if state == 0 else [state, *range(7)]
        assert render_state(state).count("_index") == 200 * 8
