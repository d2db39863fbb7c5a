"""The two sides of an exchange of facts.

The sender offers ids, sends the events that are wanted, then the contents that are needed for them.
The receiver says what it wants, holds what comes against its hashes, and takes each batch whole.
Where the sender's log stands is computed here from the ids of its events.

- Frames: the bytes of a conversation between two ledgers, and what they say where they hold no facts.
- One side of a conversation, as a generator: it yields a frame to send, or None to hear the next one.
- Frames carried over a stream of bytes, or from hand to hand in one process.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Protocol, TypeVar

import msgspec
import zstandard
from msgspec import Meta, Struct

from weft.kernel.clock import Clock
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, ContentHasher
from weft.kernel.errors import (
    Action,
    ConnectionCut,
    InvalidFact,
    PeerRefused,
    ProtocolBroken,
    ReplicaDiverged,
    WeftError,
)
from weft.kernel.events import GENESIS, UnknownEvent, extend
from weft.kernel.foreign_input import content_refs, is_digest
from weft.ledger.upkeep.facts_file import Fact, NewContent, NewEvent, NewLargeContent, checked_line

# --- Frames: the bytes of a conversation between two ledgers, without any input or output.

PREAMBLE = b"WEFTSYN1"
HEADER = struct.Struct(">BBI")
PACKED = 1
MAX_BODY = 17 * 1024 * 1024
"""Of a body, packed or not: the longest event there can be, and some."""
WORTH_PACKING = 128
LEVEL = 3
MAX_WINDOW = 1 << 25


class SyncFrameKind(IntEnum):
    """The kinds of frame."""

    HELLO = 1
    KNOWN = 2
    PULL = 3
    PUSH = 4
    READY = 5
    LACK = 6
    OFFER = 7
    WANT = 8
    EVENTS = 9
    NEED = 10
    CONTENTS = 11
    LARGE = 12
    PIECE = 13
    MARK = 14
    TAKEN = 15
    WOULD = 16
    DONE = 17
    IMPORTS = 18
    SECRET = 19
    ERROR = 20
    BYE = 21


KINDS = {int(kind): kind for kind in SyncFrameKind}
PLAIN = frozenset({SyncFrameKind.OFFER, SyncFrameKind.LACK})
"""Hashes: packing them would only cost time."""


class Frame(Struct, frozen=True, gc=False):
    """One frame of a sync: a kind and its bytes."""

    kind: SyncFrameKind
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    body, flags = frame.body, 0
    if len(body) > MAX_BODY:
        raise ProtocolBroken(f"a frame of {len(body)} bytes is larger than {MAX_BODY}")
    if len(body) >= WORTH_PACKING and frame.kind not in PLAIN:
        packed = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(body)
        if len(packed) < len(body):
            body, flags = packed, PACKED
    return HEADER.pack(frame.kind, flags, len(body)) + body


def decode(kind: int, flags: int, body: bytes) -> Frame:
    frame_kind = KINDS.get(kind)
    if frame_kind is None or flags & ~PACKED:
        raise ProtocolBroken(f"a frame of kind {kind} with flags {flags} is none of version 1")
    return Frame(frame_kind, _unpacked(body) if flags & PACKED else body)


def _unpacked(body: bytes) -> bytes:
    """The size is said first and held to; a bomb is refused before it goes off."""
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MAX_BODY:
            raise ProtocolBroken(f"a body would unpack to {size if size >= 0 else 'nobody knows how many'} bytes")
        unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        return unpacker.decompress(body, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise ProtocolBroken(f"a body cannot be unpacked: {error}") from error


class FrameReader:
    """Bytes in as they come, frames out as they are whole."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._greeted = False
        self.bytes = 0

    @property
    def is_between(self) -> bool:
        """Has everything so far been whole frames?"""
        return not self._held

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._held += data
        self.bytes += len(data)
        if not self._greeted:
            self._greet()
        while self._greeted and len(self._held) >= HEADER.size:
            kind, flags, length = HEADER.unpack_from(self._held)
            if length > MAX_BODY:
                raise ProtocolBroken(f"a frame says it has {length} bytes; {MAX_BODY} is the most")
            if len(self._held) < HEADER.size + length:
                return
            body = bytes(self._held[HEADER.size : HEADER.size + length])
            del self._held[: HEADER.size + length]
            yield decode(kind, flags, body)

    def _greet(self) -> None:
        start = bytes(self._held[: len(PREAMBLE)])
        if not PREAMBLE.startswith(start):
            raise ProtocolBroken(
                f"the other side begins with {bytes(self._held[:64])!r}",
                Action.CHECK_OTHER_SHELL,
            )
        if len(start) == len(PREAMBLE):
            self._greeted = True
            del self._held[: len(PREAMBLE)]


