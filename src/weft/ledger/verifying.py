"""verify and rebuild: facts against their hashes, views against facts.

Views are computed anew from the facts into a scratch database by the very code that appends, then compared row by row.
Rebuild is the same, and writes what differs. Readers go on throughout; writers wait only while differences are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.kernel.canonical import is_canonical
from weft.kernel.chain import GENESIS, Receipt
from weft.kernel.contents import bytes_text, content_ref, readable
from weft.kernel.errors import Damaged, StoreError, WeftError
from weft.kernel.events import Event, UnknownEvent, encode
from weft.kernel.facts import content_refs
from weft.kernel.kinds import KINDS
from weft.ledger import codeblocks
from weft.ledger.search import checking
from weft.ledger.views import Projector
from weft.ledger.views.projector import when_of
from weft.store.facts import FORMER, KEY_BYTES, LACKS, FactReader
from weft.store.port import ReadTxn, Row, Sql, Store, WriteTxn

Progress = Callable[[str, int, int], None]
VIEW_TABLES: dict[str, tuple[str, ...]] = {
    "segment": ("n",),
    "turn": ("n",),
    "message": ("turn", "seq"),
    "tool_call": ("turn", "seq"),
    "session": ("n",),
    "history": ("n",),
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
}
ROWS = 2048
VIEWS_STALE = "views_stale"  # local state: the last content that came after an event that names it


class Problem(Struct, frozen=True):
    """One thing that is not as it should be, and where."""

    what: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what} {self.where}: {self.detail}"


def _silent(stage: str, done: int, of: int) -> None:
    """No progress wanted."""


# --- facts ------------------------------------------------------------------------------------------------------


def verify_facts(store: Store, progress: Progress = _silent) -> Iterator[Problem]:
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
        yield Problem("database", store.path, f"cannot be read any further: {error!r:.200}")


def _engine_problems(store: Store) -> list[str]:
    try:
        return store.check_integrity()
    except WeftError as error:
        return [str(error)]


def _verify_log(store: Store, progress: Progress) -> Iterator[Problem]:
    chain, after = GENESIS, 0
    tips: dict[str, str] = {}
    with store.read() as txn:
        end = txn.facts.tip().n
        for row in txn.facts.rows():
            if row.first != after + 1:
                yield Problem("log", f"event {after + 1}", f"missing: the next row begins at {row.first}")
            lines = row.events.split(b"\n")
            if len(lines) != row.count:
                yield Problem("log", f"row {row.n}", f"holds {len(lines)} events, not {row.count}")
            for n, line in enumerate(lines, row.first):
                digest = sha256(line).digest()
                chain = sha256(chain + digest).digest()
                if problem := _verify_line(n, line, digest, tips):
                    yield problem
            if chain != row.chain:
                yield Problem("log", f"event {row.n}", "the chain of arrival does not lead here")
                chain = row.chain
            after = row.n
            progress("events", after, end)


def _verify_line(n: int, line: bytes, digest: bytes, tips: dict[str, str]) -> Problem | None:
    """Is it readable, does it follow the last event of its stream, is it in canonical form?"""
    try:
        event = KINDS.decode(line)
    except (ValueError, WeftError) as error:
        return Problem("event", f"event {n}", f"cannot be read: {error}")
    stream = event.stream
    before = tips.get(stream)
    tips[stream] = digest.hex()
    if event.prev != before and not (stream[:4] != "run:" and event.prev is not None) and stream[:7] != "import:":
        return Problem("event", f"event {n}", f"follows {event.prev} in {stream}, whose last event is {before}")
    if encode(event) != line and not is_canonical(line):
        return Problem("event", f"event {n}", "is not in canonical form")
    return None


def _verify_contents(store: Store, progress: Progress) -> Iterator[Problem]:
    after = 0
    with store.read() as txn:
        (end,) = txn.sql.one("SELECT max(n) FROM content") or (0,)
        while rows := txn.sql.all(
            "SELECT n, ref, salt, digest, size, shown, bytes FROM content WHERE n > ? ORDER BY n LIMIT ?", (after, ROWS)
        ):
            for n, ref, salt, digest, size, shown, data in rows:
                if data is None:
                    yield from _verify_large(txn, n, bytes(ref), size)
                elif content_ref(salt, data) != ref:
                    yield Problem("content", bytes(ref).hex(), "its bytes do not hash to its reference")
                elif size != len(data) or (digest and sha256(data).digest() != digest):
                    yield Problem("content", bytes(ref).hex(), "its size or plain digest is wrong")
                elif (shown is not None or not data.isascii()) and readable(data) != shown:
                    yield Problem("content", bytes(ref).hex(), "is not what its readable column shows")
            after = rows[-1][0]
            progress("contents", after, end or 0)


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
        former = txn.sql.one("SELECT value FROM local WHERE key = ?", (FORMER + receipt.replica,))
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


class StoredContents:
    """Contents of a ledger for a projector that runs elsewhere."""

    def __init__(self, facts: FactReader) -> None:
        self._facts = facts
        self._known: dict[str, int] = {}

    def number(self, ref: str) -> int:
        found = self._known.get(ref)
        if found is None:
            found = self._facts.find_content(bytes.fromhex(ref)) or 0
            if len(self._known) > ROWS * 32:
                self._known.clear()
            self._known[ref] = found
        return found

    def content_text(self, n: int) -> str | None:
        return bytes_text(self._facts.content(n)) if n else None


def project(facts: FactReader, into: Sql, until: int, progress: Progress = _silent) -> dict[str, int]:
    """All views from the facts up to `until`, into an empty database; and the contents that are named but missing."""
    contents = StoredContents(facts)
    projector = Projector(into, facts, contents)
    after = 0
    lost: dict[str, int] = {}
    while after < until and (rows := facts.log(after)):
        for row in rows:
            if row.n > until:
                break
            for n, line in enumerate(row.lines(), row.first):
                event = _project_line(projector, n, row.at, line)
                lost.update((ref, n) for ref in content_refs(event) if not contents.number(ref))
            projector.flush()
        after = rows[-1].n
        progress("views", min(after, until), until)
    codeblocks.fill(into, facts, 0, facts.watermark(codeblocks.VIEW))
    return lost


def _project_line(projector: Projector, n: int, at: int, line: bytes) -> Event | UnknownEvent:
    event = KINDS.decode(line)
    projector.apply(n, when_of(event, at), sha256(line).digest(), event)
    return event


def verify_views(store: Store, progress: Progress = _silent) -> Iterator[Problem]:
    """The engine's own structures, then every view against a fresh computation."""
    yield from _as_far_as_it_goes(store, _verify_views(store, progress))


