"""How a dialect asks a server: a JSON body is posted, and a whole answer or a stream of server-sent events comes back.

The keys are not known here: the guarded connection puts them in. Whatever is no answer becomes a `ServerRefusal`.
"""

from __future__ import annotations

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from weft.runtime.egress.connections import Client, DecodingError, TransportError
from weft.runtime.inference.failures import ServerRefusal, WebPageAnswered, retry_after

_HEADERS = {"content-type": "application/json", "user-agent": "weft"}
END_SECONDS = 0.25
"""So long the end of an answer is waited for behind its last event."""


class ServerEvent(Struct, frozen=True):
    """One event of a stream."""

    data: bytes


async def post_whole(client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    """The whole answer to a body."""
    async with _posted(client, url, body, {**headers, "accept": "application/json"}) as answer:
        content = bytes(await answer.aread())
    if _is_page(content):
        raise WebPageAnswered
    return content


@asynccontextmanager
async def post_streamed(
    client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """The events of the answer to a body, as they come. Raises ServerRefusal where an error came in place of them."""
    async with _posted(client, url, body, {**headers, "accept": "text/event-stream"}) as answer:
        if answer.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            _refuse_error(await answer.aread())
        async with (
            aclosing(answer.aiter_bytes()) as pieces,
            aclosing(_no_page(pieces)) as checked,
            aclosing(_events(checked)) as events,
        ):
            yield events


def _is_page(content: bytes) -> bool:
    """Whether it is markup. Neither JSON nor a stream of events begins so, whatever type a server says they have."""
    return content.removeprefix(BOM_UTF8).lstrip().startswith(b"<")


async def _no_page(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The pieces of a stream. Raises WebPageAnswered where they begin as a page."""
    begun = b""
    is_begun = False
    async for piece in pieces:
        if not is_begun:
            begun += piece
            is_begun = bool(begun.removeprefix(BOM_UTF8).strip())
            if is_begun and _is_page(begun):
                raise WebPageAnswered
        yield piece


def _refuse_error(content: bytes) -> None:
    """Some servers tell an error with a status that says all is well."""
    body = _read_body(content)
    if isinstance(body, dict) and body.get("error"):
        raise ServerRefusal.within(body["error"])


async def read_to_end(events: AsyncIterator[ServerEvent]) -> None:
    """Behind the last event the end of the answer is read, or its connection could not be used again. A server that
    does not end it, or breaks off there, has answered all the same."""
    with suppress(TimeoutError, TransportError, DecodingError):
        async with asyncio.timeout(END_SECONDS):
            async for _ in events:
                pass


@asynccontextmanager
async def _posted(client: Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncIterator[Any]:
    request = client.build_request("POST", url, content=encoded_body(body), headers={**_HEADERS, **headers})
    answer = await client.send(request, stream=True)
    try:
        if not 200 <= answer.status_code < 300:
            raise _refusal(answer.status_code, await answer.aread(), answer.headers)
        yield answer
    finally:
        await answer.aclose()


def encoded_body(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # integers of more than 64 bits, lone surrogates
        return json.dumps(body, separators=(",", ":")).encode()


def _refusal(status: int, content: bytes, headers: Mapping[str, str]) -> ServerRefusal:
    return ServerRefusal(status, _read_body(content), retry_after(headers))


def _read_body(content: bytes) -> Any:
    """What a server says, or its text where it is no JSON, or nested too deep."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return content.decode("utf-8", "replace")


class EventReader:
    """Reads server-sent events from pieces of a stream, as their standard says. An event that is not ended by an empty
    line is none. Only bytes are looked at: a text may hold other separators of lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._after_return = False
        """Whether the last line ended with a CR: a LF that comes next belongs to it."""
        self._is_first = True
        """Whether no line was read yet: only there a byte order mark is none of its letters."""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that end with this piece."""
        for line in self._lines(piece):
            if not line:
                if self._data:
                    yield ServerEvent(b"\n".join(self._data))
                self._data = []
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._after_return and piece:
            piece, self._after_return = piece.removeprefix(b"\n"), False
        if not (b"\n" in piece or b"\r" in piece):
            self._begun.append(piece)
            return []
        self._after_return = piece.endswith(b"\r")
        whole = b"".join((*self._begun, piece)).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._is_first:
            whole, self._is_first = whole.removeprefix(BOM_UTF8), False
        *lines, rest = whole.split(b"\n")
        self._begun = [rest]
        return lines


async def _events(pieces: AsyncIterable[bytes]) -> AsyncGenerator[ServerEvent, None]:
    reader = EventReader()
    async for piece in pieces:
        for event in reader.feed(piece):
            yield event
