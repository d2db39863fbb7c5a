"""A ledger in a schema of a PostgreSQL database. Needs psycopg, which `weft[postgres]` brings."""

from weft.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
