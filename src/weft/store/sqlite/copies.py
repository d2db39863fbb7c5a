"""Copies of a ledger, and the names it goes by.

A replica id acknowledges one sequence of events. A copy that both goes on and leaves its origin going on would break
that, so every copy carries a mark, and whoever first opens it for writing gives it a name of its own. Names that were
given up are kept with the place in the log where that happened: up to there, what they acknowledged still holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from weft.kernel.errors import StoreError
from weft.store.facts import FORMER
from weft.store.owners import NOBODY
from weft.store.port import Progress, Sql

COPIED = "copied"
_NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def write_copy(source: apsw.Connection, target: Path, progress: Progress | None) -> None:
    """Copy what the connection sees, page by page, aside and renamed: either it is complete or it is not there."""
    aside = target.with_name(target.name + ".partial")
    aside.unlink(missing_ok=True)
    connection = apsw.Connection(str(aside))
    try:
        with connection.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(2048)
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)
        mark_as_copy(connection)
    finally:
        connection.close()
    put_in_place(aside, target)


def ensure_free(target: Path) -> None:
    if target.exists():
        raise StoreError(f"{target} exists already", "choose a new file; backups are never overwritten")
    if not target.parent.is_dir():
        raise StoreError(f"there is no folder {target.parent}", "make it first")


def mark_as_copy(connection: apsw.Connection) -> None:
    connection.execute(_NOTE, (COPIED, ""))


def put_in_place(aside: Path, target: Path) -> None:
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.rename(target)


def is_copy(sql: Sql) -> bool:
    return sql.one("SELECT 1 FROM local WHERE key = ?", (COPIED,)) is not None


def take_new_name(sql: Sql, was: str, new: str, end: int) -> None:
    """Go on as `new` from event `end` on. Whoever held a session in the origin does not write here."""
    sql.run("UPDATE local SET value = ? WHERE key = 'replica'", (new,))
    sql.run(_NOTE, (FORMER + was, str(end)))
    if is_copy(sql):
        sql.run("DELETE FROM local WHERE key = ?", (COPIED,))
        sql.run("UPDATE lease SET owner = ? WHERE turn IS NOT NULL", (NOBODY,))
