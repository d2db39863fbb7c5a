"""The two sides of an exchange of facts.

The sender offers ids, sends the events that are wanted, then the contents that are needed for them.
The receiver says what it wants, holds what comes against its hashes, and takes each batch whole.
Where the sender's log stands is computed here from the ids of its events.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from tempfile import TemporaryFile
from typing import IO, Protocol

from msgspec import Struct

from weft.exchange.sync.frames import (
    BatchEnd,
    BatchTaken,
    Frame,
    HelloFrame,
    ReceiverReady,
    SkippedRun,
    SyncFrameKind,
    Talk,
    WouldTake,
    bitmap,
    flags_of,
    framed,
    message_in,
    receive_frame,
)
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, ContentHasher
from weft.kernel.errors import InvalidFact, ProtocolBroken, ReplicaDiverged
from weft.kernel.events import GENESIS, UnknownEvent, extend
from weft.kernel.foreign_input import content_refs, is_digest
from weft.ledger.upkeep.facts_file import Fact, NewContent, NewEvent, NewLargeContent, checked_line

# --- The sending side: offer ids, send the events that are wanted, then the contents that are needed for them.

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


class OutgoingContent(Struct, frozen=True):
    """A content on its way: which of those asked for, its salt, its size, and its bytes in pieces."""

    index: int
    salt: bytes
    size: int
    pieces: Iterable[bytes]


class SyncSource(Protocol):
    """A ledger, as a sender needs it."""

    def hello(self) -> HelloFrame:
        """Who it is, and where its log ends."""

    def chain_at(self, n: int) -> str | None:
        """The chain of arrival at the end of a row; None where no row ends."""

    def batches(self, after: int, peer: str, limited: bool, is_whole: bool = False) -> Iterator[EventBatch]:
        """What came after that event and, unless `whole`, did not come from that peer."""

    def contents(self, refs: Sequence[bytes], limited: bool) -> Iterator[OutgoingContent]:
        """Those of these that are here, may go and were not erased."""

    def weigh(self, lines: Sequence[bytes]) -> WouldTake:
        """How much these events are, with their contents."""


class SyncOutcome(Struct, frozen=True, kw_only=True):
    """What a receiver made of what it was sent."""

    events: int = 0
    contents: int = 0
    known: int = 0
    erased: int = 0
    event_bytes: int = 0
    content_bytes: int = 0


class UnconfirmedBatch(Struct, frozen=True, gc=False):
    """A batch that was sent and is not known to be taken: how many of its events were there, and how far the log is."""

    known: int
    done: int


def silent(done: int, total: int) -> None:
    """Nobody watches."""


def mentioned(lines: Sequence[bytes]) -> list[bytes]:
    """Every hash that stands in these events, each once, in order. Both sides find the same ones, whatever kinds of
    event they know; the receiver says which are contents that it lacks."""
    return [bytes.fromhex(hash_text.decode()) for hash_text in dict.fromkeys(h for line in lines for h in _hexes(line))]


class FactSender:
    """One run of sending."""

    def __init__(self, source: SyncSource, peer: str, limited: bool, report: Report) -> None:
        self._source, self._peer, self._limited, self._report = source, peer, limited, report
        self._event_bytes = self._content_bytes = 0
        self._taken = BatchTaken()
        self._marked: UnconfirmedBatch | None = None

    def send(self, ready: ReceiverReady) -> Talk[SyncOutcome]:
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
        yield Frame(SyncFrameKind.DONE)
        return SyncOutcome(
            events=self._taken.events,
            contents=self._taken.contents,
            known=self._taken.known,
            erased=self._taken.erased,
            event_bytes=self._event_bytes,
            content_bytes=self._content_bytes,
        )

    def _send(self, batch: EventBatch, ready: ReceiverReady) -> Talk[None]:
        lines = batch.lines
        if lines and not ready.empty:
            lines = yield from self._wanted_lines(batch)
        if lines:
            self._event_bytes += sum(map(len, lines))
            yield Frame(SyncFrameKind.EVENTS, b"\n".join(lines))
            yield from self._settle()
            refs = mentioned(lines)
            needed = flags_of((yield from receive_frame(SyncFrameKind.NEED)).body, len(refs))
            yield from self._send_contents([ref for ref, need in zip(refs, needed, strict=True) if need])
        yield from self._settle()
        yield framed(SyncFrameKind.MARK, batch.mark)
        self._marked = UnconfirmedBatch(len(batch.lines) - len(lines), batch.done)

    def _settle(self) -> Talk[None]:
        """Hear that the batch that was marked last is taken, if that was not heard yet."""
        if (marked := self._marked) is not None:
            self._marked = None
            self._count(
                message_in((yield from receive_frame(SyncFrameKind.TAKEN)), BatchTaken), known_count=marked.known
            )
            self._report(marked.done, max(self._source.hello().n, marked.done))

    def _wanted_lines(self, batch: EventBatch) -> Talk[list[bytes]]:
        yield Frame(SyncFrameKind.OFFER, b"".join(batch.ids))
        yield from self._settle()
        flags = flags_of((yield from receive_frame(SyncFrameKind.WANT)).body, len(batch.ids))
        return [line for line, flag in zip(batch.lines, flags, strict=True) if flag]

    def _would(self, batch: EventBatch, ready: ReceiverReady) -> Talk[None]:
        lines = batch.lines if ready.empty or not batch.lines else (yield from self._wanted_lines(batch))
        would = self._source.weigh(lines)
        self._event_bytes += would.event_bytes
        self._content_bytes += would.content_bytes
        self._count(BatchTaken(events=would.events, contents=would.contents))
        yield framed(SyncFrameKind.WOULD, would)

    def _send_lacking(self) -> Talk[None]:
        """Contents that the receiver's events name and that never came; not those of sessions it may not see."""
        body = (yield from receive_frame(SyncFrameKind.LACK)).body
        if len(body) % HASH or len(body) > MOST_LACKING * HASH:
            raise ProtocolBroken(f"LACK has {len(body)} bytes, not up to {MOST_LACKING} hashes")
        refs = [body[i : i + HASH] for i in range(0, len(body), HASH)]
        if refs:
            if not self._limited:
                yield from self._send_contents(refs)
            yield framed(SyncFrameKind.MARK, BatchEnd())
            self._count(message_in((yield from receive_frame(SyncFrameKind.TAKEN)), BatchTaken))

    def _send_contents(self, refs: Sequence[bytes]) -> Talk[None]:
        records, size = [], 0
        for content in self._source.contents(refs, self._limited) if refs else ():
            self._content_bytes += content.size
            if content.size > ROW_BYTES:
                yield Frame(SyncFrameKind.LARGE, LARGE.pack(content.index, content.salt, content.size))
                for chunk in content.pieces:
                    yield Frame(SyncFrameKind.PIECE, chunk)
                continue
            records += [RECORD.pack(content.index, content.salt, content.size), *content.pieces]
            size += RECORD.size + content.size
            if size >= CONTENTS_BYTES:
                yield Frame(SyncFrameKind.CONTENTS, b"".join(records))
                records, size = [], 0
        if records:
            yield Frame(SyncFrameKind.CONTENTS, b"".join(records))

    def _count(self, added: BatchTaken, known_count: int = 0) -> None:
        so_far = self._taken
        self._taken = BatchTaken(
            events=so_far.events + added.events,
            contents=so_far.contents + added.contents,
            known=so_far.known + added.known + known_count,
            erased=so_far.erased + added.erased,
        )


