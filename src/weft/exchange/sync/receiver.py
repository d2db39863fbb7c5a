"""The receiving side: say what is wanted, hold what comes against its hashes, and take each batch whole.

Nothing that comes is believed. Events must hash to the ids that were wanted, contents to the references that were
needed; the batch then goes into one transaction, which checks every link again, and only then is any of it visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from tempfile import TemporaryFile
from typing import IO, Protocol

from weft.exchange.sync.frames import Frame, Kind, bitmap
from weft.exchange.sync.messages import BatchEnd, Hello, Ready, Taken, Would, framed, said
from weft.exchange.sync.sender import HASH, LARGE, RECORD, Report, SyncOutcome, mentioned
from weft.exchange.sync.talk import Talk, hear
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, ContentHasher
from weft.kernel.errors import InvalidFact, ProtocolBroken
from weft.kernel.events import UnknownEvent
from weft.kernel.facts import content_refs, is_digest
from weft.ledger.upkeep.facts_file import Fact, NewContent, NewEvent, NewLargeContent, checked_line

MOST_OFFERED = 8192
HELD_BYTES = 4 * 1024 * 1024
"""Contents of a batch beyond this wait in a file of their own."""
SLACK = 4
"""So many marks may come that bring nothing and move nothing on."""


class Sink(Protocol):
    """A ledger, as a receiver needs it."""

    def ready(self, peer: str) -> Ready:
        """How far that peer's log has been taken."""

    def lacking(self) -> list[bytes]:
        """Contents that events name and that never came."""

    def unknown(self, ids: Sequence[bytes]) -> list[bool]:
        """Which of these events are not here."""

    def missing(self, refs: Sequence[bytes]) -> list[bool]:
        """Which of these contents are not here and were not erased."""

    def refuse_forged(self, events: Sequence[NewEvent]) -> None:
        """Raise if one of these claims to be written here."""

    def take(self, facts: Sequence[Fact], mark: BatchEnd) -> Taken:
        """All of it in one transaction, with the place in the peer's log; or InvalidFact, and nothing."""


