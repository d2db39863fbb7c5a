"""Reading facts, the same on every engine.

One append is one row of `log`: its events as canonical JSON lines, keyed by the arrival number of the last one, with
the chain hash after it. Contents lie in `content` in order of arrival. Finding either by its hash is a lagging view:
a unique index over random hashes in every append would cost more the deeper a ledger gets, so `lookup_*` tables are
filled in batches, up to a watermark, and whoever looks something up scans the short rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from msgspec import Struct, field

from weft.kernel.contents import ERASED, ROW_BYTES, ContentHasher, bytes_text, content_ref, readable
from weft.kernel.errors import ContentGone, ContentMissing, Damaged, FactDamaged
from weft.kernel.events import GENESIS
from weft.store.packs import PackReader
from weft.store.records import KEY_BYTES, ContentHead, ContentRow, LogRow, LogTip
from weft.store.sql import Sql, blob, rows_in, rows_wanted, watermark_of

HELD_AT_ONCE = 256
FIRST_ROWS = 8


def refuse_disorder(what: str, after: int, rows: Iterable[Sequence[Any]]) -> None:
    """Rows that a damaged database gives out of order would be asked for again and again."""
    for row in rows:
        if row[0] is None or row[0] <= after:
            raise FactDamaged(what, f"row {row[0]}", f"it comes after row {after}")
        after = row[0]


def refuse_standstill(what: str, before: Any, now: Any) -> None:
    """The same for rows that are asked for from the last to the first."""
    if not now < before:
        raise FactDamaged(what, f"row {now}", f"it comes before row {before}")


_FIND_CONTENT = (
    "SELECT coalesce((SELECT min(c.n) FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key = ? AND c.ref = ?),"
    " (SELECT n FROM content WHERE n > coalesce((SELECT w.n FROM watermark w WHERE w.view = 'lookup_content'), 0)"
    " AND ref = ? ORDER BY n DESC LIMIT 1))"
)
_FIND_WANTED = (
    "SELECT w.ref, min(c.n) FROM wanted w JOIN lookup_content l ON l.key = w.key"
    " JOIN content c ON c.n = l.n AND c.ref = w.ref GROUP BY w.ref"
)


class FactReader(Struct, eq=False, dict=True):
    """Facts within one transaction."""

    sql: Sql
    _held: dict[int, bytes] = field(default_factory=dict)
    _row: tuple[int, list[bytes]] = (1, [])
    """The row that was last looked into: its first number and its lines. Neighbours are asked for together."""

    @cached_property
    def _packs(self) -> PackReader:
        return PackReader(self.sql)

    def tip(self) -> LogTip:
        row = self.sql.one("SELECT n, chain, contents FROM log ORDER BY n DESC LIMIT 1")
        if row is None:
            return LogTip(0, GENESIS)
        n, chain, contents = row
        if n is None:
            raise FactDamaged("log", "its last row", "it has no arrival number")
        return LogTip(n, blob(chain), contents)

    def chain_at(self, n: int) -> bytes | None:
        row = self.sql.one("SELECT chain FROM log WHERE n = ?", (n,))
        return blob(row[0]) if row else None

    def log(self, after: int = 0, limit: int = 512) -> list[LogRow]:
        """Up to `limit` rows whose last event arrived after `after`."""
        rows = self.sql.all(
            "SELECT n, count, at, chain, events FROM log WHERE n > ? ORDER BY n LIMIT ?", (after, limit)
        )
        refuse_disorder("log", after, rows)
        return [LogRow(n, count, at, blob(chain), blob(events)) for n, count, at, chain, events in rows]

    def rows(self, after: int = 0) -> Iterator[LogRow]:
        """Every row whose last event arrived after `after`, in order. Few at first: whoever wants one turn's events
        has them soon."""
        limit = FIRST_ROWS
        while found := self.log(after, limit):
            yield from found
            after, limit = found[-1].n, min(4 * limit, 512)

    def lines(self, after: int = 0, until: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Every event line with its arrival number, in order."""
        for row in self.rows(after):
            for n, line in enumerate(row.lines(), row.first):
                if until is not None and n > until:
                    return
                if n > after:
                    yield n, line

    def line(self, n: int) -> bytes | None:
        first, lines = self._row
        if not first <= n < first + len(lines):
            row = next(iter(self.log(n - 1, 1)), None)
            if row is None or row.first > n:
                return None
            first, lines = self._row = row.first, row.lines()
        return lines[n - first]

    def watermark(self, view: str) -> int:
        return watermark_of(self.sql, view)

    def find_event(self, event_id: bytes) -> int | None:
        found = [n for n in self._event_candidates(event_id[:KEY_BYTES]) if self.event_id(n) == event_id]
        return found[0] if found else None

    def find_events(self, prefix: bytes, odd_digit: str = "") -> list[tuple[int, str]]:
        """Arrival numbers and ids of events whose id begins with these hex digits (at least seven)."""
        digits = prefix.hex() + odd_digit
        ids = [(n, self.event_id(n).hex()) for n in self._event_candidates(prefix[:KEY_BYTES])]
        return [(n, text) for n, text in ids if text.startswith(digits)]

    def _event_candidates(self, key: bytes) -> list[int]:
        low, high = key.ljust(KEY_BYTES, b"\0"), key.ljust(KEY_BYTES, b"\xff")
        rows = self.sql.all("SELECT n FROM lookup_event WHERE key BETWEEN ? AND ?", (low, high))
        tail = [n for n, line in self.lines(self.watermark("lookup_event")) if sha256(line).digest().startswith(key)]
        return [n for (n,) in rows] + tail

    def event_id(self, n: int, line: bytes | None = None) -> bytes:
        line = self.line(n) if line is None else line
        if line is None:
            raise FactDamaged("event number", str(n), "the log has a hole there")
        return sha256(line).digest()

    def contents_at(self, n: int) -> int:
        """The highest content number that an event up to here may refer to."""
        row = self.sql.one("SELECT contents FROM log WHERE n = ?", (n,))
        return int(row[0]) if row else 0

    def refs(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """The references of contents by number; what a damaged row has in its place is none."""
        rows = self.sql.all("SELECT n, ref FROM content WHERE n > ? AND n <= ? ORDER BY n", (after, upto))
        return ((n, bytes(ref)) for n, ref in rows if isinstance(ref, bytes | bytearray | memoryview))

    def find_content(self, ref: bytes) -> int | None:
        """The number of a content. Those that no lookup table has yet are looked through from the newest on: whoever
        asks for one of them mostly has just written it."""
        row = self.sql.one(_FIND_CONTENT, (ref[:KEY_BYTES], ref, ref))
        return int(row[0]) if row and row[0] is not None else None

    def find_contents(self, refs: Iterable[bytes]) -> dict[bytes, int]:
        """The numbers of many contents, by their references; one that is not here is left out."""
        wanted = dict.fromkeys(refs)
        rows = rows_wanted(self.sql, ("key", "ref"), _FIND_WANTED, ((ref[:KEY_BYTES], ref) for ref in wanted))
        numbers = {bytes(ref): n for ref, n in rows}
        newer = f"SELECT ref, n FROM content WHERE n > {self.watermark('lookup_content')} AND ref IN"
        rows = rows_in(self.sql, newer, (ref for ref in wanted if ref not in numbers))
        return numbers | {bytes(ref): n for ref, n in rows}

    def find_bytes(self, scope: int, data: bytes) -> list[int]:
        """The contents of a scope that hold exactly these bytes."""
        digest = sha256(data).digest()
        rows = self.sql.all(
            "SELECT c.n FROM lookup_bytes l JOIN content c ON c.n = l.n"
            " WHERE l.scope = ? AND l.key = ? AND c.digest = ?",
            (scope, digest[:KEY_BYTES], digest),
        )
        rows += self.sql.all(
            "SELECT n FROM content WHERE n > ? AND scope = ? AND digest = ?",
            (self.watermark("lookup_content"), scope, digest),
        )
        return [n for (n,) in rows]

    def content(self, n: int) -> bytes:
        """The bytes of a content, hashed before they are shown."""
        held = self._held.get(n)
        if held is not None:
            return held
        row = self.content_row(n)
        if row is not None and not row.salt:
            raise ContentGone(row.ref.hex())
        if row is None or row.data is None:
            raise ContentMissing(row.ref.hex() if row else f"number {n}")
        if content_ref(row.salt, row.data) != row.ref:
            raise FactDamaged("content", row.ref.hex(), "its bytes do not hash to its reference")
        return row.data

    def text(self, n: int) -> str | None:
        """A content's text; None where there is none, or none any longer."""
        try:
            return bytes_text(self.content(n)) if n else None
        except ContentGone:
            return None

    def readable_text(self, n: int) -> str | None:
        """A content's text as the readable surface shows it; None where there is none."""
        try:
            data = self.content(n) if n else None
        except ContentGone:
            return ERASED
        return None if data is None else readable(data) or data.decode()

    def hold(self, numbers: Iterable[int]) -> None:
        """Read many contents at once, in place of those held before; `content` then has them at hand."""
        self._held.clear()
        wanted = sorted({n for n in numbers if n})
        for start in range(0, len(wanted), HELD_AT_ONCE):
            some = wanted[start : start + HELD_AT_ONCE]
            rows = self.sql.all(
                f"SELECT n, ref, salt, bytes FROM content WHERE n IN ({', '.join('?' * len(some))})"
                " AND bytes IS NOT NULL",
                some,
            )
            for n, ref, salt, data in rows:
                if content_ref(salt, data) != ref:
                    raise FactDamaged("content", bytes(ref).hex(), "its bytes do not hash to its reference")
                self._held[n] = data

    def beginning(self, n: int) -> bytes:
        """The first row's worth of a content, for looking into it; nothing of one that is not here."""
        held = self._held.get(n)
        if held is None:
            try:
                held = self.content_piece(self.content_head(n), 0)
            except (ContentGone, ContentMissing):
                held = b""
        return held

    def content_row(self, n: int) -> ContentRow | None:
        row = self.sql.one("SELECT ref, salt, size, bytes FROM content WHERE n = ?", (n,))
        if row is None:
            return None
        ref, salt, size, data = row
        if data is None:
            parts = self.sql.all("SELECT bytes FROM content_part WHERE content = ? ORDER BY idx", (n,))
            data = b"".join(blob(part) for (part,) in parts) if parts or size == 0 else self._unpacked(n, size)
        return ContentRow(n, blob(ref), blob(salt), size, data)

    def _unpacked(self, n: int, size: int) -> bytes | None:
        """The bytes of a content that lies in packs."""
        slices = [self._packs.slice(n, idx) for idx in range(-(-size // ROW_BYTES))]
        return b"".join(part for part in slices if part is not None) if any(slices) else None

    def content_size(self, n: int) -> int:
        row = self.sql.one("SELECT size FROM content WHERE n = ?", (n,))
        return int(row[0]) if row else 0

    def content_head(self, n: int) -> ContentHead:
        row = self.sql.one("SELECT ref, salt, size FROM content WHERE n = ?", (n,))
        if row is None:
            raise ContentMissing(f"number {n}")
        if not row[1]:
            raise ContentGone(blob(row[0]).hex())
        return ContentHead(n, blob(row[0]), blob(row[1]), int(row[2]))

    def content_piece(self, head: ContentHead, idx: int) -> bytes:
        """One row's worth of a content, not yet checked against its reference."""
        found = self.sql.one("SELECT bytes FROM content_part WHERE content = ? AND idx = ?", (head.n, idx))
        if found is None and head.size <= ROW_BYTES:
            found = self.sql.one("SELECT bytes FROM content WHERE n = ?", (head.n,))
            if found == (None,) and head.size == 0:
                return b""
        piece = self._packs.slice(head.n, idx) if found is None or found[0] is None else found[0]
        if piece is None:
            raise self._gone(head)
        return blob(piece)

    def _gone(self, head: ContentHead) -> ContentGone | ContentMissing:
        """Why there are no bytes: they may have been erased since their head was read."""
        row = self.sql.one("SELECT salt FROM content WHERE n = ?", (head.n,))
        return ContentMissing(head.ref.hex()) if row is None or row[0] else ContentGone(head.ref.hex())

    def stream_content(self, n: int) -> Iterator[bytes]:
        """A content in pieces of at most 1 MiB, within this transaction."""
        head = self.content_head(n)
        return checked_pieces(head, partial(self.content_piece, head))


def checked_pieces(head: ContentHead, piece: Callable[[int], bytes]) -> Iterator[bytes]:
    """A content in pieces of at most 1 MiB. The last piece is held back until the whole has been checked."""
    hasher, held = ContentHasher(head.salt), b""
    for idx in range(-(-head.size // ROW_BYTES) or 1):
        if idx:
            yield held
        held = piece(idx)
        hasher.feed(held)
    if hasher.ref() != head.ref:
        raise FactDamaged("content", head.ref.hex(), "its bytes do not hash to its reference")
    yield held


def local_value(sql: Sql, key: str) -> str:
    """A piece of local state that every ledger has from its first moment."""
    row = sql.one("SELECT value FROM local WHERE key = ?", (key,))
    if row is None:
        raise Damaged(f"the ledger lost its {key}")
    return str(row[0])
