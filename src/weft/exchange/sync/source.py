"""A ledger as a source: its log in batches, and contents by their references, hashed on their way out.

Every batch is read in a snapshot of its own, so that nobody waits for a slow peer. What was erased anywhere does not
go: a tombstone, also one that nobody here has said yes to yet, keeps its content from travelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain

from msgspec import Struct

from weft.exchange.sync.messages import BatchEnd, Hello, SkippedRun, Would
from weft.exchange.sync.peers import held_by
from weft.exchange.sync.selection import Selection
from weft.exchange.sync.sender import EventBatch, Outgoing
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import ContentGone, ContentMissing
from weft.kernel.foreign_input import KINDS, content_refs
from weft.store.fact_log import KEY_BYTES, ContentHead, FactReader, LogRow, checked_pieces
from weft.store.port import Store
from weft.store.sql import Sql, rows_in

BATCH_EVENTS, BATCH_BYTES = 1024, 1024 * 1024
ROWS_AT_ONCE = 256
CONTENTS_AT_ONCE = 256
HELD_BYTES = 1024 * 1024


class FoundEvent(Struct, frozen=True, gc=False):
    index: int
    head: ContentHead


class LedgerSource:
    """One ledger, for one run of sending."""

    def __init__(self, store: Store, selection: Selection | None = None) -> None:
        self._store, self._selection = store, selection
        self._weighed: set[int] = set()
        with store.read() as txn:
            tip = txn.facts.tip()
        self._hello = Hello(replica=store.replica, n=tip.n, chain=tip.chain.hex())

    def hello(self) -> Hello:
        return self._hello

    def chain_at(self, n: int) -> str | None:
        with self._store.read() as txn:
            chain = txn.facts.chain_at(n)
        return None if chain is None else chain.hex()

    def batches(self, after: int, peer: str, limited: bool, whole: bool = False) -> Iterator[EventBatch]:
        """Up to where the log ended when the conversation began: it may be growing all the while."""
        with self._store.read() as txn:
            theirs = [] if whole else held_by(txn.sql, peer, after)
        gathering = Gathering(self._selection if limited else None, theirs)
        while after < self._hello.n:
            with self._store.read() as txn:
                rows = txn.facts.log(after, ROWS_AT_ONCE)
            for row in rows:
                if row.n > self._hello.n:
                    break
                yield from gathering.take(row)
            after = rows[-1].n
            self._store.pause_reading()
        if (last := gathering.rest()) is not None:
            yield last

    def contents(self, refs: Sequence[bytes], limited: bool) -> Iterator[Outgoing]:
        for start in range(0, len(refs), CONTENTS_AT_ONCE):
            yield from self._some_contents(refs[start : start + CONTENTS_AT_ONCE], start, limited)

    def _some_contents(self, refs: Sequence[bytes], start: int, limited: bool) -> Iterator[Outgoing]:
        allowed = self._selection.contents if limited and self._selection else None
        with self._store.read() as txn:
            heads = [
                FoundEvent(start + i, head)
                for i, head in _heads(txn.sql, refs).items()
                if allowed is None or head.ref in allowed
            ]
        small = [found for found in heads if found.head.size <= ROW_BYTES]
        while small:
            yield from self._take_small(small)
        for found in heads:
            head = found.head
            if head.size > ROW_BYTES:
                yield Outgoing(found.index, head.salt, head.size, checked_pieces(head, partial(self._piece, head)))

    def _take_small(self, waiting: list[FoundEvent]) -> list[Outgoing]:
        """Some of those that wait, in one snapshot: as many as fit into memory without anybody noticing."""
        made, weight = [], 0
        with self._store.read() as txn:
            while waiting and weight < HELD_BYTES:
                found = waiting.pop(0)
                try:
                    data = txn.facts.content(found.head.n)
                except (ContentGone, ContentMissing):
                    continue  # erased since, or its bytes were never here
                made.append(Outgoing(found.index, found.head.salt, len(data), (data,)))
                weight += len(data)
        return made

    def _piece(self, head: ContentHead, idx: int) -> bytes:
        with self._store.read() as txn:
            return txn.facts.content_piece(head, idx)

    def weigh(self, lines: Sequence[bytes]) -> Would:
        refs = {bytes.fromhex(ref) for line in lines for ref in content_refs(KINDS.decode(line))}
        allowed = self._selection.contents if self._selection else None
        wanted = sorted(refs if allowed is None else refs & allowed)
        with self._store.read() as txn:
            heads = [head for head in _heads(txn.sql, wanted).values() if head.n not in self._weighed]
        self._weighed.update(head.n for head in heads)
        return Would(
            events=len(lines),
            event_bytes=sum(map(len, lines)),
            contents=len(heads),
            content_bytes=sum(head.size for head in heads),
        )


def _heads(sql: Sql, refs: Sequence[bytes]) -> dict[int, ContentHead]:
    """Contents that are here and were not erased, by their place among those asked for."""
    keys = {ref[:KEY_BYTES] for ref in refs}
    query = "SELECT c.n, c.ref, c.salt, c.size FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN"
    mark = FactReader(sql).watermark("lookup_content")
    tail = f"SELECT n, ref, salt, size FROM content WHERE n > {mark} AND ref IN"
    rows = chain(rows_in(sql, query, keys), rows_in(sql, tail, refs))
    known = {bytes(ref): ContentHead(n, bytes(ref), bytes(salt), size) for n, ref, salt, size in rows if len(salt)}
    gone = {bytes(ref) for (ref,) in rows_in(sql, "SELECT ref FROM erasure WHERE ref IN", list(known))}
    return {i: known[ref] for i, ref in enumerate(refs) if ref in known and ref not in gone}


class Gathering:
    """Rows of the log gathered into batches, without what the peer has given us itself."""

    def __init__(self, selection: Selection | None, theirs: list[tuple[int, int]]) -> None:
        self._selection, self._theirs = selection, theirs
        self._lines: list[bytes] = []
        self._size = self._next = 0
        self._skipped: list[SkippedRun] = []
        self._ended: LogRow | None = None

    def take(self, row: LogRow) -> Iterator[EventBatch]:
        """A batch may end in the midst of a row; the place in the log is then the end of the row before."""
        for n, line in enumerate(row.lines(), row.first):
            if self._skips(n, line):
                continue
            self._lines.append(line)
            self._size += len(line)
            if n < row.n and self._is_full():
                yield self._batch(n)
        self._ended = row
        if self._is_full():
            yield self._batch(row.n)

    def rest(self) -> EventBatch | None:
        return None if self._ended is None else self._batch(self._ended.n)

    def _is_full(self) -> bool:
        return len(self._lines) >= BATCH_EVENTS or self._size >= BATCH_BYTES

    def _skips(self, n: int, line: bytes) -> bool:
        while self._next < len(self._theirs) and self._theirs[self._next][1] < n:
            self._next += 1
        if self._next < len(self._theirs) and self._theirs[self._next][0] <= n:
            self._note_skipped(n, line)
            return True
        return self._selection is not None and not self._selection.holds(n, line)

    def _note_skipped(self, n: int, line: bytes) -> None:
        last = self._skipped[-1] if self._skipped else None
        if last is not None and last.first + last.count == n:
            self._skipped[-1] = SkippedRun(last.first, last.count + 1, last.id)
        else:
            self._skipped.append(SkippedRun(n, 1, sha256(line).hexdigest()))

    def _batch(self, done: int) -> EventBatch:
        row = self._ended if self._selection is None else None
        mark = BatchEnd()
        if row is not None:
            mark = BatchEnd(n=row.n, chain=row.chain.hex(), skipped=tuple(self._skipped))
            self._skipped = []
        made = EventBatch(self._lines, [sha256(line).digest() for line in self._lines], mark, done)
        self._lines, self._size = [], 0
        return made
