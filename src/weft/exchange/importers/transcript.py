"""What an importer makes of a file: its sessions, with their turns in the ledger's words for such history."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weft.ledger.imports.natives import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
)

__all__ = [
    "Item",
    "NativeCall",
    "NativeCompaction",
    "NativeLink",
    "NativeMessage",
    "NativeSession",
    "NativeTurn",
    "Tokens",
    "Transcript",
]


class Transcript(Struct, kw_only=True):
    """One native session, or the part of it that one file holds. `turns` may be lazy: it is walked once, in order."""

    session: NativeSession
    turns: Iterable[NativeTurn]
    raw: bytes | None = None
    """What to keep verbatim, where it is not the source file itself (a database's rows as JSON lines)."""
    known: int = 0
    """So many turns stand before those given here, as an earlier reading of the same reader gave them."""
    until: int | None = None
    """Where its part of the source file ends, if the file goes on with another session's."""
