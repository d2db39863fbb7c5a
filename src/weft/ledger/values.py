"""From columns to the values that were given: texts, names and JSON behind content numbers."""

from __future__ import annotations

from typing import Any

from weft.kernel.contents import bytes_text, json_value
from weft.store.port import ReadTxn


def text_of(txn: ReadTxn, n: int | None) -> str | None:
    return None if n is None else bytes_text(txn.facts.content(n))


def name_of(txn: ReadTxn, column: str | None) -> str | None:
    """A name as it was given: columns hold it as it is, or as '#' and the number of its content."""
    return text_of(txn, int(column[1:])) if column and column[0] == "#" else column


def json_of(txn: ReadTxn, n: int | None) -> Any:
    """A JSON value as it was given; a content that was streamed in and is no JSON is its text."""
    if n is None:
        return None
    data = txn.facts.content(n)
    try:
        return json_value(data)
    except (ValueError, RecursionError):
        return bytes_text(data)
