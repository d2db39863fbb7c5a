"""The names a ledger goes by.

A replica id acknowledges one sequence of events. A copy that both goes on and leaves its origin going on would break
that, so every copy carries a mark, and whoever first opens it for writing gives it a name of its own. Names that were
given up are kept with the place in the log where that happened: up to there, what they acknowledged still holds.
"""

from __future__ import annotations

from weft.store.facts import FORMER
from weft.store.owners import NOBODY
from weft.store.port import Sql

COPIED = "copied"
NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def is_copy(sql: Sql) -> bool:
    return sql.one("SELECT 1 FROM local WHERE key = ?", (COPIED,)) is not None


def take_new_name(sql: Sql, was: str, new: str, end: int) -> None:
    """Go on as `new` from event `end` on. Whoever held a session in the origin does not write here."""
    sql.run("UPDATE local SET value = ? WHERE key = 'replica'", (new,))
    sql.run(NOTE, (FORMER + was, str(end)))
    if is_copy(sql):
        sql.run("DELETE FROM local WHERE key = ?", (COPIED,))
        sql.run("UPDATE lease SET owner = ? WHERE turn IS NOT NULL", (NOBODY,))