def ensure_chain(source: SyncSource, n: int, chain: str) -> None:
    """Does this ledger's log say what the other one remembers of it?"""
    if n and source.chain_at(n) != chain:
        raise ReplicaDiverged(
            f"replica {source.hello().replica} said something else once: its event {n} is not the one the other "
            "side remembers"
        )


# --- Where a sender's log stands, computed here from the ids of its events.

OwnRun = Callable[[bytes, int], list[bytes]]
"""The ids of so many of our events from one on, without those that came from the sender."""


class ArrivalProof:
    """The last proven place in a sender's log, and the ids that came after it."""

    def __init__(self, after: int, chain: str, own_run: OwnRun) -> None:
        self._n, self._chain = after, bytes.fromhex(chain) if after else GENESIS
        self._own_run = own_run
        self._offered: deque[bytes] = deque()
        self._skipped: deque[SkippedRun] = deque()
        self._skipped_events = 0
        self.is_broken = False
        """A mark was not proven: no later one is."""

    @property
    def offered_beyond(self) -> int:
        """How many ids were offered that lie beyond the proven place."""
        return len(self._offered)

    def offer(self, ids: Sequence[bytes]) -> None:
        if not self.is_broken:
            self._offered.extend(ids)

    def skip(self, runs: Sequence[SkippedRun], own_events: int) -> None:
        """Nobody has more events from us than there are here."""
        for run in runs:
            self._skipped_events += run.count
            if not run.count or not is_digest(run.id) or self._skipped_events > own_events:
                raise ProtocolBroken("MARK skips events that did not come from here")
        self._skipped.extend(runs)

    def proves(self, mark: BatchEnd) -> bool:
        """Whether the events that came lead to this place; it is the proven one then."""
        if self.is_broken or mark.n <= self._n:
            return False
        chain = extend(self._chain, self._ids_up_to(mark.n))
        if self.is_broken or chain.hex() != mark.chain:
            self.is_broken = True
            self._offered.clear()
            return False
        self._n, self._chain = mark.n, chain
        return True

    def _ids_up_to(self, n: int) -> Iterator[bytes]:
        """The ids at the arrival numbers up to `n`: skipped ones where the sender says so, offered ones elsewhere."""
        number = self._n + 1
        while number <= n and not self.is_broken:
            if self._skipped and self._skipped[0].first <= number:
                run = self._skipped.popleft()
                ids = self._own_run(bytes.fromhex(run.id), run.count)
                self.is_broken = run.first != number or len(ids) != run.count or number + len(ids) - 1 > n
                yield from ids
                number += len(ids)
            elif self._offered:
                yield self._offered.popleft()
                number += 1
            else:
                self.is_broken = True


