"""The model's life: loaded on demand, freed when idle, loaded again, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from decider_native import Decider, DeciderError, ModelLoadError
from decider_native.server.errors import HttpError
from decider_native.server.lifecycle import ModelHost

from .conftest import Serve, wait_for

BODY: dict[str, Any] = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}


def test_it_loads_once_is_freed_when_idle_and_loads_again(tiny_path: Path) -> None:
    loads: list[Decider] = []
    gate = threading.Event()

    def load() -> Decider:
        gate.wait(60)
        loads.append(Decider(tiny_path, device="cpu", threads=1, context_tokens=256))
        return loads[-1]

    async def use(host: ModelHost) -> Decider:
        async with host.use() as decider:
            return decider

    async def main() -> None:
        host = ModelHost(load, idle_seconds=0.2)
        assert (host.state, host.facts) == ("idle", {})
        impatient = asyncio.create_task(use(host))
        patient = [asyncio.create_task(use(host)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert host.state.startswith("loading")
        impatient.cancel()
        gate.set()
        assert len(set(await asyncio.gather(*patient))) == len(loads) == 1
        assert host.state == "ready"
        assert host.facts["context_tokens"] == 256
        async with host.use():
            await asyncio.sleep(0.4)
            assert host.state == "ready"
        await asyncio.sleep(0.4)
        assert host.state.startswith("idle")
        with pytest.raises(DeciderError):
            loads[0].evaluate("x", BODY["questions"])
        assert await use(host) is loads[1]
        await host.close()
        assert host.state.startswith("idle")

    asyncio.run(main())


def test_a_failed_load_says_why_and_is_tried_again_later(tiny_path: Path) -> None:
    outcomes = iter([ModelLoadError("no such luck"), None])

    def load() -> Decider:
        if error := next(outcomes):
            raise error
        return Decider(tiny_path, device="cpu", threads=1, context_tokens=256)

    async def main() -> None:
        host = ModelHost(load)
        with pytest.raises(ModelLoadError, match="no such luck"):
            async with host.use():
                pass
        assert (host.state, host.reason) == ("failed", "no such luck")
        with pytest.raises(HttpError, match="no such luck") as caught:
            async with host.use():
                pass
        assert caught.value.status == 503
        assert 0 < (caught.value.retry_after_ms or 0) <= 30_001
        host._retry_at = time.monotonic()
        async with host.use():
            assert (host.state, host.reason) == ("ready", None)
        await host.close()

    asyncio.run(main())


def test_a_server_loads_on_the_first_request_and_frees_the_model(serve: Serve) -> None:
    server = serve("--idle-unload", "0.005")
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        first = client.get("/health").json()
        assert (first["status"], first["model"], first["device"]) == ("idle", "qwen35-h64-F32", None)
        assert client.get("/ready").status_code == 200
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(client.post, "/v1/systemone", json=BODY) for _ in range(4)]
            texts = {answer.result().text for answer in answers}
        assert len(texts) == 1
        wait_for(lambda: client.get("/health").json()["status"] == "idle")
        assert client.get("/health").json()["context_window"] == 8192
        assert client.post("/v1/systemone", json=BODY).text in texts
    assert server.stop() == 0


def test_a_server_without_its_model_says_so(serve: Serve, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    server = serve("--preload", model=broken)
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        wait_for(lambda: client.get("/health").json()["status"] == "failed")
        assert client.get("/health").status_code == 503
        assert client.get("/health").json()["reason"]
        assert client.get("/ready").status_code == 503
        assert client.get("/v1/models").json()["models"][0]["name"] == "broken"
        for path, body in (
            ("/v1/systemone", BODY),
            ("/v1/decisions", {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]}),
            ("/v1/judge/evaluate", {"evaluations": [{"id": "a"} | BODY]}),
        ):
            response = client.post(path, json=body)
            assert response.status_code == 503
            assert 1 <= int(response.headers["retry-after"]) <= 30
        assert client.post("/v1/systemone", json={}).status_code == 422
    assert server.stop() == 0


def test_a_server_can_be_stopped_while_it_loads(serve: Serve) -> None:
    server = serve("--preload")
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
