"""Bodies that are broken, huge, slow or hostile: a 4xx, and a server that still answers."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from typing import Any

import httpx2
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Serve, Server

GOOD = {"state": "Down.", "questions": {"q": {"type": "noul", "instructions": "Is it urgent?"}}}
TEXT = json.dumps(GOOD).encode()
LIMIT = 8_388_608
WORDS = st.sampled_from(["state", "questions", "type", "criteria", "noul", "choice", "score", "id", "instructions"])
PATHS = ("/v1/systemone", "/v1/systemone/batch", "/v1/decisions", "/v1/judge/evaluate", "/v1/judge/cancel")


def send(http: httpx2.Client, content: bytes, path: str = PATHS[0], **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(path, content=content, headers={"content-type": "application/json"} | named)


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd", "ZSTD"])
def test_compressed_bodies_are_read(http: httpx2.Client, encoding: str) -> None:
    content = {"identity": TEXT, "gzip": gzip.compress(TEXT), "zstd": zstandard.compress(TEXT)}[encoding.lower()]
    assert send(http, content, content_encoding=encoding).json() == http.post("/v1/systemone", json=GOOD).json()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 422),
        (TEXT[:-1], {}, 422),
        (TEXT + b"x", {}, 422),
        (b"[]", {}, 422),
        (b"\xff\xfe", {}, 422),
        (b'{"state": "\xc3"}', {}, 422),
        (b'{"state": NaN}', {}, 422),
        (b'{"state": 1e999}', {}, 422),
        (b'{"state": 1, "state": 2}', {}, 422),
        (b'{"state": ' + b"9" * 5000 + b"}", {}, 422),
        (b'{"state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, 422),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, {}, 422),
        (gzip.compress(TEXT)[:-9], {"content_encoding": "gzip"}, 400),
        (gzip.compress(TEXT) + b"x", {"content_encoding": "gzip"}, 400),
        (b"no gzip", {"content_encoding": "gzip"}, 400),
        (b"no zstd", {"content_encoding": "zstd"}, 400),
        (zstandard.compress(TEXT)[:-4], {"content_encoding": "zstd"}, 422),
        (gzip.compress(b" " * (LIMIT + 1)), {"content_encoding": "gzip"}, 413),
        (zstandard.compress(b" " * (LIMIT + 1)), {"content_encoding": "zstd"}, 413),
        (zstandard.compress(b" " * 500_000_000), {"content_encoding": "zstd"}, 413),
        (TEXT, {"content_encoding": "br"}, 415),
        (TEXT, {"content_type": "text/plain"}, 415),
        (TEXT, {"content_type": "multipart/form-data; boundary=x"}, 415),
        (b" " * (LIMIT + 1), {}, 413),
    ],
    ids=str,
)
def test_a_body_that_cannot_be_read(
    http: httpx2.Client, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    response = send(http, content, path, **headers)
    assert response.status_code == status
    family = "error" if path == "/v1/decisions" else "status" if path.startswith("/v1/judge") else "detail"
    assert family in response.json()


def test_a_broken_body_leaves_the_connection_usable(server: Server) -> None:
    with httpx2.Client(base_url=server.url, limits=httpx2.Limits(max_connections=1)) as client:
        assert send(client, b"x" * 10_000_000).status_code == 413
        assert client.post("/v1/systemone", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"state": "x" * 8_000_000},
        {"questions": {"q": {"type": "choice", "criteria": {str(i): None for i in range(100_000)}}}},
        {"questions": {str(i): {"type": "noul", "instructions": "?"} for i in range(100_000)}},
        {"questions": {"q": {"type": "score", "criteria": ["a"] * 100_000}}},
        {"questions": {"q": {"type": "noul", "instructions": [[[]]] * 1000, "criteria": {"yes": ""}}}},
        {"questions": {"\ud800": {"type": "noul", "instructions": "?"}}},
        {"state": {"\udfff": "x"}},
        {"model": "\ud800"},
        {"questions": {"q" * 1_000_000: {"type": "x"}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_huge_and_strange_values(http: httpx2.Client, change: dict[str, Any]) -> None:
    response = send(http, json.dumps(GOOD | change).encode())
    assert 400 <= response.status_code < 500
    assert "detail" in response.json()


def test_many_choices_and_levels_in_decisions(http: httpx2.Client) -> None:
    choices = [{"value": str(i)} for i in range(100_000)]
    for question in ({"type": "choice", "choices": choices}, {"type": "score", "levels": [{"label": "a"}] * 100_000}):
        body = {"input": "x", "questions": [question | {"instructions": "?"}]}
        assert http.post("/v1/decisions", json=body).status_code == 422


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PATHS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | WORDS, inner | WORDS),
        max_leaves=12,
    ),
    st.integers(0, 4),
)
def test_random_values(http: httpx2.Client, path: str, value: Any, cut: int) -> None:
    text = json.dumps(value).encode()
    for content in (text, json.dumps(GOOD | {"questions": value, "input": value, "evaluations": value}).encode()):
        response = send(http, content[: len(content) - cut], path)
        assert response.status_code in (200, 404, 422)
        assert response.headers["content-type"] == "application/json"


def test_a_slow_body_is_408(serve: Serve) -> None:
    server = serve("--body-timeout", "0.3")
    url = httpx2.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection:
        head = (
            "POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer
    assert server.stop() == 0


def test_a_flood_of_headers_is_refused(server: Server, http: httpx2.Client) -> None:
    url = httpx2.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\n" + b"".join(b"a%d: %s\r\n" % (i, b"x" * 100) for i in range(2000))
        )
        assert connection.recv(12).startswith(b"HTTP/1.1 4")
    assert http.get("/health").status_code == 200


def test_broken_compression_of_random_bytes(http: httpx2.Client) -> None:
    noise = zlib.compress(bytes(range(256)) * 40)
    for encoding in ("gzip", "zstd"):
        for cut in range(0, len(noise), 16):
            assert send(http, noise[cut:], content_encoding=encoding).status_code == 400
    assert http.get("/health").json()["status"] == "ready"
