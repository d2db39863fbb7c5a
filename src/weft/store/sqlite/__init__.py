"""A ledger in one SQLite file, with a lock file and a head file beside it; or in memory."""

from weft.store.sqlite.store import MemoryStore, SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
