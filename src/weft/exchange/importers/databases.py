"""Databases of other tools: copied while in use, read without trust in their schema, kept verbatim as JSON lines."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import apsw
import msgspec
from msgspec import Raw

from weft.exchange.importers.foreign_files import open_beneath, regular_descriptor
from weft.exchange.importers.foreign_values import SOURCE_LIMITS, STATEMENT_LIMITS, canonical
from weft.exchange.importers.port import Report
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget

_raw_json = msgspec.json.Decoder(Raw)


class RowLines:
    """One line a row: its key, other columns, and its JSON to the letter; what is no JSON stands there as base64."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, key: str, data: bytes | None, **columns: Any) -> int:
        """The number of this row among those that were added."""
        head = canonical({"key": key, **{name: value for name, value in columns.items() if value is not None}})[:-1]
        json_bytes = b"null" if data is None else _as_json(data)
        name = b"data" if json_bytes is not None else b"bytes"
        self._file.write(head + b',"' + name + b'":')
        self._file.write(b'"' + base64.b64encode(data or b"") + b'"' if json_bytes is None else json_bytes)
        self._file.write(b"}\n")
        self.count += 1
        return self.count - 1

    def add_value(self, key: str, value: Any, **columns: Any) -> int:
        """A part of a row, as one line of its own."""
        return self.add(key, canonical(value), **columns)

    def finish(self) -> bytes:
        return self._file.getvalue()


def _as_json(data: bytes) -> bytes | None:
    """JSON on one line; line ends lie between its tokens only."""
    try:
        _raw_json.decode(data)
    except (ValueError, RecursionError):
        return None
    return data.replace(b"\r", b" ").replace(b"\n", b" ")


MAGIC = b"SQLite format 3\0"
TRIES = 3
UNREADABLE = (apsw.Error, UnicodeDecodeError)
"""What reading a damaged database raises."""


class Database:
    """The plain tables of a database that a stranger wrote. Nothing in its schema runs: views, triggers and virtual
    tables are not named by `columns`, and a table of it has no generated columns. A statement gives no more than its
    file can hold, and all of them end with the budget."""

    def __init__(self, connection: apsw.Connection, size: int, budget: ReadBudget) -> None:
        self._connection, self._size = connection, size
        confine(connection)
        self._budget, self._steps = budget, 0
        connection.set_progress_handler(self._check_steps, HANDLED_STEPS)
        self.columns: dict[str, list[str]] = {
            name: [row[1] for row in self.rows(COLUMNS, (name,))] for (name,) in self.rows(TABLES)
        }

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return list(self.walk(sql, values))

    def walk(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """One row after the other, for those that are too many or too large to hold."""
        self._steps = 0
        return _rows(self._connection, sql, values, self._size)

    def _check_steps(self) -> bool:
        """SQLite asks now and then whether to stop: also while it sorts, before there is a first row."""
        self._budget.check_time()
        self._steps += HANDLED_STEPS
        most = STATEMENT_STEPS + STEPS_A_BYTE * self._size
        if self._steps > most:
            raise LimitExceeded("the instructions of one statement", self._steps, most, STATEMENT_LIMITS.advice)
        return False

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and set(columns) <= set(self.columns[table])


TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
COLUMNS = "SELECT * FROM pragma_table_info(?)"
"""Without the columns that are generated."""
ROW_BYTES = 64
"""That a row of nothing takes in memory."""
HANDLED_STEPS = 50_000
"""Instructions of SQLite between two looks at the clock: about a millisecond."""
STATEMENT_STEPS, STEPS_A_BYTE = 400_000_000, 200
"""A statement takes so many instructions at most, and so many more for each byte of its database: some ten seconds. To
visit and sort a row takes about thirty."""
PEEK_STEPS = 100_000_000
"""A look at what a database is takes so many instructions at most: some seconds."""


def _rows(connection: apsw.Connection, sql: str, values: tuple[Any, ...], size: int) -> Iterator[Any]:
    """Of a database of so many bytes. Pages that are used twice let a small file hold rows without end."""
    budget = ReadBudget(STATEMENT_LIMITS)
    budget.note_read(size)
    for row in connection.execute(sql, values):
        budget.take_bytes(ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes)))
        yield row


def confine(connection: apsw.Connection) -> None:
    """Nothing of the schema is trusted; values and texts of statements have a most."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, SOURCE_LIMITS.held_bytes)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)


@contextmanager
def open_database(path: Path, report: Report, root: Path | None = None) -> Iterator[Database | None]:
    """A copy, to be read; None where it is no database, which is reported. `root`: it lies beside the source, below
    this folder, and no link leads to it."""
    with copy_database(path, report, root) as copy:
        connection = None
        try:
            connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
            database = Database(connection, _size(copy), report.budget)
        except UNREADABLE as error:
            report.problem(None, f"the database cannot be read: {error}"[:300])
            yield None
        else:
            yield database
        finally:
            if connection is not None:
                connection.close()


@contextmanager
def copy_database(path: Path, report: Report, root: Path | None = None) -> Iterator[Path]:
    """The database and its log as they were at one moment, if nobody wrote all the time."""
    log = path.with_name(f"{path.name}-wal")
    with TemporaryDirectory(prefix="weft-import-") as folder:
        target = Path(folder) / "copy.db"
        for _ in range(TRIES):
            before = _stamps(path, log)
            _copy(path, target, root)
            if log.is_file() and not log.is_symlink():
                _copy(log, target.with_name("copy.db-wal"), root or log.parent)
            # Neither file changed while both were copied: the copies are of one moment.
            if _stamps(path, log) == before:
                break
        else:
            report.problem(None, "the database was written to while it was copied; import it again")
        yield target


def _copy(path: Path, target: Path, root: Path | None) -> None:
    """A regular file; not more of it than it had when it was opened."""
    with open(regular_descriptor(path), "rb") if root is None else open_beneath(path, root) as file:
        remaining = os.fstat(file.fileno()).st_size
        with target.open("wb") as copy:
            while remaining > 0 and (chunk := file.read(min(remaining, 1 << 20))):
                copy.write(chunk)
                remaining -= len(chunk)


def _size(copy: Path) -> int:
    """Of a database and its log."""
    return sum(size for _, size in filter(None, _stamps(copy, copy.with_name(f"{copy.name}-wal"))))


def _stamps(*paths: Path) -> list[tuple[int, int] | None]:
    stats = (path.stat() if path.exists() else None for path in paths)
    return [None if stat is None else (stat.st_mtime_ns, stat.st_size) for stat in stats]


def peek(path: Path, sql: str, values: tuple[Any, ...] = (), table: str | None = None) -> list[Any]:
    """A few rows of the file as it lies there, without its log: nothing is written, locked or made beside it. For
    telling what a database is; empty where it cannot be told, or where `table` is no plain table."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    except apsw.Error:
        return []
    try:
        confine(connection)
        connection.set_progress_handler(lambda: True, PEEK_STEPS)
        size = path.stat().st_size
        plain = {name for (name,) in _rows(connection, TABLES, (), size)}
        return list(_rows(connection, sql, values, size)) if table is None or table in plain else []
    except (OSError, LimitExceeded, *UNREADABLE):
        return []
    finally:
        connection.close()
