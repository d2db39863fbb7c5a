"""A client of an application that is sent events, as a server would hand them on: it takes them, is slow, or leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from tests.surfaces.server.site import BASE_URL, Site

PATIENCE_SECONDS = 60.0
STREAM = {"accept": "text/event-stream"}


class TakenEvent(Struct, frozen=True, kw_only=True):
    name: str
    data: Any
    id: str | None


class EventClient:
    """Takes events from a response that goes on. It takes nothing while `is_taking` is not set."""

    def __init__(self) -> None:
        self.status, self.headers = 0, dict[str, str]()
        self.is_taking, self.has_left = asyncio.Event(), asyncio.Event()
        self.is_taking.set()
        self.sent_bytes, self.was_ended = 0, False
        self._text = ""
        self._came = asyncio.Event()
        self._body: list[bytes] = []
        self.last_id: str | None = None
        self.beats = 0

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.is_taking.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.sent_bytes += len(message.get("body", b""))
            self._text += message.get("body", b"").decode()
            self.was_ended = not message.get("more_body", False)
        self._came.set()

    async def begun(self) -> None:
        while not self.status:
            await self._wait()

    async def next(self) -> TakenEvent | None:
        """The next event; None at the end of the response."""
        while True:
            block, has_end, rest = self._text.partition("\n\n")
            if not has_end:
                if self.was_ended:
                    return None
                await self._wait()
                continue
            self._text = rest
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if block.startswith(":"):
                self.beats += 1
            if "event" in fields:
                self.last_id = fields.get("id", self.last_id)
                data = msgspec.json.decode(fields["data"])
                return TakenEvent(name=fields["event"], data=data, id=fields.get("id"))

    async def until(self, name: str) -> list[TakenEvent]:
        """The events up to and with one of this name."""
        events: list[TakenEvent] = []
        while not events or events[-1].name != name:
            event = await self.next()
            assert event is not None, f"it ended before {name}: {[one.name for one in events]}"
            events.append(event)
        return events

    async def rest(self) -> list[TakenEvent]:
        """All events up to the end of the response."""
        events: list[TakenEvent] = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events

    async def _wait(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._came.wait()
        self._came.clear()


@asynccontextmanager
async def streaming(
    site: Site, path: str, json: Any = None, *, token: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[EventClient]:
    """A request for events, which is over when the block is. With `json` it is a POST."""
    client = EventClient()
    sent = {
        "host": BASE_URL.partition("//")[2],
        "authorization": f"Bearer {token or site.token()}",
        **STREAM,
        **({} if json is None else {"content-type": "application/json"}),
        **(headers or {}),
    }
    client._body.append(b"" if json is None else msgspec.json.encode(json))
    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET" if json is None else "POST",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "http_version": "1.1",
        "scheme": "http",
    }
    answering = asyncio.ensure_future(site.application(scope, client.receive, client.send))
    try:
        await client.begun()
        yield client
    finally:
        client.has_left.set()
        client.is_taking.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await answering
