"""Databases of other tools: copied while in use, read without trust in their schema, kept verbatim as JSON lines."""

from __future__ import annotations

import base64
import shutil
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

from weft.exchange.importers.port import Report
from weft.exchange.importers.records.values import canonical

_raw_json = msgspec.json.Decoder(Raw)


class RowLines:
    """One line a row: its key, other columns, and its JSON to the letter; what is no JSON stands there as base64."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, key: str, data: bytes | None, **columns: Any) -> int:
        """The number of this row among those that were added."""
        head = canonical({"key": key, **{name: value for name, value in columns.items() if value is not None}})[:-1]
        shown = b"null" if data is None else _as_json(data)
        name = b"data" if shown is not None else b"bytes"
        self._file.write(head + b',"' + name + b'":')
        self._file.write(b'"' + base64.b64encode(data or b"") + b'"' if shown is None else shown)
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
    """The plain tables of a copy."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        found = self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        self.columns: dict[str, list[str]] = {
            name: [row[1] for row in self.rows("SELECT * FROM pragma_table_info(?)", (name,))] for (name,) in found
        }

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return list(self._connection.execute(sql, values))

    def walk(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """One row after the other, for those that are too many or too large to hold."""
        return iter(self._connection.execute(sql, values))

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and set(columns) <= set(self.columns[table])


@contextmanager
def opened(path: Path, report: Report) -> Iterator[Database | None]:
    """A copy, to be read; None where it is no database, which is reported."""
    with copied(path, report) as copy:
        connection = None
        try:
            connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
            database = Database(connection)
        except UNREADABLE as error:
            report.problem(None, f"the database cannot be read: {error}"[:300])
            yield None
        else:
            yield database
        finally:
            if connection is not None:
                connection.close()


@contextmanager
def copied(path: Path, report: Report) -> Iterator[Path]:
    """The database and its log as they were at one moment, if nobody wrote all the time."""
    log = path.with_name(f"{path.name}-wal")
    with TemporaryDirectory(prefix="weft-import-") as folder:
        target = Path(folder) / "copy.db"
        for _ in range(TRIES):
            before = _stamps(path, log)
            shutil.copyfile(path, target)
            if log.exists() and not log.is_symlink():
                shutil.copyfile(log, target.with_name("copy.db-wal"))
            if _stamps(path, log) == before:
                break
        else:
            report.problem(None, "the database was written to while it was copied; import it again")
        yield target


def _stamps(*paths: Path) -> list[tuple[int, int] | None]:
    found = (path.stat() if path.exists() else None for path in paths)
    return [None if each is None else (each.st_mtime_ns, each.st_size) for each in found]


def peek(path: Path, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """A few rows of the file as it lies there, without its log: nothing is written, locked or made beside it. For
    telling what a database is; empty where it cannot be told."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    except apsw.Error:
        return []
    try:
        return list(connection.execute(sql, values))
    except UNREADABLE:
        return []
    finally:
        connection.close()
