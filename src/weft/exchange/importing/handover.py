"""What passes between the writer of an import and its worker: orders one way, frames the other, each over a pipe.

An order, which is msgpack, names a source. Its answer is a row of frames of the kinds of `FrameKind`. A turn is a plain
record, but its texts may hold what msgpack has no form for (lone surrogates, integers of any size), so the records of
frames are pickled; whoever reads them makes objects of the classes below and of nothing else.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import IO, Any

import msgspec
from msgspec import UNSET, Struct

from weft.exchange.importers.port import Problem
from weft.kernel.contents import Prepared
from weft.kernel.enums import (
    AgentRole,
    FileKind,
    LinkReason,
    LintSeverity,
    MessageRole,
    MessageSource,
    ToolCallStatus,
)
from weft.ledger.imports import TextWords
from weft.ledger.imports.imported_turns import (
    EncodedEvents,
    JsonContent,
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    PackedStretch,
    PreparedTurn,
    Tokens,
    TurnDraft,
)
from weft.ledger.model import FileNote, ImagePart, LintNote, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

CHUNK_BYTES = 256 * 1024
"""Of records: so many turns go in one frame."""
QUEUE_BYTES = 4 * 1024 * 1024
"""Of frames that wait for the writer; the worker waits while there are more."""
PIPE_BYTES = 1024 * 1024
"""Of frames that are on their way in the pipe itself, where the system lets one have so many."""
FRAME_BYTES = 1 << 31
_HEADER = struct.Struct(">BQ")


class FrameKind(IntEnum):
    """In the order in which they come; those of a session come for each session of a source."""

    OPENED = 1
    """`OpenedSource`: size and digest of the bytes that are read, and the state of their file."""
    SESSION = 2
    """`SessionBegin`: a session as it is known before its turns are read."""
    RAW = 3
    """A piece of an importer's own copy of the session, as it is."""
    TURNS = 4
    """A list of `NativeTurn`."""
    SESSION_END = 5
    """`NativeSession`: what the session is after its turns."""
    DONE = 6
    """`ReadingEnd`: the report of the source."""
    FAILED = 7
    """`ReadingEnd` with the reason: nothing more of this source comes."""


ENDS = (FrameKind.DONE, FrameKind.FAILED)


class WorkerLost(Exception):
    """The worker ended, or what it said cannot be understood."""


class ReadOrder(Struct, frozen=True):
    """A source that is to be read."""

    importer: str
    secret: bytes
    """The ledger's import secret."""
    path: bytes
    size: int
    stamp: int
    member: bytes | None
    now: float
    """When it is read, in Unix seconds, by the writer's clock."""


class OpenedSource(Struct, frozen=True):
    """What the worker read: the writer compares it with what it finds itself."""

    size: int
    digest: bytes
    state: tuple[int, ...] | None
    """Of the file, before it was read, as `file_state` tells it."""


class SessionBegin(Struct, frozen=True):
    """A session that an import's worker begins to hand over."""

    session: NativeSession
    until: int | None
    raw_bytes: int | None
    """So many bytes of an importer's own copy follow."""


class ReadingEnd(Struct, frozen=True):
    """The report of a source, and why reading it ended early."""

    found: int
    mapped: dict[str, int]
    kept: dict[str, int]
    unknown: dict[str, int]
    damaged: int
    problems: list[Problem]
    open_tail: bool
    reason: str = ""
    is_importers_fault: bool = False
    """Rather than that of the source, or of the machine."""


_CLASSES: tuple[Any, ...] = (
    AgentRole, EncodedEvents, FileKind, FileNote, ImagePart, JsonContent, LinkReason, LintNote, LintSeverity,
    MessageRole, MessageSource, NativeCall, NativeCompaction, NativeLink, NativeMessage, NativeSession, NativeTurn,
    OpenedSource, PackedStretch, Prepared, PreparedTurn, Problem, ReadingEnd, ReasoningPart, SessionBegin, TextPart,
    TextWords, Tokens, ToolCallStatus, ToolResultPart, ToolUsePart, TurnDraft,
)  # fmt: skip
_MAKE_STRUCT = Tokens().__reduce__()[0]
"""With which msgspec makes a record of its fields again."""
_MADE = {(made.__module__, made.__qualname__): made for made in (*_CLASSES, _MAKE_STRUCT)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "UNSET":
            return UNSET
        try:
            return _MADE[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not handed over") from None


def pack(record: Any) -> bytes:
    return pickle.dumps(record, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # whatever bytes do to a reader of pickles
        raise WorkerLost(f"a frame cannot be read: {type(error).__name__}: {error}") from error


def send_order(pipe: IO[bytes], order: ReadOrder) -> None:
    data = msgspec.msgpack.encode(order)
    _write(pipe.fileno(), len(data).to_bytes(4, "big") + data)


def receive_order(pipe: IO[bytes]) -> ReadOrder | None:
    """None where there will be no more, also where the writer ended in the middle of one."""
    head = pipe.read(4)
    size = int.from_bytes(head, "big")
    data = pipe.read(size)
    return msgspec.msgpack.decode(data, type=ReadOrder) if len(head) == 4 and len(data) == size else None


def receive_frame(pipe: IO[bytes]) -> tuple[FrameKind, bytes]:
    try:
        head = _read(pipe, _HEADER.size)
        if len(head) < _HEADER.size:
            raise WorkerLost("its pipe is closed")
        kind, size = _HEADER.unpack(head)
        data = _read(pipe, size) if size <= FRAME_BYTES else b""
        if len(data) != size:
            raise WorkerLost("a frame is cut")
        return FrameKind(kind), data
    except (OSError, ValueError) as error:
        raise WorkerLost(str(error)) from error


def _read(pipe: IO[bytes], size: int) -> bytes:
    """So many bytes of a pipe without a buffer; fewer where it ends."""
    pieces: list[bytes] = []
    while size and (piece := pipe.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _write(descriptor: int, data: bytes) -> None:
    """All of it: a signal may cut a write to a pipe short."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class FrameQueue:
    """Frames on their way to the writer, which another thread sends. Whoever puts more than there is room for waits."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]) -> None:
        self._descriptor, self._on_closed = descriptor, on_closed
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        with suppress(OSError, AttributeError):  # the system has no such pipes, or no more memory for them
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        threading.Thread(target=self._send, daemon=True).start()

    @property
    def has_unread_frames(self) -> bool:
        """Whether frames wait, here or in the pipe: the writer is behind."""
        if self._size:
            return True
        try:
            unread = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        except OSError:  # it is no pipe, or its end is gone, which whoever sends next is told
            return False
        return any(unread)

    def put(self, kind: FrameKind, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._size or self._size + len(data) <= QUEUE_BYTES)
            self._frames.append((_HEADER.pack(kind, len(data)), data))
            self._size += len(data)
            self._changed.notify_all()

    def _send(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._frames)
                    frame = self._frames.popleft()
                for data in frame:
                    _write(self._descriptor, data)
                with self._changed:
                    self._size -= len(frame[1])
                    self._changed.notify_all()
        except OSError:  # the writer is gone, or wants no more
            self._on_closed()
