"""Databases on a PostgreSQL server as sources: the tables that an importer knows are copied, as they were at one
moment, into a SQLite file with the same tables, and that is read like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import apsw
from msgspec import Struct

from weft.exchange.importers.port import HEAD_BYTES, Source
from weft.exchange.importers.records.jsonl import sample
from weft.kernel.errors import InvalidInput
from weft.kernel.foreign_input import ReadBudget
from weft.kernel.typed_names import Site

QUIET_SECONDS = 300
KEY = ("thread_id", "checkpoint_ns", "checkpoint_id")
TABLES = {
    "checkpoints": (*KEY, "parent_checkpoint_id", "type", "checkpoint", "metadata"),
    "checkpoint_blobs": ("thread_id", "checkpoint_ns", "channel", "version", "type", "blob"),
    "checkpoint_writes": (*KEY, "task_id", "task_path", "idx", "channel", "type", "blob"),
}
"""Of LangGraph's PostgresSaver. The first columns of each, up to its last key, put its rows in order."""
ORDERED = {"checkpoints": 3, "checkpoint_blobs": 4, "checkpoint_writes": 6}
MARK = (
    "SELECT (SELECT count(*) FROM checkpoints), (SELECT max(checkpoint_id) FROM checkpoints),"
    " (SELECT count(*) FROM checkpoint_writes), (SELECT max(checkpoint->>'ts') FROM checkpoints),"
    " pg_total_relation_size('checkpoints') + pg_total_relation_size('checkpoint_blobs')"
)


UNREADABLE = "an address that cannot be read"
"""What stands for an address of which nobody knows where its password ends."""


class Address(Struct, frozen=True):
    """Where a database is reached. It may hold a password, so it is never shown or stored as it is."""

    url: str

    @classmethod
    def is_one(cls, word: str) -> bool:
        return Site.of(word) is Site.POSTGRESQL

    @property
    def shown(self) -> str:
        """The server and the database; without who, and without the rest."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "localhost", f":{parts.port}" if parts.port else ""
        except ValueError:
            return UNREADABLE
        return UNREADABLE if "@" in parts.path or "://" not in self.url else f"postgresql://{host}{port}{parts.path}"

    def candidate(self) -> OnServer:
        """What there is to read; raises OSError where there is nothing, or no way to it."""
        with _connected(self) as connection:
            try:
                count, newest, writes, when, size = connection.execute(MARK).fetchone()
            except _psycopg().Error as error:
                raise OSError(f"it holds no checkpoints of LangGraph: {_first_line(error)}") from error
        mark = int.from_bytes(sha256(f"{count} {newest} {writes}".encode()).digest()[:7], "big")
        return OnServer(self, self.shown, int(size), mark, _seconds(when))


class OnServer(Struct, frozen=True):
    """A database that may hold somebody's sessions."""

    address: Address
    name: str
    size: int
    stamp: int
    """Not a time: another number whenever rows have come or gone."""
    changed: float
    is_packed: bool = True

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def changed_ms(self) -> int:
        return int(self.changed * 1000)

    def is_as(self, read: Any) -> bool:
        return (read.size, read.stamp) == (self.size, self.stamp)

    def is_quiet(self, now: float) -> bool:
        return now - self.changed > QUIET_SECONDS

    @contextmanager
    def open(self, now: float, budget: ReadBudget) -> Iterator[Source]:
        with TemporaryDirectory(prefix="weft-import-") as folder:
            path = Path(folder) / "checkpoints.db"
            try:
                with _connected(self.address) as connection:
                    _copy(connection, path, budget)
            except _psycopg().Error as error:
                raise OSError(f"it cannot be read: {_first_line(error)}") from error
            size, head = path.stat().st_size, sample(path, HEAD_BYTES)
            yield Source(
                path=path,
                name=self.name,
                size=size,
                head=head,
                quiet=self.is_quiet(now),
                now=now,
            )


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise OSError("reading from PostgreSQL needs psycopg: install weft[postgres]") from error


@contextmanager
def _connected(address: Address) -> Iterator[Any]:
    """One moment of the database, which nothing is written to."""
    driver = _psycopg()
    _ensure_readable(address)
    try:
        connection = driver.connect(address.url, connect_timeout=10)
    except driver.Error as error:
        raise OSError(f"it cannot be reached: {_first_line(error)}") from error
    try:
        connection.isolation_level = driver.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield connection
    finally:
        connection.close()


def _ensure_readable(address: Address) -> None:
    """What libpq says of an address that it cannot read may hold a part of its password."""
    from weft.store.postgres.connection import parse_address

    try:
        parse_address(address.url)
    except InvalidInput as error:
        raise OSError(f"{error}; {error.hint}") from None


def _copy(connection: Any, path: Path, budget: ReadBudget) -> None:
    target = apsw.Connection(str(path))
    try:
        with target:
            for table, columns in TABLES.items():
                target.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                _fill(connection, target, table, columns, budget)
            target.execute("CREATE INDEX by_id ON checkpoints(thread_id, checkpoint_ns, checkpoint_id)")
            target.execute("CREATE INDEX by_version ON checkpoint_blobs(thread_id, checkpoint_ns, channel, version)")
    finally:
        target.close()


def _fill(connection: Any, target: apsw.Connection, table: str, columns: tuple[str, ...], budget: ReadBudget) -> None:
    known = {name for (name,) in connection.execute(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = %s", (table,)
    )}  # fmt: skip
    asked = [_column(name) if name in known else "NULL" for name in columns]
    order = ", ".join(name for name in columns[: ORDERED[table]] if name in known)
    marks = ", ".join("?" * len(columns))
    with connection.cursor(name=f"weft_{table}") as rows:
        rows.itersize = 200
        rows.execute(f"SELECT {', '.join(asked)} FROM {table} ORDER BY {order}")
        target.executemany(f"INSERT INTO {table} VALUES ({marks})", _within(budget, rows))


def _within(budget: ReadBudget, rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        size = sum(len(value) for value in row if isinstance(value, str | bytes))
        budget.check_held(size, "a row in bytes")
        budget.note_read(size)
        budget.take_bytes(size)
        budget.check_time()
        yield row


def _column(name: str) -> str:
    return f"{name}::text" if name in ("checkpoint", "metadata") else name


def _seconds(when: Any) -> float:
    try:
        return datetime.fromisoformat(when).timestamp() if isinstance(when, str) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
