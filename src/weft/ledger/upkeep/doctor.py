"""What is wrong with a ledger's contents, quickly: the newest facts and views, leases,
watermarks, imports, clocks; and how big a ledger is, and of what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import content_ref
from weft.kernel.errors import Action
from weft.kernel.foreign_input import is_digest
from weft.kernel.typed_names import Site
from weft.ledger.read.content_uses import pending
from weft.ledger.secrets.scan import MARK as SECRETS
from weft.ledger.upkeep.verify import VIEWS_STALE, Problem, follows_view_rules, verify_facts, verify_views
from weft.ledger.views.rows import LeaseKind, held_leases, recorded_after, stream_of
from weft.store.fact_log import ERASING, FORMER, LACKS, unfinished_erasure
from weft.store.port import Diagnosis, ReadTxn, Store, as_far_as_it_goes, error, good, note, warning
from weft.store.replicas import is_dead, last_copied_event

# --- How big a ledger is, and of what.

_FORKS = (
    "SELECT count(*) - count(DISTINCT CASE WHEN s.parent_events IS NULL THEN t.parent END) FROM turn t"
    " LEFT JOIN segment s ON s.n = t.segment AND s.base = t.depth WHERE t.current = 1 AND t.parent IS NOT NULL"
)
"""Turns that leave inside another one, and all but one of those that go on from the end of the same turn."""
_COUNTS = {
    "turns": "SELECT count(*) FROM turn WHERE current = 1",
    "superseded_turns": "SELECT count(*) FROM turn WHERE current = 0",
    "messages": "SELECT count(*) FROM message WHERE turn NOT IN (SELECT n FROM turn WHERE current = 0)",
    "tool_calls": "SELECT count(*) FROM tool_call WHERE turn NOT IN (SELECT n FROM turn WHERE current = 0)",
    "sessions": "SELECT count(*) FROM session WHERE status <> 'deleted'",
    "compactions": "SELECT count(*) FROM compaction WHERE turn NOT IN (SELECT id FROM turn WHERE current = 0)",
    "trees": "SELECT count(DISTINCT root) FROM turn WHERE current = 1",
    "forks": _FORKS,
    "deepest": "SELECT coalesce(max(depth), 0) FROM turn WHERE current = 1",
    "contents": "SELECT count(*) FROM content",
    "erased_contents": "SELECT count(*) FROM content WHERE length(salt) = 0",
    "packed_contents": "SELECT count(DISTINCT content) FROM packed",
    "packed_bytes": "SELECT coalesce(sum(size), 0) FROM packed",
    "bytes_of_packs": "SELECT coalesce(sum(length(bytes)), 0) FROM pack",
    "content_bytes": "SELECT coalesce(sum(size), 0) FROM content",
    "total_tokens": "SELECT coalesce(sum(total_tokens), 0) FROM turn WHERE current = 1",
}
"""Of what turns are made of, what stands: versions of a turn that another one superseded are counted by themselves."""
_BY_STATUS = "SELECT status, count(*) FROM turn WHERE current = 1 GROUP BY status ORDER BY status"


def collect(txn: ReadTxn, replica: str) -> dict[str, Any]:
    found: dict[str, Any] = {"replica": replica, "events": txn.facts.tip().n}
    for name, sql in _COUNTS.items():
        row = txn.sql.fetch_row(sql)
        found[name] = row[0] if row else 0
    found["turns_by_status"] = dict(txn.sql.fetch_rows(_BY_STATUS))
    found["log"] = txn.facts.tip().chain.hex()
    return found


# --- What is wrong with a ledger's contents, quickly: the newest facts and views, leases, watermarks, imports, clocks.

NEWEST_ROWS, SAMPLED = 256, 256
SHOWN = 20
LAG = 100_000
DAY_MS = 24 * 60 * 60 * 1000
BROKEN_FACTS = ("content", "event", "log", "pack", "database")
"""Problems that no rebuild mends."""
OF_CONTENTS = ("lookup_content", SECRETS)
"""Watermarks that count contents, not events."""
Check = Callable[[Store], Iterator[Diagnosis]]
Mend = Callable[[Problem], tuple[str, Action]]


def examine_ledger(store: Store, full: bool) -> Iterator[Diagnosis]:
    """Every check in turn, each as far as it goes."""
    facts = (
        (("facts", _all_facts), ("views", _all_views)) if full else (("facts", _newest_facts), ("views", _newest_views))
    )
    for name, check in (*facts, *CHECKS):
        yield from as_far_as_it_goes(name, lambda check=check: check(store))  # type: ignore[misc]


# --- facts and views --------------------------------------------------------------------------------------------


def _all_facts(store: Store) -> Iterator[Diagnosis]:
    yield from _diagnoses_of("facts", verify_facts(store), partial(_why_and_mend, store))


def _all_views(store: Store) -> Iterator[Diagnosis]:
    yield from _diagnoses_of("views", verify_views(store), partial(_why_and_mend, store))


def _why_and_mend(store: Store, problem: Problem) -> tuple[str, Action]:
    """Why it matters, and what mends it."""
    if problem.what in BROKEN_FACTS and "fts5" not in problem.detail:
        return "what is stored is not what was written", _restore_action(store)
    if problem.what == "views":
        return "they are made from facts that cannot be read", Action.REPAIR_FACTS_THEN_REBUILD
    return "answers may be wrong; the facts are not touched by it", Action.REBUILD_VIEWS


def _restore_action(store: Store) -> Action:
    return Action.COPY_BACKUP if Site.of(store.path).is_address else Action.RESTORE_OR_SALVAGE


def _diagnoses_of(check: str, problems: Iterator[Problem], mend: Mend) -> Iterator[Diagnosis]:
    count = 0
    for count, problem in enumerate(problems, 1):
        if count <= SHOWN:
            yield error(check, str(problem), *mend(problem))
    if count > SHOWN:
        yield error(check, f"and {count - SHOWN} more", "they are not shown here", Action.LIST_ALL_PROBLEMS)
    if not count:
        yield good(check, f"all {check} verify")


def _newest_facts(store: Store) -> Iterator[Diagnosis]:
    """The end of the log against its chain, and contents from all over it against their references."""
    with store.read() as txn:
        end = txn.facts.tip().n
        start = txn.sql.fetch_row("SELECT n FROM log ORDER BY n DESC LIMIT 1 OFFSET ?", (NEWEST_ROWS,))
        recorded_after(txn.facts, 0 if start is None else int(start[0]), NEWEST_ROWS + 1)
        wrong = list(islice(_wrong_contents(txn), SHOWN))
    for ref in wrong:
        yield error(
            "facts", f"content {ref} does not hash to its reference", "it cannot be shown", _restore_action(store)
        )
    if not wrong:
        yield good("facts", f"the newest of {end:,} events and a sample of the contents verify")


def _wrong_contents(txn: ReadTxn) -> Iterator[str]:
    (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
    step = max(1, (last or 0) // SAMPLED)
    for n in range(last or 0, 0, -step):
        row = txn.sql.fetch_row("SELECT ref, salt, bytes FROM content WHERE n = ? AND bytes IS NOT NULL", (n,))
        if row is not None and content_ref(row[1], row[2]) != row[0]:
            yield bytes(row[0]).hex()


def _newest_views(store: Store) -> Iterator[Diagnosis]:
    """Whether turns and sessions know of the newest events about them."""
    with store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT n, count, events FROM log ORDER BY n DESC LIMIT ?", (NEWEST_ROWS,))
        last: dict[str, bytes] = {}
        for n, count, events in reversed(rows):
            for number, line in enumerate(bytes(events).split(b"\n"), n - count + 1):
                last[stream_of(number, line)] = sha256(line).digest()
        wrong = [stream for stream, digest in last.items() if not _knows_stream(txn, stream, digest)]
    for stream in wrong[:SHOWN]:
        yield error(
            "views", f"{stream} is not where the facts say it is", "answers about it are wrong", Action.REBUILD_VIEWS
        )
    if not wrong:
        yield good("views", f"the views know of the newest {len(last)} turns, sessions and agents")


def _knows_stream(txn: ReadTxn, stream: str, digest: bytes) -> bool:
    """Streams that have no row of their own are in the table of the others."""
    kind, _, name = stream.partition(":")
    if kind == "import":
        return True
    table = {"run": "turn", "session": "session"}.get(kind)
    if table is None:
        row = txn.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (stream,))
    else:
        row = txn.sql.fetch_row(f"SELECT last_event FROM {table} WHERE id = ?", (name,))
    return row is not None and (bytes(row[0]) == digest or (kind == "session" and _ends_branch(txn, digest)))


def _ends_branch(txn: ReadTxn, digest: bytes) -> bool:
    """Another replica moved the session last: its branch is known, and this ledger's label does not follow it."""
    return txn.sql.fetch_row("SELECT 1 FROM branch WHERE tip = ?", (digest,)) is not None


