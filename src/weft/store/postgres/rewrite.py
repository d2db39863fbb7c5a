"""Writing a ledger's tables anew, so that no file of theirs holds what was deleted."""

from __future__ import annotations

import psycopg

from weft.store.postgres.address import PostgresAddress
from weft.store.postgres.connection import PostgresSql

CAN_FORGET_STATISTICS = 180_000

_MAY_HOLD_BYTES = (
    "SELECT c.relname FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace ="
    " (SELECT oid FROM pg_namespace WHERE nspname = ?)"
    " AND (pg_relation_size(c.oid) > 0 OR c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0"
    " OR EXISTS (SELECT 1 FROM pg_stats s WHERE s.schemaname = ? AND s.tablename = c.relname)"
    " OR EXISTS (SELECT 1 FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam"
    " WHERE i.indrelid = c.oid AND (m.amname <> 'btree' OR pg_relation_size(x.oid) > 8192)))"
    " ORDER BY c.relname"
)
"""All but tables that never held a row: an index of theirs is its first page, and the planner knows nothing of them. An
emptied one may have left keys in an index."""

_EMPTY_BUT_KNOWN = (
    "SELECT s.tablename, s.attname FROM pg_stats s JOIN pg_class c ON c.relname = s.tablename"
    " JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname"
    " WHERE s.schemaname = ? AND pg_relation_size(c.oid) = 0"
)


def rewrite_tables(sql: PostgresSql, address: PostgresAddress, patience: float) -> bool:
    """Table by table, while writers wait for the ledger's lock. False where a reader of a table does not end in time;
    what was rewritten until then is clean.

    What the planner knows of a table are values out of its rows, so it is told anew, and the catalog that holds it is
    rewritten as well; the server passes over that, with a warning, where the database is not the user's own.
    """
    sql.script(f"SET lock_timeout TO '{max(1, int(patience * 1000))}ms'")
    try:
        sql.script(f"SELECT pg_advisory_lock({address.lock})")
        for (table,) in sql.all(_MAY_HOLD_BYTES, (address.ledger, address.ledger)):
            sql.script(f'VACUUM (FULL, ANALYZE) "{table}"')
        _forget_the_emptied(sql, address)
        sql.script("VACUUM (FULL) pg_catalog.pg_statistic")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _forget_the_emptied(sql: PostgresSql, address: PostgresAddress) -> None:
    """Of a table without rows the planner learns nothing, and remembers what it knew."""
    if sql.connection.info.server_version < CAN_FORGET_STATISTICS:
        return
    for table, column in sql.all(_EMPTY_BUT_KNOWN, (address.ledger,)):
        sql.all("SELECT pg_clear_attribute_stats(?, ?, ?, false)", (address.ledger, table, column))
