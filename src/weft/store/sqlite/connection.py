"""What an open ledger file holds: connections with the settings the promise rests on, the writers' lock and the head
file; and apsw's errors in Weft's words.

No program of ours writes a value of another type than its column's: a flipped bit or a hand did. SQLite gives such a
value to whoever reads its row. Nobody checks each value that is read; whoever fails over one asks `explained` whether
that was why.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.errors import Damaged, NotALedger, ReadOnlyLedger, StoreError, StoreFailed, WeakDurability
from weft.store.sql import Sql, WriteBuffer, askable, words_of
from weft.store.sqlite.files import open_beside, open_or_create_beside
from weft.store.sqlite.schema_objects import as_literal, quoted

READ_WRITE = apsw.SQLITE_OPEN_READWRITE
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
            self.buffer.write_rows()
        try:
            return self._execute(sql, values).fetchone()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            return self.one(sql, askable(values))

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of(sql)):
            self.buffer.write_rows()
        try:
            return self._execute(sql, values).fetchall()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            return self.all(sql, askable(values))

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        if self.buffer.waiting:
            self.buffer.write_rows()
        try:
            yield from self._execute(sql, values)
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            yield from self.each(sql, askable(values))

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.buffer.before_statement()
        self._execute(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.buffer.before_statement()
        self._execute_many(sql, rows)

    def flush(self) -> None:
        """No statement waits: each is run at once."""


def harden(connection: apsw.Connection) -> None:
    """The file may be a stranger's: no schema of it runs a trigger or a function that could do harm, and no
    statement changes the file's structure past SQLite's own rules. None of these asks anything of the file."""
    for setting, value in _GUARDS:
        connection.config(setting, value)
    connection.execute("PRAGMA cell_size_check = ON")


_GUARDS = (
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
)


def connect(path: str, flags: int, vfs: str | None = None) -> apsw.Connection:
    connection = apsw.Connection(path, flags, vfs=vfs, statementcachesize=CACHED_STATEMENTS)
    try:
        harden(connection)
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


def hold_log(path: str) -> Callable[[], None]:
    """Have SQLite's write-ahead log and its index lie beside a database until what this gives is called: the last
    connection that closes takes them away. A file that is no database, or that cannot be opened, has none to hold."""
    try:
        connection = connect(path, READ_WRITE)
    except apsw.Error:
        return lambda: None
    try:
        connection.set_busy_timeout(0)
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except apsw.Error:
        connection.close()
        return lambda: None
    return connection.close


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


class FileLock:
    """One writer at a time across processes; waiters are served in turn, where SQLite's own would starve them."""

    def __init__(self, path: Path) -> None:
        self._path, self._fd = path, open_or_create_beside(path)

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            raise StoreFailed(
                f"{self._path} cannot be locked ({error})", "check the file system that it is on"
            ) from error
        except BaseException:  # an interrupt may come when the lock is taken already
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            raise

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NameLocks:
    """The names that a store goes by, as shared locks on single bytes far behind the end of a file: those who look see
    them without taking any, and they end with their process. They have nothing to do with the lock of the whole file.
    Nothing is seen but on Linux: other systems have no locks of open files, or others than these."""

    _FORM = struct.Struct("@hhqqi4x")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptors: dict[str, int] = {}

    def announce(self, name: str) -> None:
        """Raises StoreError where the file cannot be opened."""
        if name in self._descriptors or sys.platform != "linux":
            return
        try:
            descriptor = open_or_create_beside(self._path)
        except OSError as error:
            raise StoreFailed(
                f"{self._path} cannot be opened ({error})", "check the folder and its permissions"
            ) from error
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, self._lock(fcntl.F_RDLCK, name))
        except OSError:  # a file system without such locks, or without room for one: nothing is seen
            os.close(descriptor)
        else:
            self._descriptors[name] = descriptor

    def withdraw(self, name: str) -> None:
        descriptor = self._descriptors.pop(name, None)
        if descriptor is None or sys.platform != "linux":
            return
        try:  # a process that was forked meanwhile has the open file too: closing alone would leave the lock to it
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, self._lock(fcntl.F_UNLCK, name))
        finally:
            os.close(descriptor)

    def is_announced(self, name: str) -> bool:
        if sys.platform != "linux":
            return False
        try:
            descriptor = open_beside(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, self._lock(fcntl.F_WRLCK, name))
        except OSError:  # a file system without such locks
            return False
        finally:
            os.close(descriptor)
        return bool(self._FORM.unpack(answer)[0] != fcntl.F_UNLCK)

    def _lock(self, kind: int, name: str) -> bytes:
        place = 2**32 + int.from_bytes(sha256(name.encode()).digest()[:4], "big")
        return self._FORM.pack(kind, os.SEEK_SET, place, 1, 0)

    def close(self) -> None:
        for name in list(self._descriptors):
            self.withdraw(name)


