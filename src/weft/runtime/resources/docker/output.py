"""What a container prints, as the engine hands it out: frames of standard output and standard error in one stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from weft.kernel.errors import EngineRefused

STDOUT, STDERR = 1, 2
_HEADER = 8


class ContainerOutput(Struct, frozen=True, kw_only=True):
    stdout: bytes
    stderr: bytes
    is_truncated: bool
    """There was more than was wanted; what came first is here."""


def frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Which stream, and what came on it. A frame that is larger than a chunk comes in parts."""
    held = b""
    kind, missing = 0, 0
    for chunk in chunks:
        held += chunk
        while held:
            if not missing:
                if len(held) < _HEADER:
                    break
                kind, missing = held[0], int.from_bytes(held[4:_HEADER], "big")
                if kind > STDERR or held[1:4] != bytes(3):
                    raise EngineRefused("hand out what a container printed", 200, "its stream is malformed")
                held = held[_HEADER:]
                continue
            part, held = held[:missing], held[missing:]
            missing -= len(part)
            yield kind, part


def collected(pieces: Iterable[tuple[int, bytes]], most_bytes: int) -> ContainerOutput:
    """All that came, of each stream at most so many bytes; reads on to the end."""
    streams = {STDOUT: bytearray(), STDERR: bytearray()}
    is_truncated = False
    for kind, data in pieces:
        stream = streams[STDERR if kind == STDERR else STDOUT]
        room = most_bytes - len(stream)
        is_truncated |= len(data) > room
        stream += data[: max(room, 0)]
    return ContainerOutput(stdout=bytes(streams[STDOUT]), stderr=bytes(streams[STDERR]), is_truncated=is_truncated)
