"""The empty databases in which a ledger is verified, kept for the next time: what was written there is rolled back.

To make one, to read its schema and to prepare its statements is half of the work of verifying a small ledger, and
thousands of tests verify one in the end. `make prove` makes each anew, as the package does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import apsw

from weft.store.sqlite import store
from weft.store.sqlite.connection import SqliteSql
from weft.store.sqlite.migrations import Schema, shipped_schema

Scratch = Callable[[Schema], AbstractContextManager[SqliteSql]]
MADE_ANEW: Scratch = store.scratch
MOST_AT_REST = 2


class ScratchDatabases:
    """Those at rest, in the state in which `scratch` has made them. A process that was forked makes its own."""

    def __init__(self) -> None:
        self._at_rest: list[tuple[AbstractContextManager[SqliteSql], apsw.Connection]] = []
        self._process = os.getpid()

    @contextmanager
    def lent(self, schema: Schema) -> Iterator[SqliteSql]:
        if schema is not shipped_schema() or os.getpid() != self._process:
            with MADE_ANEW(schema) as sql:
                yield sql
            return
        owner, connection = self._at_rest.pop() if self._at_rest else self._made(schema)
        is_as_before = False
        try:
            connection.execute("BEGIN")
            yield SqliteSql(connection)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                is_as_before = len(self._at_rest) < MOST_AT_REST
        finally:
            if is_as_before:
                self._at_rest.append((owner, connection))
            else:
                owner.__exit__(None, None, None)

    def _made(self, schema: Schema) -> tuple[AbstractContextManager[SqliteSql], apsw.Connection]:
        owner = MADE_ANEW(schema)
        connection = owner.__enter__().connection
        connection.execute("COMMIT; PRAGMA journal_mode = MEMORY")  # without a journal nothing is rolled back
        return owner, connection


def keep_scratch_databases() -> None:
    """From now on, for all ledgers of SQLite in this process."""
    store.scratch = ScratchDatabases().lent
