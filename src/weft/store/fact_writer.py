"""Writing facts: new events and contents of one transaction, and which contents are known already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from msgspec import field

from weft.kernel.contents import (
    BINARY,
    ERASED,
    MAX_CONTENT_BYTES,
    ROW_BYTES,
    ContentHasher,
    Prepared,
    Salts,
    TextCheck,
    prepare,
    rows_of,
)
from weft.kernel.errors import ContentTooLarge, FactDamaged
from weft.kernel.events import extend
from weft.store.erased_contents import ERASING, make_husks, note_erasing
from weft.store.facts import FactReader
from weft.store.records import KEY_BYTES, LAST_NUMBER, LEDGER_SCOPE, Key, LogRow, LogTip, Stored
from weft.store.sql import Insert, Question, Sql, watermark_of

A_FEW, ASKED_AT_ONCE = 8, 64
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
        self.by_key: dict[Key, Stored] = {}
        self.asked: dict[Key, Stored | None] = {}

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
        self.learn(sql.all(NEWER_CONTENTS, (self.seen,)))

    def learn(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """The answer to `NEWER_CONTENTS`."""
        for n, scope, digest, ref in rows:
            if scope < LEDGER_SCOPE or digest:
                self.by_key[scope, bytes(ref if scope < LEDGER_SCOPE else digest)] = Stored(n, bytes(ref))
            self.seen = n
        self.newest = max(self.newest, self.seen)

    def drop(self, gone: set[int]) -> None:
        """These contents were erased: equal bytes are another content from now on. Imported ones are found by their
        reference, which stays, so that importing them again brings nothing back."""
        for known in (self.by_key, self.asked):
            for key in [key for key, stored in known.items() if stored and stored.n in gone and key[0] >= LEDGER_SCOPE]:
                del known[key]

    def ask(self, sql: Sql, keys: Iterable[Key]) -> None:
        """One question to the view for many contents that will be put."""
        wanted = self.unknown(keys)
        self.answered(wanted, [sql.all(*question) for question in questions_about(wanted)])

    def unknown(self, keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if key not in self.by_key and key not in self.asked]

    def answered(self, wanted: Iterable[Key], answers: Iterable[Sequence[tuple[Any, ...]]]) -> None:
        """What `questions_about` them were answered."""
        self.asked.update(dict.fromkeys(wanted))
        for rows in answers:
            for scope, digest, n, ref in rows:
                self.asked[scope, bytes(digest)] = Stored(n, bytes(ref))

    @property
    def is_long(self) -> bool:
        return max(len(self.by_key), self.newest - self.filled if self.newest else 0) > self.LIMIT


def questions_about(wanted: Sequence[Key]) -> list[Question]:
    """What the lookup view is asked about contents, in statements of few sizes."""
    questions = []
    for some in few_sizes(wanted):
        values: list[int | bytes] = []
        for scope, digest in some:
            values += (scope, digest[:KEY_BYTES])
        questions.append((_known_among(len(some)), tuple(values)))
    return questions


def few_sizes(wanted: Sequence[Key]) -> Iterator[list[Key]]:
    """Some at a time, in lists of few lengths, so that prepared statements are found again; the last one may repeat."""
    for start in range(0, len(wanted), ASKED_AT_ONCE):
        some = list(wanted[start : start + ASKED_AT_ONCE])
        if len(some) > A_FEW:
            some += [some[-1]] * (ASKED_AT_ONCE - len(some))
        yield some


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
    salts: Salts
    now_ms: int
    _fresh: dict[Key, Stored] = field(default_factory=dict)
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    _next: int = 0
    _parts: list[tuple[int, int, bytes]] = field(default_factory=list)
    _erased: set[int] = field(default_factory=set)
    """Contents that this very work has erased."""

    def __post_init__(self) -> None:
        self._next = max(self.recent.seen, self.log_tip.contents) + 1  # a row deleted by hand does not free its number

    def tip(self) -> LogTip:
        return self.log_tip

    def put(self, data: bytes, scope: int, salt: bytes | None = None) -> Stored:
        """Keep these bytes. Equal bytes within a tree are one content; `salt` names one that came from elsewhere."""
        if salt is not None:
            return self._insert(prepare(data, salt), scope)
        key = (scope, sha256(data).digest())
        return self._known(key) or self._insert(prepare(data, self.salts.draw()), scope)

    def put_imported(self, contents: Sequence[Prepared], scope: int) -> list[Stored]:
        """Contents of one origin, as `ImportSecret.prepare` makes them. They are found by their references."""
        fresh, recent = self._fresh, self.recent
        if recent.filled:
            self._ask_for(contents, scope)
        stored = []
        by_key, asked = recent.by_key, recent.asked
        for content in contents:
            key = (scope, content.ref)
            known = fresh.get(key) or by_key.get(key) or asked.get(key)
            if known is None:
                known = fresh[key] = self._place(content, scope)
            stored.append(known)
        return stored

    def _ask_for(self, contents: Sequence[Prepared], scope: int) -> None:
        """What the lookup view has of these, by their references."""
        fresh, by_key, asked = self._fresh, self.recent.by_key, self.recent.asked
        keys = dict.fromkeys((scope, content.ref) for content in contents)
        wanted = [key for key in keys if key not in fresh and key not in by_key and key not in asked]
        asked.update(dict.fromkeys(wanted))
        for some in few_sizes(wanted):
            for ref, n in self.sql.all(_named_among(len(some)), tuple(ref[:KEY_BYTES] for _, ref in some)):
                key = (scope, bytes(ref))
                if key in asked:
                    asked[key] = Stored(n, key[1])

    def put_prepared(self, content: Prepared, scope: int) -> Stored:
        return self._known((scope, content.digest)) or self._insert(content, scope)

    def _known(self, key: Key) -> Stored | None:
        recent = self.recent
        known = self._fresh.get(key) or recent.by_key.get(key)
        if known is None:
            if key not in recent.asked:
                recent.ask(self.sql, (key,))
            known = recent.asked[key]
        return None if known is not None and known.n in self._erased else known

    def _insert(self, content: Prepared, scope: int) -> Stored:
        stored = self._fresh[scope, content.digest] = self._place(content, scope)
        return stored

    def _place(self, content: Prepared, scope: int) -> Stored:
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
        return Stored(n, content.ref)

    def content(self, n: int) -> bytes:
        place = n - self._rows[0][0] if self._rows else -1  # waiting rows have numbers without a gap
        held = self._rows[place][-1] if 0 <= place < len(self._rows) else None
        if held is None:
            parts = [part for content, _, part in self._parts if content == n]
            return b"".join(parts) if parts else super().content(n)
        return bytes(held)

    def put_stream(self, chunks: Iterable[bytes], scope: int, salt: bytes | None = None) -> Stored:
        """A content larger than one row, 1 MiB in memory at a time; its own row is written once its name is known."""
        salt = salt or self.salts.draw()
        hasher, text, n = ContentHasher(salt), TextCheck(), self._next
        for idx, part in enumerate(rows_of(chunks)):
            hasher.feed(part)
            text.feed(part)
            self.sql.run("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", (n, idx, part))
        text.feed(b"", last=True)
        stored = Stored(n, hasher.ref())
        shown = None if text.holds else BINARY
        self._rows.append((n, scope, stored.ref, salt, hasher.plain_digest(), hasher.size, shown, None))
        self._next += 1
        self.flush()
        return stored

    def put_husk(self, ref: bytes) -> Stored:
        """A content that is known to be erased before its bytes ever came."""
        self.flush()
        n = self._next
        self.sql.add(CONTENT, [(n, LEDGER_SCOPE, ref, b"", b"", 0, ERASED, None)])
        self._next += 1
        return Stored(n, ref)

    def erase(self, numbers: Sequence[int]) -> None:
        """Take the bytes of these contents away, with all that could betray them."""
        self.flush()
        make_husks(self.sql, numbers, KEY_BYTES)
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
