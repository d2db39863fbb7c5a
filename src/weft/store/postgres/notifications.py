"""News of commits: told to whoever listens, from a connection that no transaction has, and waited for.

NOTIFY inside a commit would make all commits of the database wait for each other, so it comes after, and one call
speaks for all commits since the last. Listeners share a lock, by which a writer of ordinary turns is told whether there
is anybody to call; else it does not. A call that is lost costs no more than a second: listeners also look for
themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

from weft.kernel.errors import StoreError
from weft.store.postgres.claims import SideConnection
from weft.store.postgres.connection import PostgresSql

APART_SECONDS = 0.05
"""So far apart are two calls of one store; the first after a while comes at once."""
LISTEN_SECONDS = 1.0
POOLED = 2


class CommitAnnouncer:
    """Announces commits. Its thread begins with the first one and ends with the store."""

    def __init__(self, side: SideConnection, channel: str) -> None:
        self._side, self._channel = side, channel
        self._due, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def announce(self) -> None:
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-announcer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._over.is_set():
                break
            self._due.clear()
            with suppress(psycopg.Error, StoreError):  # listeners look by themselves as well
                self._side.script(f"NOTIFY {self._channel}")
            self._over.wait(APART_SECONDS)

    def close(self) -> None:
        self._over.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()


class Listeners:
    """Connections that listen, lent to whoever waits."""

    def __init__(self, connect: Callable[[], PostgresSql], channel: str, listening: int) -> None:
        self._connect, self._channel, self._listening = connect, channel, listening
        self._pool: list[PostgresSql] = []
        self._is_closed = False

    def borrow(self) -> PostgresSql:
        """One that hears everything from now on."""
        sql = self._take()
        try:
            sql.script(f"SELECT pg_advisory_lock_shared({self._listening}); LISTEN {self._channel}")
        except BaseException:  # whoever waits takes another one
            sql.close()
            raise
        return sql

    def _take(self) -> PostgresSql:
        try:
            return self._pool.pop()
        except IndexError:
            return self._connect()

    def wait(self, sql: PostgresSql, seconds: float) -> bool:
        """True when something was announced within `seconds`."""
        return any(True for _ in sql.connection.notifies(timeout=seconds, stop_after=1))

    def give_back(self, sql: PostgresSql) -> None:
        """Keep a connection for the next who waits; after `close` none is kept. Nobody is called for its sake any
        longer, and nothing is sent to it that nobody takes."""
        if sql.broken or self._is_closed or len(self._pool) >= POOLED:
            sql.close()
            return
        try:
            sql.script(f"UNLISTEN *; SELECT pg_advisory_unlock_shared({self._listening})")
        except BaseException as error:  # what was waited for has come all the same
            sql.close()
            if not isinstance(error, psycopg.Error):
                raise
        else:
            self._pool.append(sql)
            if self._is_closed:  # meanwhile, by another thread
                self.close()

    def close(self) -> None:
        self._is_closed = True
        while self._pool:
            self._pool.pop().close()
