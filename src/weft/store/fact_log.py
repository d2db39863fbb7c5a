"""Facts on disk, the same on every engine: rows of the log and of contents as records, read and
appended; contents in compressed blocks; what is left of an erased content; and which contents of a
transaction are known already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from hashlib import sha256
from typing import Any

import zstandard
from msgspec import Struct, field

from weft.kernel.contents import (
    BINARY,
    ERASED,
    MAX_CONTENT_BYTES,
    ROW_BYTES,
    ContentHasher,
    PreparedContent,
    SaltSource,
    TextCheck,
    bytes_text,
    content_ref,
    prepare,
    readable,
    rows_of,
)
from weft.kernel.errors import ContentGone, ContentMissing, ContentTooLarge, Damaged, FactDamaged
from weft.kernel.events import GENESIS, extend
from weft.store.sql import Insert, Question, Sql, blob, rows_in, rows_wanted, watermark_of

# --- The records of facts on disk: rows of the log and of contents, and what names them.

KEY_BYTES = 8
LEDGER_SCOPE = 0
"""The ledger's own contents; below it, one scope for each origin that was imported from."""
LACKS = "lacks:"
"""Local state: a row per content that came events name and that did not come with them."""
EXCERPT = "excerpt:"
"""Local state: a row per stream of another ledger of which events came without its beginning."""
FORMER = "former:"
"""Local state: a row per name that this ledger went by, with the last event that it acknowledged under it."""
REFUSED_EVENT, REFUSED_NAME = "refused:event:", "refused:name:"
"""Local state: a row per event that another ledger told and that was refused here, and per turn or session it began."""
UNPROVEN = "unproven:"
"""Local state: a row per stretch of the log that a peer told and that its own log is not proven to hold."""
TAKEN = "taken:"
"""Local state: a row per event of another ledger that somebody here took over, by its id, with the time of that."""
DECLINED = "declined:"
"""Local state: a row per event of another ledger that somebody here does not want to take over."""
VIEW_RULES, CURRENT_VIEW_RULES = "view_rules", "11"
"""Local state: by which rules all views were computed. The number rises when a program computes others of old facts."""
VIEWS_MENDED = "views_mended"
"""Local state: how often rows of views that were wrong were made anew. Whoever remembers rows forgets them then."""
USAGE_TOTALS = "usage_totals"
"""Local state: by which rules, and of which rows, the totals of usage were counted."""
LAST_NUMBER = 2**63 - 1
"""No row has a higher number. Where a question says so, PostgreSQL expects few rows even while it has no statistics,
and goes by the index; of numbers without an end it expects a third of the table, and reads all of it."""
Key = tuple[int, bytes]
"""A content's scope and the plain digest of its bytes, or the reference of one that was imported: equal ones are one
content."""


class LogTip(Struct, frozen=True, gc=False):
    """Where the log ends, and the highest content number that anything up to there may refer to."""

    n: int
    chain: bytes
    contents: int = 0


class LogRow(Struct, frozen=True, gc=False):
    """A row of the log: the events of one append."""

    n: int
    count: int
    at: int
    chain: bytes
    events: bytes

    @property
    def first(self) -> int:
        return self.n - self.count + 1

    def lines(self) -> list[bytes]:
        lines = self.events.split(b"\n")
        if len(lines) != self.count:
            raise FactDamaged("log row", str(self.n), f"it holds {len(lines)} events, not {self.count}")
        return lines


class StoredContentRow(Struct, frozen=True, gc=False):
    """A content in its row."""

    n: int
    ref: bytes


class ContentRow(Struct, frozen=True, gc=False):
    n: int
    ref: bytes
    salt: bytes
    size: int
    data: bytes | None


class ContentHead(Struct, frozen=True, gc=False):
    """A content without its bytes."""

    n: int
    ref: bytes
    salt: bytes
    size: int


# --- Packs: the bytes of cold contents, many in one compressed block.

PACK_BYTES = 1024 * 1024
"""So much is unpacked at most to read one content."""
COMPRESSION_LEVEL = 9
PACKS_IN_MEMORY = 4
WORTHWHILE_RATIO = 0.9
"""A pack that stays larger than this part of its contents is not worth the time of every reader."""


