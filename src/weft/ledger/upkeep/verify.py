"""Facts against their hashes, views against facts: views made anew beside the ledger by the
very code that appends, what rebuild makes of them, and what verify finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from msgspec import Struct

from weft.kernel.contents import ERASED, MAX_INTEGER, content_ref, is_canonical, readable
from weft.kernel.errors import Damaged, IdCollision, ReadOnlyLedger, StoreError, StoreFailed, WeftError, quoted
from weft.kernel.events import GENESIS, Event, Receipt, RunFinished, UnknownEvent, encode
from weft.kernel.foreign_input import KINDS, content_refs
from weft.kernel.ledger_events import ContentErased
from weft.ledger.read import search_index
from weft.ledger.views import Projector, turns
from weft.ledger.views.projector import when_of
from weft.ledger.views.rows import RowMemory, decoded, recorded_after
from weft.store.fact_log import (
    CURRENT_VIEW_RULES,
    FORMER,
    KEY_BYTES,
    LACKS,
    VIEW_RULES,
    VIEWS_MENDED,
    FactReader,
    LogRow,
)
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Row, Sql

# --- Views made anew from the facts, beside the ledger, by the very code that appends; and what rebuild makes of them.

Progress = Callable[[str, int, int], None]
Key = tuple[Any, ...]
Difference = tuple[Key, Row | None, Row | None]
"""A row's key, the row as it is stored and as the facts say."""
VIEW_TABLES: dict[str, tuple[str, ...]] = {
    "segment": ("n",),
    "turn": ("n",),
    "message": ("turn", "seq"),
    "tool_call": ("turn", "seq"),
    "session": ("n",),
    "history": ("session", "k"),
    "departure": ("segment", "session"),
    "alias": ("alias",),
    "compaction": ("turn",),
    "message_file": ("id",),
    "message_lint": ("id",),
    "program": ("id",),
    "stream_tip": ("stream",),
    "codeblock": ("id",),
    "superseded": ("turn", "by"),
    "link": ("child", "parent", "why"),
    "spawn": ("child", "turn", "seq"),
    "message_context": ("message", "idx"),
    "kept": ("n",),
    "erasure": ("n",),
    "program_reference": ("program", "field", "target"),
    "program_history": ("n",),
    "task_check": ("n",),
    "human_request": ("id",),
    "node_tag": ("node", "tag"),
    "branch": ("session", "tip"),
    "thread_key": ("key",),
    "persona": ("id",),
    "lookup_text": ("content",),
    "inbox": ("message",),
    "open_run": ("turn",),
    "tool_decision": ("n",),
    "approval": ("request",),
    "policy": ("id",),
    "agent_share": ("agent", "principal"),
    "conversation": ("id",),
    "participant": ("id",),
    "room_message": ("conversation", "position"),
    "mention": ("node", "conversation", "position"),
    "invitation": ("conversation", "node"),
    "room_delivery": ("posted", "session"),
    "worker": ("session",),
    "worker_answer": ("turn",),
    "awaiting": ("turn", "call", "worker"),
    "trigger_firing": ("trigger_id", "occasion"),
    "trigger_gap": ("n",),
    "substitution": ("original", "n"),
    "resource": ("id",),
    "resource_part": ("resource", "part_ref"),
    "resource_use": ("resource", "way", "user_kind", "user_id"),
    "resource_handle": ("id",),
    "resource_snapshot": ("id",),
    "resource_restore": ("id",),
    "edge": ("id",),
}
COMPARED_ROWS, APPLIED_LOG_ROWS, FILLED_EVENTS = 2048, 256, 4096
KNOWN_CONTENTS = 65_536
TRIES = 8
Place = tuple[str, Key | None]
"""Where a range of rows begins: in which table, and after which key."""
FIRST_PLACE: Place = (next(iter(VIEW_TABLES)), None)
_TABLE_AFTER: dict[str, str | None] = dict(zip(VIEW_TABLES, [*list(VIEW_TABLES)[1:], None], strict=True))
VIEWS_STALE = "views_stale"  # local state: the last content that came after an event that names it


def silent(stage: str, done: int, of: int) -> None:
    """No progress wanted."""


def lagging_views() -> dict[str, Any]:
    """The modules of views that lag behind the log and are filled from it, by what progress calls them. The graph's is
    loaded here: opening a ledger needs none of it."""
    from weft.ledger.views import edges

    return {"code blocks": turns, "graph": edges}


