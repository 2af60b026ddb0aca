"""The model of a local judge: loaded when it is wanted, released when it is not, with its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from decider_native import Decider, ModelLoadError
from decider_native.judges import Hub, local
from small_gguf import write_llama

from .conftest import WriteHub, ask, local_table, wait_for

FAKE = '[judges.fake]\nprovider = "mock"\n'


class Loads:
    """Loads that wait for a gate, and fail as told."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.made: list[Decider] = []
        self.begun = 0

    def __call__(self, *arguments: Any, **options: Any) -> Decider:
        self.begun += 1
        assert self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        self.made.append(Decider(*arguments, **options))
        return self.made[-1]


@pytest.fixture(scope="module")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a vocabulary so small that it loads at once."""
    return write_llama(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    loads = Loads()
    monkeypatch.setattr(local, "Decider", loads)
    yield loads
    loads.gate.set()


def state(hub: Hub, name: str = "local") -> str:
    return next(judge.state for judge in hub.judges() if judge.name == name)


def keeper(hub: Hub, name: str = "local") -> local.ModelKeeper:
    with hub.judge(name) as judge:
        assert isinstance(judge, local.LocalJudge)
        return judge.keeper


def in_state(hub: Hub, wanted: str) -> bool:
    return keeper(hub).state == wanted


def test_the_default_loads_at_once_and_another_on_its_first_call(
    write_hub: WriteHub, small_path: Path, loads: Loads
) -> None:
    text = f'default = "local"\n{local_table(small_path)}{local_table(small_path, "other")}'
    hub = write_hub(text, preload=True)
    wait_for(lambda: keeper(hub).state == "ready")
    assert (loads.begun, keeper(hub, "other").state) == (1, "released")
    assert hub.evaluate(ask(provider="other"))["status"] == "ok"
    assert (loads.begun, keeper(hub, "other").state) == (2, "ready")


def test_a_call_that_arrives_during_a_load_waits_for_it(write_hub: WriteHub, small_path: Path, loads: Loads) -> None:
    loads.gate.clear()
    hub = write_hub(f'default = "local"\n{local_table(small_path)}', preload=True)
    assert state(hub) == "loading"
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(hub.evaluate, ask(timeout_ms=60_000)) for _ in range(4)]
        late = hub.evaluate(ask(timeout_ms=50))
        assert late["code"] == "deadline"
        assert "loading" in late["provider_error"]["message"]
        cancelled = pool.submit(hub.evaluate, ask(request_id="r"))
        wait_for(lambda: hub.cancel({"request_id": "r"})["cancelled"])
        assert cancelled.result(60)["code"] == "cancelled"
        assert not any(call.done() for call in calls)
        loads.gate.set()
        assert [call.result()["status"] for call in calls] == ["ok"] * 4
    assert loads.begun == 1
    assert state(hub) == "ready"


def test_a_load_that_a_call_did_not_wait_for_goes_on(write_hub: WriteHub, small_path: Path, loads: Loads) -> None:
    loads.gate.clear()
    hub = write_hub(f'default = "none"\n{local_table(small_path)}')
    assert hub.evaluate(ask(provider="local", timeout_ms=50))["code"] == "deadline"
    loads.gate.set()
    wait_for(lambda: state(hub) == "ready" and keeper(hub).state == "ready")
    assert hub.evaluate(ask(provider="local"))["status"] == "ok"
    assert loads.begun == 1


def test_a_load_that_fails_is_remembered_for_half_a_minute(write_hub: WriteHub, small_path: Path, loads: Loads) -> None:
    loads.failure = ModelLoadError("no such luck")
    hub = write_hub(f'default = "local"\n{local_table(small_path)}{FAKE}')
    for _ in range(3):
        envelope = hub.evaluate(ask())
        assert envelope["code"] == "provider_unavailable"
        assert "no such luck" in envelope["provider_error"]["message"]
        assert 25_000 < envelope["retry_after_ms"] <= 30_000
    assert loads.begun == 1
    status = next(judge for judge in hub.judges() if judge.name == "local")
    assert (status.state, status.fix) == ("unreachable", "no such luck")
    assert hub.evaluate(ask(provider="fake"))["status"] == "ok"
    loads.failure = None
    keeper(hub)._retry_at = time.monotonic()
    assert hub.evaluate(ask())["status"] == "ok"
    assert (loads.begun, state(hub)) == (2, "ready")


def test_a_file_that_is_no_model(write_hub: WriteHub, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    hub = write_hub(f'default = "local"\n{local_table(broken)}')
    envelope = hub.evaluate(ask())
    assert (envelope["code"], envelope["retry_after_ms"] > 0) == ("provider_unavailable", True)
    assert state(hub) == "unreachable"


def test_another_default_releases_the_model(
    write_hub: WriteHub, small_path: Path, tmp_path: Path, loads: Loads
) -> None:
    text = f'default = "local"\n{local_table(small_path)}{FAKE}'
    hub = write_hub(text, preload=True)
    assert hub.evaluate(ask())["status"] == "ok"
    (tmp_path / "judges.toml").write_text(text.replace('"local"', '"fake"', 1))
    assert hub.evaluate(ask())["model"] == "mock"
    assert keeper(hub).state == "released"
    with pytest.raises(Exception, match="closed"):
        loads.made[0].evaluate("x", {"q": {"type": "noul", "instructions": "?"}})
    # asked for by name it is loaded for that, and none is no default either
    assert hub.evaluate(ask(provider="local"))["status"] == "ok"
    assert keeper(hub).state == "ready"
    (tmp_path / "judges.toml").write_text(text)
    assert hub.evaluate(ask())["status"] == "ok"
    (tmp_path / "judges.toml").write_text(text.replace('"local"', '"none"', 1))
    assert keeper(hub).state == "released"


def test_a_load_nobody_wants_any_more_is_released_when_it_ends(
    write_hub: WriteHub, small_path: Path, tmp_path: Path, loads: Loads
) -> None:
    loads.gate.clear()
    text = f'default = "local"\n{local_table(small_path)}{FAKE}'
    hub = write_hub(text, preload=True)
    (tmp_path / "judges.toml").write_text(text.replace('"local"', '"fake"', 1))
    assert hub.evaluate(ask())["model"] == "mock"
    loads.gate.set()
    wait_for(lambda: keeper(hub).state == "released")


def test_preload_all_loads_and_keeps_every_model(
    write_hub: WriteHub, small_path: Path, tmp_path: Path, loads: Loads
) -> None:
    text = f'default = "fake"\npreload_all = true\n{local_table(small_path)}{local_table(small_path, "other")}{FAKE}'
    hub = write_hub(text, preload=True)
    wait_for(lambda: (keeper(hub).state, keeper(hub, "other").state) == ("ready", "ready"))
    (tmp_path / "judges.toml").write_text(text.replace('"fake"', '"local"', 1))
    assert hub.evaluate(ask())["status"] == "ok"
    (tmp_path / "judges.toml").write_text(text)
    assert hub.evaluate(ask())["model"] == "mock"
    assert (keeper(hub).state, keeper(hub, "other").state, loads.begun) == ("ready", "ready", 2)


def test_a_model_loaded_for_a_call_is_released_when_idle_and_loaded_again(
    write_hub: WriteHub, small_path: Path, loads: Loads
) -> None:
    hub = write_hub(f'default = "none"\nidle_minutes = 0.002\n{local_table(small_path)}')
    first = hub.evaluate(ask(provider="local"))
    wait_for(lambda: keeper(hub).state == "released")
    again = hub.evaluate(ask(provider="local"))
    assert again["results"] == first["results"]
    assert loads.begun == 2


def test_the_default_is_never_idle(write_hub: WriteHub, small_path: Path, loads: Loads) -> None:
    hub = write_hub(f'default = "local"\nidle_minutes = 0.0001\n{local_table(small_path)}')
    assert hub.evaluate(ask())["status"] == "ok"
    time.sleep(0.1)
    assert (keeper(hub).state, loads.begun) == ("ready", 1)


def test_the_default_is_switched_under_load(
    write_hub: WriteHub, small_path: Path, tmp_path: Path, loads: Loads
) -> None:
    text = f'default = "local"\n{local_table(small_path)}{FAKE}'
    hub = write_hub(text, preload=True)
    path, scratch = tmp_path / "judges.toml", tmp_path / "scratch"
    envelopes: list[dict[str, Any]] = [hub.evaluate(ask())]
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            envelopes.append(hub.evaluate(ask(timeout_ms=60_000)))

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(work) for _ in range(4)]
        for name in ("fake", "local", "fake", "local", "fake"):
            scratch.write_text(text.replace('"local"', f'"{name}"', 1))
            scratch.replace(path)
            settled = "ready" if name == "local" else "released"
            wait_for(partial(in_state, hub, settled))
        over.set()
        for call in calls:
            call.result()
    assert {envelope["status"] for envelope in envelopes} == {"ok"}
    assert {envelope["model"] for envelope in envelopes} == {"small", "mock"}
    answers = {str(envelope["results"]) for envelope in envelopes if envelope["model"] != "mock"}
    assert len(answers) == 1
    assert loads.begun == 3


def test_closing_stops_what_runs(write_hub: WriteHub, tiny_path: Path) -> None:
    hub = write_hub(f'default = "local"\n{local_table(tiny_path)}')
    assert hub.evaluate(ask())["status"] == "ok"
    long = ask()
    long["evaluations"][0]["state"] = "word " * 7000
    long["evaluations"][0]["questions"] = {str(i): {"type": "noul", "instructions": f"{i}?"} for i in range(200)}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(hub.evaluate, long)
        wait_for(lambda: keeper(hub)._users)
        hub.close()
        assert call.result(60)["code"] == "provider_unavailable"


MEMORY = """
import gc, json, sys
from decider_native.judges import Hub

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

path, text = sys.argv[1], open(sys.argv[1]).read()
hub = Hub.from_file(path, preload=False)
question = {"q": {"type": "noul", "instructions": "Is it?"}}
request = {"evaluations": [{"id": "a", "state": "word " * 200, "questions": question}]}
sizes = []
for _ in range(4):
    for name in ("local", "fake"):
        open(path, "w").write(text.replace('"none"', f'"{name}"', 1))
        envelope = hub.evaluate(request)
        assert envelope["status"] == "ok", envelope
        sizes.append(resident())
print(json.dumps(sizes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_released_model_gives_its_memory_back(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model("qwen35", "F16", hidden=256)
    path = tmp_path / "judges.toml"
    path.write_text(f'default = "none"\n{local_table(model, context_tokens=1024)}{FAKE}')
    # one arena: how glibc spreads small blocks over several is not what is measured
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", MEMORY, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    first, _, _, before, *sizes = json.loads(run.stdout)  # what stays after the first loads: libraries, a larger heap
    weights = model.stat().st_size
    assert first - before > weights
    for loaded, released in zip(sizes[::2], sizes[1::2], strict=True):
        assert loaded - before > weights
        assert released == pytest.approx(before, rel=0.05)
