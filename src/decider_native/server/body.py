"""Request bodies: capped before and after inflating, in time, and parsed strictly."""

from __future__ import annotations

import asyncio
import io
import zlib
from typing import Any

import zstandard
from starlette.requests import Request

from decider_native import strict_json

from .errors import HttpError

__all__ = ["read_json"]

_INLINE_BYTES = 32_768  # larger bodies are parsed beside the event loop
_ZSTD_WINDOW = 1 << 23  # what RFC 8878 asks every decoder to support; more is memory that the sender controls


async def read_json(request: Request, *, limit: int, seconds: float) -> dict[str, Any]:
    """Return the JSON object that a request holds.

    Parameters
    ----------
    limit
        Largest body in bytes, both as sent and inflated.
    seconds
        Time within which it has to arrive.

    Raises
    ------
    HttpError
        400 (broken compression), 408 (slow), 413 (large), 415 (not JSON, or another compression), 422 (not an object).
    InvalidRequest
        The text is not JSON.
    """
    encoding = _checked_headers(request, limit)
    data = await _received(request, limit, seconds)
    if encoding == "identity" and len(data) <= _INLINE_BYTES:
        body = strict_json.loads(data, "body")
    else:
        body = await asyncio.to_thread(lambda: strict_json.loads(_inflated(data, encoding, limit), "body"))
    if not isinstance(body, dict):
        raise HttpError(422, "the body must be a JSON object")
    return body


def _checked_headers(request: Request, limit: int) -> str:
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise HttpError(415, "send the body as application/json; images and other parts are not supported here")
    encoding = request.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "zstd"):
        raise HttpError(
            415, "content-encoding may be gzip, zstd or identity", headers={"accept-encoding": "gzip, zstd"}
        )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    return encoding


async def _received(request: Request, limit: int, seconds: float) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise HttpError(
            408, f"the body did not arrive within {seconds:g} s; send it at once", headers={"connection": "close"}
        ) from None
    return bytes(data)


def _inflated(data: bytes, encoding: str, limit: int) -> bytes:
    try:
        if encoding == "gzip":
            stream = zlib.decompressobj(wbits=31)
            text = stream.decompress(data, limit + 1)
            if len(text) <= limit and (not stream.eof or stream.unused_data):
                raise HttpError(400, "the gzip body is cut off, or something follows it")
        elif encoding == "zstd":
            decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
            with decompressor.stream_reader(io.BytesIO(data)) as reader:
                text = reader.read(limit + 1)
        else:
            return data
    except (zlib.error, zstandard.ZstdError) as error:
        raise HttpError(400, f"the {encoding} body cannot be inflated: {error}") from None
    if len(text) > limit:
        raise _too_large(limit)
    return text


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body has more than {limit} bytes; split the request or shorten the state")