class StoredContents:
    """Contents of a ledger for a projector that runs elsewhere. What is found stays where it is."""

    def __init__(self) -> None:
        self.facts: FactReader | None = None
        self._known: dict[str, int] = {}
        self._read_to = 0

    def read_on(self, facts: FactReader, last: int) -> None:
        """The numbers of those that came up to `last`, at once: most events name what came with them."""
        self.facts = facts
        if len(self._known) > KNOWN_CONTENTS:
            self._known.clear()
        for n, ref in facts.refs(self._read_to, last):
            self._known.setdefault(ref.hex(), n)
        self._read_to = max(last, self._read_to)

    def number(self, ref: str) -> int:
        found = self._known.get(ref)
        if found is None:
            assert self.facts is not None, "facts are set with every range"
            found = self.facts.find_content(bytes.fromhex(ref)) or 0
            if found:
                self._known[ref] = found
        return found

    def content_text(self, n: int) -> str | None:
        assert self.facts is not None, "facts are set with every range"
        return self.facts.text(n)

    def readable_text(self, n: int) -> str | None:
        assert self.facts is not None, "facts are set with every range"
        return self.facts.readable_text(n)


class FreshViews:
    """All views in a scratch database, as the facts up to event `done` say they are."""

    def __init__(self, scratch: Sql) -> None:
        self.sql, self.done = scratch, 0
        self.lost: dict[str, int] = {}
        """Contents that are named and not here, with an event that names each."""
        self._chain = GENESIS
        self._contents, self._memory = StoredContents(), RowMemory()

    def compute(self, store: Store, progress: Progress) -> None:
        """From the first fact to the newest, range by range."""
        more = True
        while more:
            with store.read() as txn:
                end, more = txn.facts.tip().n, self._apply_next_rows(txn.facts)
            progress("views", self.done, end)
            store.pause_reading()
        for stage in lagging_views():
            self._compute_lagging(store, stage, progress)

    def _compute_lagging(self, store: Store, stage: str, progress: Progress) -> None:
        """As far as the stored view has come."""
        view = lagging_views()[stage].VIEW
        while True:
            with store.read() as txn:
                mark, end = self._view_watermark(view), _end_of(txn, view)
                self._fill_lagging(stage, txn.facts, min(mark + FILLED_EVENTS, end))
            if mark >= end:
                return
            progress(stage, min(mark + FILLED_EVENTS, end), end)

    def follow(self, txn: ReadTxn | WriteTxn) -> None:
        """Up to the very moment of this transaction."""
        if self.done and txn.facts.chain_at(self.done) != self._chain:
            raise StoreFailed("the log is no longer what the views were computed from", "run it again")
        while self._apply_next_rows(txn.facts):
            pass
        for stage, module in lagging_views().items():
            self._fill_lagging(stage, txn.facts, _end_of(txn, module.VIEW))

    def compute_until(self, txn: ReadTxn, last: int) -> None:
        """As the views were when the event with this number had just come, the last one of a row of the log. Views that
        lag are left out; who this ledger is, is taken along."""
        known = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        self.sql.run_many(known, txn.sql.fetch_rows("SELECT key, value FROM local"))
        while self.done < last and self._apply_next_rows(txn.facts, last):
            pass

    def is_at(self, txn: WriteTxn) -> bool:
        return txn.facts.tip().n == self.done and txn.facts.chain_at(self.done) in (self._chain, None)

    def _apply_next_rows(self, facts: FactReader, last: int | None = None) -> bool:
        """The next rows of the log, up to an event; False when there were none."""
        rows = [row for row in facts.log(self.done, APPLIED_LOG_ROWS) if last is None or row.n <= last]
        self._contents.read_on(facts, facts.contents_at(rows[-1].n) if rows else 0)
        projector = Projector(self.sql, facts, self._contents, self._memory)
        for row in rows:
            self._apply_row(projector, row)
        return bool(rows)

    def _apply_row(self, projector: Projector, row: LogRow) -> None:
        for n, line in enumerate(row.lines(), row.first):
            event = _apply_line(projector, n, row.at, line)
            self.lost.update((ref, n) for ref in content_refs(event) if not self._contents.number(ref))
        projector.flush()
        self.done, self._chain = row.n, row.chain

    def _view_watermark(self, view: str) -> int:
        return FactReader(self.sql).watermark(view)

    def _fill_lagging(self, stage: str, facts: FactReader, until: int) -> None:
        module = lagging_views()[stage]
        if until > (mark := self._view_watermark(module.VIEW)):
            module.fill(self.sql, facts, mark, until)


