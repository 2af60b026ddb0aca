"""Plans of random calls: every row is read whole, nothing is decoded twice, and no budget is passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from decider_native import engine

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Budget:
    step_tokens: int
    min_step_tokens: int
    sequences: int
    rows_per_step: int
    step_cost: int
    tile: int = 1

    def cost(self, tokens: int) -> int:
        """Of a step with so many tokens, or of the steps that so many of one sequence need."""
        return -(-tokens // self.step_tokens) * self.step_cost + -(-tokens // self.tile) * self.tile


@dataclass
class Carried:
    """What a plan does, carried out on sequences of tokens."""

    read: Counter[Tokens] = field(default_factory=Counter)
    decoded: Counter[Tokens] = field(default_factory=Counter)  # each token, by the prefix that it ends
    saved: Counter[Tokens] = field(default_factory=Counter)
    steps: list[list[int]] = field(default_factory=list)  # lengths of their segments, padding included
    most_sequences: int = 1


def carry_out(rows: Sequence[Tokens], budget: Budget, contexts: Sequence[int] = (), restored: int = 0) -> Carried:
    plan = engine._native.plan_steps(  # type: ignore[attr-defined]
        np.array([token for row in rows for token in row], dtype=np.int32),
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        np.array(contexts, dtype=np.int32),
        restored=restored,
        **vars(budget),
    )
    carried = Carried()
    live: dict[int, list[int]] = {0: list(rows[0][:restored])} if restored else {}
    step: Any
    for kind, *step in plan:
        if kind == "fork":
            source, target = step
            assert target not in live
            live[target] = list(live[source])
        elif kind == "drop":
            del live[step[0]]
        elif kind == "save":
            sequence, row, tokens = step
            assert tuple(live[sequence]) == rows[row][:tokens]
            carried.saved[rows[row][:tokens]] += 1
        else:
            for sequence, row, begin, end, padding, read in step[0]:
                assert len(live.setdefault(sequence, [])) == begin  # so no padding lies before it
                for at in range(begin, end):
                    live[sequence].append(rows[row][at])
                    carried.decoded[tuple(live[sequence])] += 1
                assert tuple(live[sequence]) == rows[row][:end]
                if read:
                    assert end == len(rows[row])
                    carried.read[rows[row]] += 1
                live[sequence] += [-1] * padding
            carried.steps.append([end - begin + padding for _, _, begin, end, padding, _ in step[0]])
        carried.most_sequences = max(carried.most_sequences, len(live))
    assert not live
    return carried


# Small alphabets make rows share a lot; a row may be the beginning of another.
@st.composite
def row_lists(draw: st.DrawFn) -> list[Tokens]:
    stems = draw(st.lists(st.lists(st.integers(0, 2), max_size=30), min_size=1, max_size=4))
    ends = st.lists(st.integers(0, 2), min_size=1, max_size=14)
    return [tuple(draw(st.sampled_from(stems)) + draw(ends)) for _ in range(draw(st.integers(1, 12)))]


budgets = st.builds(
    Budget,
    step_tokens=st.sampled_from([32, 48, 64]),
    min_step_tokens=st.integers(1, 8),
    sequences=st.integers(1, 8),
    rows_per_step=st.integers(1, 6),
    step_cost=st.integers(0, 40),
    tile=st.sampled_from([1, 4, 8]),
)


@given(row_lists(), budgets)
def test_every_row_is_read_once_and_within_the_budget(rows: list[Tokens], budget: Budget) -> None:
    carried = carry_out(rows, budget)
    assert carried.read == Counter(dict.fromkeys(rows, 1))
    assert carried.most_sequences <= budget.sequences + budget.rows_per_step
    for segments in carried.steps:
        assert sum(segments) <= budget.step_tokens
        assert len(segments) <= budget.rows_per_step
        assert len(set(segments)) == 1
        assert min(segments) >= budget.min_step_tokens


@given(row_lists(), st.integers(1, 6))
def test_no_token_is_decoded_twice(rows: list[Tokens], rows_per_step: int) -> None:
    """But for the last one of a row that others go on from: every row is read at the end of a step of its own."""
    # any step may be as short as it likes, any node may be forked, and no step is worth a token
    budget = Budget(64, 1, 40, rows_per_step, step_cost=0)
    distinct = set(rows)
    for prefix, times in carry_out(rows, budget).decoded.items():
        goes_on = any(len(row) > len(prefix) and row[: len(prefix)] == prefix for row in distinct)
        assert times == 1 + (prefix in distinct and goes_on)


@given(st.lists(st.integers(0, 2), max_size=30), row_lists(), budgets, st.data())
def test_a_state_is_saved_once_or_started_from(
    state: list[int], questions: list[Tokens], budget: Budget, data: st.DataObject
) -> None:
    rows = [tuple(state) + question for question in questions]
    saved = carry_out(rows, budget, [len(state)] * len(rows)).saved
    assert saved == ({tuple(state): 1} if len(state) >= budget.min_step_tokens else {})
    restored = data.draw(st.integers(0, len(state)))
    assert all(len(prefix) > restored for prefix in carry_out(rows, budget, restored=restored).decoded)


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    """All ways to put lengths into groups."""
    if not rows:
        yield []
        return
    for rest in partitions(rows[1:]):
        yield [[rows[0]], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [rows[0], *group], *rest[i + 1 :]]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), budgets)
def test_rows_share_steps_in_the_cheapest_way(lengths: list[int], budget: Budget) -> None:
    """Padding counts as much as other tokens, and a step as much as the budget says."""
    state = (0,) * 20
    rows = [state + (i + 1,) * length for i, length in enumerate(lengths)]

    def cost(groups: Sequence[Sequence[int]]) -> int:
        return sum(budget.cost(max([budget.min_step_tokens, *group]) * len(group)) for group in groups)

    def allowed(group: Sequence[int]) -> bool:
        together = max([budget.min_step_tokens, *group]) * len(group)
        return len(group) == 1 or (len(group) <= budget.rows_per_step and together <= budget.step_tokens)

    cheapest = min(cost(groups) for groups in partitions(lengths) if all(map(allowed, groups)))
    steps = carry_out(rows, budget).steps
    first = next(i for i in range(len(steps)) if sum(map(sum, steps[: i + 1])) >= len(state))  # the state's own
    assert sum(budget.cost(sum(step)) for step in steps[first + 1 :]) == cheapest


@given(st.lists(row_lists(), min_size=2, max_size=5), budgets)
def test_a_call_for_several_states_costs_no_more_than_a_call_each(calls: list[list[Tokens]], budget: Budget) -> None:
    """States that share nothing still share steps, where that is cheaper."""

    def cost(rows: list[Tokens]) -> int:
        return sum(budget.cost(sum(step)) for step in carry_out(rows, budget).steps)

    apart = [[(100 + state, *row) for row in rows] for state, rows in enumerate(calls)]
    assert cost([row for rows in apart for row in rows]) <= sum(map(cost, apart))


def test_a_long_row_is_cut_into_even_pieces() -> None:
    row = tuple(range(130))
    steps = carry_out([row], Budget(64, 8, 4, 1, 8)).steps
    assert [len(segments) for segments in steps] == [1, 1, 1]
    assert max(sum(a) - sum(b) for a, b in pairwise(sorted(steps, reverse=True))) <= 1
    assert carry_out([row], Budget(64, 8, 4, 1, 8, tile=16)).steps == [[48], [48], [34]]
