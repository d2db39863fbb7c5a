"""A ledger copied into an empty one, on whatever backend: the same facts under the same numbers, in the same order.

Facts are taken over row by row, so that the chain of arrival is the same, and the views follow from them as they do in
an append. Each batch is one transaction, and where the log ends is where the copy stands: a copy that was cut short is
run again and goes on there. Until it is finished a mark keeps everybody from opening it. A copy is another ledger: it
has a replica id of its own, and remembers up to where it answers for that of its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.contents import ROW_BYTES, content_ref
from weft.kernel.errors import FactDamaged, NotApplicable
from weft.kernel.facts import content_refs
from weft.ledger.imports.sources import KEY as IMPORT_SECRET
from weft.ledger.upkeep.copy_register import COPY, LEDGER, note_copy, place_of
from weft.ledger.upkeep.recompute import rebuild, silent
from weft.ledger.views import Projector, codeblocks
from weft.ledger.views.lease_rows import Lease, LeaseKind, held_leases
from weft.ledger.views.projector import when_of
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import RowMemory
from weft.store.facts import FactReader, checked_pieces
from weft.store.owners import NOBODY
from weft.store.port import Progress, ReadTxn, Store, WriteTxn
from weft.store.records import (
    DECLINED,
    EXCERPT,
    FORMER,
    LACKS,
    REFUSED_EVENT,
    REFUSED_NAME,
    TAKEN,
    UNPROVEN,
    LogRow,
)
from weft.store.replica_names import COPY_END, COPYING
from weft.store.sql import Row

BATCH_ROWS, BATCH_BYTES = 256, 4 * 1024 * 1024
LOCAL_ROWS = 2048
LOCAL_TABLES: dict[str, tuple[str, ...]] = {
    "import_source": ("name",),
    "import_name": ("key", "turn"),
    "import_wait": ("child", "wants", "why"),
    "provisional": ("source", "session", "idx"),
    "copy_made": ("path",),
    "secret_ignored": ("fingerprint",),
    "command_done": ("key",),
    "remote": ("name",),
    "peer": ("replica",),
    "came_from": ("replica", "first"),
    "vector": ("n",),
    "room_read": ("conversation", "node"),
    "trigger_cursor": ("trigger_id",),
}
"""Local state that a copy takes over as it is; of `local` and `lease` it takes some; `watermark` and
`secret_found`, which goes as far as a watermark, are its own."""
STATE_TABLES = (*LOCAL_TABLES, "lease", "secret_found", "partial_reply")
"""All local state but `local` and `watermark`: what no facts hold, and no clone of a ledger gets."""
_LOG = "SELECT n, count, at, chain, events, contents FROM log WHERE n > ? AND n <= ? ORDER BY n LIMIT ?"
_CONTENTS = "SELECT n, scope, ref, salt, digest, size, shown, bytes FROM content WHERE n > ? AND n <= ? ORDER BY n"
_HAS_PARTS = "SELECT 1 FROM content_part WHERE content = ? UNION SELECT 1 FROM packed WHERE content = ? LIMIT 1"
_NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_COPIED_KEYS = (FORMER, LACKS, EXCERPT, REFUSED_EVENT, REFUSED_NAME, UNPROVEN, TAKEN, DECLINED)
_LEASE = (
    "INSERT INTO lease(kind, key, owner, epoch, beat, purpose) VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT (kind, key)"
    " DO NOTHING"
)


class CopyResult(Struct, frozen=True):
    """What a copy holds now."""

    events: int
    contents: int
    replica: str
    target: str
    """Where it lies, without a password."""


class CopyBatch(Struct, frozen=True):
    """Some rows of the log, and the contents that had come by then."""

    log: list[tuple[LogRow, int]]
    contents: list[Row]


def copy_ledger(
    source: Store, target: Store, progress: Progress | None = None, beside: Callable[[], object] | None = None
) -> CopyResult:
    """Everything that is in `source` now, into `target`, which is empty or an unfinished copy of the same. `beside` is
    called when all facts are there and before the copy counts as finished."""
    copying = Copying(source, target)
    copying.begin()
    copying.remember()
    with source.read() as txn:
        end, last = txn.facts.tip().n, _last_content(txn.facts)
    for done in copying.take_facts(end, last):
        if progress is not None:
            progress(done, end)
    for table, key in LOCAL_TABLES.items():
        copying.take_table(table, key)
    if beside is not None:
        beside()
    copying.end()
    copying.remember()
    return copying.answer()


class Copying:
    """One run of a copy."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source, self._target = source, target
        self._memory = RowMemory()
        self._lost: set[str] = set()
        self._late = False
        """Did a content come after an event that names it? Then the views of that event must be made again."""

    def begin(self) -> None:
        """Mark the target, if it is empty or was marked by an earlier run with the same source."""
        with self._target.read() as txn:
            tip = txn.facts.tip()
            marked = txn.sql.one("SELECT value FROM local WHERE key = ?", (COPYING,))
            is_empty = tip.n == 0 and txn.sql.one("SELECT 1 FROM content LIMIT 1") is None
        with self._source.read() as txn:
            is_ours = tip.n == 0 or txn.facts.chain_at(tip.n) == tip.chain
            former = txn.sql.all("SELECT key, value FROM local WHERE key LIKE ?", (f"{FORMER}%",))
        if self._source.replica == self._target.replica:
            raise NotApplicable(f"{self._target.path} is the ledger itself", "copy to a new place")
        if marked is None and not is_empty:
            raise NotApplicable(f"{self._target.path} is not empty", "copy to a new place")
        if not is_ours:
            raise NotApplicable(f"{self._target.path} is a copy of another ledger", "copy to a new place")
        names = [*former, (FORMER + self._source.replica, str(MAX_INTEGER))]
        self._target.write(partial(_note_names, self._source.replica, names))

    def remember(self) -> None:
        """So that an erasure in the source names the copy: noted at its beginning, as one that is cut short holds
        something, too; and at its end. A source that is open for reading notes nothing."""
        if not self._source.read_only:
            self._source.write(partial(note_copy, place_of(self._target), COPY))

    def take_facts(self, end: int, last: int) -> Iterator[int]:
        """Batch by batch, from where the target ends to event `end` and content `last`."""
        with self._target.read() as txn:
            done, taken = txn.facts.tip().n, _last_content(txn.facts)
        while done < end or taken < last:
            self._target.catch_up()
            batch = self._next(done, end, taken, last)
            self._target.write(partial(self._take, batch))
            if not batch.log and not batch.contents:
                return  # the last contents were deleted by hand
            done = batch.log[-1][0].n if batch.log else done
            taken = batch.contents[-1][0] if batch.contents else taken
            self._source.pause_reading()
            yield done

    def _next(self, done: int, end: int, taken: int, last: int) -> CopyBatch:
        """As many contents as fit into a transaction, and the rows that need no others; those that no row has named
        yet come in the end."""
        with self._source.read() as txn:
            found = txn.sql.all(_LOG, (done, end, BATCH_ROWS))
            until = found[-1][5] if found else last
            contents: list[Row] = []
            weight, reached = 0, until
            for row in txn.sql.each(_CONTENTS, (taken, until)):
                row = _unpacked(txn, row)
                contents.append(row)
                weight += len(row[7] or b"")
                if weight > BATCH_BYTES:
                    reached = row[0]
                    break
        return CopyBatch([_log_row(*row) for row in found if row[5] <= reached], contents)

    def _take(self, batch: CopyBatch, txn: WriteTxn) -> None:
        refs = {bytes(row[2]).hex(): int(row[0]) for row in batch.contents}
        self._late |= not self._lost.isdisjoint(refs)
        for row in batch.contents:
            _check(row)
            if row[7] is None and row[3]:
                self._take_parts(row, txn)
        txn.facts.take_contents(batch.contents)
        view = Projector(txn.sql, txn.facts, Numbers(txn.facts, refs, self._lost), self._memory)
        self._memory.clear()
        for logged, contents in batch.log:
            txn.facts.take_row(logged, contents)
            for n, line in enumerate(logged.lines(), logged.first):
                event = decoded(n, line)
                view.apply(n, when_of(event, logged.at), sha256(line).digest(), event)
                for ref in content_refs(event):
                    view.contents.number(ref)
            view.flush()

    def _take_parts(self, row: Row, txn: WriteTxn) -> None:
        """A large content, 1 MiB at a time; one whose bytes are gone in the source is taken over without them."""
        with self._source.read() as source:
            head = source.facts.content_head(row[0])
            if source.sql.one(_HAS_PARTS, (head.n, head.n)) is None:
                return
            for idx, piece in enumerate(checked_pieces(head, partial(source.facts.content_piece, head))):
                txn.sql.run("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", (head.n, idx, piece))

    def take_table(self, table: str, key: tuple[str, ...]) -> None:
        """A table of local state, some rows at a time; those that came before stay."""
        names, marks, after = ", ".join(key), ", ".join("?" * len(key)), None
        while True:
            where = "" if after is None else f"WHERE ({names}) > ({marks})"
            query = f"SELECT {names}, t.* FROM {table} t {where} ORDER BY {names} LIMIT ?"
            with self._source.read() as txn:
                rows = txn.sql.all(query, (*(after or ()), LOCAL_ROWS))
            if not rows:
                return
            self._target.write(partial(_insert, table, names, [row[len(key) :] for row in rows]))
            after = rows[-1][: len(key)]

    def end(self) -> None:
        """Views that lag, then what of the origin's own state belongs to the copy; with that the mark goes."""
        self._target.catch_up()
        codeblocks.catch_up(self._target)
        if self._late:
            rebuild(self._target, silent)
        with self._source.read() as txn:
            kept = txn.sql.all(
                "SELECT key, value FROM local WHERE key = ? OR key LIKE 'rollback:%'"
                + " OR key LIKE ?" * len(_COPIED_KEYS),
                (IMPORT_SECRET, *(f"{begin}%" for begin in _COPIED_KEYS)),
            )
            leases = held_leases(txn.sql, LeaseKind.SESSION, LeaseKind.TURN)
        self._target.write(partial(self._settle, kept, leases))

    def _settle(self, kept: list[Row], leases: list[Lease], txn: WriteTxn) -> None:
        _note(FORMER + self._source.replica, str(txn.facts.tip().n), txn)
        note_copy(place_of(self._source), LEDGER, txn)
        for key, value in kept:
            _note(key, value, txn)
        for lease in leases:
            if txn.sql.one("SELECT 1 FROM turn WHERE id = ?", (lease.purpose,)) is not None:
                txn.sql.run(_LEASE, (lease.kind, lease.key, NOBODY, lease.epoch, lease.purpose))
        _note(COPY_END, str(txn.facts.tip().n), txn)
        txn.sql.run("DELETE FROM local WHERE key = ?", (COPYING,))

    def answer(self) -> CopyResult:
        with self._target.read() as txn:
            (contents,) = txn.sql.one("SELECT count(*) FROM content") or (0,)
            return CopyResult(txn.facts.tip().n, int(contents), self._target.replica, self._target.path)