def _end_of(txn: ReadTxn | WriteTxn, view: str) -> int:
    """How far a lagging view has come; a mark beyond the log is no place to go to."""
    return min(txn.facts.watermark(view), txn.facts.tip().n)


def _apply_line(projector: Projector, n: int, at: int, line: bytes) -> Event | UnknownEvent:
    event = decoded(n, line)
    projector.apply(n, when_of(event, at), sha256(line).digest(), event)
    return event


# --- comparing --------------------------------------------------------------------------------------------------


class ComparedRange(NamedTuple):
    table: str
    after: Key | None
    found: list[Difference]
    rows: int
    following: Place | None
    """Where the next range begins, None where this was the last."""


def differences(store: Store, fresh: FreshViews) -> Iterator[ComparedRange]:
    """All views, range by range, each of one moment."""
    place: Place | None = FIRST_PLACE
    while place is not None:
        compared: list[ComparedRange] = []
        try:
            with store.read() as txn:
                fresh.follow(txn)
                for part in compare_ranges(txn.sql, fresh.sql, place):
                    compared.append(part)
        except Exception:  # what was compared before stands
            yield from compared
            raise
        store.pause_reading()
        yield from compared
        place = compared[-1].following


def compare_ranges(ours: Sql, theirs: Sql, place: Place) -> Iterator[ComparedRange]:
    """From `place` on, until as many rows as a range may have were compared: most tables of most ledgers are short, and
    a snapshot for each costs more than the rows."""
    following: Place | None = place
    rows = 0
    while following is not None and rows < COMPARED_ROWS:
        compared = compare_range(ours, theirs, *following)
        rows += compared.rows
        following = compared.following
        yield compared


def compare_range(ours: Sql, theirs: Sql, table: str, after: Key | None) -> ComparedRange:
    """Rows that differ from `after` on, as far as both sides were read."""
    key = VIEW_TABLES[table]
    left, right = _some_rows(ours, table, key, after), _some_rows(theirs, table, key, after)
    ends = [rows[-1][0] for rows in (left, right) if len(rows) == COMPARED_ROWS]
    upto = min(ends) if ends else None
    mine, other = ({at: row for at, row in rows if upto is None or at <= upto} for rows in (left, right))
    found: list[Difference] = [(at, row, other.get(at)) for at, row in mine.items() if other.get(at) != row]
    found += [(at, None, row) for at, row in other.items() if at not in mine]
    found.sort(key=lambda difference: difference[0])
    return ComparedRange(table, after, found, max(len(left), len(right)), _following(table, upto))


def _following(table: str, upto: Key | None) -> Place | None:
    if upto is not None:
        return table, upto
    after = _TABLE_AFTER[table]
    return None if after is None else (after, None)


def _some_rows(sql: Sql, table: str, key: tuple[str, ...], after: Key | None) -> list[tuple[Key, Row]]:
    names, width = ", ".join(key), len(key)
    where = "" if after is None else f"WHERE ({names}) > ({', '.join('?' * width)})"
    query = f"SELECT {names}, t.* FROM {table} t {where} ORDER BY {names} LIMIT ?"
    return [(row[:width], row[width:]) for row in sql.fetch_rows(query, (*(after or ()), COMPARED_ROWS))]


_FINDS = (
    ("lookup_content", f"l.key = substr(c.ref, 1, {KEY_BYTES})", ""),
    ("lookup_bytes", f"l.scope = c.scope AND l.key = substr(c.digest, 1, {KEY_BYTES})", " AND length(digest) > 0"),
)


def lookups_wrong(store: Store, progress: Progress) -> list[tuple[str, str]]:
    """Each fact up to the watermark is found by its hash, and nothing else is; else the table, and what is wrong."""
    found: list[tuple[str, str]] = []
    mark = _view_mark(store, "lookup_event")
    if _fold_lookups(store, mark, progress) != _fold_events(store, mark, progress):
        found.append(("lookup_event", "does not find every event by its id"))
    for table, matches, which in _FINDS:
        right, expected, there = _count_contents(store, table, matches, which)
        if right != expected:
            found.append((table, f"finds {right} of {expected} contents"))
        elif there != expected:
            found.append((table, f"has {there} rows for {expected} contents: some are of contents that are not here"))
    return found


