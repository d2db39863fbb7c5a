"""Frames: the bytes of a conversation between two ledgers, and how they get across.

- Frames, and what they say where they hold no facts.
- One side of a conversation, as a generator: it yields a frame to send, or None to hear the next
one.
- Frames carried over a stream of bytes, or from hand to hand in one process. Nothing is decided
here.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import zstandard
from msgspec import Meta, Struct

from weft.kernel.clock import Clock
from weft.kernel.errors import Action, ConnectionCut, PeerRefused, ProtocolBroken, ReplicaDiverged, WeftError

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
