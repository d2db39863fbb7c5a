"""The verbs of one open transaction, the same on every engine.

Statements use `?` for values, named tables only, and nothing that one engine alone understands.

New rows are gathered in a `WriteBuffer` and written many at a time. Writing row by row costs a statement each, and an
engine that lets other threads run during every statement makes each of them a switch of threads. The waiting rows are
written before anything else is asked of the database, so that nobody ever misses them, and before the commit at the
latest. A table has rows of one statement at a time; another statement writes the waiting ones first, so the order
within a table is kept. The rows of the work under way lie apart from those of work that is done: undoing it is
forgetting them. Only work that reached the database, by a statement of its own or by rows written early, needs a
savepoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from weft.kernel.errors import Damaged

Row = tuple[Any, ...]
Question = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


class Sql(Protocol):
    """One open transaction of a backend."""

    def fetch_row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row, or None."""

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Every row."""

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Every row, one at a time; other questions may be asked in between."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """A statement without an answer."""

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """The same statement for many rows."""

    def add(self, insert: Insert, rows: Sequence[Row]) -> None:
        """Rows to be written together with others, before anything else is asked of the database."""


KEYS_PER_QUESTION = 256


def rows_in(sql: Sql, query: str, keys: Iterable[Any]) -> Iterator[Row]:
    """The rows of a query that ends in `IN`, for these keys."""
    unique_keys = list(dict.fromkeys(keys))
    for start in range(0, len(unique_keys), KEYS_PER_QUESTION):
        batch = unique_keys[start : start + KEYS_PER_QUESTION]
        yield from sql.fetch_rows(f"{query} ({', '.join('?' * len(batch))})", batch)


def rows_wanted(sql: Sql, columns: Sequence[str], query: str, keys: Iterable[Row]) -> Iterator[Row]:
    """The rows of a query that reads these keys from a table `wanted` with these columns."""
    unique_keys = list(dict.fromkeys(keys))
    key = f"({', '.join('?' * len(columns))})"
    for start in range(0, len(unique_keys), KEYS_PER_QUESTION):
        batch = unique_keys[start : start + KEYS_PER_QUESTION]
        table = f"WITH wanted({', '.join(columns)}) AS (VALUES {', '.join([key] * len(batch))})"
        yield from sql.fetch_rows(f"{table} {query}", list(chain.from_iterable(batch)))


def watermark_of(sql: Sql, view: str) -> int:
    """How far a lagging view is filled."""
    row = sql.fetch_row("SELECT n FROM watermark WHERE view = ?", (view,))
    return int(row[0]) if row else 0


_UNHELD = re.compile("[\0\ud800-\udfff]")


def askable(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a question, as every engine takes them. No text in a table holds a NUL or a lone surrogate: in its
    place stands what no text holds either, so that nothing is found."""
    return tuple(
        [_UNHELD.sub(_escape_unheld, value) if isinstance(value, str) and _is_odd(value) else value for value in values]
    )


def _is_odd(text: str) -> bool:
    return not text.isascii() or "\0" in text


def _escape_unheld(unheld: re.Match[str]) -> str:
    """Its number, between two code points that are no characters."""
    return f"\ufdd0{ord(unheld[0]):x}\ufdd1"


MAX_ROWS = 1024
"""So many rows of one piece of work wait at most."""
MAX_CHUNK, SMALL_CHUNK = 64, 8
"""So many rows go into one statement at most, and so few in any number: few sizes, so that prepared statements are
found again."""
Rows = dict["Insert", list[Row]]


class RowsRefused(Exception):
    """The engine refused rows of work that was already done; the cause says why, but not whose rows they were."""


class Insert:
    """New rows of one table. With a `key`, which must be its first columns, a row that is there gets new `changes`;
    without any it stays as it is."""

    __slots__ = ("_begin", "_end", "_row", "_statements", "columns", "key", "table")

    def __init__(
        self, table: str, columns: Sequence[str], key: Sequence[str] = (), changes: Sequence[str] = ()
    ) -> None:
        self.table, self.key, self.columns = table, len(key) if changes else 0, tuple(columns)
        self._begin = f"INSERT INTO {table}({', '.join(columns)}) VALUES "
        self._row = f"({','.join('?' * len(columns))})"
        changed = ", ".join(f"{column} = excluded.{column}" for column in changes)
        then = f"UPDATE SET {changed}" if changed else "NOTHING"
        self._end = f" ON CONFLICT ({', '.join(key)}) DO {then}" if key else ""
        self._statements: dict[int, str] = {}

    def statement(self, rows: int) -> str:
        statement = self._statements.get(rows)
        if statement is None:
            statement = self._statements[rows] = self._begin + ",".join([self._row] * rows) + self._end
        return statement

    def newest(self, rows: list[Row]) -> list[Row]:
        """Of several changes to one row the last: a statement may touch each row once."""
        return list({row[: self.key]: row for row in rows}.values()) if self.key else rows


