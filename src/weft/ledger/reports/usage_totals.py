"""What reports of spending and work read: totals that lag behind the log, and how they keep up with it.

Every turn that an event beyond the watermark touches is counted anew, whole, from its rows and those of its messages;
with it every turn that holds a response of the same id, since such a response counts once. What no event names is found
by comparing: turns that a session took over because it turned out to be older, turns that are listed later because the
one before them is, and parts of segments that are told apart because a thread leaves there now. So an answer is that of
a scan of all rows, which `verify` compares it with.

An erasure throws the totals away in its own transaction: they hold figures out of contents that are erased, and which
of them do is not told by any event.

A reader computes for the events beyond the watermark what a writer would store, and adds it to what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson
from msgspec import Struct
from msgspec.structs import astuple

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.reports.counted_turns import FILES, RESPONSES, TABLES, WORK, SegmentCuts, TurnCounter, load_holdings
from weft.ledger.reports.coverage import WHOLE, Place, links
from weft.ledger.views.spawn_links import stored_threads
from weft.ledger.views.touched_turns import touched
from weft.store.erased_contents import ERASING, ErasedContents
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.records import USAGE_TOTALS, VIEWS_MENDED
from weft.store.sql import Insert, Sql, rows_in

Txn = ReadTxn | WriteTxn
VIEW = "usage"
TURNS_AT_ONCE, LOG_ROWS = 1024, 256
MOST_LATE_EVENTS = 4096
"""Where the totals are further behind, a reader scans all rows instead."""
ANEW = 4
"""Where a part of the log of this size is not counted, everything is counted anew: that is quicker than reading it."""
_RULES = 1
"""Another number: what an older program stored is thrown away."""


# --- what is to be counted anew ---------------------------------------------------------------------------------------


class TotalsState(Struct, frozen=True):
    """By what the stored totals were counted. `begun` and `last_turn` are set while everything is counted anew: the
    newest event when that began, and the number of the last turn so far."""

    rules: int
    erasures: int
    mended: int
    begun: int | None = None
    last_turn: int = 0

    def holds(self, now: TotalsState) -> bool:
        """Whether what was counted holds still: it went by the same rules, and by rows that nobody mended since, and
        that no erasure changed."""
        return (self.rules, self.erasures, self.mended) == (now.rules, now.erasures, now.mended)


def load_state(sql: Sql) -> TotalsState | None:
    row = sql.one("SELECT value FROM local WHERE key = ?", (USAGE_TOTALS,))
    return None if row is None else TotalsState(*orjson.loads(row[0]))


def _store_state(sql: Sql, state: TotalsState) -> None:
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (USAGE_TOTALS, orjson.dumps(astuple(state)).decode()),
    )


def state_now(txn: Txn) -> TotalsState:
    mended = txn.sql.one("SELECT value FROM local WHERE key = ?", (VIEWS_MENDED,))
    return TotalsState(_RULES, txn.facts.watermark(ERASING), 0 if mended is None else int(mended[0]))


class LateTurns:
    """Which turns are to be counted anew: those that late events touch, and those that no event names."""

    def __init__(self, txn: Txn, log_rows: int | None = None) -> None:
        self._sql = txn.sql
        self.mark = txn.facts.watermark(VIEW)
        touching = touched(txn.facts, self.mark, log_rows, MAX_INTEGER if log_rows is None else TURNS_AT_ONCE)
        self.until = self.mark if touching.until is None else touching.until
        self.is_last = self.until >= txn.facts.tip().n
        """Whether no event is left: then what only the rows as they are now tell is looked at, too."""
        self.cuts = SegmentCuts(load_cuts(self._sql))
        self.new_cuts: list[tuple[int, Place]] = []
        self.sessions: dict[int, int] = {}
        """Imported sessions whose turns are counted by when they began, which is here."""
        self.turns = self._with_versions(touching.turns)
        self._follow_sessions(touching.sessions)
        self._take_changed_ages()
        if self.is_last:
            self._cut()
        self._find_listed_later()

    def _with_versions(self, turns: Iterable[str]) -> set[str]:
        """These turns and all with their native ids: which one is current may have changed for each."""
        rows = list(rows_in(self._sql, "SELECT id, native FROM turn WHERE id IN", turns))
        natives = {native for _, native in rows if native}
        versions = rows_in(self._sql, "SELECT id FROM turn WHERE native IN", natives)
        return {row[0] for row in rows} | {id for (id,) in versions}

    def _follow_sessions(self, ids: Iterable[str]) -> None:
        """A session that turns out to have begun earlier takes turns over, and lists its undated ones anew."""
        query = "SELECT n, created_at FROM session WHERE origin IS NOT NULL AND replica IS NULL AND id IN"
        sessions: dict[int, int] = dict(rows_in(self._sql, query, ids))
        noted = {
            n: (created_at, followed)
            for n, created_at, followed in rows_in(
                self._sql, "SELECT session, created_at, followed FROM usage_session WHERE session IN", sessions
            )
        }
        self.sessions = {n: begun for n, begun in sessions.items() if noted.get(n) != (begun, 1)}
        query = "SELECT id FROM turn WHERE segment = ? AND depth <= ? AND session = ? AND n <= ?"
        for n in self.sessions:
            for segment, depth in stored_threads(self._sql, n).items():
                self.turns |= {id for (id,) in self._sql.all(query, (segment, depth, n, self.mark))}

    def _cut(self) -> None:
        """Where a thread leaves a segment now, what follows is another piece of it than what lies before."""
        query = "SELECT id FROM turn WHERE segment = ? AND depth >= ? AND depth <= ?"
        for segment, place in needed_cuts(self._sql):
            if self.cuts.has(segment, place):
                continue
            end = self.cuts.end(segment, place)
            self.turns |= {id for (id,) in self._sql.all(query, (segment, place[0], WHOLE if end is None else end[0]))}
            self.cuts.add(segment, place)
            self.new_cuts.append((segment, place))

    def _take_changed_ages(self) -> None:
        """Where a shared response counts depends on which session is the oldest."""
        changed = self._sql.one(
            "SELECT 1 FROM usage_session u JOIN session s ON s.n = u.session WHERE s.created_at <> u.created_at LIMIT 1"
        )
        if changed is None:
            return
        shared = [-owner for (owner,) in self._sql.all("SELECT DISTINCT owner FROM usage_entry WHERE owner < 0")]
        holding = rows_in(self._sql, "SELECT turn FROM response_turn WHERE native IN", shared)
        self.turns |= {id for (id,) in rows_in(self._sql, "SELECT id FROM turn WHERE n IN", {n for (n,) in holding})}

    def _find_listed_later(self) -> None:
        """No turn is listed before the one that it follows: where that moved on, so did those behind it."""
        waiting = list(self.turns)
        while waiting:
            rows = rows_in(self._sql, "SELECT n, id, listed_at, current FROM turn WHERE parent IN", waiting)
            others = [row for row in rows if row[1] not in self.turns and row[0] <= self.until]
            query = "SELECT owner, first_at FROM work_entry WHERE owner IN"
            listed: dict[int, int] = dict(rows_in(self._sql, query, [row[0] for row in others]))
            waiting = [id for n, id, at, current in others if not current or listed.get(n) != at]
            self.turns.update(waiting)


def needed_cuts(sql: Sql) -> Iterator[tuple[int, Place]]:
    """The places within segments where threads leave them."""
    for query in (_INNER_LEAVINGS, _INNER_HEADS):
        for segment, depth, events in sql.all(query):
            yield segment, (depth + 1, 0) if events is None else (depth, events)
    for leaving in links(sql).values():
        yield leaving.segment, (leaving.place[0] + 1, 0)


_INNER_LEAVINGS = (
    "SELECT s.parent, s.parent_depth, s.parent_events FROM segment s LEFT JOIN turn t"
    " ON t.segment = s.parent AND t.depth = s.parent_depth + 1"
    " WHERE s.parent IS NOT NULL AND (s.parent_events IS NOT NULL OR t.n IS NOT NULL)"
)
_INNER_HEADS = (
    "SELECT s.head_segment, s.head_depth, s.head_events FROM session s LEFT JOIN turn t"
    " ON t.segment = s.head_segment AND t.depth = s.head_depth + 1"
    " WHERE s.head IS NOT NULL AND (s.head_events IS NOT NULL OR t.n IS NOT NULL)"
)


def load_cuts(sql: Sql) -> Iterator[tuple[int, Place]]:
    for segment, depth, events in sql.all("SELECT segment, depth, events FROM usage_cut"):
        yield segment, (depth, events)


# --- keeping up -------------------------------------------------------------------------------------------------------


def catch_up(store: Store) -> None:
    """Count what came until now, batch by batch, so that writers get their turn in between."""
    if store.read_only:
        return
    with store.read() as txn:
        if _is_up_to_date(txn):
            return
    store.catch_up_if_far_behind()  # events are found by their ids
    while store.write(advance):
        pass


def lag_of(store: Store) -> int:
    """How many events are not counted: all of them where what is stored does not hold any longer."""
    with store.read() as txn:
        state = load_state(txn.sql)
        is_counted = state is not None and state.holds(state_now(txn))
        return txn.facts.tip().n - (txn.facts.watermark(VIEW) if is_counted else 0)


def _is_up_to_date(txn: ReadTxn) -> bool:
    return txn.facts.watermark(VIEW) == txn.facts.tip().n and load_state(txn.sql) == state_now(txn)


def advance(txn: WriteTxn) -> bool:
    """One batch; True when there is more of what was there."""
    state, now, end = load_state(txn.sql), state_now(txn), txn.facts.tip().n
    if state is None or not state.holds(now) or _is_quicker_anew(txn, state):
        _begin_anew(txn)
        return True
    if state.begun is not None:
        return _go_on_anew(txn, state, state.begun)
    late = LateTurns(txn, LOG_ROWS)
    txn.sql.add(_CUT, [(segment, *place) for segment, place in late.new_cuts])
    txn.sql.add(_SESSION, [(n, begun, 1) for n, begun in late.sessions.items()])
    _store(txn, late.turns, late.cuts)
    _set_mark(txn.sql, late.until)
    return late.until < end


def _is_quicker_anew(txn: WriteTxn, state: TotalsState) -> bool:
    end = txn.facts.tip().n
    behind = end - txn.facts.watermark(VIEW)
    return state.begun is None and not 0 <= behind <= max(MOST_LATE_EVENTS, end // ANEW)


def _begin_anew(txn: WriteTxn) -> None:
    """Nothing is counted. Sessions are noted as they are before the first turn is read: one that changes from now on
    does so by an event that is counted later."""
    forget_totals(txn.sql)
    txn.sql.run(
        "INSERT INTO usage_session(session, created_at, followed) SELECT n, created_at, 1 FROM session"
        " WHERE origin IS NOT NULL AND replica IS NULL"
    )
    txn.sql.add(_CUT, [(segment, *place) for segment, place in needed_cuts(txn.sql)])
    now = state_now(txn)
    _store_state(txn.sql, TotalsState(now.rules, now.erasures, now.mended, txn.facts.tip().n))


def forget(_: Store, txn: WriteTxn, __: ErasedContents) -> None:
    """Forget everything that was counted, as some contents are erased: what a tool noted of costs and caches stood in
    metadata, and is in sums now. The next reader counts anew."""
    forget_totals(txn.sql)


def forget_totals(sql: Sql) -> None:
    for table in TABLES:
        table.clear(sql)
    for name in ("response_turn", "usage_cut", "usage_session"):
        sql.run(f"DELETE FROM {name}")
    sql.run("DELETE FROM watermark WHERE view = ?", (VIEW,))
    sql.run("DELETE FROM local WHERE key = ?", (USAGE_TOTALS,))


def _go_on_anew(txn: WriteTxn, state: TotalsState, begun: int) -> bool:
    query = f"SELECT n, id FROM turn WHERE n > ? AND n <= ? ORDER BY n LIMIT {TURNS_AT_ONCE}"
    rows = txn.sql.all(query, (state.last_turn, begun))
    _store(txn, (id for _, id in rows), SegmentCuts(load_cuts(txn.sql)))
    if len(rows) == TURNS_AT_ONCE:
        _store_state(txn.sql, TotalsState(state.rules, state.erasures, state.mended, begun, rows[-1][0]))
        return True
    _store_state(txn.sql, TotalsState(state.rules, state.erasures, state.mended))
    _set_mark(txn.sql, begun)
    return begun < txn.facts.tip().n


def _set_mark(sql: Sql, n: int) -> None:
    sql.run("INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, n))


def _store(txn: WriteTxn, turns: Iterable[str], cuts: SegmentCuts) -> None:
    """Count these turns as they are now."""
    counter, ids = TurnCounter(txn, cuts), list(turns)
    held = load_holdings(txn.sql, counter.numbers(ids).values())
    txn.sql.add(
        _HOLDING,
        [
            (native, turn, holding.reported, int(holding.current))
            for native, holders in held.items()
            for turn, holding in holders.items()
        ],
    )
    changes = counter.changes(ids)
    RESPONSES.put(txn.sql, changes.responses)
    WORK.put(txn.sql, changes.work)
    FILES.put(txn.sql, changes.files)
    txn.sql.add(_AGE, [(session, begun, 0) for session, begun in changes.ages.items()])


_CUT = Insert("usage_cut", ("segment", "depth", "events"), ("segment", "depth", "events"))
_SESSION = Insert("usage_session", ("session", "created_at", "followed"), ("session",), ("created_at", "followed"))
_AGE = Insert("usage_session", ("session", "created_at", "followed"), ("session",))
_HOLDING = Insert(
    "response_turn", ("native", "turn", "reported", "current"), ("native", "turn"), ("reported", "current")
)
