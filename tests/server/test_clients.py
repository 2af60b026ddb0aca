"""The clients that programs use already, against a running server; only their base URL is changed."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .conftest import Serve, Server, wait_for

SCRIPT = Path(__file__).parent.parent / "clients" / "typesafe.mjs"
STATE = {"subject": "Billed twice", "body": "Refund the duplicate today or we cancel."}


@pytest.fixture
def typesafe() -> Any:
    """TypeSafe's Python SDK."""
    return pytest.importorskip("typesafe_sdk", reason="typesafe-sdk is not installed")


@pytest.fixture
def openai() -> Any:
    """OpenAI's Python SDK."""
    return pytest.importorskip("openai", reason="openai is not installed")


def questions(typesafe: Any) -> dict[str, Any]:
    return {
        "refund 🎯": typesafe.Noul(instructions="Is a refund asked for?", criteria={"true": "money back"}),
        "team": typesafe.Choice(instructions="Which team?", criteria={"billing": "invoices", "기술": None}),
        "urgency": typesafe.Score(instructions={"task": "How urgent?"}, criteria=["not urgent", {"level": "soon"}]),
    }


def test_typesafe(server: Server, typesafe: Any) -> None:
    with typesafe.TypeSafeClient(api_key="any", base_url=server.url, timeout=60) as client:
        result = client.system_one(state=STATE, questions=questions(typesafe))
        assert result.model == "qwen35-h64-F32"
        assert 0 < result.nouls["refund 🎯"].noul < 1
        assert set(result.choices["team"].probabilities) == {"billing", "기술"}
        assert result.scores["urgency"].legend == {0: "not urgent", 1: {"level": "soon"}}
        assert result.usage.output_tokens == 0
        names = [model.name for model in client.models.list().models]
        assert names[:2] == ["qwen35-h64-F32", "jev-latest"]


def test_typesafe_async(server: Server, typesafe: Any) -> None:
    async def main() -> None:
        async with typesafe.AsyncTypeSafeClient(api_key="any", base_url=server.url, timeout=60) as client:
            calls = (client.system_one(state=f"{STATE} {i % 2}", questions=questions(typesafe)) for i in range(8))
            results = await asyncio.gather(*calls)
            assert len({result.nouls["refund 🎯"].noul for result in results}) == 2
            assert (await client.models.list()).models

    asyncio.run(main())


def test_typesafe_with_zstd(server: Server, typesafe: Any) -> None:
    sent: list[httpx2.Request] = []
    client_of_its_own = httpx2.Client(event_hooks={"request": [sent.append]}, timeout=60)
    try:
        client = typesafe.TypeSafeClient(
            api_key="any", base_url=server.url, http_client=client_of_its_own, compression="zstd"
        )
    except typesafe.TypeSafeError as error:
        client_of_its_own.close()
        pytest.skip(str(error))
    with client:
        result = client.system_one(state="long enough " * 500, questions=questions(typesafe))
    assert sent[0].headers["content-encoding"] == "zstd"
    assert result.usage.input_tokens > 1000


def test_typesafe_errors(server: Server, typesafe: Any) -> None:
    question = {"q": typesafe.Noul(instructions="?")}
    with typesafe.TypeSafeClient(api_key="any", base_url=server.url, timeout=60) as client:
        with pytest.raises(typesafe.TypeSafeUnprocessableEntityError, match="state") as caught:
            client.system_one(state="x", questions=question, extra_body={"state": 1})
        assert caught.value.request_id == caught.value.headers["x-request-id"]
        with pytest.raises(typesafe.TypeSafeNotFoundError, match="gpt-4"):
            client.system_one(state="x", questions=question, model="gpt-4")
        with pytest.raises(typesafe.TypeSafeAPIError) as caught:
            client.system_one(state="word " * 9000, questions=question)
        assert caught.value.status == 413


def test_typesafe_is_told_when_to_try_again(serve: Serve, typesafe: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    server = serve("--api-key-env", "THE_KEY", model=broken, environment={"THE_KEY": "k"})
    once = typesafe.RetryPolicy(max_retries=0)
    question = {"q": typesafe.Noul(instructions="?")}
    stranger = typesafe.TypeSafeClient(api_key="wrong", base_url=server.url, retry=once)
    with stranger, pytest.raises(typesafe.TypeSafeAuthenticationError):
        stranger.models.list()
    friend = typesafe.TypeSafeClient(api_key="k", base_url=server.url, retry=once)
    with friend, pytest.raises(typesafe.TypeSafeInternalServerError) as caught:
        friend.system_one(state="x", questions=question)
    assert caught.value.status == 503
    assert 1000 <= int(caught.value.headers["retry-after-ms"]) <= 30_000


DECISIONS: list[Any] = [
    {"type": "predicate", "instructions": "Is a refund asked for?"},
    {"type": "choice", "name": "team", "instructions": "Which team?", "choices": [{"value": True}, {"value": "true"}]},
    {"type": "score", "name": "bad", "instructions": "How bad?", "levels": [{"label": "a"}, {"label": "b"}]},
]


def test_openai(server: Server, openai: Any) -> None:
    with openai.OpenAI(api_key="any", base_url=f"{server.url}/v1", timeout=60, max_retries=0) as client:
        decision = client.decisions.create(model="gpt-6-luna", input="Refund me.", questions=DECISIONS)
        predicate, choice, score = decision.answers
        assert (predicate.type, choice.type, score.type) == ("predicate", "choice", "score")
        assert (predicate.name, choice.name, score.name) == (None, "team", "bad")
        assert [p.value for p in choice.probabilities] == [True, "true"]
        assert [p.label for p in score.probabilities] == ["a", "b"]
        assert decision.usage.total_tokens == decision.usage.input_tokens > 0
        messages = [{"role": "user", "content": "Refund me."}]
        again = client.decisions.create(model="gpt-6-luna", input=messages, questions=DECISIONS)
        assert again.answers == decision.answers
        assert next(iter(client.models.list())).id == "qwen35-h64-F32"
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.decisions.create(model="gpt-6-luna", input="x", questions=[])
        assert caught.value.param == "questions"
        assert caught.value.request_id
        with pytest.raises(openai.NotFoundError):
            client.decisions.create(model="gpt-4", input="x", questions=DECISIONS)


def test_openai_async(server: Server, openai: Any) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1", timeout=60) as client:
            calls = (client.decisions.create(model="gpt-6-luna", input="x", questions=DECISIONS) for _ in range(4))
            first, *others = await asyncio.gather(*calls)
            assert all(other.answers == first.answers for other in others)

    asyncio.run(main())


def test_typesafe_in_node(server: Server, node_sdk: Path) -> None:
    run = subprocess.run(["node", SCRIPT, server.url], cwd=node_sdk, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "ok\n"
    wait_for(lambda: "decider_requests_running 0.0" in httpx2.get(f"{server.url}/metrics").text)
