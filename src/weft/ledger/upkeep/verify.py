"""verify: facts against their hashes, views against facts.

Everything is read in ranges, each in a snapshot of its own that is closed before anything is told: whoever verifies
holds nobody up, however long it takes and however slowly its findings are taken. Views are held against those that
`weft.ledger.upkeep.recompute` makes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER, is_canonical
from weft.kernel.contents import ERASED, content_ref, readable
from weft.kernel.dag_events import RunFinished
from weft.kernel.errors import Damaged, StoreError, WeftError
from weft.kernel.events import GENESIS, Event, Receipt, UnknownEvent, encode
from weft.kernel.kinds import KINDS
from weft.kernel.ledger_events import ContentErased
from weft.kernel.weft_error import quoted
from weft.ledger.search import index_check
from weft.ledger.upkeep.recompute import FreshViews, Progress, differences, lookups_wrong, silent
from weft.store.port import ReadTxn, Store
from weft.store.records import FORMER, LACKS, LogRow

ROWS, LOG_ROWS = 2048, 512
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
            rows = txn.facts.log(walk.after, LOG_ROWS)
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
        if not self._follows(event, digest.hex()):
            return Problem("event", f"event {n}", f"follows {event.prev} in {event.stream}, which does not end there")
        if encode(event) != line and not is_canonical(line):
            return Problem("event", f"event {n}", "is not in canonical form")
        return None

    def _follows(self, event: Event | UnknownEvent, digest: str) -> bool:
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
            (end,) = txn.sql.one("SELECT max(n) FROM content") or (0,)
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
    for row in txn.sql.each(query, (after, ROWS)):
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
    numbers = [n for (n,) in txn.sql.all("SELECT n FROM erasure WHERE ref = ?", (ref,))]
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
    found = [table for table in parts if txn.sql.one(f"SELECT 1 FROM {table} WHERE content = ?", (n,))]
    if found or left != (b"", 0, ERASED, None):
        yield Problem("content", ref.hex(), STILL_HERE)


def _verify_erased_lookups(store: Store, erased: dict[int, bytes]) -> Iterator[Problem]:
    """None of them is found by its bytes. That table is in the order of bytes, so all of it is read, once."""
    query = (
        f"SELECT scope, key, n FROM lookup_bytes WHERE (scope, key, n) > (?, ?, ?) ORDER BY scope, key, n LIMIT {ROWS}"
    )
    after: tuple[int, bytes, int] | None = (-MAX_INTEGER, b"", 0)
    while after is not None:
        with store.read() as txn:
            rows = txn.sql.all(query, after)
        after = (rows[-1][0], bytes(rows[-1][1]), rows[-1][2]) if len(rows) == ROWS else None
        store.pause_reading()
        yield from (Problem("content", erased[n].hex(), STILL_HERE) for _, _, n in rows if n in erased)


def _verify_packs(txn: ReadTxn) -> Iterator[Problem]:
    """Every pack holds something, and nothing lies both in one and in a row of its own. What packs hold was checked
    with the contents."""
    for (n,) in txn.sql.all("SELECT n FROM pack WHERE n NOT IN (SELECT pack FROM packed) ORDER BY n"):
        yield Problem("pack", str(n), "holds nothing that anybody knows of")
    doubled = (
        "SELECT DISTINCT c.ref FROM packed p JOIN content c ON c.n = p.content WHERE c.bytes IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM content_part t WHERE t.content = c.n)"
    )
    for (ref,) in txn.sql.all(doubled):
        yield Problem("content", bytes(ref).hex(), "lies in a pack and in a row of its own")
    for (n,) in txn.sql.all("SELECT DISTINCT content FROM packed WHERE content NOT IN (SELECT n FROM content)"):
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
        yield from _verify_against_fresh(store, progress, (index_check.found_in, *checks))
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
        lacking = {ref for ref in lost if txn.sql.one("SELECT 1 FROM local WHERE key = ?", (LACKS + ref,))}
    named = [(ref, n) for ref, n in lost.items() if ref not in lacking]
    return [Problem("content", ref, f"event {n} refers to it and it is not here") for ref, n in named]


def _view_problem(table: str, key: tuple[Any, ...], stored: Any, computed: Any) -> Problem:
    where = f"{table} {'/'.join(map(str, key))}"
    if stored is None:
        return Problem("view", where, "is missing")
    if computed is None:
        return Problem("view", where, "has no fact behind it")
    return Problem("view", where, f"is {quoted(stored, 200)}, the facts say {quoted(computed, 200)}")
