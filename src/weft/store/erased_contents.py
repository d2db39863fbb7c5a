"""What is left of an erased content: its number and its reference.

The row stays, so that every view that names the number and every event that names the reference still find it. Bytes,
parts, salt, plain digest, size and readable text are gone, and with them every way to tell what it said: a reference
without its salt cannot be guessed from a short text.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.contents import ERASED
from weft.store.packs import drop_from_packs
from weft.store.sql import Sql

ERASING = "erasing"
"""The watermark that moves with every erasure, so that whoever remembers contents by their bytes forgets them."""
UNFINISHED = "erasing"
"""Local state while erased bytes may still lie in free pages, in the log, or in views that hold words."""
IN_LOG = " in the log"
_DIGESTS = (
    "UPDATE resource SET name_digest = NULL WHERE name = ?",
    "UPDATE resource SET place_digest = NULL, stands = NULL WHERE place = ?",
    "UPDATE resource_snapshot SET ref_digest = NULL WHERE ref = ?",
)
"""What else is told of a content by views: from a digest a short text could be guessed."""


def make_husks(sql: Sql, numbers: Sequence[int], key_bytes: int) -> None:
    """Nothing but number, scope and reference stays of these contents."""
    drop_from_packs(sql, numbers)
    for n in numbers:
        row = sql.one("SELECT scope, digest FROM content WHERE n = ?", (n,))
        if row is not None and row[1]:
            key = bytes(row[1])[:key_bytes]
            sql.run("DELETE FROM lookup_bytes WHERE scope = ? AND key = ? AND n = ?", (row[0], key, n))
    sql.run_many("DELETE FROM content_part WHERE content = ?", [(n,) for n in numbers])
    sql.run_many(
        "UPDATE content SET salt = ?, digest = ?, size = 0, shown = ?, bytes = NULL WHERE n = ?",
        [(b"", b"", ERASED, n) for n in numbers],
    )
    sql.run_many("UPDATE lookup_text SET text = ? WHERE content = ?", [(ERASED, n) for n in numbers])
    for change in _DIGESTS:
        sql.run_many(change, [(n,) for n in numbers])


def is_husk(sql: Sql, n: int) -> bool:
    row = sql.one("SELECT salt FROM content WHERE n = ?", (n,))
    return row is not None and not row[0]


def note_erasing(sql: Sql, n: int) -> None:
    """Others forget what they remember; and whoever opens the ledger next finishes what this one began."""
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (ERASING, n)
    )
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (UNFINISHED, str(n)),
    )


def unfinished(sql: Sql) -> str | None:
    """What the last erasure left to be done, if anything."""
    row = sql.one("SELECT value FROM local WHERE key = ?", (UNFINISHED,))
    return str(row[0]) if row else None


def note_rewritten(sql: Sql, what: str) -> None:
    """The database is clean; what was there before still stands in the log, since somebody reads from it."""
    sql.run("UPDATE local SET value = ? WHERE key = ? AND value = ?", (what + IN_LOG, UNFINISHED, what))


def note_finished(sql: Sql, what: str) -> None:
    """Unless another erasure has begun meanwhile."""
    sql.run("DELETE FROM local WHERE key = ? AND value = ?", (UNFINISHED, what))


class ErasedContents(Struct, frozen=True):
    """Contents that were erased, and the turns they belong to."""

    contents: Sequence[int]
    turns: Sequence[str]