def _view_mark(store: Store, view: str) -> int:
    with store.read() as txn:
        return txn.facts.watermark(view)


def _fold_lookups(store: Store, mark: int, progress: Progress) -> tuple[int, int]:
    """A number for a set of pairs in any order: how many, and a sum that every pair has its share in. What came after
    `mark` is left out, unless it came from nowhere. A value of another type makes it a number that no set has."""
    count = total = 0
    after: Key | None = (b"", 0)
    while after is not None:
        with store.read() as txn:
            rows = txn.sql.fetch_rows(
                "SELECT key, n FROM lookup_event WHERE (key, n) > (?, ?) ORDER BY key, n LIMIT ?",
                (*after, COMPARED_ROWS),
            )
            now = txn.facts.watermark("lookup_event")
        for key, n in rows:
            if not isinstance(key, bytes) or not isinstance(n, int):
                return -1, 0
            if n <= mark or n > now:
                count, total = count + 1, total + int.from_bytes(key, "big") * n
        after = (bytes(rows[-1][0]), rows[-1][1]) if len(rows) == COMPARED_ROWS else None
        progress("lookups", min(count, mark), 2 * mark)
        store.pause_reading()
    return count, total


def _fold_events(store: Store, mark: int, progress: Progress) -> tuple[int, int]:
    count = total = after = 0
    while after < mark:
        with store.read() as txn:
            rows = txn.facts.log(after, APPLIED_LOG_ROWS)
        if not rows:
            break
        for row in rows:
            for n, line in enumerate(row.lines(), row.first):
                if n <= mark:
                    key = sha256(line).digest()[:KEY_BYTES]
                    count, total = count + 1, total + int.from_bytes(key, "big") * n
        after = rows[-1].n
        progress("lookups", mark + min(after, mark), 2 * mark)
        store.pause_reading()
    return count, total


def _count_contents(store: Store, table: str, matches: str, which: str) -> tuple[int, int, int]:
    """How many contents the table finds rightly, how many it should, and how many rows it has."""
    right = expected = after = 0
    with store.read() as txn:
        (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
        mark = min(txn.facts.watermark("lookup_content"), last or 0)
    while after < mark:
        upto = min(after + COMPARED_ROWS, mark)
        with store.read() as txn:
            among = f"c.n > ? AND c.n <= ?{which.replace('digest', 'c.digest')}"
            expected += _count_rows(txn, f"content c WHERE {among}", after, upto)
            right += _count_rows(txn, f"content c JOIN {table} l ON {matches} AND l.n = c.n WHERE {among}", after, upto)
        after = upto
        store.pause_reading()
    with store.read() as txn:
        beyond = txn.facts.watermark("lookup_content")
        there = _count_rows(txn, table) - _count_rows(txn, f"content WHERE n > ? AND n <= ?{which}", mark, beyond)
    return right, expected, there


def _count_rows(txn: ReadTxn | WriteTxn, what: str, *values: int) -> int:
    (found,) = txn.sql.fetch_row(f"SELECT count(*) FROM {what}", values) or (0,)
    return int(found)


# --- mending ----------------------------------------------------------------------------------------------------


def rebuild(store: Store, progress: Progress) -> int:
    """Make every view anew from the facts; returns how many rows were wrong."""
    if store.read_only:
        raise ReadOnlyLedger(store.path)
    changed = _renew_lookups(store, progress)
    store.catch_up()
    with store.read() as txn:
        stale = txn.sql.fetch_row("SELECT value FROM local WHERE key = ?", (VIEWS_STALE,))
    with store.scratch() as scratch:
        fresh = FreshViews(scratch)
        fresh.compute(store, progress)
        try:
            changed += _mend_tables(store, fresh)
        except (Damaged, IdCollision):  # rows that are wrong in one range hold what is right in another
            changed += store.write(partial(_mend_everything, fresh))
    store.write(partial(_note_rebuilt, stale))
    return changed + search_index.renew_index(store)


def ensure_view_rules(store: Store, progress: Progress) -> None:
    """Make the views anew, once, if an older program computed them by other rules. Raises FactDamaged, and leaves the
    views as they are, where the log is not what its chain says."""
    with store.read() as txn:
        is_due = not follows_view_rules(txn.sql)
    if is_due:
        _prove_log(store, progress)
        rebuild(store, progress)


def _prove_log(store: Store, progress: Progress) -> None:
    after = 0
    while True:
        with store.read() as txn:
            end, events = txn.facts.tip().n, recorded_after(txn.facts, after, APPLIED_LOG_ROWS)
        if not events:
            return
        after = events[-1].n
        progress("log", after, end)
        store.pause_reading()


def follows_view_rules(sql: Sql) -> bool:
    query = "SELECT 1 FROM local WHERE key = ? AND value = ?"
    return sql.fetch_row(query, (VIEW_RULES, CURRENT_VIEW_RULES)) is not None


def _note_rebuilt(stale: Row | None, txn: WriteTxn) -> None:
    """The views are by the rules of this program. They stay stale if another content came while they were computed."""
    if stale is not None:
        txn.sql.run("DELETE FROM local WHERE key = ? AND value = ?", (VIEWS_STALE, stale[0]))
    txn.sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (VIEW_RULES, CURRENT_VIEW_RULES),
    )


