"""Finding facts by their hash: a lagging view, filled in batches up to a watermark."""

from __future__ import annotations

from hashlib import sha256

from weft.store.buffer import Insert
from weft.store.facts import FactReader, refuse_disorder
from weft.store.records import KEY_BYTES
from weft.store.sql import Sql

BATCH = 8192
LOG_ROWS = BATCH // 8
LOOKUP_EVENT = Insert("lookup_event", ("key", "n"), ("key", "n"))
LOOKUP_CONTENT = Insert("lookup_content", ("key", "n"), ("key", "n"))
LOOKUP_BYTES = Insert("lookup_bytes", ("scope", "key", "n"), ("scope", "key", "n"))


class LookupView:
    """Fills the lookup tables from their watermarks on, in sorted batches so that neighbours share pages."""

    def __init__(self, sql: Sql) -> None:
        self.sql, self.facts = sql, FactReader(sql)

    def advance(self) -> bool:
        """One batch of each; True where one was full, so that there is more of what was there. Whoever chased after
        what others add meanwhile would never come to an end."""
        return self._advance_events() | self._advance_contents()

    def _advance_events(self) -> bool:
        mark = self.facts.watermark("lookup_event")
        rows = self.facts.log(mark, LOG_ROWS)
        keys = [(sha256(line).digest()[:KEY_BYTES], n) for row in rows for n, line in enumerate(row.lines(), row.first)]
        if keys:
            self.sql.add(LOOKUP_EVENT, sorted(keys))
            self._mark("lookup_event", rows[-1].n)
        return len(rows) == LOG_ROWS

    def _advance_contents(self) -> bool:
        mark = self.facts.watermark("lookup_content")
        rows = self.sql.all("SELECT n, scope, ref, digest FROM content WHERE n > ? ORDER BY n LIMIT ?", (mark, BATCH))
        if not rows:
            return False
        refuse_disorder("content", mark, rows)
        refs = sorted((bytes(ref)[:KEY_BYTES], n) for n, _, ref, _ in rows)
        digests = sorted((scope, bytes(digest)[:KEY_BYTES], n) for n, scope, _, digest in rows if digest)
        self.sql.add(LOOKUP_CONTENT, refs)
        self.sql.add(LOOKUP_BYTES, digests)
        self._mark("lookup_content", rows[-1][0])
        return len(rows) == BATCH

    def _mark(self, view: str, n: int) -> None:
        self.sql.run(
            "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (view, n)
        )
