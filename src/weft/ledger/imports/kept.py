"""Reading back what was kept verbatim of imported sources."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import ContentGone, ContentMissing, Damaged
from weft.ledger.imports.raw import unpack
from weft.ledger.rows import find_session, load_session
from weft.ledger.values import text_of
from weft.store.port import ReadTxn, Sql, WriteTxn


class KeptStretch(Struct, frozen=True, kw_only=True):
    """Bytes of a source from one place to another."""

    file: str | None
    start: int
    end: int
    data: bytes
    erased: bool = False
    """What stood there was erased; `data` is empty."""


def kept_stretches(txn: ReadTxn, session_or_file: str) -> list[KeptStretch]:
    """Of a session by its label or id, or of a source file by its name; in order of place, the newest reading last."""
    query = 'SELECT file, start, "end", content FROM kept'
    session = find_session(txn.sql, session_or_file) or load_session(txn.sql, session_or_file)
    if session is not None:
        rows = txn.sql.all(f"{query} WHERE session = ? ORDER BY n", (session.n,))
    else:
        rows = [row for row in txn.sql.all(f"{query} ORDER BY n") if text_of(txn, row[0]) == session_or_file]
    return [_stretch(txn, *row) for row in rows]


def _stretch(txn: ReadTxn, file: int | None, start: int, end: int, content: int) -> KeptStretch:
    name = text_of(txn, file)
    try:
        return KeptStretch(file=name, start=start, end=end, data=unpacked(txn, content))
    except ContentGone:
        return KeptStretch(file=name, start=start, end=end, data=b"", erased=True)


def was_erased(sql: Sql, session: int) -> bool:
    """Has this session lost a stretch of its source? Then nothing of it is kept again: it would bring that back."""
    query = "SELECT 1 FROM kept k JOIN content c ON c.n = k.content WHERE k.session = ? AND length(c.salt) = 0"
    return sql.one(f"{query} LIMIT 1", (session,)) is not None


def is_kept(txn: WriteTxn, place: tuple[int | None, int, int, int], piece: bytes) -> bool:
    """Were these bytes kept before: of this session and file (by their numbers), from here to there?"""
    rows = txn.sql.all('SELECT content FROM kept WHERE session = ? AND file = ? AND start = ? AND "end" = ?', place)
    try:
        return any(unpacked(txn, content) == piece for (content,) in rows)
    except (Damaged, ContentGone):
        return False


def unpacked(txn: ReadTxn | WriteTxn, n: int) -> bytes:
    def content(ref: str) -> bytes:
        found = txn.facts.find_content(bytes.fromhex(ref))
        if found is None:
            raise ContentMissing(ref)
        return txn.facts.content(found)

    return unpack(txn.facts.content(n), content)
