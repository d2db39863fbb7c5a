"""A ledger copied into an empty one, on whatever backend, and a new one from what could be
proved of a damaged one; which backups and exports exist; and what of a ledger's file belongs to a
clone of it. Packing cold trees: their contents go into compressed blocks and stay what they were.

Packed are only contents that nobody outside these trees uses, and that are long enough to be worth it: ids, labels and
short messages stay where a plain SQL shell reads them. A few megabytes at a time, each in a transaction of its own, so
that writers get their turn; killed in between, some are packed and some are not. In the end the database is written
anew, which gives the room back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import orjson
from msgspec import UNSET, Struct

from weft.kernel.contents import MAX_INTEGER, ROW_BYTES, content_ref
from weft.kernel.errors import FactDamaged, InvalidFact, NotApplicable, NotFound
from weft.kernel.events import (
    GENESIS,
    Event,
    ExtRef,
    RunStarted,
    SnapshotMaterialized,
    UnknownEvent,
    extend,
    run_stream,
)
from weft.kernel.foreign_input import KINDS, check_event, check_unknown, content_refs
from weft.kernel.ledger_events import ContentErased, SessionMoved
from weft.kernel.typed_names import Site
from weft.ledger.imports.sources import KEY as IMPORT_SECRET
from weft.ledger.imports.sources import adopt_secret
from weft.ledger.read.content_uses import About, Report, Resolve, find_uses
from weft.ledger.read.revisions import session_beside_turns
from weft.ledger.read.search_index import GONE
from weft.ledger.secrets.findings import FOUND
from weft.ledger.secrets.scan import MARK, RULES_KEY
from weft.ledger.upkeep.facts_file import (
    BATCH_LINES,
    Fact,
    NewContent,
    NewEvent,
    event_line,
    take_batch,
    views_are_stale,
)
from weft.ledger.upkeep.verify import rebuild, silent
from weft.ledger.views import Projector, turns
from weft.ledger.views.projector import when_of
from weft.ledger.views.rows import Lease, LeaseKind, RowMemory, decoded, held_leases
from weft.ledger.write.transaction import Append, LedgerWriter
from weft.store.fact_log import (
    CURRENT_VIEW_RULES,
    DECLINED,
    EXCERPT,
    FORMER,
    LACKS,
    PACK_BYTES,
    REFUSED_EVENT,
    REFUSED_NAME,
    TAKEN,
    UNPROVEN,
    USAGE_TOTALS,
    VIEW_RULES,
    VIEWS_MENDED,
    ContentSlice,
    FactReader,
    LogRow,
    LogTip,
    checked_pieces,
    drop_from_packs,
    is_packing_worthwhile,
    local_value,
    pack_frame,
    write_pack,
)
from weft.store.port import Progress, ProvedContent, ProvedEvent, ReadTxn, Store, WriteTxn
from weft.store.private_files import aside_of, open_private
from weft.store.replicas import COPY_END, COPYING, NOBODY, NOTE
from weft.store.sql import Row, Sql, rows_in

# --- Copies that were made of a ledger: backups and exports, remembered so that an erasure can name them.

BACKUP, FACTS, EXPORT, BUNDLE, BESIDE = "backup", "facts", "export", "bundle", "beside"
LEDGER, COPY = "ledger", "copy"
FILE = "file"
"""The kind of a reference to a file, by its path."""


class KnownCopy(Struct, frozen=True, kw_only=True):
    """A file that holds what the ledger held when it was made."""

    path: str
    kind: str
    """`backup`; `facts`: all of them as lines; `export`: some of what was said, in another form, also as a session for
    another tool; `bundle`: some of its threads; `ledger`: one that this one was copied from; `copy`: one that was
    copied from this one; `beside`: what an upgrade, a restored backup or an unfinished copy left beside it."""
    made_at: int | None
    exists: bool
    """It still lies there, as far as can be told from here; otherwise it was moved or deleted."""


@contextmanager
def remembered(store: Store, path: Path, kind: str) -> Iterator[None]:
    """Around the making of a copy. Noted before it: one that is cut short is named, too; and after it, with whatever
    came meanwhile. A ledger open for reading notes nothing, and a file that stands in the way is no copy."""
    if store.read_only or path.exists():
        yield
        return
    note = partial(note_copy, str(path.absolute()), kind)
    store.write(note)
    yield
    store.write(note)


def note_copy(path: str, kind: str, txn: WriteTxn) -> None:
    """There is a copy of all that is here now."""
    (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (None,)
    txn.sql.run(
        "INSERT INTO copy_made(path, kind, made_at, contents) VALUES (?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET"
        " kind = excluded.kind, made_at = excluded.made_at, contents = excluded.contents",
        (path, kind, txn.facts.now_ms, last or 0),
    )


def record_materialization(writer: LedgerWriter, path: str, turn: str) -> None:
    """The thread that ends at a turn was written to a file, for people or other programs to read."""

    def work(append: Append) -> None:
        append.ledger_stream().add(
            SnapshotMaterialized,
            materialization=append.ulids.mint(),
            content_ref=ExtRef(kind=FILE, id=append.put_text(path, "path")),
            run=turn,
        )
        append.seal()

    writer.write(work)


def place_of(store: Store) -> str:
    """Where a ledger lies, as it is told from anywhere."""
    return str(Path(store.path).absolute()) if Site.of(store.path) is Site.FILE else store.path


def known_copies(store: Store, txn: ReadTxn, first: int) -> Iterator[KnownCopy]:
    """Copies that were made here since content number `first` was, whether they still lie there or not; and what lies
    beside the ledger."""
    made = txn.sql.fetch_rows(
        "SELECT path, kind, made_at FROM copy_made WHERE contents >= ? ORDER BY made_at, path", (first,)
    )
    here = place_of(store)
    for path, kind, made_at in made:
        if path == here:  # a copy brings along what its origin knew of it
            continue
        there = Site.of(path).is_address or any(map(os.path.exists, (path, aside_of(Path(path)))))
        yield KnownCopy(path=path, kind=kind, made_at=made_at, exists=there)
    for beside in store.lying_beside():
        yield KnownCopy(path=str(beside), kind=BESIDE, made_at=None, exists=True)


# --- A ledger copied into an empty one, on whatever backend: the same facts under the same numbers, in the same order.

BATCH_ROWS, COPIED_BATCH_BYTES = 256, 4 * 1024 * 1024
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
    "account": ("program",),
    "credential_revoked": ("id",),
}
"""Local state that a copy takes over as it is; of `local` and `lease` it takes some; `watermark` and
`secret_found`, which goes as far as a watermark, are its own, and so are links and browsers that sign in."""
SIGN_IN_TABLES = ("sign_in_link", "cookie_key", "browser_session")
STATE_TABLES = (*LOCAL_TABLES, *SIGN_IN_TABLES, "lease", "secret_found", "partial_reply")
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
    copying = CopyRun(source, target)
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


class CopyRun:
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
            marked = txn.sql.fetch_row("SELECT value FROM local WHERE key = ?", (COPYING,))
            is_empty = tip.n == 0 and txn.sql.fetch_row("SELECT 1 FROM content LIMIT 1") is None
        with self._source.read() as txn:
            is_ours = tip.n == 0 or txn.facts.chain_at(tip.n) == tip.chain
            former = txn.sql.fetch_rows("SELECT key, value FROM local WHERE key LIKE ?", (f"{FORMER}%",))
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
            batch = self._next_batch(done, end, taken, last)
            self._target.write(partial(self._take_batch, batch))
            if not batch.log and not batch.contents:
                return  # the last contents were deleted by hand
            done = batch.log[-1][0].n if batch.log else done
            taken = batch.contents[-1][0] if batch.contents else taken
            self._source.pause_reading()
            yield done

    def _next_batch(self, done: int, end: int, taken: int, last: int) -> CopyBatch:
        """As many contents as fit into a transaction, and the rows that need no others; those that no row has named
        yet come in the end."""
        with self._source.read() as txn:
            found = txn.sql.fetch_rows(_LOG, (done, end, BATCH_ROWS))
            until = found[-1][5] if found else last
            contents: list[Row] = []
            weight, reached = 0, until
            for row in txn.sql.iterate_rows(_CONTENTS, (taken, until)):
                row = _unpacked_row(txn, row)
                contents.append(row)
                weight += len(row[7] or b"")
                if weight > COPIED_BATCH_BYTES:
                    reached = row[0]
                    break
        return CopyBatch([_log_row(*row) for row in found if row[5] <= reached], contents)

    def _take_batch(self, batch: CopyBatch, txn: WriteTxn) -> None:
        refs = {bytes(row[2]).hex(): int(row[0]) for row in batch.contents}
        self._late |= not self._lost.isdisjoint(refs)
        for row in batch.contents:
            _check_content(row)
            if row[7] is None and row[3]:
                self._take_parts(row, txn)
        txn.facts.take_contents(batch.contents)
        view = Projector(txn.sql, txn.facts, TargetNumbers(txn.facts, refs, self._lost), self._memory)
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
            if source.sql.fetch_row(_HAS_PARTS, (head.n, head.n)) is None:
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
                rows = txn.sql.fetch_rows(query, (*(after or ()), LOCAL_ROWS))
            if not rows:
                return
            self._target.write(partial(_insert_rows, table, names, [row[len(key) :] for row in rows]))
            after = rows[-1][: len(key)]

    def end(self) -> None:
        """Views that lag, then what of the origin's own state belongs to the copy; with that the mark goes."""
        self._target.catch_up()
        turns.catch_up(self._target)
        if self._late:
            rebuild(self._target, silent)
        with self._source.read() as txn:
            kept = txn.sql.fetch_rows(
                "SELECT key, value FROM local WHERE key = ? OR key LIKE 'rollback:%'"
                + " OR key LIKE ?" * len(_COPIED_KEYS),
                (IMPORT_SECRET, *(f"{begin}%" for begin in _COPIED_KEYS)),
            )
            leases = held_leases(txn.sql, LeaseKind.SESSION, LeaseKind.TURN)
        self._target.write(partial(self._settle_copy, kept, leases))

    def _settle_copy(self, kept: list[Row], leases: list[Lease], txn: WriteTxn) -> None:
        _note_local(FORMER + self._source.replica, str(txn.facts.tip().n), txn)
        note_copy(place_of(self._source), LEDGER, txn)
        for key, value in kept:
            _note_local(key, value, txn)
        for lease in leases:
            if txn.sql.fetch_row("SELECT 1 FROM turn WHERE id = ?", (lease.purpose,)) is not None:
                txn.sql.run(_LEASE, (lease.kind, lease.key, NOBODY, lease.epoch, lease.purpose))
        _note_local(COPY_END, str(txn.facts.tip().n), txn)
        txn.sql.run("DELETE FROM local WHERE key = ?", (COPYING,))

    def answer(self) -> CopyResult:
        with self._target.read() as txn:
            (contents,) = txn.sql.fetch_row("SELECT count(*) FROM content") or (0,)
            return CopyResult(txn.facts.tip().n, int(contents), self._target.replica, self._target.path)


