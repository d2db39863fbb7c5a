"""A ledger as a sink: what it lacks, and batches taken whole.

A batch is one transaction: contents, events with every link checked, views, the stretch of our log that they are, and
the place in the peer's log. A process that dies leaves all of it or nothing, and the next run goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from weft.exchange.sync.messages import BatchEnd, Ready, Taken
from weft.exchange.sync.peers import cursor, note_range, note_taken
from weft.ledger.upkeep.facts_file import Fact, NewEvent, refuse_forged, take_batch
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.records import KEY_BYTES, LACKS
from weft.store.sql import rows_in

MOST_LACKING = 8192


class LedgerSink:
    """One ledger, for one run of receiving from one peer."""

    def __init__(self, store: Store, peer: str) -> None:
        self._store, self._peer = store, peer
        store.catch_up()

    def ready(self, peer: str) -> Ready:
        with self._store.read() as txn:
            empty = txn.facts.tip().n == 0
            return cursor(txn.sql, peer, empty=empty)

    def lacking(self) -> list[bytes]:
        with self._store.read() as txn:
            rows = txn.sql.all(
                "SELECT key FROM local WHERE key LIKE ? ORDER BY key LIMIT ?", (f"{LACKS}%", MOST_LACKING)
            )
        return [bytes.fromhex(key.removeprefix(LACKS)) for (key,) in rows]

    def unknown(self, ids: Sequence[bytes]) -> list[bool]:
        with self._store.read() as txn:
            known = _known_events(txn, ids)
        return [id not in known for id in ids]

    def missing(self, refs: Sequence[bytes]) -> list[bool]:
        query = "SELECT c.ref FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN"
        with self._store.read() as txn:
            known = {bytes(ref) for (ref,) in rows_in(txn.sql, query, {ref[:KEY_BYTES] for ref in refs})}
            gone = {bytes(ref) for (ref,) in rows_in(txn.sql, "SELECT ref FROM erasure WHERE ref IN", list(refs))}
        return [ref not in known and ref not in gone for ref in refs]

    def refuse_forged(self, events: Sequence[NewEvent]) -> None:
        """Before their contents are asked for."""
        for new in events:
            refuse_forged(new, self._store.replica)

    def take(self, facts: Sequence[Fact], mark: BatchEnd) -> Taken:
        taken = self._store.write(partial(self._take, facts, mark))
        if facts:
            self._store.catch_up()
        return taken

    def _take(self, facts: Sequence[Fact], mark: BatchEnd, txn: WriteTxn) -> Taken:
        first = txn.facts.tip().n + 1
        brought = take_batch(list(enumerate(facts, 1)), txn, excerpts=True)
        note_range(txn.sql, self._peer, first, txn.facts.tip().n)
        if mark.n:
            note_taken(txn.sql, self._peer, mark, txn.facts.now_ms)
        return Taken(events=brought.events, contents=brought.contents, known=brought.known, erased=brought.erased)


def _known_events(txn: ReadTxn, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these events are here: found by the beginning of their ids, then held against the whole of it."""
    wanted, known = set(ids), set()
    rows = rows_in(txn.sql, "SELECT n FROM lookup_event WHERE key IN", {id[:KEY_BYTES] for id in ids})
    numbers = sorted(n for (n,) in rows)
    while numbers:
        row = txn.facts.log(numbers[0] - 1, 1)[0]
        lines = row.lines()
        while numbers and numbers[0] <= row.n:
            known.add(sha256(lines[numbers.pop(0) - row.first]).digest())
    tail = txn.facts.lines(txn.facts.watermark("lookup_event"))
    known.update(sha256(line).digest() for _, line in tail)
    return known & wanted
