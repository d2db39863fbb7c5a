"""Connections that read: lent to whoever reads, and kept for the next.

A connection costs the server more than most reads do, so a few are kept and shared. Whoever finds all of them lent
waits a moment for one to come back before it opens another; beyond the few, that is closed after use. Whoever has one
already does not wait: it could be waiting for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from weft.store.postgres.connection import PostgresSql

KEPT_READERS = 4
PATIENCE_SECONDS = 0.05


class Readers:
    """The connections of one open store that read."""

    def __init__(self, connect: Callable[[], PostgresSql]) -> None:
        self._connect = connect
        self._free: list[PostgresSql] = []
        self._lent: dict[int, int] = {}
        """By connection, the thread that it was lent to."""
        self._is_closed = False
        self._returned = threading.Condition()

    def lend(self) -> PostgresSql:
        sql = self._free_one() or self._connect()
        with self._returned:
            self._lent[id(sql)] = threading.get_ident()
        return sql

    def _free_one(self) -> PostgresSql | None:
        with self._returned:
            if not self._free and self._lent and not self._has_one():
                self._returned.wait_for(lambda: self._free, PATIENCE_SECONDS)
            return self._free.pop() if self._free else None

    def _has_one(self) -> bool:
        return threading.get_ident() in self._lent.values()

    def take_back(self, sql: PostgresSql) -> None:
        """Those of a rush, or of a store closed meanwhile, are not kept."""
        with self._returned:
            self._lent.pop(id(sql), None)
            is_kept = not (sql.broken or self._is_closed or len(self._free) + len(self._lent) >= KEPT_READERS)
            if is_kept:
                self._free.append(sql)
                self._returned.notify()
        if not is_kept:
            sql.close()

    def drop(self) -> None:
        """One connection has died: most likely all have."""
        with self._returned:
            free, self._free = self._free, []
        for sql in free:
            sql.close()

    def close(self) -> None:
        """A reader still at work closes its own connection."""
        with self._returned:
            self._is_closed = True
        self.drop()
