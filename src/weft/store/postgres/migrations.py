"""The schema steps of SQLite in PostgreSQL's words: forward only, all that are missing in one transaction.

Tables, their columns and the order of these are the same on both engines, so the steps are written once; only the names
of types differ. Text is compared byte by byte, as SQLite does, whatever the database's own collation is. The readable
surface is written for each engine and made again with every step. Whoever finds a step missing takes the writers' lock
and looks again: two programs that start at once take each step once.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from weft.kernel.errors import LedgerTooNew, NotALedger, StoreFailed
from weft.store.postgres.address import PostgresAddress
from weft.store.postgres.connection import PostgresSql
from weft.store.postgres.failures import GRANT
from weft.store.postgres.schema_objects import check_objects
from weft.store.sqlite.migrations import Schema, own_part, package_folder
from weft.store.sqlite.migrations import shipped_schema as sqlite_schema
from weft.store.sqlite.schema_objects import quoted

MARK = "weft_schema"
"""The table that says that a schema is a ledger, and of which number."""
OWN = f"""
CREATE TABLE {MARK} (number BIGINT NOT NULL);
INSERT INTO {MARK} VALUES (0);
CREATE SEQUENCE writes;
CREATE TABLE outcome (writer TEXT COLLATE "C" PRIMARY KEY, mark BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now());
"""
"""What PostgreSQL alone needs: who wrote last, and how a commit without events is told from one that failed."""
_SHORT = {
    "text_of": "(SELECT text FROM content_text WHERE n = {0})",
    "json_of": "(SELECT json FROM content_json WHERE n = {0})",
    "name_of": "CASE WHEN {0} LIKE '#%' THEN (SELECT text FROM content_text"
    " WHERE n = CAST(substr({0}, 2) AS BIGINT)) ELSE {0} END",
}
_TYPES = {"INTEGER": "BIGINT", "BLOB": "BYTEA", "TEXT": 'TEXT COLLATE "C"', "WITHOUT ROWID": ""}
_WORDS = re.compile(r"--[^\n]*|\bWITHOUT ROWID\b|\bINTEGER\b|\bBLOB\b|\bTEXT\b")


def shipped_schema() -> Schema:
    folder = package_folder("weft.store.postgres", __file__)
    steps = (replace(step, own=own_part(folder, f"{step.number:04}")) for step in sqlite_schema().migrations)
    return Schema(tuple(steps), spelled_out(folder.joinpath("surface.sql").read_text()))


def spelled_out(surface: str) -> str:
    """The surface's short words, each with the question that it is short for in its place."""
    for word, question in _SHORT.items():
        while (at := surface.find(f"{word}(")) >= 0:
            asked = _inside(surface, at + len(word))
            surface = surface[:at] + question.format(asked) + surface[at + len(f"{word}({asked})") :]
    return surface


def _inside(text: str, at: int) -> str:
    """What stands between the bracket that opens here and the one that closes it."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[at + 1 : end]
    raise AssertionError("a bracket is left open")


def in_postgres(step: str) -> str:
    return _WORDS.sub(lambda word: _TYPES.get(word[0], ""), step)


def schema_number(sql: PostgresSql, address: PostgresAddress) -> int | None:
    """The ledger's schema number; 0 where the schema is empty, None where there is none; else it is no ledger."""
    may_look = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = ?"
    row = sql.one(may_look, (address.ledger,))
    if row is None:
        return None
    if not row[0]:  # the server then says of its tables that they do not exist
        raise StoreFailed(f"{address.shown}: permission denied for schema {address.ledger}", GRANT)
    things = sql.all(
        "SELECT relname FROM pg_catalog.pg_class WHERE relnamespace = (SELECT oid FROM pg_catalog.pg_namespace"
        " WHERE nspname = ?)",
        (address.ledger,),
    )
    if not things:
        return 0
    if (MARK,) not in things:
        raise NotALedger(address.shown, f"the schema {address.ledger} is another program's")
    row = sql.one(f"SELECT number FROM {MARK}")
    return int(row[0]) if row else 0


def refuse_newer(number: int, schema: Schema) -> None:
    if number > schema.number:
        raise LedgerTooNew(number, schema.number)


def migrate(sql: PostgresSql, address: PostgresAddress, schema: Schema) -> None:
    """Inside a transaction that holds the writers' lock: bring the ledger to `schema`."""
    number = schema_number(sql, address)
    if number is None:
        sql.script(f"CREATE SCHEMA {address.quoted}")
    if not number:
        sql.script(OWN)
        number = 0
    refuse_newer(number, schema)
    check_objects(sql, address, schema, number, OWN)
    if number == schema.number:
        return
    for (view,) in sql.all("SELECT viewname FROM pg_catalog.pg_views WHERE schemaname = ?", (address.ledger,)):
        sql.script(f"DROP VIEW IF EXISTS {quoted(view)} CASCADE")  # others go with it
    for step in schema.migrations:
        if step.number > number:
            sql.script(in_postgres(step.sql))
            if step.own:
                sql.script(step.own)
    sql.script(schema.surface)
    sql.script(f"UPDATE {MARK} SET number = {schema.number}")
