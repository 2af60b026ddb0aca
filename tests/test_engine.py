"""The engine as a Python caller meets it: what stops a call, what is refused, what it leaves behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decider_native import (
    BackendError,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Decider,
    InvalidRequest,
    ModelLoadError,
    Noul,
    PayloadTooLarge,
    devices,
)
from decider_native.engine import Engine
from run_script import run_script
from token_rows import VOCAB, random_tree, tokens

CONTEXT_TOKENS = 2048
SOON = 20.0  # seconds; a stopped call ends in milliseconds, and an unstopped LONG one takes longer than this

ROWS = random_tree(np.random.default_rng(5), most=5)
LONG = [tokens(np.random.default_rng(i), CONTEXT_TOKENS) for i in range(256)]


@pytest.fixture(scope="module")
def engine(tiny_path: Path) -> Iterator[Engine]:
    engine = Engine(tiny_path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(engine: Engine) -> bytes:
    return answers(engine)


def answers(engine: Engine) -> bytes:
    return b"".join(reading.logits.tobytes() for reading in engine.read(ROWS, [9] * len(ROWS)).rows)


def read_long(engine: Engine, **options: Any) -> None:
    engine.read(LONG, [2] * len(LONG), **options)


@contextmanager
def busy(engine: Engine) -> Iterator[Future[None]]:
    """Let another thread's call keep the engine busy."""
    asked, started, enough = threading.Event(), threading.Event(), threading.Event()

    def cancelled() -> bool:
        if asked.is_set():  # the first time is before the call is handed over
            started.set()
        asked.set()
        return enough.is_set()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(read_long, engine, cancelled=cancelled)
        try:
            assert started.wait(SOON)
            yield call
        finally:
            enough.set()


@contextmanager
def ends_soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SOON


# -- what stops a call


