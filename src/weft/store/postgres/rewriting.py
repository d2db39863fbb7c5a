"""Writing a ledger's tables anew, so that no file of theirs holds what was deleted."""

from __future__ import annotations

import psycopg

from weft.store.postgres.address import Address
from weft.store.postgres.connection import PostgresSql


def rewrite_tables(sql: PostgresSql, address: Address, patience: float) -> bool:
    """Table by table, while writers wait for the ledger's lock. False where a reader of a table does not end in time;
    what was rewritten until then is clean."""
    sql.script(f"SET lock_timeout TO '{max(1, int(patience * 1000))}ms'")
    rows = sql.all(
        "SELECT relname FROM pg_catalog.pg_class WHERE relkind = 'r' AND relnamespace ="
        " (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ?) ORDER BY relname",
        (address.ledger,),
    )
    try:
        sql.script(f"SELECT pg_advisory_lock({address.lock})")
        for (table,) in rows:
            sql.script(f'VACUUM (FULL) "{table}"')
    except psycopg.errors.LockNotAvailable:
        return False
    return True
