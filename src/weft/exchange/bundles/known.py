"""What has come so far in a bundle: kept in a temporary database, so that memory stays the same however long a thread
is."""

from __future__ import annotations

from typing import Self

import apsw

CACHE_KIB = 16 * 1024


class Known:
    """Hashes and names of streams, and a word about each."""

    def __init__(self) -> None:
        self._database = apsw.Connection("")  # SQLite's own temporary file, gone with the connection
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE known (name TEXT PRIMARY KEY, told TEXT NOT NULL) WITHOUT ROWID; BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def get(self, name: str) -> str | None:
        """What is told of it; None where it has not come yet."""
        row = self._database.execute("SELECT told FROM known WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def add(self, name: str, told: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", (name, told))
