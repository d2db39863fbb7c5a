"""What PostgreSQL itself can tell about the soundness of a ledger's tables."""

from __future__ import annotations

import psycopg

from weft.store.postgres.address import Address
from weft.store.postgres.connection import PostgresSql
from weft.store.postgres.failures import said

_RELATIONS = (
    "SELECT c.relname, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam"
    " WHERE n.nspname = ? AND c.relkind = ? AND (c.relkind <> 'i' OR a.amname = 'btree') ORDER BY c.relname"
)


def find_damage(sql: PostgresSql, address: Address) -> list[str]:
    """Every row of every table is read, so that a page that is not what was written fails; where the `amcheck`
    extension is installed, every index that it knows is held against its table as well."""
    found: list[str] = []
    for table, _ in sql.all(_RELATIONS, (address.ledger, "r")):
        found += _try(sql, table, f'SELECT count(*) FROM "{table}" t WHERE t::text IS NULL')
    amcheck = sql.one(
        "SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'amcheck'"
    )
    if amcheck is not None:
        for index, oid in sql.all(_RELATIONS, (address.ledger, "i")):
            found += _try(sql, index, f'SELECT "{amcheck[0]}".bt_index_check({oid}::regclass, true)')
    return found


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
        return [f"{name}: {said(error)}"]
    sql.script("RELEASE look")
    return []
