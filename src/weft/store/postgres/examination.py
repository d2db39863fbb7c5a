"""What PostgreSQL itself can tell about the soundness of a ledger's tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg

from weft.kernel.advice import Action
from weft.store.diagnosis import Diagnosis, error, good
from weft.store.postgres.address import PostgresAddress
from weft.store.postgres.connection import PostgresSql
from weft.store.postgres.failures import server_message
from weft.store.postgres.migrations import schema_number
from weft.store.sqlite.migrations import parts_of
from weft.store.sqlite.migrations import shipped_schema as sqlite_schema
from weft.store.sqlite.schema_objects import quoted

_RELATIONS = (
    "SELECT c.relname, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam"
    " WHERE n.nspname = ? AND c.relkind = ? AND (c.relkind <> 'i' OR a.amname = 'btree') ORDER BY c.relname"
)


_PARTS = (
    "SELECT CASE c.relkind WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view ' ELSE 'index ' END || c.relname"
    " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = ? AND c.relkind IN ('r', 'v', 'i')"
)
_NOT_HERE = re.compile("table word_.*")
"""What only SQLite's index of words consists of."""


def examine_schema(sql: PostgresSql, address: PostgresAddress) -> Iterator[Diagnosis]:
    """Is everything there that a ledger of this program has?"""
    number = schema_number(sql, address) or 0
    yield good("schema", f"schema {number}")
    missing = missing_parts(sql, address)
    for part in missing:
        yield error("structure", part, "somebody has dropped it", Action.COPY_BACKUP)
    if not missing:
        yield good("structure", "every table, view and index is there")


def missing_parts(sql: PostgresSql, address: PostgresAddress) -> list[str]:
    """Tables, views and indexes that a ledger has and that somebody has dropped from this one, in words."""
    if schema_number(sql, address) != sqlite_schema().number:
        return []
    expected = {part for part in parts_of(sqlite_schema()) if _NOT_HERE.fullmatch(part) is None}
    there = {part for (part,) in sql.all(_PARTS, (address.ledger,))}
    return [f"{part} is missing" for part in sorted(expected - there)]


def find_damage(sql: PostgresSql, address: PostgresAddress) -> list[str]:
    """Every row of every table is read, so that a page that is not what was written fails; where the `amcheck`
    extension is installed, every index that it knows is held against its table as well."""
    damage = missing_parts(sql, address)
    for table, _ in sql.all(_RELATIONS, (address.ledger, "r")):
        damage += _try(sql, table, f"SELECT count(*) FROM {quoted(table)} t WHERE t::text IS NULL")
    amcheck = sql.one(
        "SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'amcheck'"
    )
    if amcheck is not None:
        for index, oid in sql.all(_RELATIONS, (address.ledger, "i")):
            damage += _try(sql, index, f"SELECT {quoted(amcheck[0])}.bt_index_check({oid}::regclass, true)")
    return damage


def _try(sql: PostgresSql, name: str, question: str) -> list[str]:
    """The transaction goes on after a failure: what else is wrong is wanted too."""
    sql.script("SAVEPOINT look")
    try:
        sql.script(question)
    except psycopg.errors.InsufficientPrivilege:
        sql.script("ROLLBACK TO look")
        return []
    except psycopg.DatabaseError as error:
        if sql.broken:
            raise
        sql.script("ROLLBACK TO look")
        return [f"{name}: {server_message(error)}"]
    sql.script("RELEASE look")
    return []
