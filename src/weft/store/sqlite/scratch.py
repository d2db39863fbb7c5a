"""An empty database aside, in which views are computed to be compared with stored ones; every backend uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from weft.kernel.sites import IN_MEMORY
from weft.store.sqlite.connection import SqliteSql
from weft.store.sqlite.migrations import Schema, migrate


@contextmanager
def scratch(schema: Schema) -> Iterator[SqliteSql]:
    connection = apsw.Connection("", statementcachesize=256)
    try:
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536")
        migrate(connection, IN_MEMORY, schema)
        connection.execute("BEGIN")
        yield SqliteSql(connection)
    finally:
        connection.close()
