"""Answers that come as things happen: server-sent events, with ids behind which a client goes on where it stopped.

The ledger is the buffer. Items are read as they are sent, so a client that is away or slow is kept nothing for, and it
goes on at any server of the ledger. One task for all streams of a process sends what keeps connections alive, and ends
the streams of those who may read no more. A stream that waits takes no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec import Meta, Struct
from starlette.responses import Response

from weft.aio.ledger import AsyncLedger
from weft.chat.room_stream import RoomFollowingEnded, RoomItem, follow_room
from weft.kernel.errors import InvalidInput, NotAllowed, NotFound, StoreError
from weft.ledger.api import Ledger, RoomFeed, Runs, SessionStream, StoredEvent, StreamItem, store_of
from weft.runtime.answer_streams import EVERY_SESSION, follow, hub_of
from weft.surfaces.server.application import Served, json_response
from weft.surfaces.server.problems import Refusal
from weft.surfaces.server.route_table import BASE, Endpoint, EndpointDetails, page_schema
from weft.surfaces.wire.forms import document, form

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

    from weft.aio.crossing import Pool
    from weft.surfaces.server.callers import Caller

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
"""A connection on which nothing comes is ended by proxies after a minute or less."""
LOOK_SECONDS = 0.5
"""So often it is looked who may still read: whose credential was revoked is sent nothing after a second."""
SLOW_SECONDS = 20.0
"""Whoever takes nothing for so long is dropped. They go on with the id of the last item that they took."""
MOST_BYTES = 256 * 1024
"""So much is read ahead of what a client has taken."""
RETRY_MS = 1000
"""After so long a client connects again."""
LAST_ID_HEADER = "last-event-id"
PAGE_ITEMS, MOST_PAGE_ITEMS = 100, 1000


def wants_stream(request: Request) -> bool:
    """Whether the client asks for events as they come; any other is answered as JSON."""
    kinds = (kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(","))
    return MEDIA_TYPE in kinds


def sent_event(name: str, value: Any, id: str | None = None) -> bytes:
    """One event, as it is sent. JSON on one line has no line break that could end it."""
    place = "" if id is None else f"id: {id}\n"
    return f"{place}event: {name}\ndata: {document(value, indent=False)}\n\n".encode("utf-8", "surrogatepass")


def sent_item(item: Struct, id: str | None) -> bytes:
    """An item of a stream: its type is the event's name."""
    return sent_event(str(item.__struct_config__.tag), form(item), id)


# --- Streams that are open.


