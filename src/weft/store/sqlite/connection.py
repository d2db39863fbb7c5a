"""Connections with the settings the promise rests on, and apsw's errors in Weft's words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from weft.kernel.errors import Damaged, NotALedger, ReadOnlyLedger, StoreError, StoreFailed, WeakDurability
from weft.store.buffer import WriteBuffer, words_of

READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
READ_ONLY = apsw.SQLITE_OPEN_READONLY
BUSY_MS = 30_000
CHECKPOINT_PAGES = 4_000
CACHED_STATEMENTS = 512
"""As many as apsw keeps: one that was not run for so many runs of others is prepared anew."""


class SqliteSql:
    """The port's verbs on one connection. Whoever reads or writes finds every row that was added before."""

    __slots__ = ("_execute", "_execute_many", "add", "buffer", "connection")
    lost = False  # SQLite undoes a failed statement alone

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.buffer = WriteBuffer(connection.execute)
        self.add = self.buffer.add
        self._execute = connection.execute
        self._execute_many = connection.executemany

    def one(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of(sql)):
            self.buffer.put_down()
        try:
            return self._execute(sql, values).fetchone()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of(sql)):
            self.buffer.put_down()
        try:
            return self._execute(sql, values).fetchall()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        if self.buffer.waiting:
            self.buffer.put_down()
        try:
            yield from self._execute(sql, values)
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.buffer.make_way()
        self._execute(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.buffer.make_way()
        self._execute_many(sql, rows)


def connect(path: str, flags: int, vfs: str | None = None) -> apsw.Connection:
    connection = apsw.Connection(path, flags, vfs=vfs, statementcachesize=CACHED_STATEMENTS)
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # or some statements are planned anew for every value
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA cache_size = -32768")
    except BaseException:  # a file that is no database stays open no longer than it takes to see that
        connection.close()
        raise
    return connection


def make_durable(connection: apsw.Connection) -> None:
    """WAL with a sync at every commit, read back: a database that would not keep the promise is refused."""
    _assert_setting(connection, "journal_mode", "WAL", "wal")
    _assert_setting(connection, "synchronous", "FULL", 2)
    if sys.platform == "darwin":
        _assert_setting(connection, "fullfsync", "ON", 1)
        _assert_setting(connection, "checkpoint_fullfsync", "ON", 1)
    connection.wal_autocheckpoint(CHECKPOINT_PAGES)


def keep_log_on_close(connection: apsw.Connection, keep: bool) -> None:
    """SQLite's last connection copies the write-ahead log into the database and deletes it, unless told to keep it."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keep))


def empty_log(connection: apsw.Connection, patience: float) -> bool:
    """Copy the write-ahead log into the database and cut it to nothing. False while a reader still needs it."""
    connection.set_busy_timeout(int(patience * 1000))
    try:
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
    finally:
        connection.set_busy_timeout(BUSY_MS)
    return not busy


def _assert_setting(connection: apsw.Connection, name: str, wanted: str, reads_back: object) -> None:
    connection.execute(f"PRAGMA {name} = {wanted}").fetchall()
    found = connection.execute(f"PRAGMA {name}").fetchall()[0][0]
    if found != reads_back:
        raise WeakDurability(name, wanted, str(found))


@contextmanager
def translated(path: str) -> Iterator[None]:
    """apsw's errors become ours; what the caller's own work raises passes through."""
    try:
        yield
    except apsw.Error as error:
        raise store_error(error, path) from error


def store_error(error: apsw.Error, path: str) -> StoreError:
    for kind, translate in _WORDS:
        if isinstance(error, kind):
            return translate(path, error)
    return StoreFailed(f"{path}: {error}")


def _refused(path: str, error: apsw.Error) -> StoreError:
    """The statements are all our own: a table that they do not find was there when the ledger was made."""
    if "no such " in str(error):
        return Damaged(f"{path}: the schema is not whole ({error})")
    return StoreFailed(f"{path}: {error}")


_WORDS: tuple[tuple[type[apsw.Error], Callable[[str, apsw.Error], StoreError]], ...] = (
    (apsw.CorruptError, lambda path, error: Damaged(f"{path}: the database is malformed ({error})")),
    (apsw.SQLError, _refused),
    (apsw.NotADBError, lambda path, error: NotALedger(path, "it is not a SQLite database")),
    (apsw.ReadOnlyError, lambda path, error: ReadOnlyLedger(path)),
    (apsw.FullError, lambda path, error: StoreFailed(f"{path}: the disk is full")),
    (
        apsw.CantOpenError,
        lambda path, error: StoreFailed(f"{path} cannot be opened ({error})", "check the folder and its permissions"),
    ),
    (
        apsw.BusyError,
        lambda path, error: StoreFailed(f"{path}: another program holds the database for too long", "close it"),
    ),
)