def _verify_views(store: Store, progress: Progress) -> Iterator[Problem]:
    yield from (Problem("database", store.path, found) for found in _engine_problems(store))
    store.catch_up()
    with store.read() as txn, store.scratch() as scratch:
        lookups = list(_verify_lookups(txn))
        yield from lookups
        if lookups:
            return  # the views below are computed through them
        try:
            lost = project(txn.facts, scratch, txn.facts.tip().n, progress)
        except (WeftError, ValueError, LookupError) as error:
            yield Problem("views", store.path, f"cannot be computed from the facts: {error}")
            return
        sound = True
        for table, key in VIEW_TABLES.items():
            for difference in compare(txn.sql, scratch, table, key):
                sound = False
                yield _view_problem(table, *difference)
        if sound:  # else the words would be those of wrong rows
            yield from (
                Problem("view", table, what) for table, what in checking.problems(txn, store.word_index(txn.sql))
            )
        for ref, n in lost.items():
            if txn.sql.one("SELECT 1 FROM local WHERE key = ?", (LACKS + ref,)) is None:
                yield Problem("content", ref, f"event {n} refers to it and it is not here")


def _verify_lookups(txn: ReadTxn | WriteTxn) -> Iterator[Problem]:
    """Each fact up to the watermark is found by its hash, and nothing else is."""
    facts = txn.facts
    found = _fold((key, n) for _, (key, n) in _walk(txn.sql, "lookup_event", ("key", "n")))
    lines = facts.lines(0, facts.watermark("lookup_event"))
    if found != _fold((sha256(line).digest()[:KEY_BYTES], n) for n, line in lines):
        yield Problem("view", "lookup_event", "does not find every event by its id")
    mark = facts.watermark("lookup_content")
    for table, matches, which in _FINDS:
        expected = _count(txn, f"content WHERE n <= ?{which}", mark)
        right = _count(txn, f"{table} l JOIN content c ON c.n = l.n WHERE c.n <= ? AND {matches}", mark)
        if not right == expected == _count(txn, table):
            yield Problem("view", table, f"finds {right} contents, not {expected}")


_FINDS = (
    ("lookup_content", f"l.key = substr(c.ref, 1, {KEY_BYTES})", ""),
    ("lookup_bytes", f"l.key = substr(c.digest, 1, {KEY_BYTES}) AND l.scope = c.scope", " AND length(digest) > 0"),
)


def _fold(pairs: Iterator[tuple[bytes, int]]) -> tuple[int, int]:
    """A number for a set of pairs in any order: how many, and a sum that every pair has its share in."""
    count = total = 0
    for key, n in pairs:
        count, total = count + 1, total + int.from_bytes(key, "big") * n
    return count, total