class OpenStream:
    """One client that is sent events, in whose name, and what asks whether they may still read."""

    def __init__(self, caller: Caller, may_still_read: Callable[[], bool] | None) -> None:
        self.caller, self.may_still_read = caller, may_still_read
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._wake, self._has_room = asyncio.Event(), asyncio.Event()
        self._is_ended = False
        self.sent_at = asyncio.get_running_loop().time()

    def end(self, reason: str | None = None) -> None:
        """Send nothing more that is read from now on; a reason is told."""
        if self._is_ended:
            return
        self._is_ended = True
        if reason is not None:
            self._pieces = [sent_event("ended", {"reason": reason})]  # what was read is not theirs any more
        self._wake.set()

    def beat(self) -> None:
        """Send what no client hears, so that the connection is not taken for dead."""
        if not self._pieces:
            self._pieces.append(b":\n\n")
            self._wake.set()

    async def read(self, events: AsyncGenerator[bytes, None], note: Callable[[str], None]) -> None:
        """Take events while there is room for them, until there are no more."""
        try:
            async for piece in events:
                while self._bytes >= MOST_BYTES and not self._is_ended:
                    self._has_room.clear()
                    await self._has_room.wait()
                if self._is_ended:
                    return
                self._pieces.append(piece)
                self._bytes += len(piece)
                self._wake.set()
            self.end()
        except (NotFound, NotAllowed):
            self.end("gone")
        except StoreError:  # the ledger is away: the client goes on elsewhere, or later
            self.end("unavailable")
        except Exception as error:  # a fault of ours ends this stream alone; the log tells of it
            note(f"a stream of events: {type(error).__name__}: {error}")
            self.end("failed")

    async def end_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._pieces.clear()
        self.end()

    async def send_all(self, send: Send) -> None:
        """Until the end. Whoever is too slow finds the connection cut, without the end of the answer."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            chunk, is_last = b"".join(self._pieces), self._is_ended
            self._pieces.clear()
            self._bytes = 0
            self._has_room.set()
            try:
                async with asyncio.timeout(SLOW_SECONDS):
                    await send(_body(chunk, has_more=not is_last))
            except TimeoutError:
                return
            self.sent_at = asyncio.get_running_loop().time()
            if is_last:
                return


def _body(chunk: bytes, *, has_more: bool) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": has_more}


class EventStreams:
    """The open streams of one process."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._open: dict[OpenStream, None] = {}
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def response(
        self,
        caller: Caller,
        events: AsyncGenerator[bytes, None],
        may_still_read: Callable[[], bool] | None = None,
    ) -> EventResponse:
        """What is answered with these events. `may_still_read` is asked in a thread whenever the ledger has changed;
        whoever may read everything is not asked about."""
        is_asked = may_still_read is not None and not caller.authority.is_unlimited
        return EventResponse(self, caller, events, may_still_read if is_asked else None, self._served.note)

    @contextmanager
    def opened(self, stream: OpenStream) -> Iterator[None]:
        self._open[stream] = None
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            del self._open[stream]

    async def _watch(self) -> None:
        ending, clock, newest = self._served.ending, asyncio.get_running_loop().time, -1
        while self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await ending.wait()
            if ending.is_set():
                self._end(self._open, "ending")
                await asyncio.sleep(LOOK_SECONDS / 10)  # until all are closed: one that is opened now is ended, too
                continue
            with suppress(StoreError):  # away; each stream hears of it when it reads
                newest = await self._end_lapsed(newest)
            for stream in self._open:
                if clock() - stream.sent_at >= HEARTBEAT_SECONDS:
                    stream.beat()

    def _end(self, streams: Iterable[OpenStream], reason: str) -> None:
        for stream in streams:
            stream.end(reason)

    async def _end_lapsed(self, before: int) -> int:
        """End the streams of those who may read no more; the newest event that was looked at."""
        streams, counts = list(self._open), self._served.callers.still_counts
        callers = list({stream.caller for stream in streams})
        counting = dict(zip(callers, await asyncio.gather(*map(counts, callers)), strict=True))
        self._end((stream for stream in streams if not counting[stream.caller]), "credential")
        asked = [(stream, stream.may_still_read) for stream in streams if stream.may_still_read is not None]
        if not asked:
            return before
        newest, unreadable = await self._served.crossing.run(partial(self._unreadable, asked, before))
        self._end(unreadable, "gone")
        return newest

    def _unreadable(
        self, asked: list[tuple[OpenStream, Callable[[], bool]]], before: int
    ) -> tuple[int, list[OpenStream]]:
        """What may be read changes by events alone: without new ones nothing is looked at."""
        newest = self._served.ledger.newest()
        return newest, [] if newest == before else [stream for stream, may_still_read in asked if not may_still_read()]


