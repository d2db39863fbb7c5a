"""What a store says beside its transactions: names that it has claimed or goes by, and that there is news.

Both go over one connection, which is made when it is first needed. A claim is an advisory lock of that connection: it
ends with the connection, and so does a name that is announced. Claims guard nothing, and a call that is lost costs its
listeners a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from weft.kernel.errors import StoreError
from weft.store.postgres.connection import PostgresSql
from weft.store.sql import Row

KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4"
"""So soon the server sees that a machine is gone that says nothing more: what it held is free after half a minute."""


class SideConnection:
    """One connection for statements of a moment, one after another, whoever asks."""

    def __init__(self, connect: Callable[[], PostgresSql]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._sql: PostgresSql | None = None
        self._is_closed = False
        self.number = 0
        """Which connection it is by now: what was held by an earlier one is gone."""

    def script(self, text: str) -> list[Row]:
        return self.numbered_script(text)[0]

    def numbered_script(self, text: str) -> tuple[list[Row], int]:
        """The rows, and the number of the connection that they came over: a lock that was taken is held by that one,
        which may be lost before anybody asks for the number."""
        with self._lock:
            if self._is_closed:
                raise StoreError("the ledger was closed meanwhile", "open it again")
            is_new = self._sql is None
            if self._sql is None:
                self._sql = self._connect()
            try:
                if is_new:
                    self._sql.script(KEEPALIVES)
                return self._sql.script(text), self.number
            except BaseException:  # an interrupt too: nobody knows what it holds now
                self._sql.close()
                self._sql = None
                self.number += 1
                raise

    def close(self) -> None:
        """What it held is gone with it, and nothing makes another."""
        with self._lock:
            self._is_closed = True
            self.number += 1
            if self._sql is not None:
                self._sql.close()
                self._sql = None


class NameAnnouncements:
    """The names that one store goes by, as locks that are shared. One that was lost with its connection is taken again
    by whoever announces it again."""

    def __init__(self, side: SideConnection) -> None:
        self._side, self._lock = side, threading.Lock()
        self._held: dict[int, int] = {}
        """By lock, the connection that shares it."""

    def announce(self, key: int) -> None:
        with self._lock:
            if self._held.get(key) != self._side.number:
                ((is_shared,),), connection = self._side.numbered_script(f"SELECT pg_try_advisory_lock_shared({key})")
                if is_shared:  # whoever looks has the lock for a moment: the next call tries again
                    self._held[key] = connection

    def withdraw(self, key: int) -> None:
        with self._lock:
            if self._held.pop(key, None) != self._side.number:
                return
            try:
                self._side.script(f"SELECT pg_advisory_unlock_shared({key})")
            except (psycopg.Error, StoreError):  # its connection is gone, and the lock with it
                return

    def is_announced(self, key: int) -> bool:
        """Nobody else can have the lock for themselves while somebody shares it."""
        with self._lock:
            if self._held.get(key) == self._side.number:
                return True
            asked = f"CASE WHEN pg_try_advisory_lock({key}) THEN NOT pg_advisory_unlock({key}) ELSE true END"
            ((is_announced,),) = self._side.script(f"SELECT {asked}")
            return bool(is_announced)


class NameClaims:
    """The names that one store has claimed, by the numbers of their locks."""

    def __init__(self, side: SideConnection) -> None:
        self._side, self._lock = side, threading.Lock()
        self._held: dict[int, int] = {}
        """By lock, the connection that has it."""

    def take(self, key: int) -> bool:
        """Whether no other store has it."""
        with self._lock:
            if self._held.get(key) == self._side.number:
                return True
            ((is_ours,),), connection = self._side.numbered_script(f"SELECT pg_try_advisory_lock({key})")
            if is_ours:
                self._held[key] = connection
            return bool(is_ours)

    def give_back(self, key: int) -> None:
        with self._lock:
            if self._held.pop(key, None) != self._side.number:
                return
            try:
                self._side.script(f"SELECT pg_advisory_unlock({key})")
            except (psycopg.Error, StoreError):  # its connection is gone, and the claim with it
                return
