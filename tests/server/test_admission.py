"""The queue: bounded, fair, quick to refuse, and free of the calls that nobody waits for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from decider_native.server.admission import FairQueue
from decider_native.server.errors import HttpError

from .conftest import Serve, Server, wait_for

SHORT = {"state": "Down.", "questions": {"q": {"type": "noul", "instructions": "Is it urgent?"}}}
QUESTIONS = {str(i): {"type": "noul", "instructions": f"Question {i}?"} for i in range(400)}
LONG = {"state": "word " * 6000, "questions": QUESTIONS}


def test_clients_take_turns() -> None:
    order: list[str] = []

    async def call(queue: FairQueue, client: str) -> None:
        async with queue.slot(client):
            order.append(client)
            await asyncio.sleep(0)

    async def main() -> None:
        queue = FairQueue(slots=1, capacity=100)
        await asyncio.gather(*(call(queue, client) for client in "aaaaabbc"))
        assert (queue.running, queue.waiting) == (0, 0)

    asyncio.run(main())
    assert "".join(order) == "aabcabaa"


def test_a_full_queue_refuses_and_a_cancelled_call_leaves_it() -> None:
    async def call(queue: FairQueue) -> None:
        async with queue.slot("a"):
            await asyncio.sleep(60)

    async def main() -> None:
        queue = FairQueue(slots=1, capacity=1)
        calls = [asyncio.create_task(call(queue)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as caught:
            queue.check()
        assert caught.value.status == 503
        assert caught.value.retry_after_ms is not None
        calls[1].cancel()
        await asyncio.wait(calls[1:])
        queue.check()
        third = asyncio.create_task(call(queue))
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        await asyncio.sleep(0)
        assert (queue.running, queue.waiting) == (1, 0)
        third.cancel()
        await asyncio.wait([third])
        assert (queue.running, queue.waiting) == (0, 0)

    asyncio.run(main())


def test_a_slot_given_at_the_moment_of_a_cancellation_is_passed_on() -> None:
    async def main() -> None:
        queue = FairQueue(slots=1, capacity=9)
        first, second = queue.slot("a"), queue.slot("b")
        await first.__aenter__()
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (queue.running, queue.waiting) == (0, 0)

    asyncio.run(main())


def metric(server: Server, name: str) -> float:
    lines = httpx2.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture
def busy(serve: Serve) -> Server:
    """A server with one slot and a queue of two."""
    server = serve("--preload", "--max-queue", "2", "--parallel-calls", "1")
    wait_for(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
    return server


def test_overflow_is_503_at_once_and_disconnects_free_the_queue(busy: Server) -> None:
    async def main() -> None:
        async with httpx2.AsyncClient(base_url=busy.url, timeout=120) as client:
            calls = [asyncio.create_task(client.post("/v1/systemone", json=LONG)) for _ in range(3)]
            await asyncio.to_thread(wait_for, lambda: metric(busy, "decider_requests_waiting") == 2)
            for path in ("/v1/systemone", "/v1/decisions", "/v1/judge/evaluate"):
                response = await client.post(path, json=SHORT)
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) >= 1
                assert int(response.headers["retry-after-ms"]) >= 100
            assert (await client.get("/health")).status_code == 200
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            await asyncio.to_thread(wait_for, lambda: metric(busy, "decider_requests_waiting") == 0)
            response = await client.post("/v1/systemone", json=SHORT)
            assert response.status_code == 200

    asyncio.run(main())
    wait_for(lambda: metric(busy, "decider_requests_running") == 0)
    assert '"status": 499' in busy.log.read_text()


def test_deadlines_pass_in_the_queue_too(busy: Server) -> None:
    async def main() -> None:
        async with httpx2.AsyncClient(base_url=busy.url, timeout=120) as client:
            call = asyncio.create_task(client.post("/v1/systemone", json=LONG))
            await asyncio.to_thread(wait_for, lambda: metric(busy, "decider_requests_running") == 1)
            for name, value in (("x-request-timeout-ms", "100"), ("x-stainless-read-timeout", "0.1")):
                response = await client.post(
                    "/v1/decisions",
                    json={"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]},
                    headers={name: value},
                )
                assert response.status_code == 504
                assert "queue" in response.json()["error"]["message"]
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(main())


def test_a_server_that_is_told_to_stop_finishes_what_it_accepted(serve: Serve) -> None:
    server = serve("--preload")
    wait_for(lambda: httpx2.get(f"{server.url}/ready").status_code == 200)
    body = {"state": "word " * 1000, "questions": dict(list(QUESTIONS.items())[:10])}
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(httpx2.post, f"{server.url}/v1/systemone", json=body, timeout=120) for _ in range(8)]
        wait_for(lambda: metric(server, "decider_requests_running") + metric(server, "decider_requests_waiting") == 8)
        assert server.stop(120) == 0
        responses = [call.result() for call in calls]
    assert {response.status_code for response in responses} == {200}
    assert len({response.text for response in responses}) == 1


def test_many_clients_get_their_own_answers(server: Server) -> None:
    def ask(i: int) -> tuple[int, Any]:
        body = {
            "state": f"Ticket {i % 7}",
            "questions": {f"q{i}": {"type": "noul", "instructions": f"Question {i % 5}?"}},
        }
        return i, httpx2.post(f"{server.url}/v1/systemone", json=body, timeout=60).json()

    with ThreadPoolExecutor(16) as pool:
        answers = dict(pool.map(ask, range(140)))
    seen: dict[tuple[int, int], float] = {}
    for i, body in answers.items():
        (name,) = body["answers"]
        assert name == f"q{i}"
        value = body["answers"][name]["noul"]
        assert seen.setdefault((i % 7, i % 5), value) == value
    assert len(set(seen.values())) == 35