def _renew_lookups(store: Store, progress: Progress) -> int:
    """Empty what finds facts by their hash, if it is wrong; it fills itself again, and until then lookups scan."""
    wrong = lookups_wrong(store, progress)
    if wrong:
        store.write(_empty_lookups)
    return len(wrong)


def _empty_lookups(txn: WriteTxn) -> None:
    for table in ("lookup_event", "lookup_content", "lookup_bytes"):
        txn.sql.run(f"DELETE FROM {table}")
    txn.sql.run("DELETE FROM watermark WHERE view IN ('lookup_event', 'lookup_content')")


def _mend_tables(store: Store, fresh: FreshViews) -> int:
    """One range after the other; only where something differs is anything written."""
    changed = 0
    following: Place | None = FIRST_PLACE
    while following is not None:
        with store.read() as txn:
            fresh.follow(txn)
            for part in compare_ranges(txn.sql, fresh.sql, following):
                following = part.following
                if part.found:
                    break
        if part.found:
            mended = _mend_range(store, fresh, part.table, part.after)
            changed, following = changed + len(mended.found), mended.following
        store.pause_reading()
    return changed


def _mend_range(store: Store, fresh: FreshViews, table: str, after: Key | None) -> ComparedRange:
    """In one transaction, at the moment that the fresh views are of. Where others write all the time the views are
    brought up to that moment inside of it."""
    for attempt in range(TRIES + 1):
        mended = store.write(partial(_mend, fresh, table, after, attempt == TRIES))
        if mended is not None:
            return mended
        with store.read() as txn:
            fresh.follow(txn)
    raise AssertionError("the last attempt always counts")


def _mend(fresh: FreshViews, table: str, after: Key | None, insist: bool, txn: WriteTxn) -> ComparedRange | None:
    if not fresh.is_at(txn):
        if not insist:
            return None
        fresh.follow(txn)
    compared = compare_range(txn.sql, fresh.sql, table, after)
    _write_computed(txn.sql, table, compared.found)
    _note_mended(txn.sql)
    return compared


def _mend_everything(fresh: FreshViews, txn: WriteTxn) -> int:
    """All tables in one transaction, wrong rows out before right ones go in. Nobody else writes meanwhile."""
    fresh.follow(txn)
    changed = 0
    for table in VIEW_TABLES:
        found: list[Difference] = []
        following: Place | None = (table, None)
        while following is not None and following[0] == table:
            compared = compare_range(txn.sql, fresh.sql, *following)
            found += compared.found
            following = compared.following
        _write_computed(txn.sql, table, found)
        changed += len(found)
    _note_mended(txn.sql)
    return changed


def _note_mended(sql: Sql) -> None:
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (VIEWS_MENDED,))
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (VIEWS_MENDED, str(int(row[0]) + 1 if row else 1)),
    )


def _write_computed(sql: Sql, table: str, found: list[Difference]) -> None:
    where = " AND ".join(f"{column} = ?" for column in VIEW_TABLES[table])
    for at, stored, _ in found:
        if stored is not None:
            sql.run(f"DELETE FROM {table} WHERE {where}", at)
    for _, _, computed in found:
        if computed is not None:
            sql.run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(computed))})", computed)


# --- verify: facts against their hashes, views against facts.

VERIFIED_ROWS, VERIFIED_LOG_ROWS = 2048, 512
RANGE_BYTES = 32 * 1024 * 1024
TOMBSTONE = b'"kind":"content_erased"'
STILL_HERE = "was erased, but something of it is still here"


