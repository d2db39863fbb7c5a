"""The same question about many rows, asked a few hundred at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from weft.store.port import Row, Sql

AT_ONCE = 256


def rows_in(sql: Sql, query: str, keys: Iterable[Any]) -> Iterator[Row]:
    """The rows of a query that ends in `IN`, for these keys."""
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), AT_ONCE):
        some = wanted[start : start + AT_ONCE]
        yield from sql.all(f"{query} ({', '.join('?' * len(some))})", some)
