"""The verbs of one open transaction, the same on every engine.

Statements use `?` for values, named tables only, and nothing that one engine alone understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from weft.store.buffer import Insert

Row = tuple[Any, ...]
Question = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


class Sql(Protocol):
    """One open transaction of a backend."""

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row, or None."""

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Every row."""

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Every row, one at a time; other questions may be asked in between."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """A statement without an answer."""

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """The same statement for many rows."""

    def add(self, insert: Insert, rows: Sequence[Row]) -> None:
        """Rows to be written together with others, before anything else is asked of the database."""


AT_ONCE = 256


def rows_in(sql: Sql, query: str, keys: Iterable[Any]) -> Iterator[Row]:
    """The rows of a query that ends in `IN`, for these keys."""
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), AT_ONCE):
        some = wanted[start : start + AT_ONCE]
        yield from sql.all(f"{query} ({', '.join('?' * len(some))})", some)


def watermark_of(sql: Sql, view: str) -> int:
    """How far a lagging view is filled."""
    row = sql.one("SELECT n FROM watermark WHERE view = ?", (view,))
    return int(row[0]) if row else 0