class Problem(Struct, frozen=True):
    """One thing that is not as it should be, and where."""

    what: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what} {self.where}: {self.detail}"


# --- facts ------------------------------------------------------------------------------------------------------


def verify_facts(store: Store, progress: Progress = silent) -> Iterator[Problem]:
    """Every event against its place in the chains, every content against its reference."""
    yield from _as_far_as_it_goes(store, _verify_log(store, progress))
    yield from _as_far_as_it_goes(store, _verify_contents(store, progress))


def _as_far_as_it_goes(store: Store, problems: Iterator[Problem]) -> Iterator[Problem]:
    """A damaged database can fail in any way while it is read; that is one more finding, not the end of verifying."""
    try:
        yield from problems
    except Damaged as error:
        yield Problem("database", store.path, str(error))
    except StoreError:
        raise
    except Exception as error:  # whatever a damaged value made of itself
        yield Problem("database", store.path, f"cannot be read any further: {quoted(error, 200)}")


def _engine_problems(store: Store) -> list[str]:
    try:
        return store.check_integrity()
    except WeftError as error:
        return [str(error)]


def _verify_log(store: Store, progress: Progress) -> Iterator[Problem]:
    walk, more = LogWalk(), True
    while more:
        with store.read() as txn:
            end = txn.facts.tip().n
            rows = txn.facts.log(walk.after, VERIFIED_LOG_ROWS)
        found = [problem for row in rows for problem in walk.take(row)]
        progress("events", walk.after, max(end, walk.after))
        store.pause_reading()
        yield from found
        more = bool(rows)


class LogWalk:
    """The log, row after row: each held against the one before, each event against the last of its stream."""

    def __init__(self) -> None:
        self.after, self.chain = 0, GENESIS
        self._tips: dict[str, str] = {}
        """Of every stream that may go on. A run's is forgotten with its end, so that this stays small."""

    def take(self, row: LogRow) -> Iterator[Problem]:
        if row.first != self.after + 1:
            yield Problem("log", f"event {self.after + 1}", f"missing: the next row begins at {row.first}")
        lines = row.events.split(b"\n")
        if len(lines) != row.count:
            yield Problem("log", f"row {row.n}", f"holds {len(lines)} events, not {row.count}")
        for n, line in enumerate(lines, row.first):
            digest = sha256(line).digest()
            self.chain = sha256(self.chain + digest).digest()
            if problem := self._verify_line(n, line, digest):
                yield problem
        if self.chain != row.chain:
            yield Problem("log", f"event {row.n}", "the chain of arrival does not lead here")
            self.chain = row.chain
        self.after = row.n

    def _verify_line(self, n: int, line: bytes, digest: bytes) -> Problem | None:
        """Is it readable, does it follow the last event of its stream, is it in canonical form?"""
        try:
            event = KINDS.decode(line)
        except (ValueError, WeftError) as error:
            return Problem("event", f"event {n}", f"cannot be read: {error}")
        if not self._event_follows(event, digest.hex()):
            return Problem("event", f"event {n}", f"follows {event.prev} in {event.stream}, which does not end there")
        if encode(event) != line and not is_canonical(line):
            return Problem("event", f"event {n}", "is not in canonical form")
        return None

    def _event_follows(self, event: Event | UnknownEvent, digest: str) -> bool:
        stream = event.stream
        if stream[:7] == "import:":
            return True
        before = self._tips.get(stream)
        if isinstance(event, RunFinished):
            self._tips.pop(stream, None)
        else:
            self._tips[stream] = digest
        if stream[:7] == "ledger:":  # of another ledger's stream bundles bring single events
            return True
        return event.prev == before or (stream[:4] != "run:" and event.prev is not None)