class WriteBuffer:
    """What one connection has yet to write. `execute` runs a statement on it; `waiting` names the tables with rows."""

    def __init__(self, execute: Callable[[str, Sequence[Any]], object]) -> None:
        self._execute = execute
        self._rows_done: Rows = {}
        self._own: Rows = {}
        self.waiting: dict[str, Insert] = {}
        self._at_work = self._saved = False
        self.works_done = 0
        """How many pieces of work were kept."""
        self.is_writing_done = False
        """The rows that are written right now belong to work that was kept."""

    def add(self, insert: Insert, rows: Sequence[Row]) -> None:
        if self.waiting.setdefault(insert.table, insert) is not insert:
            self.write_rows()
            self.waiting[insert.table] = insert
        rows_under_way = self._own.get(insert)
        if rows_under_way is None:
            rows_under_way = self._own[insert] = []
        rows_under_way += rows
        if len(rows_under_way) > MAX_ROWS:
            self.write_rows()

    def write_rows(self) -> None:
        """Every waiting row into its table."""
        if self._rows_done:
            self.is_writing_done = True
            try:
                self._write(self._rows_done)
            except RowsRefused:
                raise
            except Exception as error:  # whatever the engine says, it is not about the work under way
                raise RowsRefused from error
            finally:
                self.is_writing_done = False
        if self._own:
            self._begin_savepoint()
            self._write(self._own)
        self.waiting.clear()

    def before_statement(self) -> None:
        """Before a statement that changes something."""
        self.write_rows()
        self._begin_savepoint()

    def begin(self) -> None:
        """A piece of work begins; it ends with `keep` or `undo`."""
        self._at_work = True

    def keep(self) -> None:
        for insert, rows in self._own.items():
            rows_done = self._rows_done.get(insert)
            if rows_done is None:
                self._rows_done[insert] = rows
            else:
                rows_done += rows
        self._own = {}
        self.works_done += 1
        self._end("RELEASE job")

    def undo(self) -> None:
        self._own = {}
        self._end("ROLLBACK TO job", "RELEASE job")

    def forget(self) -> None:
        """The transaction is gone, and every row with it."""
        self._rows_done, self._own = {}, {}
        self.waiting.clear()
        self._at_work = self._saved = False

    def _begin_savepoint(self) -> None:
        if self._at_work and not self._saved:
            self._execute("SAVEPOINT job", ())
            self._saved = True

    def _end(self, *statements: str) -> None:
        saved, self._at_work, self._saved = self._saved, False, False
        if saved:
            for statement in statements:
                self._execute(statement, ())

    def _write(self, waiting: Rows) -> None:
        execute = self._execute
        for insert, rows in waiting.items():
            if len(rows) == 1:
                execute(insert.statement(1), rows[0])
                continue
            rows = insert.newest(rows)
            for start, size in chunks(len(rows)):
                execute(insert.statement(size), list(chain.from_iterable(rows[start : start + size])))
        waiting.clear()


def chunks(total: int) -> Iterator[tuple[int, int]]:
    """Where each statement's rows begin and how many they are: powers of two, the largest first, down to a few."""
    start = 0
    while start < total:
        remaining = total - start
        size = remaining if remaining <= SMALL_CHUNK else min(MAX_CHUNK, 1 << remaining.bit_length() - 1)
        yield start, size
        start += size


@lru_cache(maxsize=1024)
def words_of_statement(sql: str) -> frozenset[str]:
    """The words of a statement, among them the tables that it asks: rows that wait for others need not be there."""
    return frozenset(_words(sql))


_words = re.compile(r"\w+").findall


def blob(value: object) -> bytes:
    """A stored value that must be bytes: of a damaged row's number, `bytes` would make so many zeros."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise Damaged(f"a stored value is {type(value).__name__}, not bytes")