class TargetNumbers:
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
    _note_local(COPYING, source, txn)
    for key, value in names:
        _note_local(key, value, txn)


def _last_content(facts: FactReader) -> int:
    (last,) = facts.sql.fetch_row("SELECT max(n) FROM content") or (0,)
    return int(last or 0)


def _unpacked_row(txn: ReadTxn, row: Row) -> Row:
    """A content that lies in a pack, with its bytes in its own row, if they fit there."""
    n, *between, size, shown, data = row
    if (
        data is not None
        or size > ROW_BYTES
        or txn.sql.fetch_row("SELECT 1 FROM packed WHERE content = ?", (n,)) is None
    ):
        return row
    return (n, *between, size, shown, txn.facts.content(n))


def _check_content(row: Row) -> None:
    _, _, ref, salt, _, _, _, data = row
    if data is not None and content_ref(bytes(salt), bytes(data)) != bytes(ref):
        raise FactDamaged("content", bytes(ref).hex(), "its bytes do not hash to its reference")


def _note_local(key: str, value: str, txn: WriteTxn) -> None:
    txn.sql.run(_NOTE, (key, value))


def _insert_rows(table: str, key: str, rows: list[tuple[Any, ...]], txn: WriteTxn) -> None:
    marks = ", ".join("?" * len(rows[0]))
    txn.sql.run_many(f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING", rows)


# --- A new ledger from what could be proved of a damaged one.

SALVAGED_BATCH_BYTES = 4 * 1024 * 1024
_DECIDING = (b'"config":"', b'"session_model_switched"', b'"human_approved"', b'"human_rejected"')
"""Marks of the events that decide something where they were written or taken over."""


class ProvedFacts(Protocol):
    """Proved facts, and which of them have got a place."""

    damaged_contents: int
    unproved_events: int

    def contents(self) -> Iterable[ProvedContent]: ...
    def events(self) -> Iterable[ProvedEvent]: ...
    def local(self, key: str) -> str | None: ...
    def local_keys(self, prefix: str) -> list[str]: ...
    def place(self, event: bytes, stream: str) -> None: ...
    def is_placed(self, event: bytes) -> bool: ...
    def has_stream(self, name: str) -> bool: ...
    def unplaced(self) -> Iterable[bytes]: ...
    def missing(self) -> list[tuple[int, int]]: ...


class SalvageResult(Struct, frozen=True, kw_only=True):
    """What was saved and what was not."""

    events: int
    contents: int
    lost_events: tuple[tuple[int, int], ...]
    """Ranges of arrival numbers of which nothing could be proved."""
    unproved_events: int
    """Lines that were found, and that nothing vouches for; some may be damaged copies of events that were saved."""
    unplaced_events: int
    """Events that verify, and grow from something that is lost."""
    unplaced_file: str | None
    damaged_contents: int
    """Rows of contents whose bytes are not those that were written."""
    missing_contents: int
    """Contents that events name and that were not found, or were erased."""

    @property
    def is_whole(self) -> bool:
        """Damaged copies of facts count for nothing where a good one was found."""
        return not (self.lost_events or self.unplaced_events or self.missing_contents)


def salvage(finds: ProvedFacts, store: Store, unplaced: Path, progress: Progress | None = None) -> SalvageResult:
    """Everything that has a place, into an empty store; the rest of what verifies into the file `unplaced`."""
    placing = FactPlacing(finds, store, progress or _no_progress)
    secret = finds.local(IMPORT_SECRET)
    if secret is not None and len(secret) == 64:
        adopt_secret(store, bytes.fromhex(secret))
    placing.take_contents()
    placing.take_events()
    store.catch_up()
    if views_are_stale(store):
        rebuild(store, silent)
    _keep_authority(finds, store)
    left = _write_unplaced(finds, unplaced)
    with store.read() as txn:
        (missing,) = txn.sql.fetch_row("SELECT count(*) FROM local WHERE key LIKE ?", (LACKS + "%",)) or (0,)
    return SalvageResult(
        events=placing.events,
        contents=placing.contents,
        lost_events=tuple(finds.missing()),
        unproved_events=finds.unproved_events,
        unplaced_events=left,
        unplaced_file=str(unplaced) if left else None,
        damaged_contents=finds.damaged_contents,
        missing_contents=int(missing),
    )


def _keep_authority(finds: ProvedFacts, store: Store) -> None:
    """The new ledger has a name of its own. Decisions that the damaged one wrote or took over are noted as taken over,
    and what it refused stays refused; where old pages say both of one event, it waits."""
    own = finds.local("replica")
    ends = {own: MAX_INTEGER} if own else {}
    for key in finds.local_keys(FORMER):
        ends[key.removeprefix(FORMER)] = int(finds.local(key) or 0)
    decided = {key: finds.local(key) or "0" for prefix in (TAKEN, DECLINED) for key in finds.local_keys(prefix)}
    for id in [key.removeprefix(TAKEN) for key in decided if key.startswith(TAKEN)]:
        if decided.pop(DECLINED + id, None) is not None:
            del decided[TAKEN + id]
    for proved in finds.events():
        if any(mark in proved.line for mark in _DECIDING):
            event = orjson.loads(proved.line)
            if proved.n <= ends.get(str(event.get("replica")), 0):
                decided[TAKEN + proved.id.hex()] = "0"

    def note(txn: WriteTxn) -> None:
        for key, value in decided.items():
            txn.sql.run(NOTE, (key, value))

    store.write(note)


def _no_progress(done: int, of: int) -> None:
    """No progress wanted."""


class FactPlacing:
    """Facts on their way into the new ledger."""

    def __init__(self, finds: ProvedFacts, store: Store, progress: Progress) -> None:
        self._finds, self._store, self._progress = finds, store, progress
        self.events = self.contents = 0

    def take_contents(self) -> None:
        """Those that were erased stay erased, wherever their bytes turned up."""
        erased = {event.content for event in self._decoded_events() if isinstance(event, ContentErased)}
        wanted = (
            NewContent(content.ref, content.salt, content.data)
            for content in self._finds.contents()
            if content.ref.hex() not in erased
        )
        for batch in _content_batches(wanted):
            self._store.catch_up()
            self.contents += self._store.write(partial(take_batch, list(enumerate(batch)))).contents

    def _decoded_events(self) -> Iterator[Event | UnknownEvent]:
        for proved in self._finds.events():
            if b'"content_erased"' in proved.line:
                yield KINDS.decode(proved.line)

    def take_events(self) -> None:
        rest = iter(self._finds.events())
        while some := list(islice(rest, BATCH_LINES)):
            self._store.catch_up()
            self._place_events(self._placeable_events(some))
            self._progress(some[-1].n, some[-1].n)

    def _placeable_events(self, some: list[ProvedEvent]) -> list[NewEvent]:
        """Those that grow from what has a place, or gets one in the same batch."""
        events: dict[bytes, NewEvent] = {}
        streams: set[str] = set()
        for proved in some:
            event = _checked_event(proved)
            if event is not None and all(name in events or self._finds.is_placed(name) for name in _root_events(event)):
                target = event.to if isinstance(event, SessionMoved) else None
                if target is None or run_stream(target) in streams or self._finds.has_stream(run_stream(target)):
                    events[proved.id] = NewEvent(proved.line, proved.id, event)
                    streams.add(event.stream)
        return list(events.values())

    def _place_events(self, events: list[NewEvent]) -> None:
        """All of them; where one has no place after all, each half by itself."""
        if not events:
            return
        try:
            self._store.write(partial(take_batch, list(enumerate(events))))
        except InvalidFact:
            if len(events) > 1:
                half = len(events) // 2
                self._place_events(events[:half])
                self._place_events(self._still_rooted(events[half:]))
            return
        self.events += len(events)
        for event in events:
            self._finds.place(event.id, event.event.stream)

    def _still_rooted(self, events: list[NewEvent]) -> list[NewEvent]:
        kept: dict[bytes, NewEvent] = {}
        for event in events:
            if all(name in kept or self._finds.is_placed(name) for name in _root_events(event.event)):
                kept[event.id] = event
        return list(kept.values())


def _checked_event(proved: ProvedEvent) -> Event | UnknownEvent | None:
    """The event, if it is one that a ledger takes from strangers."""
    try:
        event = KINDS.decode(proved.line)
        if isinstance(event, Event):
            check_event(event)
        else:
            check_unknown(event, KINDS.kinds.get(event.kind))
    except (ValueError, InvalidFact):
        return None
    return event


def _root_events(event: Event | UnknownEvent) -> Iterator[bytes]:
    """The events that it grows from."""
    if event.prev is not None:
        yield bytes.fromhex(event.prev)
    if isinstance(event, RunStarted) and event.fork is not UNSET:
        yield bytes.fromhex(event.fork.event)


def _content_batches(contents: Iterable[NewContent]) -> Iterator[list[Fact]]:
    batch: list[Fact] = []
    weight = 0
    for content in contents:
        batch.append(content)
        weight += len(content.data)
        if len(batch) >= BATCH_LINES or weight > SALVAGED_BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _write_unplaced(finds: ProvedFacts, target: Path) -> int:
    count, file = 0, None
    try:
        for line in finds.unplaced():
            file = file or open(open_private(target), "wb")  # noqa: SIM115  # closed below
            file.write(event_line(line) + b"\n")
            count += 1
    finally:
        if file is not None:
            file.close()
    return count


# --- What of a ledger's file belongs to a clone of it, and which file may become one.

OWN_WORD_TABLES = (
    "came_from", "erasure", "substitution", "branch", "resource", "resource_part", "resource_use", "resource_handle",
    "resource_snapshot", "resource_restore",
)  # fmt: skip
"""Their rows, or those that they change, depend on which events the ledger wrote itself; `came_from` is of others'."""
TOTALS_KEYS = (USAGE_TOTALS, VIEWS_MENDED)
"""What the totals of usage go by. These come along, as those do."""
PLAIN_KEYS = frozenset({"replica", IMPORT_SECRET, VIEW_RULES, *TOTALS_KEYS, GONE, FOUND, RULES_KEY})
PLAIN_PREFIXES = ("trust:", "disputed:", "whole-offer:")
"""Local state that says nothing of facts. Any other (facts that never came, names that were given up, an erasure under
way) has its consequences in the views."""
_REPLICA = b'"replica":"'
PROVEN_EVENTS = 65_536
"""So many at the end of a log are hashed; of a longer one the others are read. Hashing all of them would take longer
than copying the file does."""


class ReadLog(Struct, frozen=True):
    """A log that one replica wrote."""

    tip: LogTip
    bytes: int


def may_become_clone(sql: Sql) -> bool:
    """As far as tables tell; `read_log` looks at the events."""
    local = {str(key): value for key, value in sql.fetch_rows("SELECT key, value FROM local")}
    if local.get(VIEW_RULES) != CURRENT_VIEW_RULES:
        return False
    if not all(key in PLAIN_KEYS or key.startswith(PLAIN_PREFIXES) for key in local):
        return False
    return all(sql.fetch_row(f"SELECT 1 FROM {table} LIMIT 1") is None for table in OWN_WORD_TABLES)


def read_log(facts: FactReader, replica: str, progress: Progress) -> ReadLog | None:
    """The log, whose end is held against its chain of arrival. None where another replica wrote some of it. Raises
    FactDamaged where rows are missing, or where the end is not what the chain says."""
    own, end = _REPLICA + replica.encode() + b'"', facts.tip()
    chain, size, n = GENESIS, 0, 0
    for row in facts.rows():
        if row.events.count(_REPLICA) != row.events.count(own):
            return None
        if row.n > end.n - PROVEN_EVENTS:
            chain = extend(chain, (sha256(line).digest() for line in row.lines()))
        else:
            chain = row.chain
        if chain != row.chain or row.first != n + 1:
            raise FactDamaged("log row", str(row.n), "its events do not hash to the chain of arrival")
        size, n = size + len(row.events), row.n
        progress(n, end.n)
    return ReadLog(end, size)


def forget_state(sql: Sql, replica: str, secret: str | None) -> None:
    """Local state goes; this is the ledger `replica` now. What it imports goes by this secret, or by the one that is
    there."""
    secret = secret or local_value(sql, IMPORT_SECRET)
    of_totals = list(rows_in(sql, "SELECT key, value FROM local WHERE key IN", TOTALS_KEYS))
    for table in STATE_TABLES:
        sql.run(f"DELETE FROM {table}")
    sql.run("DELETE FROM watermark WHERE view = ?", (MARK,))
    sql.run("DELETE FROM local")
    values = (("replica", replica), (IMPORT_SECRET, secret), (VIEW_RULES, CURRENT_VIEW_RULES), *of_totals)
    sql.run_many("INSERT INTO local(key, value) VALUES (?, ?)", values)


LEAST = 128
"""Shorter contents stay as they are."""
AT_ONCE = 4 * 1024 * 1024


class PackResult(Struct, frozen=True, kw_only=True):
    """What was packed, or unpacked, or would be."""

    trees: int
    contents: int
    bytes: int
    packed_bytes: int
    """What they take in packs."""
    shared: int = 0
    """Contents that stay as they are, since trees that are not packed use them too."""
    complete: bool = True
    """The room was given back; otherwise somebody still reads what was there before."""


class ColdContents(Struct, frozen=True):
    """Contents to be packed, by number, and how many are shared with others."""

    trees: int
    numbers: list[int]
    shared: int


def pack(
    store: Store,
    names: Sequence[str],
    before: int | None,
    resolve: Resolve,
    *,
    dry_run: bool,
    report: Report,
) -> PackResult:
    """Pack the trees that these names lead to, or all; with `before` only those in which nothing happened since."""
    store.catch_up()
    with store.read() as txn:
        cold = _find_cold(txn, _root_numbers(txn, names, before, resolve), report)
    contents = size = packed = done = 0
    for some in _content_portions(store, cold.numbers):
        work = partial(_measure_contents if dry_run else _pack_some, some)
        counted = _read_only(store, work) if dry_run else store.write(work)
        contents, size, packed = contents + counted[0], size + counted[1], packed + counted[2]
        done += len(some)
        report("packing", done, len(cold.numbers))
    complete = store.rewrite() if contents and not dry_run else True
    return PackResult(
        trees=cold.trees, contents=contents, bytes=size, packed_bytes=packed, shared=cold.shared, complete=complete
    )


Counted = tuple[int, int, int]
Work = Callable[[ReadTxn | WriteTxn], Counted]


def _read_only(store: Store, work: Work) -> Counted:
    with store.read() as txn:
        return work(txn)


def _root_numbers(txn: ReadTxn, names: Sequence[str], before: int | None, resolve: Resolve) -> list[int]:
    chosen = {_root_of_name(txn, name, resolve) for name in names}
    rows = txn.sql.fetch_rows(
        "SELECT root, max(COALESCE(completed_at, started_at)),"
        " sum(CASE WHEN status IN ('completed', 'failed') THEN 0 ELSE 1 END) FROM turn GROUP BY root ORDER BY root"
    )
    for root, _, unfinished in rows:
        if root in chosen and unfinished:
            raise NotApplicable("a turn of that tree is being recorded", "wait until it has ended")
    return [
        root
        for root, last, unfinished in rows
        if not unfinished and (not names or root in chosen) and (before is None or last < before)
    ]


def _root_of_name(txn: ReadTxn, name: str, resolve: Resolve) -> int:
    session = session_beside_turns(txn, name)
    if session is not None and session.head is None:
        raise NotFound("turn in session", session.label, "it has no head; name one of its turns")
    return resolve(txn, name if session is None or session.head is None else session.head).turn.root


def _find_cold(txn: ReadTxn, roots: Sequence[int], report: Report) -> ColdContents:
    streams = _streams_of_trees(txn, roots)
    if not streams:
        return ColdContents(0, [], 0)
    uses = find_uses(txn.facts, streams, (), False, report)
    alone = [n for ref in uses.inside if ref not in uses.outside and (n := txn.facts.find_content(ref)) is not None]
    rows = rows_in(txn.sql, f"SELECT n FROM content WHERE length(salt) > 0 AND size >= {LEAST} AND n IN", alone)
    done = {n for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM packed")}
    return ColdContents(len(roots), sorted(n for (n,) in rows if n not in done), len(uses.outside))


def _streams_of_trees(txn: ReadTxn, roots: Sequence[int]) -> dict[str, About]:
    """What tells of the turns of these trees."""
    query = "SELECT id FROM turn WHERE segment IN (SELECT n FROM segment WHERE root = ?)"
    turns = [id for root in roots for (id,) in txn.sql.fetch_rows(query, (root,))]
    return {f"{kind}:{turn}": (turn, None) for turn in turns for kind in ("run", "import")}


def _content_portions(store: Store, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Numbers in order of arrival, some megabytes of contents at a time."""
    some: list[int] = []
    size = 0
    with store.read() as txn:
        sizes: dict[int, int] = dict(rows_in(txn.sql, "SELECT n, size FROM content WHERE n IN", numbers))
    for n in numbers:
        some.append(n)
        size += sizes.get(n, 0)
        if size >= AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _worthwhile_packs(facts: FactReader, numbers: Sequence[int]) -> Iterator[list[ContentSlice]]:
    """What goes into each pack, of contents that are still here and not packed yet: many whole ones together, or one
    part of a large one, of which all parts are packed or none."""
    waiting: list[ContentSlice] = []
    size = 0
    for n, length in _unpacked_contents(facts, numbers):
        if length > ROW_BYTES:
            yield from _large_content_packs(facts, n)
            continue
        if size + length > PACK_BYTES:
            yield from [waiting] if is_packing_worthwhile(waiting) else []
            waiting, size = [], 0
        waiting.append(ContentSlice(n, 0, facts.content(n)))
        size += length
    if waiting and is_packing_worthwhile(waiting):
        yield waiting


def _unpacked_contents(facts: FactReader, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    for n in numbers:
        row = facts.sql.fetch_row("SELECT size FROM content WHERE n = ? AND length(salt) > 0", (n,))
        if row is not None and facts.sql.fetch_row("SELECT 1 FROM packed WHERE content = ?", (n,)) is None:
            yield n, row[0]


def _large_content_packs(facts: FactReader, n: int) -> Iterator[list[ContentSlice]]:
    """Its first part tells whether it is worth it."""
    for idx, piece in enumerate(facts.stream_content(n)):
        slices = [ContentSlice(n, idx, piece)]
        if idx == 0 and not is_packing_worthwhile(slices):
            return
        yield slices


def _measure_contents(numbers: Sequence[int], txn: ReadTxn | WriteTxn) -> Counted:
    contents: set[int] = set()
    size = packed = 0
    for slices in _worthwhile_packs(txn.facts, numbers):
        contents |= {each.content for each in slices}
        size += sum(len(each.data) for each in slices)
        packed += len(pack_frame(slices))
    return len(contents), size, packed


def _pack_some(numbers: Sequence[int], txn: ReadTxn | WriteTxn) -> Counted:
    contents: set[int] = set()
    size = packed = 0
    for slices in _worthwhile_packs(txn.facts, numbers):
        packed += write_pack(txn.sql, slices)
        size += sum(len(each.data) for each in slices)
        contents |= {each.content for each in slices}
    for n in contents:
        _ensure_whole(txn, n)
    gone = [(n,) for n in sorted(contents)]
    txn.sql.run_many("UPDATE content SET bytes = NULL WHERE n = ?", gone)
    txn.sql.run_many("DELETE FROM content_part WHERE content = ?", gone)
    return len(contents), size, packed


def _ensure_whole(txn: ReadTxn | WriteTxn, n: int) -> None:
    """Before its own bytes go: all of them lie in packs."""
    row = txn.sql.fetch_row("SELECT c.ref, c.size - (SELECT sum(size) FROM packed WHERE content = c.n) FROM content c"
                      " WHERE c.n = ?", (n,))  # fmt: skip
    if row is None or row[1] != 0:
        raise FactDamaged("content", str(n), "its parts are not as long as it should be")


def unpack(store: Store, names: Sequence[str], resolve: Resolve, report: Report) -> PackResult:
    """Put the bytes back into their own rows: of the trees that these names lead to, or all."""
    store.catch_up()
    with store.read() as txn:
        roots = _root_numbers(txn, names, None, resolve)
        wanted = {n for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM packed")}
        if names:
            wanted &= _contents_of(txn, roots, report)
    contents = size = packed = done = 0
    for some in _content_portions(store, sorted(wanted)):
        counted = store.write(partial(_unpack_some, some))
        contents, size, packed = contents + counted[0], size + counted[1], packed + counted[2]
        done += len(some)
        report("unpacking", done, len(wanted))
    complete = store.rewrite() if contents else True
    trees = len(roots) if contents else 0
    return PackResult(trees=trees, contents=contents, bytes=size, packed_bytes=packed, complete=complete)


def _contents_of(txn: ReadTxn, roots: Sequence[int], report: Report) -> set[int]:
    uses = find_uses(txn.facts, _streams_of_trees(txn, roots), (), False, report)
    return {n for ref in uses.inside if (n := txn.facts.find_content(ref)) is not None}


def _unpack_some(numbers: Sequence[int], txn: WriteTxn) -> Counted:
    before = _size_of_packs(txn)
    contents = size = 0
    for n in numbers:
        if txn.sql.fetch_row("SELECT 1 FROM packed WHERE content = ?", (n,)) is None:
            continue
        pieces = list(txn.facts.stream_content(n))
        if len(pieces) == 1 and len(pieces[0]) <= ROW_BYTES:
            txn.sql.run("UPDATE content SET bytes = ? WHERE n = ?", (pieces[0], n))
        else:
            rows = [(n, idx, piece) for idx, piece in enumerate(pieces)]
            txn.sql.run_many("INSERT INTO content_part(content, idx, bytes) VALUES (?, ?, ?)", rows)
        contents, size = contents + 1, size + sum(map(len, pieces))
    drop_from_packs(txn.sql, numbers)
    return contents, size, before - _size_of_packs(txn)


def _size_of_packs(txn: WriteTxn) -> int:
    (size,) = txn.sql.fetch_row("SELECT COALESCE(sum(length(bytes)), 0) FROM pack") or (0,)
    return int(size)
