"""From columns to the values that were given: texts, names and JSON behind content numbers.

In the place of a content that was erased, or that never came (number 0), stands the word that says so.
"""

from __future__ import annotations

from typing import Any

import orjson

from weft.kernel.advice import Action
from weft.kernel.contents import ABSENT, ERASED, bytes_text, json_value
from weft.kernel.errors import ContentGone, Damaged
from weft.kernel.weft_error import current_code, quoted
from weft.store.authorship import authored_event
from weft.store.erased_contents import is_husk
from weft.store.facts import FactReader
from weft.store.port import ReadTxn


def text_of(txn: ReadTxn, n: int | None) -> str | None:
    return None if n is None else shown_text(txn.facts, n)


def shown_text(facts: FactReader, n: int) -> str:
    """A content's text as readers show it."""
    if n == 0:
        return ABSENT
    try:
        return bytes_text(facts.content(n))
    except ContentGone:
        remainder = remainder_of(facts, n)
        return ERASED if remainder is None else bytes_text(facts.content(remainder))


def remainder_of(facts: FactReader, n: int) -> int | None:
    """The content that stands in for an erased one: what whoever erased part of it left. One that was redacted again
    has a remainder in turn; None where nothing is left at the end."""
    passed = {n}
    number: int | None = n
    while number is not None and is_husk(facts.sql, number):
        number = _named_remainder(facts, number)
        if number in passed:
            return None
        if number is not None:
            passed.add(number)
    return number


def _named_remainder(facts: FactReader, n: int) -> int | None:
    """By the newest tombstone that names one. Only the word of this ledger counts: another one could name whatever it
    knows the reference of, or put words into a message."""
    row = facts.sql.one("SELECT ref FROM content WHERE n = ?", (n,))
    tombstones = [] if row is None else facts.sql.all("SELECT n FROM erasure WHERE ref = ? ORDER BY n DESC", row)
    for (number,) in tombstones:
        event = authored_event(ReadTxn(facts.sql, facts), number)
        if event is not None and event.is_own and isinstance(ref := event.fields.get("remainder"), str):
            return facts.find_content(bytes.fromhex(ref))
    return None


def name_of(txn: ReadTxn, column: str | None) -> str | None:
    """A name as it was given: columns hold it as it is, or as '#' and the number of its content."""
    if column is not None and not isinstance(column, str):
        raise Damaged(f"{quoted(column)} in the views is no name", Action.VERIFY_AND_REBUILD)
    return text_of(txn, number_in(column)) if column and column[0] == "#" else column


def error_code_of(txn: ReadTxn, column: str | None) -> str | None:
    """The code of an error as it is called today; what other tools recorded stays as it is."""
    code = name_of(txn, column)
    return None if code is None else current_code(code)


def number_in(column: str) -> int:
    """The number of the content that stands in a column of text, after a '#'."""
    if not column[1:].isdecimal():
        raise Damaged(f"{quoted(column)} in the views names no content", Action.VERIFY_AND_REBUILD)
    return int(column[1:])


def json_of(txn: ReadTxn, n: int | None) -> Any:
    """A JSON value as it was given; a content that was streamed in and is no JSON is its text."""
    if not n:
        return None if n is None else ABSENT
    try:
        data = txn.facts.content(n)
    except ContentGone:
        remainder = remainder_of(txn.facts, n)
        return ERASED if remainder is None else json_of(txn, remainder)
    try:
        return json_value(data)
    except (ValueError, RecursionError):
        return bytes_text(data)


def list_in(column: str | None) -> list[Any]:
    """A list that a view's column holds as JSON: a message's parts, a turn's tools."""
    try:
        found = orjson.loads(column or "[]")
    except orjson.JSONDecodeError as error:
        raise Damaged(f"a list in the views cannot be read: {error}", Action.VERIFY_AND_REBUILD) from error
    if not isinstance(found, list):
        raise Damaged(f"a list in the views is none: {quoted(column)}", Action.VERIFY_AND_REBUILD)
    return found