class ContentSlice(Struct, frozen=True, gc=False):
    """Bytes of a content: all of it, or the part `idx` of a large one."""

    content: int
    idx: int
    data: bytes


class PackReader:
    """Reads slices within one transaction, with the last few packs at hand."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._held: dict[int, bytes] = {}

    def slice(self, content: int, idx: int) -> bytes | None:
        """None where these bytes lie in no pack."""
        row = self._sql.fetch_row("SELECT pack, start, size FROM packed WHERE content = ? AND idx = ?", (content, idx))
        if row is None:
            return None
        pack, start, size = row
        return self.unpacked(pack)[start : start + size]

    def unpacked(self, pack: int) -> bytes:
        pack_bytes = self._held.get(pack)
        if pack_bytes is None:
            if len(self._held) >= PACKS_IN_MEMORY:
                del self._held[next(iter(self._held))]
            pack_bytes = self._held[pack] = self._unpack(pack)
        return pack_bytes

    def _unpack(self, pack: int) -> bytes:
        row = self._sql.fetch_row("SELECT size, bytes FROM pack WHERE n = ?", (pack,))
        if row is None:
            raise FactDamaged("pack", str(pack), "it is not here")
        try:
            data = unpacked(bytes(row[1]))
        except zstandard.ZstdError as error:
            raise FactDamaged("pack", str(pack), f"it cannot be unpacked: {error}") from error
        if len(data) != row[0]:
            raise FactDamaged("pack", str(pack), f"it unpacks to {len(data)} bytes, not {row[0]}")
        return data


def unpacked(data: bytes) -> bytes:
    """The bytes of a pack. A frame that states a larger size than any pack has is refused before it is unpacked."""
    if zstandard.frame_content_size(data) > 2 * PACK_BYTES:
        raise zstandard.ZstdError(f"it states more than {2 * PACK_BYTES} bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=2 * PACK_BYTES)


def write_pack(sql: Sql, slices: Sequence[ContentSlice]) -> int:
    """One pack of these slices; returns its compressed size. Their own bytes are still where they were."""
    frame = pack_frame(slices)
    size = sum(len(piece.data) for piece in slices)
    (last,) = sql.fetch_row("SELECT max(n) FROM pack") or (None,)
    n, start = (last or 0) + 1, 0
    sql.run("INSERT INTO pack(n, size, bytes) VALUES (?, ?, ?)", (n, size, frame))
    for piece in slices:
        sql.run(
            "INSERT INTO packed(content, idx, pack, start, size) VALUES (?, ?, ?, ?, ?)",
            (piece.content, piece.idx, n, start, len(piece.data)),
        )
        start += len(piece.data)
    return len(frame)


def pack_frame(slices: Iterable[ContentSlice]) -> bytes:
    joined = b"".join(piece.data for piece in slices)
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress(joined)


def is_packing_worthwhile(slices: Iterable[ContentSlice]) -> bool:
    """Would a pack of them be smaller?"""
    joined = b"".join(piece.data for piece in slices)
    return len(zstandard.ZstdCompressor(level=1).compress(joined)) < WORTHWHILE_RATIO * len(joined)


def drop_from_packs(sql: Sql, contents: Sequence[int]) -> int:
    """Take these contents out of their packs; every pack that held one is written anew without it. Returns how many."""
    dropped = set(contents)
    touched = sorted(
        {pack for n in contents for (pack,) in sql.fetch_rows("SELECT pack FROM packed WHERE content = ?", (n,))}
    )
    for pack in touched:
        pack_bytes = PackReader(sql).unpacked(pack)
        rows = sql.fetch_rows("SELECT content, idx, start, size FROM packed WHERE pack = ? ORDER BY start", (pack,))
        remaining = [
            ContentSlice(n, idx, pack_bytes[start : start + size]) for n, idx, start, size in rows if n not in dropped
        ]
        sql.run("DELETE FROM packed WHERE pack = ?", (pack,))
        if remaining:
            write_pack(sql, remaining)
        sql.run("DELETE FROM pack WHERE n = ?", (pack,))
    return len(touched)


# --- What is left of an erased content: its number and its reference.

ERASING = "erasing"
"""The watermark that moves with every erasure, so that whoever remembers contents by their bytes forgets them."""
UNFINISHED = "erasing"
"""Local state while erased bytes may still lie in free pages, in the log, or in views that hold words."""
IN_LOG = " in the log"
_DIGESTS = (
    "UPDATE resource SET name_digest = NULL WHERE name = ?",
    "UPDATE resource SET place_digest = NULL, stands = NULL WHERE place = ?",
    "UPDATE resource_snapshot SET ref_digest = NULL WHERE ref = ?",
)
"""What else is told of a content by views: from a digest a short text could be guessed."""


def erase_content_rows(sql: Sql, numbers: Sequence[int], key_bytes: int) -> None:
    """Nothing but number, scope and reference stays of these contents."""
    drop_from_packs(sql, numbers)
    for n in numbers:
        row = sql.fetch_row("SELECT scope, digest FROM content WHERE n = ?", (n,))
        if row is not None and row[1]:
            key = bytes(row[1])[:key_bytes]
            sql.run("DELETE FROM lookup_bytes WHERE scope = ? AND key = ? AND n = ?", (row[0], key, n))
    sql.run_many("DELETE FROM content_part WHERE content = ?", [(n,) for n in numbers])
    sql.run_many(
        "UPDATE content SET salt = ?, digest = ?, size = 0, shown = ?, bytes = NULL WHERE n = ?",
        [(b"", b"", ERASED, n) for n in numbers],
    )
    sql.run_many("UPDATE lookup_text SET text = ? WHERE content = ?", [(ERASED, n) for n in numbers])
    for change in _DIGESTS:
        sql.run_many(change, [(n,) for n in numbers])


def is_erased_content(sql: Sql, n: int) -> bool:
    row = sql.fetch_row("SELECT salt FROM content WHERE n = ?", (n,))
    return row is not None and not row[0]


def note_erasing(sql: Sql, n: int) -> None:
    """Others forget what they remember; and whoever opens the ledger next finishes what this one began."""
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (ERASING, n)
    )
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (UNFINISHED, str(n)),
    )


def unfinished_erasure(sql: Sql) -> str | None:
    """What the last erasure left to be done, if anything."""
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (UNFINISHED,))
    return str(row[0]) if row else None


def note_rewritten(sql: Sql, erasure: str) -> None:
    """The database is clean; what was there before still stands in the log, since somebody reads from it."""
    sql.run("UPDATE local SET value = ? WHERE key = ? AND value = ?", (erasure + IN_LOG, UNFINISHED, erasure))


def note_finished(sql: Sql, erasure: str) -> None:
    """Unless another erasure has begun meanwhile."""
    sql.run("DELETE FROM local WHERE key = ? AND value = ?", (UNFINISHED, erasure))


class ErasedContents(Struct, frozen=True):
    """Contents that were erased, and the turns they belong to."""

    contents: Sequence[int]
    turns: Sequence[str]


# --- Reading facts, the same on every engine.

CONTENTS_PER_READ = 256
FIRST_ROWS = 8


def refuse_disorder(table: str, after: int, rows: Iterable[Sequence[Any]]) -> None:
    """Rows that a damaged database gives out of order would be asked for again and again."""
    for row in rows:
        if row[0] is None or row[0] <= after:
            raise FactDamaged(table, f"row {row[0]}", f"it comes after row {after}")
        after = row[0]


def refuse_standstill(table: str, before: Any, now: Any) -> None:
    """The same for rows that are asked for from the last to the first."""
    if not now < before:
        raise FactDamaged(table, f"row {now}", f"it comes before row {before}")


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
        row = self.sql.fetch_row("SELECT n, chain, contents FROM log ORDER BY n DESC LIMIT 1")
        if row is None:
            return LogTip(0, GENESIS)
        n, chain, contents = row
        if n is None:
            raise FactDamaged("log", "its last row", "it has no arrival number")
        return LogTip(n, blob(chain), contents)

    def chain_at(self, n: int) -> bytes | None:
        row = self.sql.fetch_row("SELECT chain FROM log WHERE n = ?", (n,))
        return blob(row[0]) if row else None

    def log(self, after: int = 0, limit: int = 512) -> list[LogRow]:
        """Up to `limit` rows whose last event arrived after `after`."""
        rows = self.sql.fetch_rows(
            "SELECT n, count, at, chain, events FROM log WHERE n > ? ORDER BY n LIMIT ?", (after, limit)
        )
        refuse_disorder("log", after, rows)
        return [LogRow(n, count, at, blob(chain), blob(events)) for n, count, at, chain, events in rows]

    def rows(self, after: int = 0) -> Iterator[LogRow]:
        """Every row whose last event arrived after `after`, in order. Few at first: whoever wants one turn's events
        has them soon."""
        limit = FIRST_ROWS
        while page := self.log(after, limit):
            yield from page
            after, limit = page[-1].n, min(4 * limit, 512)

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
        matching = [n for n in self._event_candidates(event_id[:KEY_BYTES]) if self.event_id(n) == event_id]
        return matching[0] if matching else None

    def find_events(self, prefix: bytes, odd_digit: str = "") -> list[tuple[int, str]]:
        """Arrival numbers and ids of events whose id begins with these hex digits (at least seven)."""
        digits = prefix.hex() + odd_digit
        ids = [(n, self.event_id(n).hex()) for n in self._event_candidates(prefix[:KEY_BYTES])]
        return [(n, text) for n, text in ids if text.startswith(digits)]

    def _event_candidates(self, key: bytes) -> list[int]:
        low, high = key.ljust(KEY_BYTES, b"\0"), key.ljust(KEY_BYTES, b"\xff")
        rows = self.sql.fetch_rows("SELECT n FROM lookup_event WHERE key BETWEEN ? AND ?", (low, high))
        tail = [n for n, line in self.lines(self.watermark("lookup_event")) if sha256(line).digest().startswith(key)]
        return [n for (n,) in rows] + tail

    def event_id(self, n: int, line: bytes | None = None) -> bytes:
        line = self.line(n) if line is None else line
        if line is None:
            raise FactDamaged("event number", str(n), "the log has a hole there")
        return sha256(line).digest()

    def contents_at(self, n: int) -> int:
        """The highest content number that an event up to here may refer to."""
        row = self.sql.fetch_row("SELECT contents FROM log WHERE n = ?", (n,))
        return int(row[0]) if row else 0

    def refs(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """The references of contents by number; what a damaged row has in its place is none."""
        rows = self.sql.fetch_rows("SELECT n, ref FROM content WHERE n > ? AND n <= ? ORDER BY n", (after, upto))
        return ((n, bytes(ref)) for n, ref in rows if isinstance(ref, bytes | bytearray | memoryview))

    def find_content(self, ref: bytes) -> int | None:
        """The number of a content. Those that no lookup table has yet are looked through from the newest on: whoever
        asks for one of them mostly has just written it."""
        row = self.sql.fetch_row(_FIND_CONTENT, (ref[:KEY_BYTES], ref, ref))
        return int(row[0]) if row and row[0] is not None else None

    def find_contents(self, refs: Iterable[bytes]) -> dict[bytes, int]:
        """The numbers of many contents, by their references; one that is not here is left out."""
        unique_refs = dict.fromkeys(refs)
        rows = rows_wanted(self.sql, ("key", "ref"), _FIND_WANTED, ((ref[:KEY_BYTES], ref) for ref in unique_refs))
        numbers = {bytes(ref): n for ref, n in rows}
        newer = f"SELECT ref, n FROM content WHERE n > {self.watermark('lookup_content')} AND ref IN"
        rows = rows_in(self.sql, newer, (ref for ref in unique_refs if ref not in numbers))
        return numbers | {bytes(ref): n for ref, n in rows}

    def find_bytes(self, scope: int, data: bytes) -> list[int]:
        """The contents of a scope that hold exactly these bytes."""
        digest = sha256(data).digest()
        rows = self.sql.fetch_rows(
            "SELECT c.n FROM lookup_bytes l JOIN content c ON c.n = l.n"
            " WHERE l.scope = ? AND l.key = ? AND c.digest = ?",
            (scope, digest[:KEY_BYTES], digest),
        )
        rows += self.sql.fetch_rows(
            "SELECT n FROM content WHERE n > ? AND scope = ? AND digest = ?",
            (self.watermark("lookup_content"), scope, digest),
        )
        return [n for (n,) in rows]

    def content(self, n: int) -> bytes:
        """The bytes of a content, hashed before they are shown."""
        data = self._held.get(n)
        if data is not None:
            return data
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
        ordered = sorted({n for n in numbers if n})
        for start in range(0, len(ordered), CONTENTS_PER_READ):
            batch = ordered[start : start + CONTENTS_PER_READ]
            rows = self.sql.fetch_rows(
                f"SELECT n, ref, salt, bytes FROM content WHERE n IN ({', '.join('?' * len(batch))})"
                " AND bytes IS NOT NULL",
                batch,
            )
            for n, ref, salt, data in rows:
                if content_ref(salt, data) != ref:
                    raise FactDamaged("content", bytes(ref).hex(), "its bytes do not hash to its reference")
                self._held[n] = data

    def beginning(self, n: int) -> bytes:
        """The first row's worth of a content, for looking into it; nothing of one that is not here."""
        first_bytes = self._held.get(n)
        if first_bytes is None:
            try:
                first_bytes = self.content_piece(self.content_head(n), 0)
            except (ContentGone, ContentMissing):
                first_bytes = b""
        return first_bytes

    def content_row(self, n: int) -> ContentRow | None:
        row = self.sql.fetch_row("SELECT ref, salt, size, bytes FROM content WHERE n = ?", (n,))
        if row is None:
            return None
        ref, salt, size, data = row
        if data is None:
            parts = self.sql.fetch_rows("SELECT bytes FROM content_part WHERE content = ? ORDER BY idx", (n,))
            data = (
                b"".join(blob(part) for (part,) in parts) if parts or size == 0 else self._content_from_packs(n, size)
            )
        return ContentRow(n, blob(ref), blob(salt), size, data)

    def _content_from_packs(self, n: int, size: int) -> bytes | None:
        """The bytes of a content that lies in packs."""
        slices = [self._packs.slice(n, idx) for idx in range(-(-size // ROW_BYTES))]
        return b"".join(part for part in slices if part is not None) if any(slices) else None

    def content_size(self, n: int) -> int:
        row = self.sql.fetch_row("SELECT size FROM content WHERE n = ?", (n,))
        return int(row[0]) if row else 0

    def content_head(self, n: int) -> ContentHead:
        row = self.sql.fetch_row("SELECT ref, salt, size FROM content WHERE n = ?", (n,))
        if row is None:
            raise ContentMissing(f"number {n}")
        if not row[1]:
            raise ContentGone(blob(row[0]).hex())
        return ContentHead(n, blob(row[0]), blob(row[1]), int(row[2]))

    def content_piece(self, head: ContentHead, idx: int) -> bytes:
        """One row's worth of a content, not yet checked against its reference."""
        row = self.sql.fetch_row("SELECT bytes FROM content_part WHERE content = ? AND idx = ?", (head.n, idx))
        if row is None and head.size <= ROW_BYTES:
            row = self.sql.fetch_row("SELECT bytes FROM content WHERE n = ?", (head.n,))
            if row == (None,) and head.size == 0:
                return b""
        data = self._packs.slice(head.n, idx) if row is None or row[0] is None else row[0]
        if data is None:
            raise self._missing_error(head)
        return blob(data)

    def _missing_error(self, head: ContentHead) -> ContentGone | ContentMissing:
        """Why there are no bytes: they may have been erased since their head was read."""
        row = self.sql.fetch_row("SELECT salt FROM content WHERE n = ?", (head.n,))
        return ContentMissing(head.ref.hex()) if row is None or row[0] else ContentGone(head.ref.hex())

    def stream_content(self, n: int) -> Iterator[bytes]:
        """A content in pieces of at most 1 MiB, within this transaction."""
        head = self.content_head(n)
        return checked_pieces(head, partial(self.content_piece, head))


def checked_pieces(head: ContentHead, read_piece: Callable[[int], bytes]) -> Iterator[bytes]:
    """A content in pieces of at most 1 MiB. The last piece is held back until the whole has been checked."""
    hasher, previous = ContentHasher(head.salt), b""
    for idx in range(-(-head.size // ROW_BYTES) or 1):
        if idx:
            yield previous
        previous = read_piece(idx)
        hasher.feed(previous)
    if hasher.ref() != head.ref:
        raise FactDamaged("content", head.ref.hex(), "its bytes do not hash to its reference")
    yield previous


def local_value(sql: Sql, key: str) -> str:
    """A piece of local state that every ledger has from its first moment."""
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (key,))
    if row is None:
        raise Damaged(f"the ledger lost its {key}")
    return str(row[0])


# --- Writing facts: new events and contents of one transaction, and which contents are known already.

SMALL_QUESTION, LARGE_QUESTION = 8, 64
NEWER_CONTENTS = f"SELECT n, scope, digest, ref FROM content WHERE n > ? AND n <= {LAST_NUMBER} ORDER BY n"


class RecentContents:
    """Contents that this store's writers know: all that the lookup view does not have yet, and some that it has. By
    scope and plain digest; those of an import by scope and reference.

    `asked` holds what the view said of others, for the length of one commit.
    """

    LIMIT = 16_384

    def __init__(self) -> None:
        self.seen, self.erasures = -1, 0
        self.filled = 0
        """The view has contents up to this one that are not here. Where that is none, an import asks it nothing."""
        self.newest = 0
        """The highest content number that was heard of."""
        self.seen_in: dict[int, int] = {}
        """Of these trees, by scope, contents beyond `seen` are known too, up to this one."""
        self.by_key: dict[Key, StoredContentRow] = {}
        self.asked: dict[Key, StoredContentRow | None] = {}

    def forget(self) -> None:
        self.seen, self.newest = -1, 0
        self.seen_in.clear()
        self.by_key.clear()
        self.asked.clear()

    def refresh(self, sql: Sql) -> None:
        """Take in what other processes put since we last looked; what one of them erased is no longer found by its
        bytes."""
        if (erasures := watermark_of(sql, ERASING)) != self.erasures:
            self.forget()
            self.erasures = erasures
        if self.seen < 0:
            self.seen = self.filled = watermark_of(sql, "lookup_content")
        self.learn(sql.fetch_rows(NEWER_CONTENTS, (self.seen,)))

    def learn(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """The answer to `NEWER_CONTENTS`."""
        for n, scope, digest, ref in rows:
            if scope < LEDGER_SCOPE or digest:
                self.by_key[scope, bytes(ref if scope < LEDGER_SCOPE else digest)] = StoredContentRow(n, bytes(ref))
            self.seen = n
        self.newest = max(self.newest, self.seen)

    def drop(self, erased: set[int]) -> None:
        """These contents were erased: equal bytes are another content from now on. Imported ones are found by their
        reference, which stays, so that importing them again brings nothing back."""
        for contents in (self.by_key, self.asked):
            for key in [
                key for key, stored in contents.items() if stored and stored.n in erased and key[0] >= LEDGER_SCOPE
            ]:
                del contents[key]

    def ask(self, sql: Sql, keys: Iterable[Key]) -> None:
        """One question to the view for many contents that will be put."""
        unknown_keys = self.unknown(keys)
        self.answered(unknown_keys, [sql.fetch_rows(*question) for question in questions_about(unknown_keys)])

    def unknown(self, keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if key not in self.by_key and key not in self.asked]

    def answered(self, keys: Iterable[Key], answers: Iterable[Sequence[tuple[Any, ...]]]) -> None:
        """What `questions_about` them were answered."""
        self.asked.update(dict.fromkeys(keys))
        for rows in answers:
            for scope, digest, n, ref in rows:
                self.asked[scope, bytes(digest)] = StoredContentRow(n, bytes(ref))

    @property
    def is_long(self) -> bool:
        return max(len(self.by_key), self.newest - self.filled if self.newest else 0) > self.LIMIT


def questions_about(keys: Sequence[Key]) -> list[Question]:
    """What the lookup view is asked about contents, in statements of few sizes."""
    questions = []
    for batch in batches_of_few_sizes(keys):
        values: list[int | bytes] = []
        for scope, digest in batch:
            values += (scope, digest[:KEY_BYTES])
        questions.append((_known_among(len(batch)), tuple(values)))
    return questions


def batches_of_few_sizes(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """Some at a time, in lists of few lengths, so that prepared statements are found again; the last one may repeat."""
    for start in range(0, len(keys), LARGE_QUESTION):
        batch = list(keys[start : start + LARGE_QUESTION])
        if len(batch) > SMALL_QUESTION:
            batch += [batch[-1]] * (LARGE_QUESTION - len(batch))
        yield batch


@cache
def _named_among(count: int) -> str:
    keys = ",".join("?" * count)
    return f"SELECT c.ref, c.n FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN ({keys})"


@cache
def _known_among(count: int) -> str:
    return (
        f"WITH wanted(scope, key) AS (VALUES {','.join(['(CAST(? AS BIGINT),?)'] * count)})"
        " SELECT l.scope, c.digest, c.n, c.ref FROM wanted w"
        " JOIN lookup_bytes l ON l.scope = w.scope AND l.key = w.key JOIN content c ON c.n = l.n"
    )


LOG = Insert("log", ("n", "count", "at", "chain", "contents", "events"))
CONTENT = Insert("content", ("n", "scope", "ref", "salt", "digest", "size", "shown", "bytes"))


class FactWriter(FactReader, kw_only=True, eq=False, dict=True):
    """Facts within one write transaction. One instance serves one caller's work; `flush` puts it into rows."""

    recent: RecentContents
    log_tip: LogTip
    salts: SaltSource
    now_ms: int
    _fresh: dict[Key, StoredContentRow] = field(default_factory=dict)
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    _next: int = 0
    _parts: list[tuple[int, int, bytes]] = field(default_factory=list)
    _erased: set[int] = field(default_factory=set)
    """Contents that this very work has erased."""

    def __post_init__(self) -> None:
        self._next = max(self.recent.seen, self.log_tip.contents) + 1  # a row deleted by hand does not free its number

    def tip(self) -> LogTip:
        return self.log_tip

    def put(self, data: bytes, scope: int, salt: bytes | None = None) -> StoredContentRow:
        """Keep these bytes. Equal bytes within a tree are one content; `salt` names one that came from elsewhere."""
        if salt is not None:
            return self._add_content(prepare(data, salt), scope)
        key = (scope, sha256(data).digest())
        return self._known_content(key) or self._add_content(prepare(data, self.salts.draw()), scope)

    def put_imported(self, contents: Sequence[PreparedContent], scope: int) -> list[StoredContentRow]:
        """Contents of one origin, as `ImportSecret.prepare` makes them. They are found by their references."""
        fresh, recent = self._fresh, self.recent
        if recent.filled:
            self._look_up_references(contents, scope)
        stored = []
        by_key, asked = recent.by_key, recent.asked
        for content in contents:
            key = (scope, content.ref)
            existing = fresh.get(key) or by_key.get(key) or asked.get(key)
            if existing is None:
                existing = fresh[key] = self._add_content_row(content, scope)
            stored.append(existing)
        return stored

    def _look_up_references(self, contents: Sequence[PreparedContent], scope: int) -> None:
        """What the lookup view has of these, by their references."""
        fresh, by_key, asked = self._fresh, self.recent.by_key, self.recent.asked
        keys = dict.fromkeys((scope, content.ref) for content in contents)
        unknown_keys = [key for key in keys if key not in fresh and key not in by_key and key not in asked]
        asked.update(dict.fromkeys(unknown_keys))
        for batch in batches_of_few_sizes(unknown_keys):
            for ref, n in self.sql.fetch_rows(_named_among(len(batch)), tuple(ref[:KEY_BYTES] for _, ref in batch)):
                key = (scope, bytes(ref))
                if key in asked:
                    asked[key] = StoredContentRow(n, key[1])

    def put_prepared(self, content: PreparedContent, scope: int) -> StoredContentRow:
        return self._known_content((scope, content.digest)) or self._add_content(content, scope)

    def _known_content(self, key: Key) -> StoredContentRow | None:
        recent = self.recent
        existing = self._fresh.get(key) or recent.by_key.get(key)
        if existing is None:
            if key not in recent.asked:
                recent.ask(self.sql, (key,))
            existing = recent.asked[key]
        return None if existing is not None and existing.n in self._erased else existing

    def _add_content(self, content: PreparedContent, scope: int) -> StoredContentRow:
        stored = self._fresh[scope, content.digest] = self._add_content_row(content, scope)
        return stored

    def _add_content_row(self, content: PreparedContent, scope: int) -> StoredContentRow:
        """A row for it, with the next number."""
        if len(content.data) > MAX_CONTENT_BYTES:
            raise ContentTooLarge(MAX_CONTENT_BYTES)
        n, data = self._next, content.data
        inline: bytes | None = data
        if len(data) > ROW_BYTES:
            inline = None
            self._parts += [(n, idx, part) for idx, part in enumerate(rows_of((data,)))]
        self._rows.append((n, scope, content.ref, content.salt, content.digest, len(data), content.shown, inline))
        self._next += 1
        return StoredContentRow(n, content.ref)

    def content(self, n: int) -> bytes:
        place = n - self._rows[0][0] if self._rows else -1  # waiting rows have numbers without a gap
        inline = self._rows[place][-1] if 0 <= place < len(self._rows) else None
        if inline is None:
            parts = [part for content, _, part in self._parts if content == n]
            return b"".join(parts) if parts else super().content(n)
        return bytes(inline)

    def put_stream(self, chunks: Iterable[bytes], scope: int, salt: bytes | None = None) -> StoredContentRow:
        """A content larger than one row, 1 MiB in memory at a time; its own row is written once its name is known."""
        salt = salt or self.salts.draw()
        hasher, text, n = ContentHasher(salt), TextCheck(), self._next
        for idx, part in enumerate(rows_of(chunks)):
            hasher.feed(part)
            text.feed(part)
            self.sql.run("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", (n, idx, part))
        text.feed(b"", last=True)
        stored = StoredContentRow(n, hasher.ref())
        shown = None if text.holds else BINARY
        self._rows.append((n, scope, stored.ref, salt, hasher.plain_digest(), hasher.size, shown, None))
        self._next += 1
        self.flush()
        return stored

    def put_erased(self, ref: bytes) -> StoredContentRow:
        """A content that is known to be erased before its bytes ever came."""
        self.flush()
        n = self._next
        self.sql.add(CONTENT, [(n, LEDGER_SCOPE, ref, b"", b"", 0, ERASED, None)])
        self._next += 1
        return StoredContentRow(n, ref)

    def erase(self, numbers: Sequence[int]) -> None:
        """Take the bytes of these contents away, with all that could betray them."""
        self.flush()
        erase_content_rows(self.sql, numbers, KEY_BYTES)
        self.__dict__.pop("_packs", None)  # what it holds may be erased now
        self._erased.update(numbers)
        self._fresh = {key: stored for key, stored in self._fresh.items() if stored.n not in self._erased}
        note_erasing(self.sql, self.log_tip.n)

    def append(self, lines: Sequence[bytes], ids: Sequence[bytes]) -> int:
        """Write the one row of this append; returns the arrival number of its first event."""
        first = self.log_tip.n + 1
        self.log_tip = tip = LogTip(self.log_tip.n + len(lines), extend(self.log_tip.chain, ids), self._next - 1)
        self.sql.add(LOG, [(tip.n, len(lines), self.now_ms, tip.chain, tip.contents, b"\n".join(lines))])
        return first

    def take_contents(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Rows of another ledger as they are, in the order of `CONTENT`'s columns; each keeps its number."""
        self.sql.add(CONTENT, rows)
        self._next = max(self._next, rows[-1][0] + 1) if rows else self._next

    def take_row(self, row: LogRow, contents: int) -> None:
        """A row of another ledger as it is: the same numbers, the same chain."""
        chain = extend(self.log_tip.chain, (sha256(line).digest() for line in row.lines()))
        if row.first != self.log_tip.n + 1 or chain != row.chain:
            raise FactDamaged("log row", str(row.n), "the chain of arrival does not lead here")
        self.log_tip = LogTip(row.n, row.chain, contents)
        self.sql.add(LOG, [(row.n, row.count, row.at, row.chain, contents, row.events)])

    def flush(self) -> None:
        """Contents into their rows."""
        if self._rows:
            self.sql.add(CONTENT, self._rows)
        if self._parts:
            self.sql.run_many("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", self._parts)
        self._rows, self._parts = [], []

    def settle(self) -> LogTip:
        """The work is done and stays: the next caller in this transaction may share its contents."""
        self.flush()
        if self._erased:
            self.recent.drop(self._erased)
        self.recent.by_key.update(self._fresh)
        self.recent.seen = self._next - 1
        return self.log_tip
