"""The sending side: offer ids, send the events that are wanted, then the contents that are needed for them.

A batch is some rows of the sender's log. Its end is marked with the place in the log, which the receiver keeps: what
was taken once is not offered again. To a receiver that has nothing, nothing is offered first.

The next batch is on its way before the receiver has said that it took the last one: while it writes that down, and
while its word travels, the next one travels too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from weft.exchange.sync.frames import Frame, Kind, flags_of
from weft.exchange.sync.messages import BatchEnd, Hello, Ready, Taken, Would, framed, message_in
from weft.exchange.sync.talk import Talk, hear
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import ProtocolBroken, ReplicaDiverged

RECORD = struct.Struct(">I16sI")
"""In a CONTENTS frame before each content: which of the needed ones it is, its salt, its length."""
LARGE = struct.Struct(">I16sQ")
HASH = 32
MOST_LACKING = 8192
CONTENTS_BYTES = ROW_BYTES
Report = Callable[[int, int], None]
_hexes = re.compile(rb'"([0-9a-f]{64})"').findall


class EventBatch(Struct, frozen=True):
    """Events to be offered, in their order, and where the log is once they are taken."""

    lines: list[bytes]
    ids: list[bytes]
    mark: BatchEnd
    done: int
    """How far the log has been read, for those who watch."""


class Outgoing(Struct, frozen=True):
    """A content on its way: which of those asked for, its salt, its size, and its bytes in pieces."""

    index: int
    salt: bytes
    size: int
    pieces: Iterable[bytes]


class SyncSource(Protocol):
    """A ledger, as a sender needs it."""

    def hello(self) -> Hello:
        """Who it is, and where its log ends."""

    def chain_at(self, n: int) -> str | None:
        """The chain of arrival at the end of a row; None where no row ends."""

    def batches(self, after: int, peer: str, limited: bool, whole: bool = False) -> Iterator[EventBatch]:
        """What came after that event and, unless `whole`, did not come from that peer."""

    def contents(self, refs: Sequence[bytes], limited: bool) -> Iterator[Outgoing]:
        """Those of these that are here, may go and were not erased."""

    def weigh(self, lines: Sequence[bytes]) -> Would:
        """How much these events are, with their contents."""


class SyncOutcome(Struct, frozen=True, kw_only=True):
    """What a receiver made of what it was sent."""

    events: int = 0
    contents: int = 0
    known: int = 0
    erased: int = 0
    event_bytes: int = 0
    content_bytes: int = 0


class Marked(Struct, frozen=True, gc=False):
    """A batch that was sent and is not known to be taken: how many of its events were there, and how far the log is."""

    known: int
    done: int


def silent(done: int, of: int) -> None:
    """Nobody watches."""


def mentioned(lines: Sequence[bytes]) -> list[bytes]:
    """Every hash that stands in these events, each once, in order. Both sides find the same ones, whatever kinds of
    event they know; the receiver says which are contents that it lacks."""
    return [bytes.fromhex(found.decode()) for found in dict.fromkeys(h for line in lines for h in _hexes(line))]


class Sender:
    """One run of sending."""

    def __init__(self, source: SyncSource, peer: str, limited: bool, report: Report) -> None:
        self._source, self._peer, self._limited, self._report = source, peer, limited, report
        self._event_bytes = self._content_bytes = 0
        self._taken = Taken()
        self._marked: Marked | None = None

    def send(self, ready: Ready) -> Talk[SyncOutcome]:
        """Everything that the receiver lacks, batch by batch."""
        ensure_chain(self._source, ready.after, ready.chain)
        end = self._source.hello().n
        yield from self._send_lacking()
        after = 0 if self._limited else ready.after
        for batch in self._source.batches(after, self._peer, self._limited, ready.whole):
            if ready.dry:
                yield from self._would(batch, ready)
                self._report(batch.done, max(end, batch.done))
            else:
                yield from self._send(batch, ready)
        yield from self._settle()
        yield Frame(Kind.DONE)
        return SyncOutcome(
            events=self._taken.events,
            contents=self._taken.contents,
            known=self._taken.known,
            erased=self._taken.erased,
            event_bytes=self._event_bytes,
            content_bytes=self._content_bytes,
        )

    def _send(self, batch: EventBatch, ready: Ready) -> Talk[None]:
        lines = batch.lines
        if lines and not ready.empty:
            lines = yield from self._wanted(batch)
        if lines:
            self._event_bytes += sum(map(len, lines))
            yield Frame(Kind.EVENTS, b"\n".join(lines))
            yield from self._settle()
            refs = mentioned(lines)
            needed = flags_of((yield from hear(Kind.NEED)).body, len(refs))
            yield from self._send_contents([ref for ref, need in zip(refs, needed, strict=True) if need])
        yield from self._settle()
        yield framed(Kind.MARK, batch.mark)
        self._marked = Marked(len(batch.lines) - len(lines), batch.done)

    def _settle(self) -> Talk[None]:
        """Hear that the batch that was marked last is taken, if that was not heard yet."""
        if (marked := self._marked) is not None:
            self._marked = None
            self._count(message_in((yield from hear(Kind.TAKEN)), Taken), known=marked.known)
            self._report(marked.done, max(self._source.hello().n, marked.done))

    def _wanted(self, batch: EventBatch) -> Talk[list[bytes]]:
        yield Frame(Kind.OFFER, b"".join(batch.ids))
        yield from self._settle()
        flags = flags_of((yield from hear(Kind.WANT)).body, len(batch.ids))
        return [line for line, flag in zip(batch.lines, flags, strict=True) if flag]

    def _would(self, batch: EventBatch, ready: Ready) -> Talk[None]:
        lines = batch.lines if ready.empty or not batch.lines else (yield from self._wanted(batch))
        would = self._source.weigh(lines)
        self._event_bytes += would.event_bytes
        self._content_bytes += would.content_bytes
        self._count(Taken(events=would.events, contents=would.contents))
        yield framed(Kind.WOULD, would)

    def _send_lacking(self) -> Talk[None]:
        """Contents that the receiver's events name and that never came; not those of sessions it may not see."""
        body = (yield from hear(Kind.LACK)).body
        if len(body) % HASH or len(body) > MOST_LACKING * HASH:
            raise ProtocolBroken(f"LACK has {len(body)} bytes, not up to {MOST_LACKING} hashes")
        refs = [body[i : i + HASH] for i in range(0, len(body), HASH)]
        if refs:
            if not self._limited:
                yield from self._send_contents(refs)
            yield framed(Kind.MARK, BatchEnd())
            self._count(message_in((yield from hear(Kind.TAKEN)), Taken))

    def _send_contents(self, refs: Sequence[bytes]) -> Talk[None]:
        held, size = [], 0
        for content in self._source.contents(refs, self._limited) if refs else ():
            self._content_bytes += content.size
            if content.size > ROW_BYTES:
                yield Frame(Kind.LARGE, LARGE.pack(content.index, content.salt, content.size))
                for piece in content.pieces:
                    yield Frame(Kind.PIECE, piece)
                continue
            held += [RECORD.pack(content.index, content.salt, content.size), *content.pieces]
            size += RECORD.size + content.size
            if size >= CONTENTS_BYTES:
                yield Frame(Kind.CONTENTS, b"".join(held))
                held, size = [], 0
        if held:
            yield Frame(Kind.CONTENTS, b"".join(held))

    def _count(self, taken: Taken, known: int = 0) -> None:
        so_far = self._taken
        self._taken = Taken(
            events=so_far.events + taken.events,
            contents=so_far.contents + taken.contents,
            known=so_far.known + taken.known + known,
            erased=so_far.erased + taken.erased,
        )


def ensure_chain(source: SyncSource, n: int, chain: str) -> None:
    """Does this ledger's log say what the other one remembers of it?"""
    if n and source.chain_at(n) != chain:
        raise ReplicaDiverged(
            f"replica {source.hello().replica} said something else once: its event {n} is not the one the other "
            "side remembers"
        )
