"""A ledger as a sink: what it lacks, and batches taken whole.

A batch is one transaction: contents, events with every link checked, views, the stretch of our log that they are, and
the place in the peer's log where that is proven. A process that dies leaves all of it or nothing, and the next run goes
on there.

Events that say that this ledger wrote them, or that contradict what is here, are refused with all that build on them.
The first two forged events that a peer tells end the run; from then on they are left out, the rest is taken, and the
end of the run says what was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice

from weft.exchange.sync.messages import BatchEnd, Ready, Taken
from weft.exchange.sync.peers import (
    Stretch,
    cursor,
    note_doubt,
    note_range,
    note_taken,
    note_unproven,
    settle_doubt,
    stretches_from,
)
from weft.exchange.sync.sender import MOST_LACKING
from weft.kernel.errors import ReplicaDiverged
from weft.ledger.upkeep.facts_file import (
    Fact,
    NewEvent,
    RefusedEvents,
    begun_by,
    count_refused,
    forgery_of,
    refused_among,
    says_written_by,
    take_batch,
)
from weft.store.fact_log import KEY_BYTES, LACKS
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import rows_in

ENDING_REFUSALS_LIMIT = 2
"""So many forged events of a peer end a run each. More of them keep nobody from taking the rest."""


class LedgerSink:
    """One ledger, for one run of receiving from one peer."""

    def __init__(self, store: Store, peer: str) -> None:
        self._store, self._peer = store, peer
        self._ranges: list[Stretch] = []
        """Stretches of our log that came from the peer since its last proven place."""
        self._reasons: list[str] = []
        store.catch_up()

    def ready(self, peer: str) -> Ready:
        with self._store.read() as txn:
            empty = txn.facts.tip().n == 0
            return cursor(txn.sql, peer, empty=empty)

    def size(self) -> int:
        with self._store.read() as txn:
            return txn.facts.tip().n

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

    def refused(self, ids: Sequence[bytes]) -> set[bytes]:
        with self._store.read() as txn:
            return refused_among(txn.sql, ids)

    def own_run(self, first: bytes, count: int) -> list[bytes]:
        with self._store.read() as txn:
            n = _number_of(txn, first)
            return [] if n is None else list(islice(_ids_not_from(txn, self._peer, n), count))

    def missing(self, refs: Sequence[bytes]) -> list[bool]:
        query = "SELECT c.ref FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN"
        with self._store.read() as txn:
            known = {bytes(ref) for (ref,) in rows_in(txn.sql, query, {ref[:KEY_BYTES] for ref in refs})}
            gone = {bytes(ref) for (ref,) in rows_in(txn.sql, "SELECT ref FROM erasure WHERE ref IN", list(refs))}
        return [ref not in known and ref not in gone for ref in refs]

    def without_forged(self, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Before their contents are asked for."""
        forged = [new for new in events if says_written_by(new, self._store.replica)]
        if forged:
            self._refuse(forged)
        return [new for new in events if not says_written_by(new, self._store.replica)]

    def _refuse(self, forged: Sequence[NewEvent]) -> None:
        with self._store.read() as txn:
            before = refused_among(txn.sql, [new.id for new in forged])
            ends = count_refused(txn.sql, self._peer) < ENDING_REFUSALS_LIMIT
        fresh = [new for new in forged if new.id not in before]
        if not fresh:
            return
        if not self._store.read_only:
            self._store.write(partial(self._note_forged, fresh))
        reasons = [forgery_of(new, self._store.replica) for new in fresh]
        if ends:
            raise ReplicaDiverged(reasons[0])
        self._reasons += reasons

    def _note_forged(self, forged: Sequence[NewEvent], txn: WriteTxn) -> None:
        refused = RefusedEvents(txn.sql, self._peer)
        for new in forged:
            refused.add(new.id, begun_by(new.event))

    def take(self, facts: Sequence[Fact], mark: BatchEnd, *, covers: bool) -> Taken:
        taken, reasons = self._store.write(partial(self._take, facts, mark, covers))
        self._reasons += reasons
        if facts:
            self._store.catch_up()
        return taken

    def _take(self, facts: Sequence[Fact], mark: BatchEnd, covers: bool, txn: WriteTxn) -> tuple[Taken, list[str]]:
        """Ranges are kept from one transaction to the next; one that is run again begins with those of the last."""
        first = txn.facts.tip().n + 1
        refused = RefusedEvents(txn.sql, self._peer)
        brought = take_batch(list(enumerate(facts, 1)), txn, excerpts=True, refused=refused)
        earlier = [stretch for stretch in self._ranges if stretch[1] < first]
        latest = [(first, txn.facts.tip().n)] if txn.facts.tip().n >= first else []
        for stretch in latest:
            note_range(txn.sql, self._peer, *stretch)
            note_doubt(txn.sql, self._peer, stretch)
        self._ranges = earlier + latest
        if mark.n:
            note_taken(txn.sql, self._peer, mark, txn.facts.now_ms)
            for stretch in self._ranges if covers else earlier:
                settle_doubt(txn.sql, self._peer, stretch)
            self._ranges = [] if covers else latest
        taken = Taken(events=brought.events, contents=brought.contents, known=brought.known, erased=brought.erased)
        return taken, refused.reasons

    def finish(self, *, is_unproven: bool, was_whole: bool) -> None:
        """The run is at its end. Raises ReplicaDiverged where something was refused for the first time."""
        if is_unproven or was_whole:
            self._store.write(lambda txn: note_unproven(txn.sql, self._peer, is_unproven))
        if self._reasons:
            others = len(self._reasons) - 1
            more = f", and {others} more like it" if others else ""
            raise ReplicaDiverged(
                f"refused what replica {self._peer} told: {self._reasons[0]}{more}; everything else was taken",
                "what is here stays; ask the ledgers that you sync with which of them wrote it",
            )


def _ids_not_from(txn: ReadTxn, peer: str, n: int) -> Iterator[bytes]:
    """The ids of our events from `n` on, without those that came from this peer."""
    theirs = stretches_from(txn.sql, peer, n - 1)
    for number, line in txn.facts.lines(n - 1):
        while theirs and theirs[0][1] < number:
            theirs.pop(0)
        if not theirs or number < theirs[0][0]:
            yield sha256(line).digest()


def _number_of(txn: ReadTxn, event: bytes) -> int | None:
    """The arrival number of an event that is here."""
    for (n,) in txn.sql.all("SELECT n FROM lookup_event WHERE key = ?", (event[:KEY_BYTES],)):
        line = txn.facts.line(n)
        if line is not None and sha256(line).digest() == event:
            return int(n)
    tail = txn.facts.lines(txn.facts.watermark("lookup_event"))
    return next((n for n, line in tail if sha256(line).digest() == event), None)


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