class HeadSlot(Struct, frozen=True):
    replica: str
    n: int
    chain: bytes


class HeadFile:
    """The newest acknowledged arrival numbers, outside the database, so that a cut or older copy is noticed.

    Eight checksummed slots, spread by their hash, are written after each commit under the writers' lock, without a
    sync. A torn slot is ignored; the others still speak. A slot older than the database is normal after a crash. The
    whole file is made at once, so that a full disk cannot come between a commit and its slot.
    """

    SLOTS = 8
    _FORM = struct.Struct(">4s26s6xQ32s")
    _MAGIC = b"WFH1"
    _SLOT_BYTES = _FORM.size + 16

    def __init__(self, path: Path) -> None:
        self._fd = open_or_create_beside(path)
        if os.fstat(self._fd).st_size == 0:
            self.clear()

    def write(self, head: HeadSlot) -> None:
        body = self._FORM.pack(self._MAGIC, head.replica.encode(), head.n, head.chain)
        os.pwrite(self._fd, body + sha256(body).digest()[:16], (head.chain[0] % self.SLOTS) * self._SLOT_BYTES)

    @classmethod
    def load(cls, path: Path) -> list[HeadSlot]:
        """What the file says, whoever wrote it; nothing where there is none."""
        try:
            descriptor = open_beside(path, os.O_RDONLY)
        except FileNotFoundError:
            return []
        with open(descriptor, "rb") as file:
            data = file.read(cls.SLOTS * cls._SLOT_BYTES)
        slots = (data[i : i + cls._SLOT_BYTES] for i in range(0, len(data), cls._SLOT_BYTES))
        return [head for slot in slots if (head := cls._parse(slot)) is not None]

    @classmethod
    def _parse(cls, slot: bytes) -> HeadSlot | None:
        body, check = slot[: cls._FORM.size], slot[cls._FORM.size :]
        if len(slot) < cls._SLOT_BYTES or sha256(body).digest()[:16] != check:
            return None
        magic, replica, n, chain = cls._FORM.unpack(body)
        return HeadSlot(replica.decode(errors="replace"), n, chain) if magic == cls._MAGIC else None

    def clear(self) -> None:
        os.pwrite(self._fd, bytes(self.SLOTS * self._SLOT_BYTES), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


ACCIDENTS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What happens to a reader who takes a value for what it is not."""
_TABLES = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%'"


@contextmanager
def explained(sql: Sql, path: str) -> Iterator[None]:
    """An accident in here that a value of the wrong type could be the reason of becomes damage with a place."""
    try:
        yield
    except ACCIDENTS as accident:
        damage = explain(sql, path, accident)
        if damage is None:
            raise
        raise damage from accident


def explain(sql: Sql, path: str, accident: BaseException) -> Damaged | None:
    """The damage behind an accident; None where every value is of its column's type."""
    if not isinstance(accident, ACCIDENTS):
        return None
    place = find_misfit(sql)
    if place is None:
        return None
    return Damaged(
        f"{path}: a value in {place} is of another type than its column ({accident})", Action.VERIFY_REBUILD_EXAMINE
    )


def find_misfit(sql: Sql) -> str | None:
    """Table and column of the first value that does not fit."""
    for (table,) in sql.all(_TABLES):
        columns = sql.all("SELECT name, type, \"notnull\" OR pk FROM pragma_table_info(?) WHERE type <> ''", (table,))
        if not columns:
            continue
        cases = " ".join(
            f"WHEN typeof({quoted(name)}) NOT IN ({_fitting(kind, required)}) THEN {as_literal(name)}"
            for name, kind, required in columns
        )
        each = f"SELECT CASE {cases} END AS misfit FROM {quoted(table)}"
        found = sql.one(f"SELECT misfit FROM ({each}) WHERE misfit IS NOT NULL")
        if found is not None:
            return f"{table}.{found[0]}"
    return None


def _fitting(kind: str, required: bool) -> str:
    fitting = as_literal(kind.lower())
    return fitting if required else f"{fitting}, 'null'"