class Receiver:
    """One run of receiving."""

    def __init__(self, sink: Sink, peer: Hello, report: Report, *, limited: bool = False) -> None:
        self._sink, self._peer, self._report, self._limited = sink, peer, report, limited
        self._taken = Taken()
        self._event_bytes = self._content_bytes = 0
        self._offered = self._at = self._idle = 0

    def receive(self, ready: Ready) -> Talk[SyncOutcome]:
        """Until the sender is done."""
        lacking = [] if ready.dry else self._sink.lacking()
        yield Frame(Kind.LACK, b"".join(lacking))
        if lacking:
            yield from self._take_lacking(lacking)
        self._at = ready.after
        first = (Kind.EVENTS if ready.empty else Kind.OFFER, Kind.WOULD if ready.dry else Kind.MARK, Kind.DONE)
        while (frame := (yield from hear(*first))).kind != Kind.DONE:
            if ready.dry:
                yield from self._would(frame)
            else:
                yield from self._batch(frame)
            self._report(min(self._at, self._peer.n), self._peer.n)
        return self._sum()

    def _sum(self) -> SyncOutcome:
        return SyncOutcome(
            events=self._taken.events,
            contents=self._taken.contents,
            known=self._taken.known,
            erased=self._taken.erased,
            event_bytes=self._event_bytes,
            content_bytes=self._content_bytes,
        )

    def _would(self, frame: Frame) -> Talk[None]:
        if frame.kind == Kind.OFFER:
            yield from self._want(frame)
            frame = yield from hear(Kind.WOULD)
        would = said(frame, Would)
        self._event_bytes += would.event_bytes
        self._content_bytes += would.content_bytes
        self._count(Taken(events=would.events, contents=would.contents))

    def _batch(self, frame: Frame) -> Talk[None]:
        """One batch, from its offer or its events to its mark."""
        with Stage() as stage:
            events: list[NewEvent] = []
            if frame.kind == Kind.OFFER:
                wanted = yield from self._want(frame)
                if wanted:
                    events = self._events((yield from hear(Kind.EVENTS)).body, wanted)
            elif frame.kind == Kind.EVENTS:
                events = self._events(frame.body, None)
            marked: Frame | None = frame if frame.kind == Kind.MARK else None
            if events:
                needed = yield from self._need(events)
                marked = yield from self._contents(needed, stage)
            mark = self._checked(said(marked or (yield from hear(Kind.MARK)), BatchEnd), frame.kind == Kind.MARK)
            yield from self._take([*stage.contents, *events], mark)

    def _want(self, frame: Frame) -> Talk[list[bytes]]:
        if len(frame.body) % HASH or not 0 < len(frame.body) <= MOST_OFFERED * HASH:
            raise ProtocolBroken(f"OFFER has {len(frame.body)} bytes, not up to {MOST_OFFERED} hashes")
        ids = [frame.body[i : i + HASH] for i in range(0, len(frame.body), HASH)]
        self._offer(len(ids))
        flags = self._sink.unknown(ids)
        yield Frame(Kind.WANT, bitmap(flags))
        self._count(Taken(known=flags.count(False)))
        return [id for id, flag in zip(ids, flags, strict=True) if flag]

    def _offer(self, count: int) -> None:
        """A log has as many events as its last arrival number: a stream that never ends is noticed."""
        self._offered += count
        if self._offered > self._peer.n:
            raise ProtocolBroken(f"more than the {self._peer.n} events came that the other side says it has")

    def _events(self, body: bytes, wanted: list[bytes] | None) -> list[NewEvent]:
        lines = body.split(b"\n")
        if len(lines) > MOST_OFFERED:
            raise ProtocolBroken(f"EVENTS holds {len(lines)} events; {MOST_OFFERED} is the most")
        if wanted is None:
            self._offer(len(lines))
        events = [checked_line(line, f"event {i}") for i, line in enumerate(lines, 1)]
        if wanted is not None and [event.id for event in events] != wanted:
            raise InvalidFact("EVENTS", "what came does not hash to the ids that were offered and wanted")
        self._event_bytes += len(body) - len(lines) + 1
        self._sink.refuse_forged(events)
        return events

    def _need(self, events: list[NewEvent]) -> Talk[list[bytes]]:
        """Which of the hashes in these events are contents that are wanted here. Of a kind that is not known here any
        hash may be one."""
        all_refs = mentioned([event.line for event in events])
        named: set[bytes] = set()
        for new in events:
            if isinstance(new.event, UnknownEvent):
                named.update(mentioned([new.line]))
            else:
                named.update(bytes.fromhex(ref) for ref in content_refs(new.event))
        asked = [ref for ref in all_refs if ref in named]
        missing = {ref for ref, flag in zip(asked, self._sink.missing(asked), strict=True) if flag}
        yield Frame(Kind.NEED, bitmap([ref in missing for ref in all_refs]))
        return [ref for ref in all_refs if ref in missing]

    def _contents(self, needed: list[bytes], stage: Stage) -> Talk[Frame]:
        """Contents until the mark, which is returned. Those that the sender does not have do not come."""
        left = dict(enumerate(needed))
        while (frame := (yield from hear(Kind.CONTENTS, Kind.LARGE, Kind.MARK))).kind != Kind.MARK:
            if frame.kind == Kind.CONTENTS:
                for index, salt, data in _records(frame.body):
                    stage.add(_awaited(left, index), salt, data)
                    self._content_bytes += len(data)
            else:
                self._content_bytes += yield from self._large(frame, left, stage)
        return frame

    def _large(self, frame: Frame, left: dict[int, bytes], stage: Stage) -> Talk[int]:
        """A content of more than one row, piece by piece into a file."""
        if len(frame.body) != LARGE.size:
            raise ProtocolBroken(f"LARGE has {len(frame.body)} bytes, not {LARGE.size}")
        index, salt, size = LARGE.unpack(frame.body)
        if not ROW_BYTES < size <= MAX_CONTENT_BYTES:
            raise ProtocolBroken(f"a large content of {size} bytes")
        keep, got = stage.begin(_awaited(left, index), salt, size), 0
        while got < size:
            piece = (yield from hear(Kind.PIECE)).body
            if not 0 < len(piece) <= min(ROW_BYTES, size - got):
                raise ProtocolBroken(f"a piece of {len(piece)} bytes where {size - got} are left")
            keep(piece)
            got += len(piece)
        stage.end()
        return int(size)

    def _take_lacking(self, lacking: list[bytes]) -> Talk[None]:
        with Stage() as stage:
            marked = yield from self._contents(lacking, stage)
            said(marked, BatchEnd)
            yield from self._take(stage.contents, BatchEnd())

    def _take(self, facts: Sequence[Fact], mark: BatchEnd) -> Talk[None]:
        taken = self._sink.take(facts, mark)
        self._count(taken)
        yield framed(Kind.TAKEN, taken)

    def _checked(self, mark: BatchEnd, alone: bool) -> BatchEnd:
        """The place in the sender's log only moves on, and never beyond its end."""
        if mark.n and (self._limited or not self._at <= mark.n <= self._peer.n):
            raise ProtocolBroken(f"the log is marked at {mark.n}, after {self._at} and before {self._peer.n}")
        if mark.n and not is_digest(mark.chain):
            raise ProtocolBroken("MARK names a place in the log without the chain there")
        self._idle += alone and mark.n <= self._at
        if self._idle > SLACK:
            raise ProtocolBroken("marks come that bring nothing and move nothing")
        self._at = mark.n or self._at
        return mark

    def _count(self, taken: Taken) -> None:
        so_far = self._taken
        self._taken = Taken(
            events=so_far.events + taken.events,
            contents=so_far.contents + taken.contents,
            known=so_far.known + taken.known,
            erased=so_far.erased + taken.erased,
        )