class EventResponse(Response):
    """Events, for as long as there are any and the client takes them."""

    def __init__(
        self,
        streams: EventStreams,
        caller: Caller,
        events: AsyncGenerator[bytes, None],
        may_still_read: Callable[[], bool] | None,
        note: Callable[[str], None],
    ) -> None:
        self.status_code, self.background = 200, None
        self._streams, self._caller, self._events = streams, caller, events
        self._may_still_read, self._note = may_still_read, note
        self.init_headers({"content-type": MEDIA_TYPE, "cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await self._events.aclose()
            await send(_body(b"", has_more=False))
            return
        stream = OpenStream(self._caller, self._may_still_read)
        await send(_body(f"retry: {RETRY_MS}\n\n".encode(), has_more=True))
        with self._streams.opened(stream):
            tasks = [
                asyncio.ensure_future(stream.read(self._events, self._note)),
                asyncio.ensure_future(stream.end_when_gone(receive)),
            ]
            try:
                await stream.send_all(send)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._events.aclose()


# --- What happens in a session, in a room, and in the whole ledger.


class FollowedPage(Struct, frozen=True, kw_only=True):
    """What was asked of a stream: behind which position, and how many items where they are answered as a page."""

    after: str | None
    limit: int


def asked_page(request: Request) -> FollowedPage:
    """Raises Refusal with 422 for what no stream takes."""
    query = request.query_params.multi_items()
    fields = dict(query)
    unknown = fields.keys() - {"after", "limit"}
    if unknown or len(fields) < len(query):
        raise Refusal(422, "invalid_input", "a stream takes after and limit, each once")
    limit = fields.get("limit", str(PAGE_ITEMS))
    if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= MOST_PAGE_ITEMS):
        raise Refusal(422, "invalid_input", f"limit is a number from 1 to {MOST_PAGE_ITEMS:,}")
    return FollowedPage(after=request.headers.get(LAST_ID_HEADER) or fields.get("after"), limit=int(limit))


def checked_number(after: str | None) -> int | None:
    """A position that is a number alone."""
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidInput("that is no position in this stream", "give the id of an item; 0 begins")
    return int(after)


def ledger_of(served: Served, caller: Caller) -> AsyncLedger:
    """The served ledger in the name of a caller, for what is awaited."""
    return AsyncLedger(served.ledger.acting_as(caller.authority), cast("Pool", served.crossing))


async def session_events(served: Served, caller: Caller, session: str, page: FollowedPage) -> FollowedStream:
    """What happens in a session. Raises what is wrong with the question before anything is sent."""
    ledger = ledger_of(served, caller)
    stream = await served.crossing.run(partial(SessionStream, store_of(ledger.sync), session, page.after))
    id, position = stream.cursor.session, stream.cursor.position

    def items(wait: float | None) -> AsyncGenerator[StreamItem, None]:
        return follow(ledger, id, after=position, wait=wait)

    return FollowedStream(
        items=items,
        id_of=lambda item: str(item.position),
        start=str(position),
        may_still_read=lambda: _is_there(lambda: ledger.sync.session(id)),
    )


async def room_events(served: Served, caller: Caller, room: str, page: FollowedPage) -> FollowedStream:
    ledger, after = ledger_of(served, caller), checked_number(page.after)
    feed = await served.crossing.run(partial(RoomFeed, store_of(ledger.sync), room, after))

    def items(wait: float | None) -> AsyncGenerator[RoomItem, None]:
        return follow_room(ledger, feed.id, after=feed.position, wait=wait)

    # The items themselves tell who left, or was removed.
    return FollowedStream(
        items=items, id_of=lambda item: str(item.position), start=str(feed.position), may_still_read=None
    )


async def ledger_events(served: Served, caller: Caller, _: str, page: FollowedPage) -> FollowedStream:
    """Every event of the ledger, by arrival. Whoever may not read all of it is refused."""
    ledger, after = ledger_of(served, caller), checked_number(page.after)
    newest = await served.crossing.run(ledger.sync.newest)
    if after is not None and after > newest:
        raise InvalidInput(f"position {after} is beyond the newest event, {newest}", "give the number of an event")
    start = newest if after is None else after

    def items(wait: float | None) -> AsyncGenerator[StoredEvent, None]:
        return _changes(served, ledger.sync, start, wait)

    return FollowedStream(
        items=items,
        id_of=lambda event: str(event.n),
        start=str(start),
        may_still_read=lambda: _is_there(ledger.sync.newest),
    )


READ_AT_ONCE = 64


async def _changes(served: Served, ledger: Ledger, after: int, wait: float | None) -> AsyncGenerator[StoredEvent, None]:
    """Events beyond a number, and with `wait` None those that come."""
    hub, runs = hub_of(served.crossing), Runs(served.ledger)
    with hub.bell(EVERY_SESSION, runs, after) as bell:
        while True:
            bell.has_news = False
            read = partial(_listed_changes, ledger, after)
            while found := await served.crossing.run(read):
                for event in found:
                    yield event
                after = found[-1].n
                read = partial(_listed_changes, ledger, after)
            if wait is not None:
                return
            if not bell.has_news:
                await bell.wait(None)


def _listed_changes(ledger: Ledger, after: int) -> list[StoredEvent]:
    return list(islice(ledger.changes(after), READ_AT_ONCE))


def _is_there(read: Callable[[], object]) -> bool:
    try:
        read()
    except (NotFound, NotAllowed):
        return False
    return True


class FollowedStream(Struct, frozen=True, kw_only=True):
    """A stream that was found: its items, without an end or as far as there are any, and the id of each."""

    items: Callable[[float | None], AsyncGenerator[Any, None]]
    id_of: Callable[[Any], str]
    start: str
    may_still_read: Callable[[], bool] | None

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.items(None)) as items:
            async for item in items:
                is_tagged = isinstance(item, StreamItem | RoomItem)
                yield sent_item(item, self.id_of(item)) if is_tagged else _sent_change(item)
                if isinstance(item, RoomFollowingEnded):
                    return

    async def page(self, limit: int) -> dict[str, Any]:
        """So many items of those that there are now, and behind which position to go on."""
        listed: list[Any] = []
        position = self.start
        async with aclosing(self.items(0.0)) as items:
            async for item in items:
                listed.append(form(item))
                position = self.id_of(item)
                if len(listed) == limit:
                    break
        return {"items": listed, "next": position}


