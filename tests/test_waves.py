"""Calls that wait at the same time: they share tokens, make way for each other, and change no bit of one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from decider_native import Cancelled, DeadlineExceeded
from decider_native.engine import Engine, Readings, TokenIds
from token_rows import tokens

CONTEXT_TOKENS = 2048
LABELS = 9


@pytest.fixture(scope="module", params=["qwen35", "qwen3"])
def engine(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> Iterator[Engine]:
    path = make_model(request.param, "F16")
    engine = Engine(path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS, context_cache_bytes=0)
    yield engine
    engine.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def read(engine: Engine, rows: list[TokenIds], **options: object) -> Readings:
    return engine.read(rows, [LABELS] * len(rows), **options)  # type: ignore[arg-type]


def bits(readings: Readings) -> list[bytes]:
    return [reading.logits.tobytes() for reading in readings.rows]


def started(engine: Engine, pool: ThreadPoolExecutor, rows: list[TokenIds]) -> Future[Readings]:
    """A call that the model reads by now; what is asked from here on waits."""
    begun = threading.Event()
    call = pool.submit(read, engine, rows, progress=lambda done, total: begun.set() if done else None)
    assert begun.wait(60)
    return call


def long_rows(count: int = 1, seed: int = 1) -> list[TokenIds]:
    return [tokens(np.random.default_rng(seed + i), CONTEXT_TOKENS) for i in range(count)]


def many_states() -> list[TokenIds]:
    rng = np.random.default_rng(11)
    states = [tokens(rng, 40 + i % 7) for i in range(100)]
    return [np.concatenate([state, tokens(rng, 12)]) for state in states for _ in range(2)]


def occupied(engine: Engine, pool: ThreadPoolExecutor, rows: int = 1) -> Future[Readings]:
    return started(engine, pool, long_rows(rows))


def test_calls_that_wait_together_share_what_they_have_in_common(engine: Engine, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(2)
    state = tokens(rng, 60)
    calls = [[np.concatenate([state, tokens(rng, 12)]) for _ in range(2)] for _ in range(8)]
    alone = [bits(read(engine, rows)) for rows in calls]

    first = occupied(engine, pool)
    together = [pool.submit(read, engine, rows) for rows in calls]
    results = [call.result(60) for call in together]
    first.result(60)
    assert [bits(result) for result in results] == alone
    once = 60 + 8 * 2 * 12  # the state, and every row's own end
    assert sum(result.decoded_tokens for result in results) < once + 2 * 60  # however the calls fell into waves
    assert sum(result.reused_tokens for result in results) >= 5 * 60


@pytest.mark.parametrize("rows", [long_rows(seed=9), many_states()], ids=["one_row", "many_states"])
def test_a_long_call_makes_way_for_short_ones(engine: Engine, pool: ThreadPoolExecutor, rows: list[TokenIds]) -> None:
    row = [tokens(np.random.default_rng(3), 40)]
    expected = bits(read(engine, row))
    long_alone = bits(read(engine, rows))

    ended: list[str] = []
    long = started(engine, pool, rows)
    long.add_done_callback(lambda call: ended.append("long"))
    short = pool.submit(read, engine, row)
    short.add_done_callback(lambda call: ended.append("short"))
    assert bits(short.result(60)) == expected
    assert bits(long.result(60)) == long_alone
    assert ended == ["short", "long"]


def test_a_call_that_shares_a_wave_is_stopped_alone(engine: Engine, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(4)
    calls = [[tokens(rng, 60)] for _ in range(6)]
    alone = [bits(read(engine, rows)) for rows in calls]

    first = occupied(engine, pool)
    stop = threading.Event()
    kept = [pool.submit(read, engine, rows) for rows in calls[:4]]
    cancelled = pool.submit(read, engine, calls[4], cancelled=stop.is_set)
    late = pool.submit(read, engine, calls[5], timeout=0.01)
    time.sleep(0.05)
    stop.set()
    with pytest.raises(Cancelled):
        cancelled.result(60)
    with pytest.raises(DeadlineExceeded):
        late.result(60)
    assert [bits(call.result(60)) for call in kept] == alone[:4]
    first.result(60)


def test_a_suspended_call_can_be_cancelled(engine: Engine, pool: ThreadPoolExecutor) -> None:
    row = [tokens(np.random.default_rng(5), 40)]
    expected = bits(read(engine, row))
    stop = threading.Event()
    long = [tokens(np.random.default_rng(6), CONTEXT_TOKENS) for _ in range(20)]
    call = pool.submit(read, engine, long, cancelled=stop.is_set)
    shorts = [pool.submit(read, engine, row) for _ in range(8)]
    stop.set()
    with pytest.raises(Cancelled):
        call.result(60)
    assert all(bits(short.result(60)) == expected for short in shorts)


def test_thirty_two_threads_of_mixed_calls(engine: Engine, pool: ThreadPoolExecutor) -> None:
    rng = np.random.default_rng(7)
    states = [tokens(rng, int(length)) for length in (10, 60, 150, 700)]
    calls = [
        [np.concatenate([states[int(rng.integers(4))], tokens(rng, int(rng.integers(1, 20)))]) for _ in range(2)]
        for _ in range(32)
    ]
    alone = [bits(read(engine, rows)) for rows in calls]
    assert [bits(result) for result in pool.map(lambda rows: read(engine, rows), calls)] == alone