def _verify_contents(store: Store, progress: Progress) -> Iterator[Problem]:
    after, more, erased = 0, True, dict[int, bytes]()
    while more:
        with store.read() as txn:
            (end,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
            found, last = _verify_some_contents(txn, after, erased)
        more, after = last > after, last
        progress("contents", after, max(end or 0, after))
        store.pause_reading()
        yield from found
    with store.read() as txn:
        found = list(_verify_packs(txn))
    yield from found
    if erased:
        yield from _verify_erased_lookups(store, erased)


def _verify_some_contents(txn: ReadTxn, after: int, erased: dict[int, bytes]) -> tuple[list[Problem], int]:
    """As many as fit into a moment, and the number of the last one. Those that were erased, as it seems, are noted."""
    found: list[Problem] = []
    weight = 0
    query = "SELECT n, ref, salt, digest, size, shown, bytes FROM content WHERE n > ? ORDER BY n LIMIT ?"
    for row in txn.sql.iterate_rows(query, (after, VERIFIED_ROWS)):
        after, weight = row[0], weight + row[4]
        wrong = list(_verify_content(txn, *row))
        if not row[2] and not wrong:
            erased[after] = bytes(row[1])
        found += wrong
        if weight > RANGE_BYTES:
            break
    return found, after


def _verify_content(
    txn: ReadTxn, n: int, ref: bytes, salt: bytes, digest: bytes, size: int, shown: str | None, data: bytes | None
) -> Iterator[Problem]:
    if not salt:
        yield from _verify_erased(txn, n, bytes(ref), (digest, size, shown, data))
    elif data is None:
        yield from _verify_large(txn, n, bytes(ref), size)
    elif content_ref(salt, data) != ref:
        yield Problem("content", bytes(ref).hex(), "its bytes do not hash to its reference")
    elif size != len(data) or (digest and sha256(data).digest() != digest):
        yield Problem("content", bytes(ref).hex(), "its size or plain digest is wrong")
    elif (shown is not None or not data.isascii()) and readable(data) != shown:
        yield Problem("content", bytes(ref).hex(), "is not what its readable column shows")


def _is_buried(txn: ReadTxn, ref: bytes) -> bool:
    """Does an event of the log say that it was erased? The view tells where to look; where it does not, all is read."""
    numbers = [n for (n,) in txn.sql.fetch_rows("SELECT n FROM erasure WHERE ref = ?", (ref,))]
    lines = (line for n in numbers if (line := txn.facts.line(n)) is not None)
    if any(_is_tombstone(line, ref) for line in lines):
        return True
    return any(_is_tombstone(line, ref) for row in txn.facts.rows() for line in row.lines())


def _is_tombstone(line: bytes, ref: bytes) -> bool:
    if TOMBSTONE not in line:
        return False
    event = KINDS.decode(line)
    return isinstance(event, ContentErased) and bytes.fromhex(event.content) == ref


def _verify_erased(txn: ReadTxn, n: int, ref: bytes, left: tuple[Any, ...]) -> Iterator[Problem]:
    """Nothing is left of it, and a tombstone says why."""
    if not _is_buried(txn, ref):
        yield Problem("content", ref.hex(), "its bytes and salt are gone, and no tombstone says that it was erased")
    parts = ("content_part", "packed")
    found = [table for table in parts if txn.sql.fetch_row(f"SELECT 1 FROM {table} WHERE content = ?", (n,))]
    if found or left != (b"", 0, ERASED, None):
        yield Problem("content", ref.hex(), STILL_HERE)


def _verify_erased_lookups(store: Store, erased: dict[int, bytes]) -> Iterator[Problem]:
    """None of them is found by its bytes. That table is in the order of bytes, so all of it is read, once."""
    query = (
        "SELECT scope, key, n FROM lookup_bytes WHERE (scope, key, n) > (?, ?, ?)"
        f" ORDER BY scope, key, n LIMIT {VERIFIED_ROWS}"
    )
    after: tuple[int, bytes, int] | None = (-MAX_INTEGER, b"", 0)
    while after is not None:
        with store.read() as txn:
            rows = txn.sql.fetch_rows(query, after)
        after = (rows[-1][0], bytes(rows[-1][1]), rows[-1][2]) if len(rows) == VERIFIED_ROWS else None
        store.pause_reading()
        yield from (Problem("content", erased[n].hex(), STILL_HERE) for _, _, n in rows if n in erased)


def _verify_packs(txn: ReadTxn) -> Iterator[Problem]:
    """Every pack holds something, and nothing lies both in one and in a row of its own. What packs hold was checked
    with the contents."""
    for (n,) in txn.sql.fetch_rows("SELECT n FROM pack WHERE n NOT IN (SELECT pack FROM packed) ORDER BY n"):
        yield Problem("pack", str(n), "holds nothing that anybody knows of")
    doubled = (
        "SELECT DISTINCT c.ref FROM packed p JOIN content c ON c.n = p.content WHERE c.bytes IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM content_part t WHERE t.content = c.n)"
    )
    for (ref,) in txn.sql.fetch_rows(doubled):
        yield Problem("content", bytes(ref).hex(), "lies in a pack and in a row of its own")
    for (n,) in txn.sql.fetch_rows("SELECT DISTINCT content FROM packed WHERE content NOT IN (SELECT n FROM content)"):
        yield Problem("pack", f"content {n}", "holds a content that is not there")


def _verify_large(txn: ReadTxn, n: int, ref: bytes, size: int) -> Iterator[Problem]:
    try:
        found = sum(len(piece) for piece in txn.facts.stream_content(n))
        if found != size:
            yield Problem("content", ref.hex(), f"has {found} bytes, not {size}")
    except Damaged as error:
        yield Problem("content", ref.hex(), str(error))


def verify_receipt(store: Store, receipt: Receipt) -> Iterator[Problem]:
    """Can this ledger answer for what it once acknowledged?"""
    with store.read() as txn:
        end, chain = txn.facts.tip().n, txn.facts.chain_at(receipt.n)
        digest = txn.facts.find_event(bytes.fromhex(receipt.digest))
        former = txn.sql.fetch_row("SELECT value FROM local WHERE key = ?", (FORMER + receipt.replica,))
    where = f"{receipt.replica}/{receipt.n}"
    if receipt.replica != store.replica and former is None:
        yield Problem("receipt", where, f"this ledger is replica {store.replica}")
    elif former is not None and receipt.n > int(former[0]):
        yield Problem("receipt", where, f"this ledger went on as another replica after event {former[0]}")
    elif receipt.n > end:
        yield Problem("receipt", where, f"the log ends at event {end}: it was cut or rolled back")
    elif chain is None or chain.hex() != receipt.log:
        yield Problem("receipt", where, "the log says something else there: it was rewritten")
    elif digest is None or digest > receipt.n:
        yield Problem("receipt", where, f"no thread had the digest {receipt.digest} by then")


# --- views ------------------------------------------------------------------------------------------------------


ViewCheck = Callable[[Store], Iterable[tuple[str, str]]]
"""Tells of a view which of its tables are wrong, and what is."""


def verify_views(store: Store, progress: Progress = silent, *checks: ViewCheck) -> Iterator[Problem]:
    """The engine's own structures, then every view against a fresh computation. `checks` are for views that are made
    from sound rows of these."""
    yield from _as_far_as_it_goes(store, _verify_views(store, progress, checks))


def _verify_views(store: Store, progress: Progress, checks: Sequence[ViewCheck]) -> Iterator[Problem]:
    yield from (Problem("database", store.path, found) for found in _engine_problems(store))
    store.catch_up()
    wrong = lookups_wrong(store, progress)
    yield from (Problem("view", table, detail) for table, detail in wrong)
    if wrong:
        return  # the views below are computed through them
    try:
        yield from _verify_against_fresh(store, progress, (search_index.found_in, *checks))
    except (WeftError, ValueError, LookupError) as error:
        yield Problem("views", store.path, f"cannot be computed from the facts: {error}")


def _verify_against_fresh(store: Store, progress: Progress, checks: Sequence[ViewCheck]) -> Iterator[Problem]:
    with store.scratch() as scratch:
        fresh, sound = FreshViews(scratch), True
        fresh.compute(store, progress)
        for part in differences(store, fresh):
            progress("views", fresh.done, fresh.done)
            sound &= not part.found
            yield from (_view_problem(part.table, *difference) for difference in part.found)
        yield from _verify_lost(store, fresh.lost)
    if sound:  # else the words and the totals would be those of wrong rows
        yield from (Problem("view", table, what) for check in checks for table, what in check(store))


def _verify_lost(store: Store, lost: dict[str, int]) -> list[Problem]:
    """Contents that events name and that are not here, unless their events came without them."""
    with store.read() as txn:
        lacking = {ref for ref in lost if txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (LACKS + ref,))}
    named = [(ref, n) for ref, n in lost.items() if ref not in lacking]
    return [Problem("content", ref, f"event {n} refers to it and it is not here") for ref, n in named]


def _view_problem(table: str, key: tuple[Any, ...], stored: Any, computed: Any) -> Problem:
    where = f"{table} {'/'.join(map(str, key))}"
    if stored is None:
        return Problem("view", where, "is missing")
    if computed is None:
        return Problem("view", where, "has no fact behind it")
    return Problem("view", where, f"is {quoted(stored, 200)}, the facts say {quoted(computed, 200)}")
