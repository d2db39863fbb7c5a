"""The tables, views, indexes and triggers of a database file, compared with those that a ledger has.

SQLite runs what a schema says: a view or a trigger where a table is expected, an expression in an index, a check or a
generated column. So every object is compared by kind, name, table and text. Blanks and comments do not count. The
tables that FTS5 makes for itself may be spelled as another version of SQLite spells them, as long as they hold no
expression; tables of statistics, which `ANALYZE` makes, hold none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from operator import itemgetter
from typing import Any

import apsw
import msgspec
from msgspec import Struct

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
        found
        for found in objects
        if found != expected.get(found.name)
        and found.sql not in _STATISTICS
        and not (found.kind == "view" and found.name in views)
        and not (found.name in expected and _is_plain_shadow(found, expected[found.name]))
    ]


def _is_plain_shadow(found: SchemaObject, expected: SchemaObject) -> bool:
    """Both are tables that FTS5 made, and only columns differ: a name in single quotes is its way to write one."""
    spelled = _PLAIN_TABLE.fullmatch(found.sql)
    return (
        spelled is not None
        and _PLAIN_TABLE.fullmatch(expected.sql) is not None
        and (found.kind, found.table, spelled[1]) == ("table", found.name, found.name)
        and _EXPRESSIONS.search(found.sql) is None
    )
