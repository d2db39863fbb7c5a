"""Frames: the bytes of a conversation between two ledgers, without any input or output.

Each side first says eight bytes, then frames: a kind, a byte of flags, a length, a body. Limits hold before anything is
allocated or unpacked, so that neither a huge frame nor a small one that unpacks to much does harm.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import zstandard
from msgspec import Struct

from weft.kernel.errors import Action, ProtocolBroken

PREAMBLE = b"WEFTSYN1"
HEADER = struct.Struct(">BBI")
PACKED = 1
MAX_BODY = 17 * 1024 * 1024
"""Of a body, packed or not: the longest event there can be, and some."""
WORTH_PACKING = 128
LEVEL = 3
MAX_WINDOW = 1 << 25


class Kind(IntEnum):
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


KINDS = {int(kind): kind for kind in Kind}
PLAIN = frozenset({Kind.OFFER, Kind.LACK})
"""Hashes: packing them would only cost time."""


class Frame(Struct, frozen=True, gc=False):
    """One frame of a sync: a kind and its bytes."""

    kind: Kind
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
    known = KINDS.get(kind)
    if known is None or flags & ~PACKED:
        raise ProtocolBroken(f"a frame of kind {kind} with flags {flags} is none of version 1")
    return Frame(known, _unpacked(body) if flags & PACKED else body)


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
