"""What a search through a damaged database finds: things that look like rows of facts, and those that are proved."""

from __future__ import annotations

from msgspec import Struct


class FoundRow(Struct, frozen=True):
    """What may be a row of the log."""

    n: int
    count: int
    at: int
    chain: bytes
    events: bytes


class FoundContent(Struct, frozen=True):
    """What may be a content; without `data` its bytes lie in parts."""

    n: int
    ref: bytes
    salt: bytes
    size: int
    data: bytes | None


class FoundPart(Struct, frozen=True):
    """A row of a damaged database that may be a part of a large content."""

    content: int
    idx: int
    data: bytes


class FoundPack(Struct, frozen=True):
    """What may be a pack: compressed bytes of several contents."""

    n: int
    data: bytes


class FoundSlice(Struct, frozen=True):
    """Where a content, or a part of a large one, may lie in a pack."""

    content: int
    idx: int
    pack: int
    start: int
    size: int


class FoundLocal(Struct, frozen=True):
    """What may be a piece of local state."""

    key: str
    value: str


Found = FoundRow | FoundContent | FoundPart | FoundPack | FoundSlice | FoundLocal


class ProvedContent(Struct, frozen=True):
    """Bytes that hash to their reference."""

    ref: bytes
    salt: bytes
    data: bytes


class ProvedEvent(Struct, frozen=True):
    """An event that the chain of arrival, or another event, vouches for."""

    n: int
    id: bytes
    line: bytes
