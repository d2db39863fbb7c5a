"""A backup of a PostgreSQL ledger is a ledger file: every table of one snapshot, row by row, in a SQLite database.

Both engines have the same tables with the same columns, so rows pass as they are, and the copy opens everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import apsw

from weft.kernel.sites import IN_MEMORY
from weft.store.atomic_files import put_in_place
from weft.store.port import Progress
from weft.store.postgres.connection import PostgresSql
from weft.store.sqlite.connection import SqliteSql
from weft.store.sqlite.copies import make_aside, mark_as_copy
from weft.store.sqlite.migrations import migrate, shipped_schema
from weft.store.sqlite.word_index import FtsIndex

PLACE = "place"
"""Local state: the cluster, database and schema that the ledger lies in; elsewhere it is a copy."""
AT_ONCE = 256
_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'word%'"
    " ORDER BY name"
)


def write_copy(
    sql: PostgresSql, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Aside, then renamed: either it is complete or it is not there. `beside` is called before it is renamed."""
    aside = make_aside(target)
    connection = apsw.Connection(str(aside))
    try:
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536")
        migrate(connection, IN_MEMORY, shipped_schema())
        _copy_tables(sql, connection, progress)
        _copy_words(sql, connection)
        connection.execute("DELETE FROM local WHERE key = ?", (PLACE,))
        mark_as_copy(connection)
    finally:
        connection.close()
    if beside is not None:
        beside()
    put_in_place(aside, target)


def _copy_words(sql: PostgresSql, into: apsw.Connection) -> None:
    """The index of words is each engine's own; its words are the same."""
    rows = sql.each("SELECT n, array_to_string(tsvector_to_array(words), ' ') FROM word")
    index = FtsIndex(SqliteSql(into))
    while some := list(islice(rows, AT_ONCE)):
        with into:
            index.put((n, words) for n, words in some)


def _copy_tables(sql: PostgresSql, into: apsw.Connection, progress: Progress | None) -> None:
    tables = [name for (name,) in into.execute(_TABLES)]
    counts = {name: (sql.one(f"SELECT count(*) FROM {name}") or (0,))[0] for name in tables}
    done, total = 0, sum(counts.values())
    for name in tables:
        columns = [f'"{row[1]}"' for row in into.execute(f"PRAGMA table_info({name})")]
        names = ", ".join(columns)
        insert = f"INSERT INTO {name}({names}) VALUES ({', '.join('?' * len(columns))})"
        rows = sql.each(f"SELECT {names} FROM {name}")
        while some := list(islice(rows, AT_ONCE)):
            with into:
                into.executemany(insert, some)
            done += len(some)
            if progress is not None:
                progress(done, total)