def _count(txn: ReadTxn | WriteTxn, what: str, *values: int) -> int:
    (found,) = txn.sql.one(f"SELECT count(*) FROM {what}", values) or (0,)
    return int(found)


def _view_problem(table: str, key: tuple[Any, ...], stored: Any, computed: Any) -> Problem:
    where = f"{table} {'/'.join(map(str, key))}"
    if stored is None:
        return Problem("view", where, "is missing")
    if computed is None:
        return Problem("view", where, "has no fact behind it")
    return Problem("view", where, f"is {stored!r:.200}, the facts say {computed!r:.200}")


Difference = tuple[tuple[Any, ...], tuple[Any, ...] | None, tuple[Any, ...] | None]


def compare(ours: Sql, theirs: Sql, table: str, key: tuple[str, ...]) -> Iterator[Difference]:
    """Rows that differ between two databases, walked side by side in key order: (key, ours, theirs)."""
    left, right = _walk(ours, table, key), _walk(theirs, table, key)
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        if other is None or (mine is not None and mine[0] < other[0]):
            assert mine is not None
            yield mine[0], mine[1], None
            mine = next(left, None)
        elif mine is None or other[0] < mine[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            if mine[1] != other[1]:
                yield mine[0], mine[1], other[1]
            mine, other = next(left, None), next(right, None)


def _walk(sql: Sql, table: str, key: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Every row with its key before it, in key order."""
    names, width, after = ", ".join(key), len(key), None
    while True:
        where = "" if after is None else f"WHERE ({names}) > ({', '.join('?' * width)})"
        rows = sql.all(f"SELECT {names}, t.* FROM {table} t {where} ORDER BY {names} LIMIT ?", (*(after or ()), ROWS))
        for row in rows:
            yield row[:width], row[width:]
        if len(rows) < ROWS:
            return
        after = rows[-1][:width]


def rebuild(store: Store, progress: Progress = _silent) -> int:
    """Make every view anew from the facts; returns how many rows were wrong."""
    changed = store.write(_renew_lookups)
    store.catch_up()
    with store.scratch() as scratch:
        with store.read() as txn:
            until = txn.facts.tip().n
            stale = txn.sql.one("SELECT value FROM local WHERE key = ?", (VIEWS_STALE,))
            project(txn.facts, scratch, until, progress)
        changed += store.write(lambda txn: _apply_and_unmark(txn, scratch, until, stale))
    return changed + _renew_words(store)


def _renew_words(store: Store) -> int:
    """Empty the index of words, if it is wrong, as with what finds facts by their hash."""
    with store.read() as txn:
        wrong = len(list(checking.problems(txn, store.word_index(txn.sql))))
    if wrong:
        store.write(lambda txn: checking.empty(txn, store.word_index(txn.sql)))
    return wrong


def _apply_and_unmark(txn: WriteTxn, scratch: Sql, until: int, stale: Row | None) -> int:
    """The mark goes with the differences, unless another content came while they were computed."""
    if stale is not None:
        txn.sql.run("DELETE FROM local WHERE key = ? AND value = ?", (VIEWS_STALE, stale[0]))
    return _apply(txn.sql, txn.facts, scratch, until)


def _renew_lookups(txn: WriteTxn) -> int:
    """Empty what finds facts by their hash, if it is wrong; it fills itself again, and until then lookups scan."""
    wrong = len(list(_verify_lookups(txn)))
    if wrong:
        for table in ("lookup_event", "lookup_content", "lookup_bytes"):
            txn.sql.run(f"DELETE FROM {table}")
        txn.sql.run("DELETE FROM watermark WHERE view IN ('lookup_event', 'lookup_content')")
    return wrong


def _apply(sql: Sql, facts: FactReader, scratch: Sql, until: int) -> int:
    """Bring the scratch views up to now, then mend what differs. Nobody else writes meanwhile."""
    projector = Projector(scratch, facts, StoredContents(facts))
    for row in facts.rows(until):
        for n, line in enumerate(row.lines(), row.first):
            _project_line(projector, n, row.at, line)
        projector.flush()
    codeblocks.fill(scratch, facts, FactReader(scratch).watermark(codeblocks.VIEW), facts.watermark(codeblocks.VIEW))
    changed = 0
    for table, key in VIEW_TABLES.items():
        differences = list(compare(sql, scratch, table, key))
        where = " AND ".join(f"{column} = ?" for column in key)
        for gone, stored, _ in differences:
            if stored is not None:
                sql.run(f"DELETE FROM {table} WHERE {where}", gone)
        for _, _, computed in differences:
            if computed is not None:
                sql.run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(computed))})", computed)
        changed += len(differences)
    return changed
