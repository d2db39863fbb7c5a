"""Verbatim copies of imported sources: whoever loses a content loses the copies that spell it out.

A source says the same thing in many records, some of which belong to no turn; and a stretch is compressed against the
contents that it brought. So a session that loses a content loses all that was kept of its sources, and any other
stretch that needs an erased content to be unpacked goes as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.ledger.imports.kept_sources import HEAD_BYTES, REF_BYTES, count_of_references, references_in
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import rows_in


def copies_of_sessions(txn: ReadTxn, sessions: Iterable[str], turns: Iterable[str]) -> set[int]:
    """Numbers of the stretches kept of these sessions, and of the sessions that these turns were seen in first."""
    numbers = {n for (n,) in rows_in(txn.sql, "SELECT n FROM session WHERE id IN", sessions)}
    numbers |= {n for (n,) in rows_in(txn.sql, "SELECT session FROM turn WHERE session IS NOT NULL AND id IN", turns)}
    return {n for (n,) in rows_in(txn.sql, "SELECT content FROM kept WHERE session IN", numbers)}


def copies_that_need(txn: ReadTxn, refs: set[bytes]) -> Iterator[int]:
    """Numbers of the stretches that were compressed against one of these contents."""
    for (n,) in txn.sql.all("SELECT DISTINCT content FROM kept ORDER BY content"):
        row = txn.sql.one("SELECT salt FROM content WHERE n = ?", (n,))
        if row is not None and row[0] and not refs.isdisjoint(_dictionary(txn, n)):
            yield n


def _dictionary(txn: ReadTxn, n: int) -> list[bytes]:
    """The references at the head of a stretch, without reading all of it where that can be."""
    row = txn.sql.one("SELECT substr(bytes, 1, ?) FROM content WHERE n = ?", (HEAD_BYTES, n))
    head = bytes(row[0]) if row and row[0] is not None else txn.facts.content(n)
    wanted = HEAD_BYTES + REF_BYTES * count_of_references(head)
    if len(head) < wanted and row and row[0] is not None:
        row = txn.sql.one("SELECT substr(bytes, 1, ?) FROM content WHERE n = ?", (wanted, n))
        head = bytes(row[0]) if row and row[0] is not None else b""
    return references_in(head)


def forget_sources(txn: WriteTxn, turns: Iterable[str], names: Iterable[str]) -> None:
    """Native ids and file names of what is erased, as importing remembers them."""
    for turn in turns:
        txn.sql.run("DELETE FROM import_name WHERE turn = (SELECT n FROM turn WHERE id = ?)", (turn,))
        txn.sql.run("DELETE FROM import_wait WHERE child = ?", (turn,))
    for name in names:
        txn.sql.run("DELETE FROM import_source WHERE name = ?", (name,))
