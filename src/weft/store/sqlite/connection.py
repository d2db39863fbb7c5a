"""What an open ledger file holds: connections with the settings the promise rests on, the
writers' lock and the head file, its objects compared with those that a ledger has, the index of
words as an FTS5 table; and copies of such a file: complete or not there, and marked as copies; and
clones, which have names of their own.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EINVAL, EIO, ENOSYS
from glob import escape
from hashlib import sha256
from io import FileIO
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any, cast

import apsw
import msgspec
from msgspec import Struct

from weft.kernel.errors import Action, Damaged, NotALedger, ReadOnlyLedger, StoreError, StoreFailed, WeakDurability
from weft.store.fact_log import LAST_NUMBER
from weft.store.port import AnyOf, Progress, Question, SearchTerm
from weft.store.private_files import (
    LedgerFile,
    aside_of,
    create_private,
    open_beside,
    open_or_create_beside,
    put_in_place,
)
from weft.store.replicas import COPIED_NOTE, NOTE
from weft.store.sql import Sql, WriteBuffer, askable, words_of_statement

# --- The tables, views, indexes and triggers of a database file, compared with those that a ledger has.

MOST_OBJECTS = 1_000
"""More are not read. A ledger has fewer, and one that is not known is enough to refuse the file."""
NAME_CHARACTERS = 60
_ALL = f"SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT {MOST_OBJECTS}"
_AS_TEXT = "coalesce({0}, '') || ''"
_ALL_AS_TEXT = (
    f"SELECT {', '.join(map(_AS_TEXT.format, ('type', 'name', 'tbl_name', 'sql')))} FROM sqlite_schema"
    f" LIMIT {MOST_OBJECTS}"
)
_TOKENS = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)|'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\]|`[^`]*`|\w+|.""", re.DOTALL
)
_SIGNS = frozenset("(),")
_STATISTICS = frozenset(
    {"CREATE TABLE sqlite_stat1(tbl,idx,stat)", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"}
)
_PLAIN_TABLE = re.compile(r"CREATE TABLE '(\w+)'\([\w ,()]*\)( WITHOUT ROWID)?")
_EXPRESSIONS = re.compile(r"\b(CHECK|GENERATED|AS|DEFAULT|REFERENCES|COLLATE)\b", re.IGNORECASE)


class SchemaObject(Struct, frozen=True):
    """One row of `sqlite_schema`, its text in normal form."""

    kind: str
    name: str
    table: str
    sql: str

    @property
    def title(self) -> str:
        """Kind and name, with everything escaped that a terminal would not print."""
        return f"{self.kind if self.kind.isalpha() else 'object'} {self.name[:NAME_CHARACTERS]!r}"


def quoted(name: str) -> str:
    """An identifier as SQL writes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def as_literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def digest_of(connection: apsw.Connection) -> str | None:
    """One hash over all objects as they are stored, in any order; None where names are of several types."""
    try:
        rows = sorted(connection.execute(_ALL).fetchall(), key=itemgetter(1))
    except TypeError:
        return None
    return sha256(msgspec.msgpack.encode(rows)).hexdigest()


def read_objects(connection: apsw.Connection) -> list[SchemaObject]:
    rows: list[Any] = connection.execute(_ALL_AS_TEXT).fetchall()
    return [SchemaObject(kind, name, table, normal_form(sql)) for kind, name, table, sql in rows]


def normal_form(sql: str) -> str:
    """A statement without comments, with one blank where there were several and none beside brackets and commas;
    quoted parts stay as they are."""
    tokens, gap = [""], False
    for token in _TOKENS.finditer(sql):
        if token["blank"] is not None:
            gap = True
            continue
        if gap and tokens[-1] not in _SIGNS and token[0] not in _SIGNS:
            tokens.append(" ")
        tokens.append(token[0])
        gap = False
    return "".join(tokens).lstrip()


def unknown_objects(
    objects: Iterable[SchemaObject], expected: Mapping[str, SchemaObject], views: frozenset[str]
) -> list[SchemaObject]:
    """Those that are not among the expected ones, by name. A view in `views` may have any text: nobody reads it."""
    return [
        actual
        for actual in objects
        if actual != expected.get(actual.name)
        and actual.sql not in _STATISTICS
        and not (actual.kind == "view" and actual.name in views)
        and not (actual.name in expected and _is_plain_shadow(actual, expected[actual.name]))
    ]


def _is_plain_shadow(actual: SchemaObject, expected: SchemaObject) -> bool:
    """Both are tables that FTS5 made, and only columns differ: a name in single quotes is its way to write one."""
    spelled = _PLAIN_TABLE.fullmatch(actual.sql)
    return (
        spelled is not None
        and _PLAIN_TABLE.fullmatch(expected.sql) is not None
        and (actual.kind, actual.table, spelled[1]) == ("table", actual.name, actual.name)
        and _EXPRESSIONS.search(actual.sql) is None
    )


# --- What an open ledger file holds: connections with the settings the promise rests on, the writers' lock and the
# head file; and apsw's errors in Weft's words.

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

    def fetch_row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of_statement(sql)):
            self.buffer.write_rows()
        try:
            return self._execute(sql, values).fetchone()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            return self.fetch_row(sql, askable(values))

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of_statement(sql)):
            self.buffer.write_rows()
        try:
            return self._execute(sql, values).fetchall()
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            return self.fetch_rows(sql, askable(values))

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        if self.buffer.waiting:
            self.buffer.write_rows()
        try:
            yield from self._execute(sql, values)
        except UnicodeDecodeError as error:
            raise apsw.CorruptError(f"a text is not UTF-8: {error}") from error
        except UnicodeEncodeError:
            yield from self.iterate_rows(sql, askable(values))

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


def _assert_setting(connection: apsw.Connection, name: str, setting: str, reads_back: object) -> None:
    connection.execute(f"PRAGMA {name} = {setting}").fetchall()
    actual = connection.execute(f"PRAGMA {name}").fetchall()[0][0]
    if actual != reads_back:
        raise WeakDurability(name, setting, str(actual))


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
    for (table,) in sql.fetch_rows(_TABLES):
        columns = sql.fetch_rows(
            "SELECT name, type, \"notnull\" OR pk FROM pragma_table_info(?) WHERE type <> ''", (table,)
        )
        if not columns:
            continue
        cases = " ".join(
            f"WHEN typeof({quoted(name)}) NOT IN ({_fitting(kind, required)}) THEN {as_literal(name)}"
            for name, kind, required in columns
        )
        misfits = f"SELECT CASE {cases} END AS misfit FROM {quoted(table)}"
        row = sql.fetch_row(f"SELECT misfit FROM ({misfits}) WHERE misfit IS NOT NULL")
        if row is not None:
            return f"{table}.{row[0]}"
    return None


def _fitting(kind: str, required: bool) -> str:
    fitting = as_literal(kind.lower())
    return fitting if required else f"{fitting}, 'null'"


# --- The index of words as an FTS5 table without contents.


class FtsIndex:
    """FTS5 over words that are made elsewhere: its tokenizer only splits at spaces."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        self._sql.run_many("INSERT INTO word(rowid, words) VALUES (?, ?)", passages)

    def drop(self, passages: Sequence[int]) -> None:
        self._sql.run_many("DELETE FROM word WHERE rowid = ?", ((n,) for n in passages))

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        rows = self._sql.fetch_rows(
            "SELECT rowid FROM word WHERE word MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?",
            (spelled(question), 0 if low is None else low, LAST_NUMBER if high is None else high, limit),
        )
        return [n for (n,) in rows]

    def ranked(self, question: Question, limit: int) -> list[int]:
        rows = self._sql.fetch_rows(
            "SELECT rowid FROM word WHERE word MATCH ? ORDER BY rank LIMIT ?", (spelled(question), limit)
        )
        return [n for (n,) in rows]

    def pairs(self) -> Iterator[tuple[str, int]]:
        return cast("Iterator[tuple[str, int]]", self._sql.iterate_rows("SELECT term, doc FROM word_pair"))

    def purge(self) -> None:
        """Everything goes into one new segment, without what was dropped."""
        self._sql.run("INSERT INTO word(word) VALUES ('optimize')")

    def look_again(self) -> None:
        """Before the engine checks itself: FTS5 remembers the shape of its index until it is asked something, and a
        check by what another connection has changed since would find fault with what is sound."""
        self._sql.fetch_row("SELECT rowid FROM word LIMIT 1")

    def clear(self) -> None:
        self._sql.run("INSERT INTO word(word) VALUES ('delete-all')")


def spelled(question: Question) -> str:
    """The question in FTS5's own language; every word is a quoted string there, which it takes as it is."""
    return " AND ".join(_group(group) for group in question)


def _group(group: AnyOf) -> str:
    terms = " OR ".join(map(_term, group))
    return f"({terms})" if len(group) > 1 else terms


def _term(term: SearchTerm) -> str:
    quoted = '"' + term.word.replace('"', '""') + '"'
    return f"{quoted} *" if term.prefix else quoted


# --- Copies of a ledger file: complete or not there, and marked as copies; and clones, which have names of their own.

PAGES_AT_ONCE, BYTES_AT_ONCE = 2048, 8 * 1024 * 1024
WAIT_SECONDS = 0.1
BESIDE = ("-wal", "-shm", "-journal")
"""The ends of names of the files that SQLite keeps beside a database."""
FILLING_BYTES = 16 * 1024 * 1024


def write_copy(
    source: apsw.Connection, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Copy what the connection sees, page by page, aside and renamed: either it is complete or it is not there.
    `beside` is called before it is renamed, for what lies beside the ledger."""
    aside = make_aside(target)
    with _open_copy(aside, target) as connection:
        _copy_pages(source, connection, target, progress)
        with translated(str(target)):
            mark_as_copy(connection)
    if beside is not None:
        beside()
    put_in_place(aside, target)


def write_clone(
    source: SqliteSql,
    file: LedgerFile,
    target: Path,
    check: Callable[[SqliteSql], object],
    change: Callable[[SqliteSql], object],
    place: Callable[[Path], object],
    progress: Progress | None,
) -> None:
    """The same for a copy that is another ledger from its first moment. `check` looks at the source, in the snapshot
    that the copy is made of, while its bytes are copied, and refuses by raising; `change` makes the copy a ledger of
    its own, before it has its name. What `change` deletes is overwritten, and so are the pages that hold nothing.
    `place` is called with the file just before it gets its name."""
    aside = make_aside(target)
    try:
        if is_whole_in_file(file):
            with _copying_bytes(source.connection, file, aside, progress):
                check(source)
        else:
            check(source)
            with _open_copy(aside, target) as copy:
                _copy_pages(source.connection, copy, target, progress)
        with _open_copy(aside, target) as copy, translated(str(target)):
            for setting in ("journal_mode = MEMORY", "synchronous = OFF", "secure_delete = ON"):
                copy.execute(f"PRAGMA {setting}")
            copy.execute("BEGIN IMMEDIATE")
            change(SqliteSql(copy))
            copy.execute("COMMIT")
            _clear_free_pages(copy)
        place(aside)
        put_in_place(aside, target)
    except BaseException:  # also an interrupt from the keyboard leaves nothing that looks like a ledger
        for end in ("", *BESIDE):
            with suppress(OSError):
                os.unlink(f"{aside}{end}")
        raise


def make_aside(target: Path) -> Path:
    """An empty file to be copied into. What a dead process left beside it goes first: SQLite would take a log or a
    journal there for this file's own, and undo or repeat in it what was done to the other one."""
    aside = aside_of(target)
    for suffix in BESIDE:
        Path(f"{aside}{suffix}").unlink(missing_ok=True)
    create_private(aside)
    return aside


@contextmanager
def _open_copy(aside: Path, target: Path) -> Iterator[apsw.Connection]:
    """The copy, to be written to. Where it cannot be opened, the error names what was to be made."""
    with translated(str(target)):
        connection = connect(str(aside), READ_WRITE)
    try:
        yield connection
    finally:
        connection.close()


def _copy_pages(source: apsw.Connection, copy: apsw.Connection, target: Path, progress: Progress | None) -> None:
    """An error may be of either file, and is the source's unless only who writes can meet it."""
    with copy.backup("main", source, "main") as copying:
        while not copying.done:
            try:
                copying.step(PAGES_AT_ONCE)
            except (apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError) as error:
                raise store_error(error, str(target)) from error
            if progress is not None:
                progress(copying.page_count - copying.remaining, copying.page_count)


def is_whole_in_file(file: LedgerFile) -> bool:
    """Whether all of the ledger lies in its file, and none of it in the log; asked while a snapshot is open. One that
    was taken while the log was empty keeps everybody from copying a later log into the file: whoever would, waits for
    it. The log is looked at after the snapshot was taken, so an empty one was empty then."""
    log = Path(f"{file.name}-wal")
    return Path(f"{file.name}-shm").exists() and not (log.exists() and log.stat().st_size)


@contextmanager
def _copying_bytes(source: apsw.Connection, file: LedgerFile, aside: Path, progress: Progress | None) -> Iterator[None]:
    """While the block runs, the file is copied as it lies, by a thread; after the block the rest is waited for."""
    pages = source.pragma("page_count")
    copier = FileCopier(file.descriptor(), aside, pages * source.pragma("page_size"))
    copier.start()
    try:
        yield
        while copier.is_alive():
            if progress is not None:
                progress(copier.taken * pages // copier.size, pages)
            copier.join(WAIT_SECONDS)
    finally:
        copier.is_cut = True
        copier.join()
    if copier.error is not None:
        raise copier.error


class FileCopier(Thread):
    """Copies the first `size` bytes of a file into another one."""

    def __init__(self, descriptor: int, aside: Path, size: int) -> None:
        super().__init__(name="copy of a ledger", daemon=True)
        self._descriptor, self._aside, self.size = descriptor, aside, size
        self.taken, self.is_cut = 0, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with open(self._aside, "r+b", buffering=0) as copy:
                while self.taken < self.size and not self.is_cut:
                    self.taken += _move_bytes(self._descriptor, copy, self.taken, self.size - self.taken)
        except BaseException as error:  # it is raised where the thread is waited for
            self.error = error


def _move_bytes(descriptor: int, copy: FileIO, offset: int, most: int) -> int:
    """Some bytes from a place of one file to the end of another; on Linux without a detour through this process."""
    moved = _send_bytes(descriptor, copy, offset, most) if sys.platform == "linux" else None
    if moved is None:
        moved = copy.write(os.pread(descriptor, min(most, BYTES_AT_ONCE), offset)) or 0
    if not moved:
        raise OSError(EIO, "the file is shorter than its pages", str(copy.name))
    return moved


def _send_bytes(descriptor: int, copy: FileIO, offset: int, most: int) -> int | None:
    """None where a file system has no such call, as some that programs provide."""
    try:
        return os.sendfile(copy.fileno(), descriptor, offset, min(most, BYTES_AT_ONCE))
    except OSError as error:
        if error.errno not in (EINVAL, ENOSYS):
            raise
        return None


def _clear_free_pages(copy: apsw.Connection) -> None:
    """Overwrite what was deleted in the source: values take all free pages, and are deleted in their turn."""
    free_bytes = copy.pragma("freelist_count") * copy.pragma("page_size")
    sizes = (min(FILLING_BYTES, free_bytes - start) for start in range(0, free_bytes, FILLING_BYTES))
    copy.execute("BEGIN IMMEDIATE")
    copy.executemany(
        "INSERT INTO local(key, value) VALUES (?, zeroblob(?))", ((f"free:{i}", size) for i, size in enumerate(sizes))
    )
    copy.execute("DELETE FROM local WHERE key LIKE 'free:%'")
    copy.execute("COMMIT")


def ensure_free(target: Path) -> None:
    if target.exists():
        raise StoreError(f"{target} exists already", "choose a new file; backups are never overwritten")
    if not target.parent.is_dir():
        raise StoreError(f"there is no folder {target.parent}", "make it first")


def mark_as_copy(connection: apsw.Connection) -> None:
    """A copy goes by a name of its own, and says neither who trusts the ledger nor whom it syncs with."""
    connection.execute(NOTE, (COPIED_NOTE, ""))
    connection.execute("DELETE FROM local WHERE key LIKE 'trust:%'")
    if connection.table_exists("main", "remote"):
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("DELETE FROM remote")


def copies_beside(ledger: Path) -> list[Path]:
    """What upgrades and restored backups left beside a ledger, and copies of it that were cut short there."""
    name = escape(ledger.name)
    names = (f"{name}.schema-*.backup*", f"{name}*.partial", f"{name}.replaced-*", f"{name}.restored*")
    return sorted({copy for name in names for copy in ledger.parent.glob(name)})