# --- The receiving side: say what is wanted, hold what comes against its hashes, and take each batch whole.

MOST_OFFERED = 8192
HELD_BYTES = 4 * 1024 * 1024
"""Contents of a batch beyond this wait in a file of their own."""
EMPTY_MARKS_LIMIT = 4
"""So many marks may come that bring nothing."""
DRY_EVENTS_LIMIT = 1 << 26
DRY_ANSWERS_LIMIT = 1 << 18
"""So many events a dry run counts, in so many steps: nothing of it can be checked."""


class FactSink(Protocol):
    """A ledger, as a receiver needs it."""

    def ready(self, peer: str) -> ReceiverReady:
        """How far that peer's log has been taken."""

    def lacking(self) -> list[bytes]:
        """Contents that events name and that never came."""

    def size(self) -> int:
        """How many events are here."""

    def unknown(self, ids: Sequence[bytes]) -> list[bool]:
        """Which of these events are not here."""

    def refused(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of these events that were refused before."""

    def own_run(self, first: bytes, count: int) -> list[bytes]:
        """The ids of so many events of this log from one on, without those that came from the peer."""

    def missing(self, refs: Sequence[bytes]) -> list[bool]:
        """Which of these contents are not here and were not erased."""

    def without_forged(self, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Without those that claim to be written here; ReplicaDiverged if they are the first that the peer tells."""

    def take_facts(self, facts: Sequence[Fact], mark: BatchEnd, *, covers: bool) -> BatchTaken:
        """All of it in one transaction, with the proven place in the peer's log, which may lie before the last of what
        came (`covers` is False then); or InvalidFact, and nothing."""

    def finish(self, *, is_unproven: bool, was_whole: bool) -> None:
        """Note what the next run has to know, and raise if something was refused."""


class FactReceiver:
    """One run of receiving."""

    def __init__(self, sink: FactSink, peer: HelloFrame, report: Report, *, limited: bool = False) -> None:
        self._sink, self._peer, self._report, self._limited = sink, peer, report, limited
        self._taken = BatchTaken()
        self._event_bytes = self._content_bytes = 0
        self._offered = self._known = self._at = self._empty_marks = self._dry_answers = 0
        self._proof = ArrivalProof(0, "", sink.own_run)

    def receive(self, ready: ReceiverReady) -> Talk[SyncOutcome]:
        """Until the sender is done."""
        lacking = [] if ready.dry else self._sink.lacking()
        yield Frame(SyncFrameKind.LACK, b"".join(lacking))
        if lacking:
            yield from self._take_lacking(lacking)
        self._at = ready.after
        self._proof = ArrivalProof(ready.after, ready.chain, self._sink.own_run)
        first = (
            SyncFrameKind.EVENTS if ready.empty else SyncFrameKind.OFFER,
            SyncFrameKind.WOULD if ready.dry else SyncFrameKind.MARK,
            SyncFrameKind.DONE,
        )
        while (frame := (yield from receive_frame(*first))).kind != SyncFrameKind.DONE:
            if ready.dry:
                yield from self._would(frame)
            else:
                yield from self._batch(frame)
            self._report(min(self._at, self._peer.n), self._peer.n)
        if not ready.dry:
            self._sink.finish(is_unproven=self._proof.is_broken, was_whole=ready.whole and not self._limited)
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
        self._dry_answers += 1
        if self._dry_answers > DRY_ANSWERS_LIMIT or self._offered > DRY_EVENTS_LIMIT:
            raise ProtocolBroken("a dry run does not come to an end")
        if frame.kind == SyncFrameKind.OFFER:
            yield from self._want(frame)
            frame = yield from receive_frame(SyncFrameKind.WOULD)
        would = message_in(frame, WouldTake)
        self._event_bytes += would.event_bytes
        self._content_bytes += would.content_bytes
        self._count(BatchTaken(events=would.events, contents=would.contents))

    def _batch(self, frame: Frame) -> Talk[None]:
        """One batch, from its offer or its events to its mark."""
        with ContentStage() as stage:
            came: list[NewEvent] = []
            if frame.kind == SyncFrameKind.OFFER:
                wanted_ids = yield from self._want(frame)
                if wanted_ids:
                    came = self._events((yield from receive_frame(SyncFrameKind.EVENTS)).body, wanted_ids)
            elif frame.kind == SyncFrameKind.EVENTS:
                came = self._events(frame.body, None)
            marked: Frame | None = frame if frame.kind == SyncFrameKind.MARK else None
            events = self._sink.without_forged(came)
            if came:
                needed = yield from self._need(came, events)
                marked = yield from self._contents(needed, stage)
            mark = self._checked(
                message_in(marked or (yield from receive_frame(SyncFrameKind.MARK)), BatchEnd),
                frame.kind == SyncFrameKind.MARK,
            )
            proven = self._proof.proves(mark)
            yield from self._take_facts([*stage.contents, *events], mark if proven else BatchEnd())

    def _want(self, frame: Frame) -> Talk[list[bytes]]:
        if len(frame.body) % HASH or not 0 < len(frame.body) <= MOST_OFFERED * HASH:
            raise ProtocolBroken(f"OFFER has {len(frame.body)} bytes, not up to {MOST_OFFERED} hashes")
        ids = [frame.body[i : i + HASH] for i in range(0, len(frame.body), HASH)]
        self._offer(len(ids))
        self._proof.offer(ids)
        unknown = self._sink.unknown(ids)
        refused = self._sink.refused([id for id, flag in zip(ids, unknown, strict=True) if flag])
        flags = [flag and id not in refused for id, flag in zip(ids, unknown, strict=True)]
        self._know(unknown.count(False))
        yield Frame(SyncFrameKind.WANT, bitmap(flags))
        self._count(BatchTaken(known=unknown.count(False)))
        return [id for id, flag in zip(ids, flags, strict=True) if flag]

    def _know(self, count: int) -> None:
        """A log has no event twice: of those that are here each can be offered once."""
        self._known += count
        if self._known > self._sink.size():
            raise ProtocolBroken("events that are here already are offered again and again")

    def _offer(self, count: int) -> None:
        """A log has as many events as its last arrival number: a stream that never ends is noticed."""
        self._offered += count
        if self._offered > self._peer.n:
            raise ProtocolBroken(f"more than the {self._peer.n} events came that the other side says it has")

    def _events(self, body: bytes, wanted_ids: list[bytes] | None) -> list[NewEvent]:
        lines = body.split(b"\n")
        if len(lines) > MOST_OFFERED:
            raise ProtocolBroken(f"EVENTS holds {len(lines)} events; {MOST_OFFERED} is the most")
        if wanted_ids is None:
            self._offer(len(lines))
        events = [checked_line(line, f"event {i}") for i, line in enumerate(lines, 1)]
        if wanted_ids is not None and [event.id for event in events] != wanted_ids:
            raise InvalidFact("EVENTS", "what came does not hash to the ids that were offered and wanted")
        if wanted_ids is None:
            self._proof.offer([event.id for event in events])
        self._event_bytes += len(body) - len(lines) + 1
        return events

    def _need(self, came: list[NewEvent], events: list[NewEvent]) -> Talk[list[bytes]]:
        """Which of the hashes in those that came are contents of `events`, which are taken, and wanted here. Of a kind
        that is not known here any hash may be one."""
        all_refs = mentioned([event.line for event in came])
        named_refs: set[bytes] = set()
        for new in events:
            if isinstance(new.event, UnknownEvent):
                named_refs.update(mentioned([new.line]))
            else:
                named_refs.update(bytes.fromhex(ref) for ref in content_refs(new.event))
        asked_refs = [ref for ref in all_refs if ref in named_refs]
        missing = {ref for ref, flag in zip(asked_refs, self._sink.missing(asked_refs), strict=True) if flag}
        yield Frame(SyncFrameKind.NEED, bitmap([ref in missing for ref in all_refs]))
        return [ref for ref in all_refs if ref in missing]

    def _contents(self, needed: list[bytes], stage: ContentStage) -> Talk[Frame]:
        """Contents until the mark, which is returned. Those that the sender does not have do not come."""
        awaited = dict(enumerate(needed))
        while (
            frame := (yield from receive_frame(SyncFrameKind.CONTENTS, SyncFrameKind.LARGE, SyncFrameKind.MARK))
        ).kind != SyncFrameKind.MARK:
            if frame.kind == SyncFrameKind.CONTENTS:
                if not frame.body:
                    raise ProtocolBroken("CONTENTS holds none")
                for index, salt, data in _records(frame.body):
                    stage.add(_awaited(awaited, index), salt, data)
                    self._content_bytes += len(data)
            else:
                self._content_bytes += yield from self._large(frame, awaited, stage)
        return frame

    def _large(self, frame: Frame, awaited: dict[int, bytes], stage: ContentStage) -> Talk[int]:
        """A content of more than one row, piece by piece into a file."""
        if len(frame.body) != LARGE.size:
            raise ProtocolBroken(f"LARGE has {len(frame.body)} bytes, not {LARGE.size}")
        index, salt, size = LARGE.unpack(frame.body)
        if not ROW_BYTES < size <= MAX_CONTENT_BYTES:
            raise ProtocolBroken(f"a large content of {size} bytes")
        write_chunk, received_bytes = stage.begin_content(_awaited(awaited, index), salt, size), 0
        while received_bytes < size:
            chunk = (yield from receive_frame(SyncFrameKind.PIECE)).body
            if len(chunk) != min(ROW_BYTES, size - received_bytes):
                raise ProtocolBroken(f"a piece of {len(chunk)} bytes where {size - received_bytes} are left")
            write_chunk(chunk)
            received_bytes += len(chunk)
        stage.finish_content()
        return int(size)

    def _take_lacking(self, lacking: list[bytes]) -> Talk[None]:
        with ContentStage() as stage:
            marked = yield from self._contents(lacking, stage)
            message_in(marked, BatchEnd)
            yield from self._take_facts(stage.contents, BatchEnd())

    def _take_facts(self, facts: Sequence[Fact], mark: BatchEnd) -> Talk[None]:
        added = self._sink.take_facts(facts, mark, covers=not self._proof.offered_beyond)
        self._count(added)
        yield framed(SyncFrameKind.TAKEN, added)

    def _checked(self, mark: BatchEnd, alone: bool) -> BatchEnd:
        """The place in the sender's log only moves on, and never beyond its end."""
        if mark.n and (self._limited or not self._at <= mark.n <= self._peer.n):
            raise ProtocolBroken(f"the log is marked at {mark.n}, after {self._at} and before {self._peer.n}")
        if mark.n and not is_digest(mark.chain):
            raise ProtocolBroken("MARK names a place in the log without the chain there")
        self._empty_marks += alone
        if self._empty_marks > EMPTY_MARKS_LIMIT:
            raise ProtocolBroken("marks come that bring nothing")
        if mark.skipped:
            self._proof.skip(mark.skipped, self._sink.size())
        self._at = mark.n or self._at
        return mark

    def _count(self, added: BatchTaken) -> None:
        so_far = self._taken
        self._taken = BatchTaken(
            events=so_far.events + added.events,
            contents=so_far.contents + added.contents,
            known=so_far.known + added.known,
            erased=so_far.erased + added.erased,
        )


def _awaited(awaited: dict[int, bytes], index: int) -> bytes:
    ref = awaited.pop(index, None)
    if ref is None:
        raise ProtocolBroken(f"content {index} was not asked for, or comes again")
    return ref


def _records(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    position = 0
    while position < len(body):
        if position + RECORD.size > len(body):
            raise ProtocolBroken("CONTENTS ends in the middle of a record")
        index, salt, size = RECORD.unpack_from(body, position)
        position += RECORD.size
        if size > ROW_BYTES or position + size > len(body):
            raise ProtocolBroken(f"CONTENTS holds a content of {size} bytes and {len(body) - position} are left")
        yield index, salt, body[position : position + size]
        position += size


class ContentStage:
    """Contents on their way: hashed as they come, held in memory while they are few, else in a file without a name."""

    def __init__(self) -> None:
        self.contents: list[NewContent | NewLargeContent] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._under_way: tuple[bytes, bytes, int, int, ContentHasher] | None = None

    def __enter__(self) -> ContentStage:
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
        self.begin_content(ref, salt, len(data))(data)
        self.finish_content()

    def begin_content(self, ref: bytes, salt: bytes, size: int) -> Callable[[bytes], None]:
        file = self._file = self._file or TemporaryFile()  # noqa: SIM115  # it lives as long as the stage
        hasher = ContentHasher(salt)
        self._under_way = (ref, salt, size, file.seek(0, 2), hasher)

        def write_chunk(chunk: bytes) -> None:
            hasher.feed(chunk)
            file.write(chunk)

        return write_chunk

    def finish_content(self) -> None:
        assert self._under_way is not None
        assert self._file is not None
        ref, salt, size, start, hasher = self._under_way
        _ensure_hash(hasher, ref)
        self.contents.append(NewLargeContent(ref, salt, size, self._file, start))


def _ensure_hash(hasher: ContentHasher, ref: bytes) -> None:
    if hasher.ref() != ref:
        raise InvalidFact("CONTENTS", f"a content does not hash to {ref.hex()}")
