"""Writing a ledger's tables anew, so that no file of theirs holds what was deleted."""

from __future__ import annotations

import psycopg

from weft.store.postgres.address import Address
from weft.store.postgres.connection import PostgresSql


def rewrite_tables(sql: PostgresSql, address: Address, patience: float) -> bool:
    """Table by table, while writers wait for the ledger's lock. False where a reader of a table does not end in time;
    what was rewritten until then is clean.

    What the planner knows of a table are values out of its rows, so it is told anew, and the catalog that holds it is
    rewritten as well; the server passes over that, with a warning, where the database is not the user's own.
    """
    sql.script(f"SET lock_timeout TO '{max(1, int(patience * 1000))}ms'")
    rows = sql.all(
        "SELECT relname FROM pg_catalog.pg_class WHERE relkind = 'r' AND relnamespace ="
        " (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ?) ORDER BY relname",
        (address.ledger,),
    )
    try:
        sql.script(f"SELECT pg_advisory_lock({address.lock})")
        for (table,) in rows:
            sql.script(f'VACUUM (FULL, ANALYZE) "{table}"')
        sql.script("VACUUM (FULL) pg_catalog.pg_statistic")
    except psycopg.errors.LockNotAvailable:
        return False
    return True
