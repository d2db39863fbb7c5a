"""The names a ledger goes by.

A replica id acknowledges one sequence of events. A copy that both goes on and leaves its origin going on would break
that, so every copy carries a mark, and whoever first opens it for writing gives it a name of its own. Names that were
given up are kept with the place in the log where that happened: up to there, what they acknowledged still holds. Where
more than that was given up for lost, it is kept how much: nobody is held to it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.store.owners import NOBODY
from weft.store.records import FORMER, REFUSED_EVENT, REFUSED_NAME
from weft.store.sql import Question, Sql

COPIED = "copied"
COPYING = "copying"
"""Local state: whose copy this is going to be, while it is not finished."""
ACCEPTED = "accepted:"
"""Local state: a row per name whose promises were given up here, with the last event that was known of them."""
COPY_END = "copy_end"
"""Local state: the last event that this ledger shares with the one that it is a copy of. What was asked up to there is
the origin's to answer."""
NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def is_copy(sql: Sql) -> bool:
    return sql.one("SELECT 1 FROM local WHERE key = ?", (COPIED,)) is not None


def is_unfinished(sql: Sql) -> bool:
    """Whether facts of another ledger are still being copied here, or the copying was cut short."""
    return sql.one("SELECT 1 FROM local WHERE key = ?", (COPYING,)) is not None


def take_new_name(sql: Sql, was: str, new: str, end: int) -> None:
    """Go on as `new` from event `end` on. Whoever held a session or an agent in the origin does not write here."""
    sql.run("UPDATE local SET value = ? WHERE key = 'replica'", (new,))
    sql.run(NOTE, (FORMER + was, str(end)))
    _forget_refusals(sql)
    if is_copy(sql):
        sql.run("DELETE FROM local WHERE key = ?", (COPIED,))
        sql.run(NOTE, (COPY_END, str(end)))
        sql.run("UPDATE lease SET owner = ? WHERE purpose IS NOT NULL", (NOBODY,))


def _forget_refusals(sql: Sql) -> None:
    """What was refused under the former name may have a place under the new one: peers are read from the beginning."""
    if sql.one("SELECT 1 FROM local WHERE key LIKE ? LIMIT 1", (f"{REFUSED_EVENT}%",)) is not None:
        for begin in (REFUSED_EVENT, REFUSED_NAME):
            sql.run("DELETE FROM local WHERE key LIKE ?", (f"{begin}%",))
        sql.run("DELETE FROM peer")


def accept_loss(sql: Sql, promised: Mapping[str, int]) -> None:
    """What these names acknowledged, each up to such an event, is given up."""
    for replica, n in promised.items():
        sql.run(NOTE, (ACCEPTED + replica, str(n)))


def accepted_loss(sql: Sql, replica: str) -> int:
    """Up to which event the promises of a name were given up."""
    return _number(sql, ACCEPTED + replica)


def last_event_as(sql: Sql, replica: str) -> int:
    """The last event of this log that was acknowledged under a former name."""
    return _number(sql, FORMER + replica)


def last_copied_event(sql: Sql) -> int:
    """The last event that this ledger shares with the one that it is a copy of; 0 where it is none."""
    return _number(sql, COPY_END)


OWN_NAMES: Question = (
    "SELECT key, value FROM local WHERE key = 'replica' OR key LIKE ? ORDER BY key",
    (f"{FORMER}%",),
)
"""What `own_names` asks."""


def own_names(sql: Sql) -> dict[str, int | None]:
    """The name that this ledger goes by, then those that it gave up, each with the last event of this log that was
    acknowledged under it; None: it still goes by that name."""
    rows = sql.all(*OWN_NAMES)
    own: dict[str, int | None] = {str(value): None for key, value in rows if key == "replica"}
    return own | {name: int(value) for key, value in rows if (name := str(key).removeprefix(FORMER)) != key}


class OwnEvents:
    """Which events this ledger wrote, under its name or a former one."""

    def __init__(self, sql: Sql) -> None:
        self._names = own_names(sql)

    def has(self, n: int, replica: str | None) -> bool:
        if replica not in self._names:
            return False
        last = self._names[replica]
        return last is None or n <= last

    def condition(self, table: str) -> tuple[str, tuple[str | int, ...]]:
        """The same as a condition on rows of a table, by its name in the query, that has the columns `n` and `replica`;
        with its values."""
        conditions: list[str] = []
        values: list[str | int] = []
        for name, last in self._names.items():
            if last is None:
                conditions.append(f"{table}.replica = ?")
                values.append(name)
            else:
                conditions.append(f"{table}.replica = ? AND {table}.n <= ?")
                values += [name, last]
        return f"({' OR '.join(conditions)})", tuple(values)


def _number(sql: Sql, key: str) -> int:
    row = sql.one("SELECT value FROM local WHERE key = ?", (key,))
    return int(row[0]) if row else 0
