"""Credentials in names that stand in events themselves: of models, providers, tools, toolsets and servers.

A name that looks like one is no content, so it is looked up in the views, each name once. It cannot be erased, since
events do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from json import loads

from msgspec import Struct

from weft.ledger.secrets.scanner import SecretScanner
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import Sql

FOUND = "secret_names"
"""The key of local state that keeps the fingerprints of what was found, for whoever ignores one."""
_COLUMNS = {
    "turn": ("model", "provider", "toolset", "tools"),
    "message": ("model", "provider", "finish"),
    "tool_call": ("tool", "server"),
    "compaction": ("model", "provider"),
}
_TURNS = {
    "turn": "SELECT id FROM turn WHERE {} = ? ORDER BY n",
    "message": "SELECT DISTINCT t.id, t.n FROM message u JOIN turn t ON t.n = u.turn WHERE u.{} = ? ORDER BY t.n",
    "tool_call": "SELECT DISTINCT t.id, t.n FROM tool_call u JOIN turn t ON t.n = u.turn WHERE u.{} = ? ORDER BY t.n",
    "compaction": "SELECT turn FROM compaction WHERE {} = ? ORDER BY turn",
}
"""The turns whose row has a value in a column."""


class NamedSecret(Struct, frozen=True, kw_only=True):
    """A credential in a value of a column, and the turns that have it."""

    fingerprint: str
    rule: str
    shown: str
    what: str
    """The table and the column: `tool_call tool`."""
    turns: tuple[str, ...]


def find_names(txn: ReadTxn, scanner: SecretScanner, key: bytes) -> list[NamedSecret]:
    return [
        NamedSecret(
            fingerprint=trace.fingerprint,
            rule=trace.rule,
            shown=trace.shown,
            what=f"{table} {column}",
            turns=tuple(str(id) for id, *_ in txn.sql.all(_TURNS[table].format(column), (value,))),
        )
        for table, columns in _COLUMNS.items()
        for column in columns
        for value, name in _names(txn.sql, table, column)
        for trace in scanner.scan(name.encode("utf-8", "replace"), key)
    ]


def _names(sql: Sql, table: str, column: str) -> Iterator[tuple[str, str]]:
    """Values of a column and the names in each. One that begins with # is the number of a content."""
    query = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL AND substr({column}, 1, 1) <> '#'"
    for (value,) in sql.all(query):
        names = [str(value)] if column != "tools" else [name for name in loads(value) if isinstance(name, str)]
        for name in names:
            if not name.startswith("#"):
                yield str(value), name


def fingerprints_found(sql: Sql) -> set[str]:
    row = sql.one("SELECT value FROM local WHERE key = ?", (FOUND,))
    return set(str(row[0]).split()) if row else set()


def note_found(fingerprints: set[str], txn: WriteTxn) -> None:
    """What was found last, and nothing of what was found before."""
    txn.sql.run("DELETE FROM local WHERE key = ?", (FOUND,))
    if fingerprints:
        txn.sql.run("INSERT INTO local(key, value) VALUES (?, ?)", (FOUND, " ".join(sorted(fingerprints))))