class Numbers:
    """Contents of the target, those of the batch under way among them."""

    def __init__(self, facts: FactReader, fresh: dict[str, int], lost: set[str]) -> None:
        self._facts, self._known, self._lost = facts, fresh, lost

    def number(self, ref: str) -> int:
        found = self._known.get(ref)
        if found is None:
            found = self._known[ref] = self._facts.find_content(bytes.fromhex(ref)) or 0
            if not found:
                self._lost.add(ref)
        return found

    def content_text(self, n: int) -> str | None:
        return self._facts.text(n)

    def readable_text(self, n: int) -> str | None:
        return self._facts.readable_text(n)


def _log_row(n: int, count: int, at: int, chain: bytes, events: bytes, contents: int) -> tuple[LogRow, int]:
    return LogRow(n, count, at, bytes(chain), bytes(events)), contents


def _note_names(source: str, names: list[Row], txn: WriteTxn) -> None:
    """What the origin wrote, under all its names, is the copy's own from the beginning: views go by that."""
    _note(COPYING, source, txn)
    for key, value in names:
        _note(key, value, txn)


def _last_content(facts: FactReader) -> int:
    (last,) = facts.sql.one("SELECT max(n) FROM content") or (0,)
    return int(last or 0)


def _unpacked(txn: ReadTxn, row: Row) -> Row:
    """A content that lies in a pack, with its bytes in its own row, if they fit there."""
    n, *between, size, shown, data = row
    if data is not None or size > ROW_BYTES or txn.sql.one("SELECT 1 FROM packed WHERE content = ?", (n,)) is None:
        return row
    return (n, *between, size, shown, txn.facts.content(n))


def _check(row: Row) -> None:
    _, _, ref, salt, _, _, _, data = row
    if data is not None and content_ref(bytes(salt), bytes(data)) != bytes(ref):
        raise FactDamaged("content", bytes(ref).hex(), "its bytes do not hash to its reference")


def _note(key: str, value: str, txn: WriteTxn) -> None:
    txn.sql.run(_NOTE, (key, value))


def _insert(table: str, key: str, rows: list[tuple[Any, ...]], txn: WriteTxn) -> None:
    marks = ", ".join("?" * len(rows[0]))
    txn.sql.run_many(f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING", rows)