def _sent_change(event: StoredEvent) -> bytes:
    return sent_event("event", form(event), str(event.n))


class EventsQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens, as events where `Accept: text/event-stream` asks for them, until the client leaves. Any other one
    is answered the next items that there are, and in `next` behind which position to go on. Without a position a
    session begins with the turn that is under way, anything else with what comes next; 0 is the beginning."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_PAGE_ITEMS)] = PAGE_ITEMS


def event_endpoints(served: Served, streams: EventStreams) -> list[Endpoint]:
    """Streams that are followed. Without `Accept: text/event-stream` each is answered as a page."""
    items = page_schema({"type": "object"}, {"type": "string"})

    def endpoint(path: str, right: str, path_name: str, follow_up: Any, **details: Any) -> Endpoint:
        async def handle(request: Request, caller: Caller | None, names: dict[str, str]) -> Response:
            assert caller is not None
            page = asked_page(request)
            followed = await follow_up(served, caller, names.get(path_name, ""), page)
            if wants_stream(request):
                return streams.response(caller, followed.events(), followed.may_still_read)
            return json_response(request, await followed.page(page.limit))

        told = EndpointDetails(
            tag="events",
            query=EventsQuestion,
            answer=items,
            is_stream=True,
            headers={LAST_ID_HEADER: "Go on behind this item; it goes before `after`."},
            **details,
        )
        return Endpoint(method="GET", path=BASE + path, right=right, handler=handle, details=told)

    session, room, everything = "What happens in a session.", "What happens in a room.", "Every event of the ledger."
    return [
        endpoint(
            "/sessions/{session}/events", "session:read", "session", session_events,
            name="session_events", summary=session,
        ),
        endpoint("/rooms/{room}/events", "room:read", "room", room_events, name="room_events", summary=room),
        endpoint("/events", "ledger:read", "", ledger_events, name="ledger_events", summary=everything),
    ]  # fmt: skip