def _awaited(left: dict[int, bytes], index: int) -> bytes:
    ref = left.pop(index, None)
    if ref is None:
        raise ProtocolBroken(f"content {index} was not asked for, or comes again")
    return ref


def _records(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(body):
        if at + RECORD.size > len(body):
            raise ProtocolBroken("CONTENTS ends in the middle of a record")
        index, salt, size = RECORD.unpack_from(body, at)
        at += RECORD.size
        if size > ROW_BYTES or at + size > len(body):
            raise ProtocolBroken(f"CONTENTS holds a content of {size} bytes and {len(body) - at} are left")
        yield index, salt, body[at : at + size]
        at += size


class Stage:
    """Contents on their way: hashed as they come, held in memory while they are few, else in a file without a name."""

    def __init__(self) -> None:
        self.contents: list[NewContent | NewLargeContent] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._under_way: tuple[bytes, bytes, int, int, ContentHasher] | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, ref: bytes, salt: bytes, data: bytes) -> None:
        if self._held + len(data) <= HELD_BYTES:
            hasher = ContentHasher(salt)
            hasher.feed(data)
            _ensure_hash(hasher, ref)
            self.contents.append(NewContent(ref, salt, data))
            self._held += len(data)
            return
        self.begin(ref, salt, len(data))(data)
        self.end()

    def begin(self, ref: bytes, salt: bytes, size: int) -> Callable[[bytes], None]:
        file = self._file = self._file or TemporaryFile()  # noqa: SIM115  # it lives as long as the stage
        hasher = ContentHasher(salt)
        self._under_way = (ref, salt, size, file.seek(0, 2), hasher)

        def keep(piece: bytes) -> None:
            hasher.feed(piece)
            file.write(piece)

        return keep

    def end(self) -> None:
        assert self._under_way is not None
        assert self._file is not None
        ref, salt, size, start, hasher = self._under_way
        _ensure_hash(hasher, ref)
        self.contents.append(NewLargeContent(ref, salt, size, self._file, start))


def _ensure_hash(hasher: ContentHasher, ref: bytes) -> None:
    if hasher.ref() != ref:
        raise InvalidFact("CONTENTS", f"a content does not hash to {ref.hex()}")
