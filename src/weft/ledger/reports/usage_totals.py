"""What reports of spending and work read: totals that lag behind the log, what turns and their
responses add to them, how they keep up, and whether they are what a scan says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import sha256

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import astuple, replace

from weft.kernel.contents import MAX_INTEGER
from weft.ledger.read.session_list import HERE
from weft.ledger.reports.prices import prompt_of
from weft.ledger.reports.responses import (
    CACHE_WRITE,
    CACHE_WRITE_1H,
    HAS_NUMBERS,
    UNSPECIFIED,
    WHOLE,
    Additions,
    CellName,
    CountedResponse,
    Place,
    ReportedUsage,
    Slots,
    Tokens,
    TotalTable,
    TurnPlace,
    Values,
    count_responses,
    links,
    read_name,
    repeated,
    reported,
    reported_in,
    standing,
)
from weft.ledger.views.rows import load_session_number, touched
from weft.ledger.views.sessions import stored_threads
from weft.ledger.views.sightings import NO_SESSION_AGE, SessionAge, session_age
from weft.store.fact_log import ERASING, USAGE_TOTALS, VIEWS_MENDED, ErasedContents
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Insert, Row, Sql, rows_in

# --- What turns and their responses add to totals, from their rows and those of their messages.

Txn = ReadTxn | WriteTxn
SLOT = 15 * 60 * 1000
"""Every offset from UTC that is in use is a multiple of a quarter of an hour, and so is every hour of a price."""
PROMPT_STEPS = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
"""Longer prompts than these may cost more, as the maintained table has it."""
LONGEST_PIECES, DIGEST = 1024, "sha256 "
"""In characters: the names of cells stand in an index, and PostgreSQL's takes 2,704 bytes. A response that was copied
into hundreds of sessions lies in as many pieces, and the name of its cell holds a digest of their names."""
LARGE = 1 << 40
"""A response with a larger number has a cell of its own: no sum of others leaves 64 bits."""
RESPONSES = TotalTable(
    "usage",
    (
        "responses",
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "cache_write_1h_tokens",
        "reasoning_tokens",
        "unspecified_tokens",
        "recorded_cost",
    ),
)
FILES = TotalTable("file", ("changes",))


def _join_turns(one: Values, other: Values) -> Values:
    first = min(one[3:5], other[3:5])
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], *first, max(one[5], other[5])


WORK = TotalTable("work", ("turns", "failed", "calls", "first_at", "first_turn", "last_at"), _join_turns)
TABLES = (RESPONSES, WORK, FILES)


class ResponseCell(Struct, frozen=True):
    """What the responses of a cell have in common, in the order of its name."""

    slot: int | None
    is_once: bool
    """It counts in the sum of everything."""
    is_naive: bool
    """It counts for each thread that it lies in."""
    pieces: str
    """The pieces of segments where it lies."""
    session: int | None
    origin: str
    workspace: int | None
    model: str | None
    provider: str | None
    step: int
    """How many of the steps the prompt is longer than."""
    kinds: int | None
    """Which kinds of tokens there are, where its tool noted a cost: with them it says whether that counts."""
    alone: str | None
    """Of a response with numbers that no sum holds: which it is."""

    @property
    def name(self) -> CellName:
        return astuple(self)

    @property
    def has_many_pieces(self) -> bool:
        """Whether their names had no room, so that only a digest of them is here."""
        return self.pieces.startswith(DIGEST)


class WorkCell(Struct, frozen=True):
    """The same of turns; the slot is that of the time by which they are listed."""

    slot: int
    session: int | None
    workspace: int | None
    is_undated: bool
    origin: str
    model: str | None


class FileCell(Struct, frozen=True):
    """The same of files that were written in turns."""

    slot: int
    session: int | None
    workspace: int | None
    is_undated: bool
    path: int


class CountedUsage(Struct, frozen=True):
    """What is counted: one response, or the sum of those in a cell; `row` says of what."""

    is_once: bool
    is_naive: bool
    row: ReportedUsage
    tokens: Tokens
    recorded: int | None
    places: tuple[tuple[int, Place], ...]
    responses: int
    prompt: int
    """A number of tokens that the price is looked up by."""


def counted_response(response: CountedResponse) -> CountedUsage:
    """In the sum of everything."""
    row, tokens = response.first, response.tokens
    return _counted_row(row, tokens, response.recorded, tuple(response.places), is_once=True, is_naive=False)


def counted_row(row: ReportedUsage, *, is_once: bool = False) -> CountedUsage:
    """For each thread that it lies in."""
    return _counted_row(row, row.tokens, row.recorded, ((row.segment, row.place),), is_once=is_once, is_naive=True)


def _counted_row(
    row: ReportedUsage,
    tokens: Tokens,
    recorded: int | None,
    places: tuple[tuple[int, Place], ...],
    *,
    is_once: bool,
    is_naive: bool,
) -> CountedUsage:
    """The rest of a turn may be of several requests, so its length tells nothing."""
    prompt = 0 if row.is_rest else prompt_of(tokens)
    return CountedUsage(is_once, is_naive, row, tokens, recorded, places, int(not row.is_rest), prompt)


def scanned(sql: Sql, age_of: Callable[[int | None], SessionAge]) -> Iterator[CountedUsage]:
    """Everything that counts, from the rows of all turns and messages."""
    rows: list[CountedUsage] = []
    for response in count_responses(
        reported(sql), repeated(sql), standing(sql), age_of, lambda row: rows.append(counted_row(row))
    ):
        yield from rows
        rows.clear()
        yield counted_response(response)
    yield from rows


class SegmentCuts:
    """Where segments are cut into pieces. A piece is named by its segment and where it begins."""

    def __init__(self, cuts: Iterable[tuple[int, Place]]) -> None:
        self._places: dict[int, list[Place]] = {}
        for segment, place in cuts:
            self.add(segment, place)

    def add(self, segment: int, place: Place) -> None:
        insort(self._places.setdefault(segment, [(0, 0)]), place)

    def has(self, segment: int, place: Place) -> bool:
        return place in self._places.get(segment, ())

    def end(self, segment: int, place: Place) -> Place | None:
        """Where the piece ends that holds this place; None: with the segment."""
        places = self._places.get(segment, [])
        after = bisect_right(places, place)
        return places[after] if after < len(places) else None

    def pieces(self, places: Iterable[tuple[int, Place]]) -> str:
        """The names of the pieces in which these places lie; a digest of these where they are too long."""
        names = " ".join(sorted({self._segment_piece(segment, place) for segment, place in places}))
        return names if len(names) <= LONGEST_PIECES else DIGEST + sha256(names.encode()).hexdigest()

    def _segment_piece(self, segment: int, place: Place) -> str:
        places = self._places.get(segment)
        depth, events = (0, 0) if places is None else places[bisect_right(places, place) - 1]
        return f"{segment}:{depth}:{events}"


def places_of(pieces: str) -> tuple[tuple[int, Place], ...]:
    """A place in each of these pieces: where it begins."""
    numbers = (piece.split(":") for piece in pieces.split(" "))
    return tuple((int(segment), (int(depth), int(events))) for segment, depth, events in numbers)


def response_cell(counted: CountedUsage, cuts: SegmentCuts) -> ResponseCell:
    row, tokens = counted.row, counted.tokens
    is_alone = max(*tokens, counted.recorded or 0) >= LARGE or tokens[CACHE_WRITE_1H] > tokens[CACHE_WRITE]
    return ResponseCell(
        None if row.at is None else row.at // SLOT,
        counted.is_once,
        counted.is_naive,
        cuts.pieces(counted.places),
        row.turn.session,
        row.turn.origin,
        row.turn.workspace,
        row.model,
        row.provider,
        bisect_left(PROMPT_STEPS, counted.prompt),
        None if counted.recorded is None else _kinds_of(tokens),
        f"{row.turn.id} {row.place[1]}" if is_alone else None,
    )


def _kinds_of(tokens: Tokens) -> int:
    written = tokens[CACHE_WRITE] - tokens[CACHE_WRITE_1H]
    counts = (*tokens[:CACHE_WRITE], written, tokens[CACHE_WRITE_1H], tokens[UNSPECIFIED])
    return sum(1 << i for i, count in enumerate(counts) if count)


def response_values(counted: CountedUsage) -> Values:
    return (counted.responses, *counted.tokens, counted.recorded or 0)


def counted_cell(cell: ResponseCell, values: Values) -> CountedUsage:
    """All that a cell holds, as one. Any prompt and any time within it has the same price."""
    responses, *counts, recorded = values
    tokens: Tokens = (counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6])
    row = ReportedUsage(
        0,
        (0, 0),
        TurnPlace("", cell.session, cell.origin, cell.workspace, current=True),
        None if cell.slot is None else cell.slot * SLOT,
        cell.model,
        cell.provider,
        tokens,
    )
    prompt = PROMPT_STEPS[cell.step - 1] + 1 if cell.step else 0
    noted = None if cell.kinds is None else recorded
    places = places_of(cell.pieces)
    return CountedUsage(cell.is_once, cell.is_naive, row, tokens, noted, places, responses, prompt)


# --- counting turns ---------------------------------------------------------------------------------------------------


class TurnHolding(Struct, frozen=True):
    """What one turn holds of a response: how many messages of it have numbers, and whether the turn is current."""

    reported: int
    current: bool


Holdings = dict[int, dict[int, TurnHolding]]
"""By the id of a response, as a number, the turns that hold it."""


def _is_shared(turns: Mapping[int, TurnHolding]) -> bool:
    """Is a response gathered from several places? It lies in several, or another version of its turn has it, too."""
    states = {holding.current for holding in turns.values()}
    return len(states) > 1 or sum(holding.reported for holding in turns.values()) > 1


class TurnChanges(Struct):
    """What turns and responses add to cells now."""

    responses: dict[int, Additions]
    work: dict[int, Additions]
    files: dict[int, Additions]
    ages: dict[int, int]
    """When sessions had begun by which it was chosen where a shared response counts."""


NO_CHANGES = TurnChanges({}, {}, {}, {})


class TurnCounter:
    """Counts turns and shared responses in one transaction. `late` are holdings that are not stored yet."""

    def __init__(self, txn: Txn, cuts: SegmentCuts, late: Holdings | None = None) -> None:
        self._txn, self._sql, self._cuts = txn, txn.sql, cuts
        self._late = {} if late is None else late
        self._ages: dict[int | None, SessionAge] = {}
        self.begun: dict[int, int] = {}

    def changes(self, turns: Iterable[str]) -> TurnChanges:
        """What these turns add, and those that share a response with one of them."""
        numbers = self.numbers(turns)
        holdings = self.holdings(natives := set(load_holdings(self._sql, numbers.values())))
        sharing = {turn for native in natives for turn in holdings[native]} - set(numbers.values())
        turns_of = {*numbers.values(), *sharing}
        responses: dict[int, Additions] = {owner: {} for owner in (*turns_of, *(-native for native in natives))}
        for owner, counted in self.counted(turns_of, natives):
            cell = response_cell(counted, self._cuts).name
            values, cells = response_values(counted), responses[owner]
            cells[cell] = RESPONSES.join(cells[cell], values) if cell in cells else values
        work, files = self.work_of(numbers.values())
        return TurnChanges(responses, work, files, self.begun)

    def work_of(self, turns: Collection[int]) -> tuple[dict[int, Additions], dict[int, Additions]]:
        """What these turns add to the totals of turns and to those of files."""
        rows = list(rows_in(self._sql, f"SELECT {WORKED} FROM turn WHERE n IN", turns))
        return work_of(rows), self._files_of(rows)

    def counted(self, turns: Collection[int], natives: Collection[int]) -> Iterator[tuple[int, CountedUsage]]:
        """What these turns add by themselves and what these responses do if they are shared, each with its owner."""
        numbers = {id: n for n, id in self._turn_ids(turns).items()}
        rows = list(reported_in(self._sql, numbers))
        held = {row.native for row in rows if row.native is not None}
        holdings = self.holdings({*held, *natives})
        shared = {native for native, turns_of in holdings.items() if _is_shared(turns_of)}
        for row in rows:
            yield numbers[row.turn.id], counted_row(row, is_once=row.turn.current and row.native not in shared)
        for response in self._gathered_responses({native: holdings[native] for native in shared.intersection(natives)}):
            yield -(response.first.native or 0), counted_response(response)

    def _gathered_responses(self, holdings: Holdings) -> Iterator[CountedResponse]:
        """These shared responses."""
        ids = self._turn_ids({turn for turns in holdings.values() for turn in turns})
        rows = (row for row in reported_in(self._sql, ids.values()) if row.native in holdings)
        return count_responses(rows, set(holdings), self._standing_places(holdings), self.age_of)

    def _standing_places(self, holdings: Holdings) -> dict[int, tuple[int, Place]]:
        """Where responses lie in current turns that other versions of these report on, as `responses.standing` says."""
        versioned = {native for native, turns in holdings.items() if any(not turn.current for turn in turns.values())}
        current = {turn for native in versioned for turn, holding in holdings[native].items() if holding.current}
        query = (
            "SELECT m.native, t.segment, t.depth, m.position FROM message m JOIN turn t ON t.n = m.turn"
            " WHERE m.native > 0 AND m.role = 'assistant' AND m.turn IN"
        )
        places = sorted((row for row in rows_in(self._sql, query, current) if row[0] in versioned), reverse=True)
        return {native: (segment, (depth, position)) for native, segment, depth, position in places}

    def holdings(self, natives: Collection[int]) -> Holdings:
        """Which turns hold these responses."""
        found: Holdings = {native: {} for native in natives}
        query = "SELECT native, turn, reported, current FROM response_turn WHERE native IN"
        for native, turn, reported_messages, current in rows_in(self._sql, query, natives):
            found[native][turn] = TurnHolding(reported_messages, bool(current))
        for native in natives:
            found[native] |= self._late.get(native, {})
        return found

    def age_of(self, session: int | None) -> SessionAge:
        if session not in self._ages:
            row = None if session is None else load_session_number(self._sql, session)
            self._ages[session] = NO_SESSION_AGE if row is None else session_age(row, self._txn.facts.text)
            if row is not None:
                self.begun[row.n] = row.created_at
        return self._ages[session]

    def numbers(self, turns: Iterable[str]) -> dict[str, int]:
        return dict(rows_in(self._sql, "SELECT id, n FROM turn WHERE id IN", turns))

    def _turn_ids(self, turns: Iterable[int]) -> dict[int, str]:
        return dict(rows_in(self._sql, "SELECT n, id FROM turn WHERE n IN", turns))

    def _files_of(self, rows: Iterable[Row]) -> dict[int, Additions]:
        turns = {row[0]: row for row in rows}
        messages: dict[tuple[int, int], set[str]] = {}
        query = (
            "SELECT m.turn, f.path, f.message FROM message m JOIN message_file f ON f.message = m.id"
            " WHERE f.kind = 'written' AND m.turn IN"
        )
        for turn, path, message in rows_in(self._sql, query, turns):
            messages.setdefault((turn, path), set()).add(message)
        files: dict[int, Additions] = {turn: {} for turn in turns}
        for (turn, path), writing in messages.items():
            _, session, workspace, _, _, _, listed_at, _, _, undated, current = turns[turn]
            if current:
                cell = FileCell(listed_at // SLOT, session, workspace, bool(undated), path)
                files[turn][astuple(cell)] = (len(writing),)
        return files


WORKED = "n, session, workspace, origin, model, status, listed_at, completed_at, calls, synthesised, current"
"""What of a turn says what was worked on."""


def work_of(rows: Iterable[Row]) -> dict[int, Additions]:
    work: dict[int, Additions] = {}
    for n, session, workspace, origin, model, status, at, ended, calls, undated, current in rows:
        cell = WorkCell(at // SLOT, session, workspace, bool(undated), origin or HERE, model)
        last = at if undated or ended is None else max(at, ended)
        work[n] = {astuple(cell): (1, int(status == "failed"), calls, at, n, last)} if current else {}
    return work


def load_holdings(sql: Sql, turns: Iterable[int]) -> Holdings:
    """What these turns hold, from the rows of their messages."""
    found: Holdings = {}
    query = (
        f"SELECT m.native, m.turn, CASE WHEN {HAS_NUMBERS} THEN 1 ELSE 0 END, t.current FROM message m"
        " JOIN turn t ON t.n = m.turn WHERE m.native > 0 AND m.role = 'assistant' AND m.turn IN"
    )
    for native, turn, has_numbers, current in rows_in(sql, query, turns):
        turns_of = found.setdefault(native, {})
        before = turns_of[turn].reported if turn in turns_of else 0
        turns_of[turn] = TurnHolding(before + has_numbers, bool(current))
    return found


# --- What reports of spending and work read: totals that lag behind the log, and how they keep up with it.
VIEW = "usage"
TURNS_AT_ONCE, LOG_ROWS = 1024, 256
MOST_LATE_EVENTS = 4096
"""Where the totals are further behind, a reader scans all rows instead."""
ANEW = 4
"""Where a part of the log of this size is not counted, everything is counted anew: that is quicker than reading it."""
_RULES = 2
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


_StoredState = tuple[int, int, int, int | None, int]


def load_state(sql: Sql) -> TotalsState | None:
    """None where there is none or nobody can read it: everything is counted anew then."""
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (USAGE_TOTALS,))
    try:
        return None if row is None else TotalsState(*msgspec.json.decode(row[0], type=_StoredState))
    except (msgspec.DecodeError, TypeError):  # damaged, or no text
        return None


def _store_state(sql: Sql, state: TotalsState) -> None:
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (USAGE_TOTALS, orjson.dumps(astuple(state)).decode()),
    )


def state_now(txn: Txn) -> TotalsState:
    mended = txn.sql.fetch_row("SELECT value FROM local WHERE key = ?", (VIEWS_MENDED,))
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
            self._cut_segments()
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
                self.turns |= {id for (id,) in self._sql.fetch_rows(query, (segment, depth, n, self.mark))}

    def _cut_segments(self) -> None:
        """Where a thread leaves a segment now, what follows is another piece of it than what lies before."""
        query = "SELECT id FROM turn WHERE segment = ? AND depth >= ? AND depth <= ?"
        for segment, place in needed_cuts(self._sql):
            if self.cuts.has(segment, place):
                continue
            end = self.cuts.end(segment, place)
            self.turns |= {
                id for (id,) in self._sql.fetch_rows(query, (segment, place[0], WHOLE if end is None else end[0]))
            }
            self.cuts.add(segment, place)
            self.new_cuts.append((segment, place))

    def _take_changed_ages(self) -> None:
        """Where a shared response counts depends on which session is the oldest."""
        changed = self._sql.fetch_row(
            "SELECT 1 FROM usage_session u JOIN session s ON s.n = u.session WHERE s.created_at <> u.created_at LIMIT 1"
        )
        if changed is None:
            return
        shared = [-owner for (owner,) in self._sql.fetch_rows("SELECT DISTINCT owner FROM usage_entry WHERE owner < 0")]
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
        for segment, depth, events in sql.fetch_rows(query):
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
    for segment, depth, events in sql.fetch_rows("SELECT segment, depth, events FROM usage_cut"):
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
    _store_turns(txn, late.turns, late.cuts)
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
    rows = txn.sql.fetch_rows(query, (state.last_turn, begun))
    _store_turns(txn, (id for _, id in rows), SegmentCuts(load_cuts(txn.sql)))
    if len(rows) == TURNS_AT_ONCE:
        _store_state(txn.sql, TotalsState(state.rules, state.erasures, state.mended, begun, rows[-1][0]))
        return True
    _store_state(txn.sql, TotalsState(state.rules, state.erasures, state.mended))
    _set_mark(txn.sql, begun)
    return begun < txn.facts.tip().n


def _set_mark(sql: Sql, n: int) -> None:
    sql.run("INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, n))


def _store_turns(txn: WriteTxn, turns: Iterable[str], cuts: SegmentCuts) -> None:
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


# --- Reading totals: as they are stored, with what late events change of them; and whether they are what a scan says.

CellValues = dict[CellName, Values]
Span = tuple[int, int]
"""From a time on, and up to another."""


class PeriodParts(Struct, frozen=True):
    """A period, cut where slots begin."""

    slots: Slots
    """Those that lie in it as a whole."""
    ends: tuple[Span, ...]
    """What of it lies beside them."""


_CHANGES = {RESPONSES.kind: "responses", WORK.kind: "work", FILES.kind: "files"}


class UsageTotals:
    """The totals as they are at a moment: what is stored, and what late events change of it."""

    def __init__(self, txn: ReadTxn, cuts: SegmentCuts, changes: TurnChanges, late: Holdings) -> None:
        self._txn, self._sql, self.cuts, self._changes, self._late = txn, txn.sql, cuts, changes, late

    def responses(
        self, since: int | None, until: int | None, is_even: Callable[[ResponseCell], bool]
    ) -> Iterator[CountedUsage]:
        """What was spent in a period. Cells that it cuts, those in which not everything has one price, by `is_even`,
        and those whose pieces have no room in a name come response by response: whoever asks looks at their times and
        places."""
        parts: set[CellName] = set()
        for cell in RESPONSES.read(self._sql, self._changes.responses, _slots_touched(since, until)):
            common = ResponseCell(*cell.name)
            if common.has_many_pieces or _cuts_slot(common.slot, since, until) or not is_even(common):
                parts.add(cell.name)
            else:
                yield counted_cell(common, cell.values)
        yield from self._one_by_one(parts)

    def _one_by_one(self, names: set[CellName]) -> Iterator[CountedUsage]:
        owners = RESPONSES.owners(self._sql, self._changes.responses, names)
        natives = {-owner for owner in owners if owner < 0}
        counter = TurnCounter(self._txn, self.cuts, self._late)
        for owner, counted in counter.counted([owner for owner in owners if owner > 0], natives):
            if owner in owners and response_cell(counted, self.cuts).name in names:
                yield counted

    def work(self, since: int | None, until: int | None) -> Iterator[tuple[WorkCell, Values]]:
        """The cells of turns that lie in a period as a whole."""
        for cell in WORK.read(self._sql, self._changes.work, split_period(since, until).slots):
            yield WorkCell(*cell.name), cell.values

    def cells(self, table: TotalTable) -> dict[CellName, Values]:
        """Every cell of a table."""
        changed = getattr(self._changes, _CHANGES[table.kind])
        return {cell.name: cell.values for cell in table.read(self._sql, changed)}

    def files(self, since: int | None, until: int | None) -> Iterator[tuple[FileCell, int]]:
        """The same of files."""
        for cell in FILES.read(self._sql, self._changes.files, split_period(since, until).slots):
            yield FileCell(*cell.name), cell.values[0]


def load_totals(txn: ReadTxn) -> UsageTotals | None:
    """None: they are too far behind, and all rows are to be scanned."""
    state, now = load_state(txn.sql), state_now(txn)
    if state is None or state.begun is not None or not state.holds(now):
        return None
    behind = txn.facts.tip().n - txn.facts.watermark(VIEW)
    if not 0 <= behind <= MOST_LATE_EVENTS:
        return None
    if behind == 0 and state == now:
        return UsageTotals(txn, SegmentCuts(load_cuts(txn.sql)), NO_CHANGES, {})
    late = LateTurns(txn)
    counter = TurnCounter(txn, late.cuts)
    held = load_holdings(txn.sql, counter.numbers(late.turns).values())
    counter = TurnCounter(txn, late.cuts, held)
    return UsageTotals(txn, late.cuts, counter.changes(late.turns), held)


def _slots_touched(since: int | None, until: int | None) -> Slots:
    """Those that a period touches."""
    return None if since is None else since // SLOT, None if until is None else -(-until // SLOT)


def split_period(since: int | None, until: int | None) -> PeriodParts:
    first = None if since is None else -(-since // SLOT)
    end = None if until is None else until // SLOT
    if since is not None and until is not None and -(-since // SLOT) > until // SLOT:  # within one slot
        return PeriodParts((first, first), ((since, until),))
    ends: list[Span] = []
    if since is not None and first is not None and since < first * SLOT:
        ends.append((since, first * SLOT))
    if until is not None and end is not None and end * SLOT < until:
        ends.append((end * SLOT, until))
    return PeriodParts((first, end), tuple(ends))


def _cuts_slot(slot: int | None, since: int | None, until: int | None) -> bool:
    """Does a period begin or end within a slot?"""
    if slot is None:
        return False
    start, end = slot * SLOT, (slot + 1) * SLOT
    return (since is not None and start < since < end) or (until is not None and start < until < end)


# --- checking ---------------------------------------------------------------------------------------------------------


def found_in(store: Store) -> list[tuple[str, str]]:
    """What is wrong in a ledger, in one snapshot of it."""
    with store.read() as txn:
        return list(problems(txn))


def renew(store: Store) -> int:
    """Throw the totals away, if they are wrong; the next reader counts everything anew. How much was wrong."""
    wrong = len(found_in(store))
    if wrong:
        store.write(lambda txn: forget_totals(txn.sql))
    return wrong


def problems(txn: ReadTxn) -> Iterator[tuple[str, str]]:
    """What is wrong, and where: every cell is made anew from all rows. Totals that are too far behind are passed over,
    as nobody reads them."""
    totals = load_totals(txn)
    if totals is None:
        return
    for table, expected in _expected_totals(txn, totals):
        cells = totals.cells(table)
        stored = _separate_cells(cells) if table is RESPONSES else cells
        wrong = sum(1 for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        if wrong:
            yield table.tables[0], f"{wrong} of its cells are not what turns and messages say"
        if not _adds_up(txn.sql, table):
            yield table.tables[1], "does not add up to the totals"
        if misplaced := _count_misplaced(txn.sql, table):
            yield table.tables[0], f"{misplaced} of its cells stand in another slot than their names say"


def _expected_totals(txn: ReadTxn, totals: UsageTotals) -> Iterator[tuple[TotalTable, CellValues]]:
    counter, responses = TurnCounter(txn, totals.cuts), CellValues()
    for counted in scanned(txn.sql, counter.age_of):
        _add_cell(RESPONSES, responses, response_cell(counted, totals.cuts).name, response_values(counted))
    yield RESPONSES, responses
    work, files, after = CellValues(), CellValues(), 0
    while turns := [
        n for (n,) in txn.sql.fetch_rows(f"SELECT n FROM turn WHERE n > ? ORDER BY n LIMIT {TURNS_AT_ONCE}", (after,))
    ]:
        after = turns[-1]
        for table, cells, additions in zip((WORK, FILES), (work, files), counter.work_of(turns), strict=True):
            for added in additions.values():
                for name, values in added.items():
                    _add_cell(table, cells, name, values)
    yield from ((WORK, work), (FILES, files))


def _add_cell(table: TotalTable, cells: CellValues, name: CellName, values: Values) -> None:
    cells[name] = table.join(cells[name], values) if name in cells else values


def _separate_cells(cells: CellValues) -> CellValues:
    """Cells that count both ways as two, as a scan gives them."""
    apart = CellValues()
    for name, values in cells.items():
        cell = ResponseCell(*name)
        for way in ("is_once", "is_naive"):
            if getattr(cell, way):
                only = replace(cell, is_once=way == "is_once", is_naive=way == "is_naive")
                _add_cell(RESPONSES, apart, only.name, values)
    return apart


def _adds_up(sql: Sql, table: TotalTable) -> bool:
    """Is each stored cell what its owners add?"""
    total, entry = table.tables
    columns = ", ".join(table.columns)
    cells: dict[int, Values] = {}
    for n, *values in sql.iterate_rows(f"SELECT cell, {columns} FROM {entry} ORDER BY owner, cell"):
        cells[n] = table.join(cells[n], tuple(values)) if n in cells else tuple(values)
    return cells == {n: tuple(values) for n, *values in sql.iterate_rows(f"SELECT n, {columns} FROM {total}")}


def _count_misplaced(sql: Sql, table: TotalTable) -> int:
    """How many stored cells a period would not find, or take for its own, as their slot is not that of their name."""
    return sum(
        slot != read_name(name)[0] for slot, name in sql.iterate_rows(f"SELECT slot, name FROM {table.tables[0]}")
    )