def test_a_deadline_stops_a_running_call(engine: Engine, expected: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with ends_soon(), pytest.raises(DeadlineExceeded, match="while the model ran"):
        read_long(engine, timeout=0.2)
    assert answers(engine) == expected
    assert caplog.records == []  # what was asked for is no error of llama.cpp's


def test_a_call_that_is_cancelled_already_does_not_start(engine: Engine) -> None:
    with pytest.raises(Cancelled, match="before the model was asked"):
        engine.read(ROWS, [9] * len(ROWS), cancelled=lambda: True)


def test_a_timeout_beyond_any_clock_is_none(engine: Engine) -> None:
    assert engine.read(ROWS, [2] * len(ROWS), timeout=1e300).rows


def test_a_cancelled_call_stops(engine: Engine, expected: bytes) -> None:
    with ends_soon(), pytest.raises(Cancelled):
        read_long(engine, cancelled=lambda: True)
    assert answers(engine) == expected


def test_a_queued_call_keeps_its_deadline(engine: Engine) -> None:
    with busy(engine) as other, ends_soon():
        with pytest.raises(DeadlineExceeded, match="queue"):
            read_long(engine, timeout=0.2)  # a short call would not have to wait
        assert not other.done()
    with pytest.raises(Cancelled):
        other.result()


def test_a_queued_call_can_be_cancelled(engine: Engine, expected: bytes) -> None:
    with busy(engine) as other, ends_soon():
        with pytest.raises(Cancelled, match="queue"):
            read_long(engine, cancelled=iter([False, True]).__next__)
        assert not other.done()
    assert answers(engine) == expected


class NoTruth:
    def __bool__(self) -> bool:
        raise LookupError("no truth value")


def raises_on_call() -> bool:
    raise LookupError("no answer")


@pytest.mark.parametrize("cancelled", [raises_on_call, NoTruth], ids=["call", "truth value"])
def test_an_error_of_the_cancel_callback_is_the_callers(
    engine: Engine, expected: bytes, cancelled: Callable[[], bool]
) -> None:
    with ends_soon(), pytest.raises(LookupError):
        read_long(engine, cancelled=cancelled)
    assert answers(engine) == expected


INTERRUPT = """
import signal, sys, threading
import numpy as np
from decider_native.engine import Engine
from run_script import run_script
from token_rows import tokens

engine = Engine(sys.argv[1], device="cpu", threads=1, context_tokens=2048)
short = tokens(np.random.default_rng(0), 20)
before = engine.read([short], [5]).rows[0].logits.tobytes()
main = threading.main_thread().ident
threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT]).start()
try:
    engine.read([tokens(np.random.default_rng(i), 2048) for i in range(256)], [2] * 256)
except KeyboardInterrupt:
    print("interrupted", engine.read([short], [5]).rows[0].logits.tobytes() == before)
"""


def test_ctrl_c_stops_a_call_and_leaves_the_engine_usable(tiny_path: Path) -> None:
    with ends_soon():
        done = run_script(INTERRUPT, tiny_path)
    assert (done.stdout, done.stderr, done.returncode) == (b"interrupted True\n", b"", 0)


def test_close_ends_running_and_queued_calls(tiny_path: Path) -> None:
    engine = Engine(tiny_path, device="cpu", threads=1, context_tokens=CONTEXT_TOKENS)
    with busy(engine) as running, ThreadPoolExecutor(1) as pool, ends_soon():
        queued = pool.submit(read_long, engine)
        time.sleep(0.1)
        engine.close()
        for call in (running, queued):
            with pytest.raises(Closed):
                call.result()
        engine.close()
        with pytest.raises(Closed, match="new Decider"):
            engine.read(ROWS, [2] * len(ROWS))


def test_a_closed_decider_says_so(tiny_path: Path) -> None:
    with Decider(tiny_path, device="cpu", threads=1, context_tokens=512) as decider:
        assert decider.evaluate("text", {"q": Noul("Is it?")})
    with pytest.raises(Closed):
        decider.evaluate("text", {"q": Noul("Is it?")})
    decider.close()
    assert "name" in decider.info()


FORK = """
import os, sys, warnings
import numpy as np
from decider_native import BackendError, Decider, Noul
from decider_native.engine import Engine

warnings.filterwarnings("ignore", "This process.*is multi-threaded", DeprecationWarning)
decider = Decider(sys.argv[1], device="cpu", threads=1, context_tokens=512)
before = decider.evaluate("text", {"q": Noul("Is it?")}).answers
child = os.fork()
if child == 0:
    try:
        decider.evaluate("text", {"q": Noul("Is it?")})
    except BackendError as error:
        decider.close()
        with Decider(sys.argv[1], device="cpu", threads=1, context_tokens=512) as own:
            same = own.evaluate("text", {"q": Noul("Is it?")}).answers == before
        print(error, same, flush=True)
        sys.exit(7)  # through the interpreter's whole shutdown
    os._exit(8)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), decider.evaluate("text", {"q": Noul("Is it?")}).answers == before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_to_load_its_own_model(tiny_path: Path) -> None:
    done = run_script(FORK, tiny_path)
    said, parent = done.stdout.decode().splitlines()
    assert "forked" in said
    assert "spawn" in said
    assert said.endswith("True")
    assert parent == "7 True"
    assert (done.stderr, done.returncode) == (b"", 0)


# -- what is refused before llama.cpp sees it


@pytest.mark.parametrize(
    ("rows", "counts", "message"),
    [
        ([[]], [2], "row 0 is empty"),
        ([[1, 2], []], [2, 2], "row 1 is empty"),
        ([[1, 248_320]], [2], "outside the vocabulary of 248320"),
        ([[-1]], [2], "outside the vocabulary"),
        ([[2**31 - 1]], [2], "outside the vocabulary"),
        ([[1]], [0], "asks for 0 labels"),
        ([[1]], [-1], "asks for -1 labels"),
        ([[1]], [256], "asks for 256 labels; the vocabulary holds 255"),
        ([[1]], [2, 2], "do not describe the same rows"),
        ([[1], [2]], [2], "do not describe the same rows"),
        ([], [2], "do not describe the same rows"),
    ],
)
def test_faulty_rows_are_refused(engine: Engine, rows: list[list[int]], counts: list[int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.read([np.array(row, dtype=np.int32) for row in rows], counts)


@pytest.mark.parametrize("contexts", [[3], [-1], [0, 0], []])
def test_faulty_contexts_are_refused(engine: Engine, contexts: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="context"):
        engine.read([tokens(np.random.default_rng(1), 3)], [2], contexts)


def test_rows_up_to_the_context_and_no_longer(tiny_path: Path) -> None:
    engine = Engine(tiny_path, device="cpu", threads=1, context_tokens=64)
    longest = tokens(np.random.default_rng(1), 64)
    assert engine.read([longest, longest[:63], longest[:1]], [255] * 3).rows
    with pytest.raises(PayloadTooLarge) as caught:
        engine.read([longest[:3], np.append(longest, np.int32(1))], [2, 2])
    assert (caught.value.tokens, caught.value.limit) == (65, 64)
    assert "row 1" in str(caught.value)
    engine.close()


def test_no_rows_have_no_readings(engine: Engine) -> None:
    readings = engine.read([], [])
    assert (readings.rows, readings.decoded_tokens) == ((), 0)


def test_the_last_token_of_the_vocabulary_and_all_labels(engine: Engine) -> None:
    reading = engine.read([np.array([0, 248_319, VOCAB], dtype=np.int32)], [255]).rows[0]
    assert reading.logits.shape == (255,)
    assert reading.logits.dtype == np.float32
    assert np.isfinite(reading.logits).all()
    assert 0 < reading.label_mass < 1


def test_equal_rows_are_read_once_whatever_labels_they_ask_for(engine: Engine) -> None:
    row = ROWS[0]
    alone = engine.read([row], [30])
    together = engine.read([row, row, row], [2, 30, 5])
    assert together.decoded_tokens == alone.decoded_tokens == len(row)
    for count, reading in zip([2, 30, 5], together.rows, strict=True):
        assert reading.logits.tobytes() == alone.rows[0].logits[:count].tobytes()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 0),
        ("threads", 513),
        ("threads", True),
        ("threads", 1.5),
        ("context_tokens", 63),
        ("context_tokens", 2**40),
        ("parallel_questions", 0),
        ("gpu_layers", -1),
        ("mode", "quick"),
    ],
)
def test_options_out_of_range_are_refused(tiny_path: Path, option: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=option):
        Engine(tiny_path, **{option: value})  # type: ignore[arg-type]


def test_devices_have_names_in_any_case(tiny_path: Path) -> None:
    assert [device.kind for device in devices()].count("cpu") == 1
    for name in ("cpu", "CPU", "Cpu"):
        engine = Engine(tiny_path, device=name, context_tokens=64, threads=2)
        assert (engine.device, engine.mode, engine.threads) == ("CPU", "exact", 2)
        engine.close()
    with pytest.raises(BackendError, match=r"no device 'nosuch'; use 'auto' or one of: .*CPU"):
        Engine(tiny_path, device="nosuch")


# -- what a process sees of it


def test_llama_cpp_logs_through_logging(tiny_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "decider_native.llama")  # a command that ran before may have set it
    with caplog.at_level(logging.DEBUG, "decider_native"):
        Engine(tiny_path, device="cpu", context_tokens=64).close()
    native = [record for record in caplog.records if record.name == "decider_native.llama"]
    assert any(record.levelno == logging.INFO for record in native)
    assert not any(record.message.endswith("\n") for record in native)
    selected = [record for record in caplog.records if "selected inference device" in record.message]
    assert [(record.name, record.levelno) for record in selected] == [("decider_native.engine", logging.INFO)]
    assert "CPU" in selected[0].message

    caplog.clear()
    caplog.set_level(logging.ERROR, "decider_native.llama")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:4096])
    with pytest.raises(ModelLoadError), caplog.at_level(logging.ERROR, "decider_native"):
        Engine(broken, device="cpu")
    assert [record.name for record in caplog.records].count("decider_native.llama") >= 1
    assert all(record.levelno >= logging.ERROR for record in caplog.records)


QUIET = """
import sys
from decider_native import DeciderError, Decider, Noul, devices
devices()
with Decider(sys.argv[1], device="cpu", threads=1, context_tokens=512) as decider:
    decider.evaluate("text", {"q": Noul("Is it?")})
for path in sys.argv[2:]:
    try:
        Decider(path)
    except DeciderError:
        pass
    else:
        sys.exit(1)
"""


def test_nothing_is_printed(tiny_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path.read_bytes()[: tiny_path.stat().st_size // 2])
    done = run_script(QUIET, tiny_path, cut, tmp_path / "missing.gguf")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)


CYCLES = """
import gc, pathlib, sys
from decider_native import Decider, Noul

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

sizes = []
for cycle in range(13):
    with Decider(sys.argv[1], device="cpu", threads=1, context_tokens=1024) as decider:
        decider.evaluate("text", {"q": Noul("Is it?")})
    del decider
    gc.collect()
    sizes.append(resident())
print(sizes[-1] - sizes[2])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc on this system")
def test_loading_and_closing_again_and_again_keeps_no_memory(tiny_path: Path) -> None:
    # glibc gives every larger piece back at once; by itself it keeps some, sometimes more and sometimes less.
    done = run_script(CYCLES, tiny_path, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    assert (done.stderr, done.returncode) == (b"", 0)
    assert int(done.stdout) < 20 << 20  # bytes over ten loads; the weights alone are 62 MB


def test_eight_threads_of_mixed_calls(tiny_path: Path) -> None:
    soak = Path(__file__).parents[1] / "bench" / "soak.py"
    done = subprocess.run(
        [sys.executable, soak, "--model", tiny_path, "--seconds", "5", "--threads", "8"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong answers: 0" in done.stdout