def bitmap(flags: list[bool]) -> bytes:
    """One bit for each, the first one in the lowest bit of the first byte."""
    packed = bytearray(-(-len(flags) // 8))
    for i, flag in enumerate(flags):
        packed[i // 8] |= flag << (i % 8)
    return bytes(packed)


def flags_of(packed: bytes, count: int) -> list[bool]:
    if len(packed) != -(-count // 8):
        raise ProtocolBroken(f"{len(packed)} bytes of flags for {count} things")
    return [bool(packed[i // 8] >> (i % 8) & 1) for i in range(count)]


# --- What frames say where they hold no facts: small JSON objects, each a record here.

R = TypeVar("R", bound=Struct)
VERSION = 1
LOG_EVENTS_LIMIT = 1 << 40
"""More events than any log has: a message with a larger number is damaged or a lie."""
BYTES_LIMIT = 1 << 52
SKIPPED_RUNS_LIMIT = 65_536
TEXT_CHARACTERS_LIMIT = 4096
EventCount = Annotated[int, Meta(ge=0, le=LOG_EVENTS_LIMIT)]
ByteCount = Annotated[int, Meta(ge=0, le=BYTES_LIMIT)]
Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_LIMIT)]


class HelloFrame(Struct, frozen=True, kw_only=True):
    """Who speaks, and where its log ends. Both are claims: nothing is noted of them."""

    version: EventCount = VERSION
    replica: Word
    n: EventCount
    chain: Word


class KnownLog(Struct, frozen=True, kw_only=True):
    """What the speaker remembers of the other's log; `n` 0: nothing."""

    n: EventCount = 0
    chain: Word = ""


class ReceiverReady(Struct, frozen=True, kw_only=True):
    """A receiver is ready for what came after event `after` of the sender's log."""

    after: EventCount = 0
    chain: Word = ""
    empty: bool = False
    """Nothing is here yet: no ids need be offered."""
    dry: bool = False
    whole: bool = False
    """Offer also what came from the receiver."""


class PushRequest(Struct, frozen=True, kw_only=True):
    dry: bool = False
    limited: bool = False


class SkippedRun(Struct, frozen=True, array_like=True):
    """Events of the sender's log that came from the receiver and are not offered to it: the arrival number of the
    first, how many, and the id of the first."""

    first: EventCount
    count: EventCount
    id: Word


class BatchEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a batch. All up to event `n` of the sender's log is taken then; 0: it ends in the midst of a row.
    `skipped` is what was not offered since the last place, so that the receiver can compute the chain itself."""

    n: EventCount = 0
    chain: Word = ""
    skipped: Annotated[tuple[SkippedRun, ...], Meta(max_length=SKIPPED_RUNS_LIMIT)] = ()


class BatchTaken(Struct, frozen=True, kw_only=True):
    """Sync message: a batch was stored."""

    events: EventCount = 0
    contents: EventCount = 0
    known: EventCount = 0
    erased: EventCount = 0


class WouldTake(Struct, frozen=True, kw_only=True):
    """What a batch would bring, of which the contents at most."""

    events: EventCount = 0
    event_bytes: ByteCount = 0
    contents: EventCount = 0
    content_bytes: ByteCount = 0


class ImportsOffer(Struct, frozen=True, kw_only=True):
    """Which import secret a ledger has, not telling it, and whether anything was imported under it."""

    fingerprint: Word = ""
    imported: bool = False


class ImportSecretMessage(Struct, frozen=True, kw_only=True):
    """A ledger's import secret; empty: please tell yours."""

    secret: Word = ""


class PeerRefusal(Struct, frozen=True, kw_only=True):
    error: Word
    message: Text
    hint: Text = ""


def framed(kind: SyncFrameKind, message: Struct) -> Frame:
    return Frame(kind, msgspec.json.encode(message))


def message_in(frame: Frame, record: type[R]) -> R:
    """The message of a frame; what is not of its shape ends the conversation."""
    try:
        return msgspec.json.decode(frame.body, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolBroken(f"{frame.kind.name}: {error}") from error


# --- One side of a conversation, as a generator: it yields a frame to send, or None to hear the next one.

T = TypeVar("T")
Talk = Generator[Frame | None, Frame | None, T]


def receive_frame(*kinds: SyncFrameKind) -> Talk[Frame]:
    """The next frame, which must be one of these; a refusal is raised as what it is."""
    frame = yield None
    if frame is None:
        raise ProtocolBroken("the pump gave nothing where something was to be heard")
    if frame.kind == SyncFrameKind.ERROR:
        raise refused(frame)
    if frame.kind not in kinds:
        raise ProtocolBroken(f"{frame.kind.name} came where {' or '.join(kind.name for kind in kinds)} must come")
    return frame


def refusal(error: WeftError) -> Frame:
    """An error for the other side to show."""
    return framed(SyncFrameKind.ERROR, PeerRefusal(error=error.code, message=str(error)[:2000], hint=error.hint[:500]))


def reported_divergence(message: str) -> ReplicaDiverged:
    """The other side says that what is remembered of it here is not what it said."""
    error = ReplicaDiverged(message)
    error.is_from_peer = True
    return error


def refused(frame: Frame) -> WeftError:
    """What the other side says that it refuses, as an error here."""
    peer_refusal = message_in(frame, PeerRefusal)
    if peer_refusal.error == ReplicaDiverged.code:
        return reported_divergence(peer_refusal.message)
    return PeerRefused(peer_refusal.error, peer_refusal.message, peer_refusal.hint)


# --- Where frames get across: over a stream of bytes, or from hand to hand in one process.
READ_BYTES = 256 * 1024
SILENCE_SECONDS = 300.0
"""Whoever says nothing for so long, or takes nothing in, is given up."""
PACE_BYTES = 4096
"""Whoever sends no whole frame and fewer bytes than this in that time is given up, too."""
LAST_FRAMES_LIMIT = 65_536
"""So many frames of one that is gone already are read to find out why it went."""


def raised_in(talk: Talk[Any], step: Callable[[], T]) -> T:
    """Do a step for a talk; what goes wrong is raised where the talk waits, so that it can take note of it."""
    try:
        return step()
    except WeftError as error:
        talk.throw(error)
        raise


class ByteStream(Protocol):
    """Bytes both ways."""

    def read(self, most: int) -> bytes:
        """At least one byte, or nothing when the other side is gone; TimeoutError when it stays silent."""

    def write(self, data: bytes) -> None:
        """All of it; TimeoutError when the other side takes nothing in."""

    def close(self) -> None:
        """No more, either way."""


class Channel:
    """Frames over a stream of bytes."""

    def __init__(
        self, stream: ByteStream, clock: Clock | None = None, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self._stream, self._reader = stream, FrameReader()
        self._clock, self._silence_seconds = clock, silence_seconds
        self._frames: deque[Frame] = deque()
        self.sent = 0

    @property
    def received(self) -> int:
        return self._reader.bytes

    def greet(self) -> None:
        self._write(PREAMBLE)

    def write(self, frame: Frame) -> None:
        self._write(encode(frame))

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except TimeoutError as error:
            raise ConnectionCut(f"the other side took nothing in for {self._silence_seconds:g} seconds") from error
        except (OSError, ValueError) as error:
            raise ConnectionCut(f"the other side went away ({error})") from error
        self.sent += len(data)

    def read(self) -> Frame:
        began, came = self._now(), 0
        while not self._frames:
            try:
                data = self._stream.read(READ_BYTES)
            except TimeoutError as error:
                raise ConnectionCut(f"the other side said nothing for {self._silence_seconds:g} seconds") from error
            except OSError as error:
                raise ConnectionCut(f"the other side went away ({error})") from error
            if not data:
                raise ConnectionCut(
                    "the other side went away" + ("" if self._reader.is_between else " in mid-sentence")
                )
            self._frames.extend(self._reader.feed(data))
            came += len(data)
            if not self._frames and self._now() - began > self._silence_seconds:
                if came < PACE_BYTES:
                    raise ConnectionCut(
                        f"the other side said {came} bytes and no whole frame in {self._silence_seconds:g} seconds"
                    )
                began, came = self._now(), 0
        return self._frames.popleft()

    def _now(self) -> float:
        return self._clock.monotonic() if self._clock is not None else 0.0

    def converse(self, talk: Talk[T]) -> T:
        """Carry one side of a conversation to its end. What it refuses, the other side is told."""
        try:
            out = next(talk)
            while True:
                if out is None:
                    out = talk.send(raised_in(talk, self.read))
                else:
                    raised_in(talk, partial(self._send_frame, out))
                    out = next(talk)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except WeftError as error:
            if not isinstance(error, ConnectionCut):
                with suppress(WeftError):  # the error itself matters more than that nobody hears of it
                    self.write(refusal(error))
            raise

    def _send_frame(self, frame: Frame) -> None:
        """Whoever refuses says why and goes, perhaps while something is on its way to it: that is what counts then."""
        try:
            self.write(frame)
        except ConnectionCut:
            with suppress(ConnectionCut):
                for _ in range(LAST_FRAMES_LIMIT):
                    if (last := self.read()).kind == SyncFrameKind.ERROR:
                        raise refused(last) from None
            raise

    def close(self) -> None:
        self._stream.close()


class LocalConversation:
    """A conversation with a side that lives in this process: its frames are handed over as they are."""

    def __init__(self, served: Talk[Any]) -> None:
        self._served = served
        self._answers: deque[Frame] = deque()
        self._waiting = self._has_failed = False
        self.sent = self.received = 0

    def converse(self, talk: Talk[T]) -> T:
        try:
            out = next(talk)
            while True:
                if out is None:
                    frame = raised_in(talk, self._answer)
                    self.received += len(frame.body)
                    out = talk.send(frame)
                else:
                    self.sent += len(out.body)
                    raised_in(talk, partial(self._hand_over, out))
                    out = next(talk)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except ReplicaDiverged as error:
            self._notify_served(error)
            raise

    def _notify_served(self, error: ReplicaDiverged) -> None:
        """The served side hears of a refusal as it would over a stream."""
        if not self._has_failed:
            with suppress(WeftError, StopIteration):  # it ends by what it hears; the error itself is raised here
                self._served.throw(reported_divergence(str(error)))

    def _answer(self) -> Frame:
        """One frame at a time: what is not heard yet is not made yet either."""
        while not self._answers and not self._waiting:
            self._step(lambda: next(self._served))
        if not self._answers:
            raise ProtocolBroken("both sides wait for each other")
        return self._answers.popleft()

    def _hand_over(self, frame: Frame) -> None:
        self._run()
        self._step(lambda: self._served.send(frame))

    def _run(self) -> None:
        """Let the served side go on until it wants to hear something."""
        while not self._waiting:
            self._step(lambda: next(self._served))

    def _step(self, step: Any) -> None:
        self._waiting = False
        try:
            out = step()
        except StopIteration:
            out = None
        except WeftError as error:
            self._answers.append(refusal(error))
            self._waiting = self._has_failed = True
            if isinstance(error, ReplicaDiverged):
                error.is_from_peer = True
            raise
        if out is None:
            self._waiting = True
        else:
            self._answers.append(out)

    def close(self) -> None:
        self._served.close()


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