def _examine_watermarks(store: Store) -> Iterator[Diagnosis]:
    """How far each lagging view has come. Some count contents; how far the search for secrets went is no view, and
    nobody waits for it."""
    with store.read() as txn:
        (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
        ends = {"events": txn.facts.tip().n, "contents": last or 0}
        marks: dict[str, int] = dict(txn.sql.fetch_rows("SELECT view, n FROM watermark WHERE view <> ?", (ERASING,)))
    beyond = False
    for view, mark in sorted(marks.items()):
        counted = "contents" if view in OF_CONTENTS else "events"
        end = ends[counted]
        if mark > end:
            beyond, mend = True, Action.SCAN_SECRETS_AGAIN if view == SECRETS else Action.REBUILD_VIEWS
            yield error("watermarks", f"{view} has come to {mark}, there are {end} {counted}", "some were cut", mend)
        elif end - mark > LAG and view != SECRETS:
            why = "the next reader of it waits a moment"
            yield note("watermarks", f"{view} is {end - mark:,} {counted} behind", why)
    if not beyond:
        views = ", ".join(sorted(marks.keys() - {SECRETS}))
        yield good("watermarks", f"these views catch up by themselves: {views}" if views else "no view lags yet")


# --- writers, imports, clocks, copies ---------------------------------------------------------------------------


def _examine_writers(store: Store) -> Iterator[Diagnosis]:
    with store.read() as txn:
        leases = held_leases(txn.sql, LeaseKind.SESSION, LeaseKind.TURN)
        labels: dict[str, str] = dict(  # of the sessions whose turns brokers go on with
            txn.sql.fetch_rows(
                "SELECT t.id, s.label FROM open_run o JOIN turn t ON t.id = o.turn JOIN session s ON s.n = o.session"
                " WHERE t.n > ?",
                (last_copied_event(txn.sql),),
            )
        )
        leased = {lease.purpose for lease in leases}
        unfinished = txn.sql.fetch_rows(
            "SELECT id FROM turn WHERE status NOT IN ('completed', 'failed') AND origin IS NULL ORDER BY n LIMIT ?",
            (len(leased) + SHOWN,),
        )
    for lease in leases[:SHOWN]:
        if is_dead(lease.owner) and lease.purpose in labels:
            text, why = f"turn {lease.purpose} was left open by a process that is gone", "its message waits for it"
            yield note("turns", text, why, Action.SERVE_TURN.of(session=labels[lease.purpose]))
        elif is_dead(lease.owner):
            why = "its session is free; the next opening for writing records it as failed"
            text = f"turn {lease.purpose} was left open by a writer that is gone"
            yield note("turns", text, why, "open it for writing")
        else:
            yield note("turns", f"turn {lease.purpose} is being recorded by process {_process_number(lease.owner)}")
    for (turn,) in unfinished:
        if turn not in leased:
            why = "nobody holds it; it came from elsewhere, or its lease was lost"
            yield note("turns", f"turn {turn} never ended", why, "go on from its parent; it stays as it is")
    if not leases and not unfinished:
        yield good("turns", "no turn is open")


def _examine_agents(store: Store) -> Iterator[Diagnosis]:
    with store.read() as txn:
        leases = held_leases(txn.sql, LeaseKind.AGENT)[:SHOWN]
        names = {
            lease.key: txn.sql.fetch_row("SELECT name FROM program WHERE id = ?", (lease.key,)) for lease in leases
        }
    for lease in leases:
        row = names[lease.key]
        name = lease.key if row is None else row[0]
        if is_dead(lease.owner):
            why = "whoever runs it next takes it over"
            yield note("agents", f"agent {name!r} was left by a process that is gone", why)
        else:
            yield note("agents", f"agent {name!r} is run by process {_process_number(lease.owner)}")


def _process_number(owner: str) -> str:
    return owner.split("/")[-2] if owner.count("/") >= 2 else owner


def _examine_sources(store: Store) -> Iterator[Diagnosis]:
    shrunk = gone = seen = 0
    with store.read() as txn:
        for name, size, stamp in txn.sql.iterate_rows("SELECT name, size, stamp FROM import_source"):
            if is_digest(name):  # its name was erased
                continue
            file, seen = Path(name), seen + 1
            try:
                status = file.stat()
            except OSError:
                gone += 1
            else:  # the size and time of a source of several files are of all of them; a file as old as that is whole
                shrunk += status.st_size < size and status.st_mtime_ns > stamp
        (waiting,) = txn.sql.fetch_row("SELECT count(*) FROM import_wait") or (0,)
    if shrunk:
        why = "they were rewritten since they were imported; what was imported stays"
        yield note("imports", f"{shrunk} of {seen} sources are shorter than they were", why, Action.IMPORT_AGAIN)
    if gone:
        yield note("imports", f"{gone} of {seen} sources are gone", "what was imported of them stays, verbatim")
    if waiting:
        why = "sessions that they go on from, or that started them, were not imported"
        links = "1 link waits" if waiting == 1 else f"{waiting:,} links wait"
        yield note("imports", f"{links} for history that is not here", why, Action.IMPORT_REST)
    if not (shrunk or gone or waiting):
        yield good("imports", f"{seen} sources, none with a problem")


def _examine_clocks(store: Store) -> Iterator[Diagnosis]:
    now = store.now_ms()
    with store.read() as txn:
        arrived = txn.sql.fetch_row("SELECT max(at) FROM (SELECT at FROM log ORDER BY n DESC LIMIT 1000) AS newest")
        turns = txn.sql.fetch_row("SELECT count(*), max(listed_at) FROM turn WHERE listed_at > ?", (now + DAY_MS,))
    if arrived and arrived[0] and arrived[0] > now + DAY_MS:
        why = "the clock was ahead then, or is behind now; order does not come from clocks, shown times do"
        yield warning("clock", f"events arrived at {iso_from_ms(arrived[0])}", why, "set the clock right")
    elif turns and turns[0]:
        why = "the clock was ahead when they were recorded; they are listed first until then"
        yield note("clock", f"{turns[0]} turns are from the future, the last of {iso_from_ms(turns[1])}", why)
    else:
        yield good("clock", "no event is from the future")


def _examine_names(store: Store) -> Iterator[Diagnosis]:
    with store.read() as txn:
        keys = {key for (key,) in txn.sql.fetch_rows("SELECT key FROM local WHERE key NOT LIKE ?", (LACKS + "%",))}
        (lacking,) = txn.sql.fetch_row("SELECT count(*) FROM local WHERE key LIKE ?", (LACKS + "%",)) or (0,)
        is_by_rules = follows_view_rules(txn.sql)
    if not is_by_rules:
        why = "opening the ledger for writing makes them anew, unless facts are damaged"
        yield error("views", "an older version computed them", why, Action.REBUILD_VIEWS)
    if VIEWS_STALE in keys:
        yield error("views", "contents came after events that name them", "they do not show yet", Action.REBUILD_VIEWS)
    if "copying" in keys:
        yield error("copy", "this is a copy that was not finished", "it lacks facts", Action.REPEAT_COPY)
    if "copied" in keys:
        yield note("copy", "this is a copy that nobody has written to", "it gets a name of its own when somebody does")
    former = sum(key.startswith(FORMER) for key in keys)
    if former:
        yield note("copy", f"it went by {former} other replica id{'' if former == 1 else 's'} before")
    for key in sorted(key for key in keys if key.startswith("rollback:")):
        yield note("copy", f"a roll-back was accepted as replica {key.partition(':')[2]}")
    if lacking:
        why = "their bytes were withheld, erased or lost; the chain verifies without them"
        yield note("contents", f"{lacking} contents are named and not here", why, Action.IMPORT_MISSING_FACTS)
    if not former and "copied" not in keys:
        yield good("copy", f"replica {store.replica}")


def _examine_erasures(store: Store) -> Iterator[Diagnosis]:
    with store.read() as txn:
        left, waiting = unfinished_erasure(txn.sql), len(pending(txn))
    if left is not None:
        why = "what was erased may still be read in the files"
        yield warning("erasing", "an erasure is not finished", why, Action.FINISH_ERASURE)
    if waiting:
        what = f"{waiting} content{'' if waiting == 1 else 's'} that other ledgers erased are still here"
        yield note("erasing", what, "nobody here has said yes to it", Action.REVIEW_ERASURES)
    if left is None and not waiting:
        yield good("erasing", "no erasure is left to be done")


CHECKS: tuple[tuple[str, Check], ...] = (
    ("watermarks", _examine_watermarks),
    ("turns", _examine_writers),
    ("agents", _examine_agents),
    ("imports", _examine_sources),
    ("clock", _examine_clocks),
    ("copy", _examine_names),
    ("erasing", _examine_erasures),
)
