"""What turns and their responses add to totals, from their rows and those of their messages.

A response that lies in several places counts once, at the place that `responses.once` chooses: it adds by itself, and
the turns that hold it do not. For each thread that it lies in it counts with its turn. Where a response lies is told by
the pieces of segments between the places at which threads leave these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import astuple

from weft.ledger.read.listing import HERE
from weft.ledger.reports.coverage import Place
from weft.ledger.reports.prices import prompt_of
from weft.ledger.reports.responses import (
    CACHE_WRITE,
    CACHE_WRITE_1H,
    HAS_NUMBERS,
    UNSPECIFIED,
    Reported,
    Response,
    Tokens,
    TurnPlace,
    once,
    repeated,
    reported,
    reported_in,
    standing,
)
from weft.ledger.reports.total_tables import Additions, CellName, TotalTable, Values
from weft.ledger.views.rows import load_session_number
from weft.ledger.views.turn_owners import NO_SESSION_AGE, SessionAge, session_age
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import Row, Sql, rows_in

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


class Counted(Struct, frozen=True):
    """What is counted: one response, or the sum of those in a cell; `row` says of what."""

    is_once: bool
    is_naive: bool
    row: Reported
    tokens: Tokens
    recorded: int | None
    places: tuple[tuple[int, Place], ...]
    responses: int
    prompt: int
    """A number of tokens that the price is looked up by."""


def counted_response(response: Response) -> Counted:
    """In the sum of everything."""
    row, tokens = response.first, response.tokens
    return _counted(row, tokens, response.recorded, tuple(response.places), is_once=True, is_naive=False)


def counted_row(row: Reported, *, is_once: bool = False) -> Counted:
    """For each thread that it lies in."""
    return _counted(row, row.tokens, row.recorded, ((row.segment, row.place),), is_once=is_once, is_naive=True)


def _counted(
    row: Reported,
    tokens: Tokens,
    recorded: int | None,
    places: tuple[tuple[int, Place], ...],
    *,
    is_once: bool,
    is_naive: bool,
) -> Counted:
    """The rest of a turn may be of several requests, so its length tells nothing."""
    prompt = 0 if row.is_rest else prompt_of(tokens)
    return Counted(is_once, is_naive, row, tokens, recorded, places, int(not row.is_rest), prompt)


def scanned(sql: Sql, age_of: Callable[[int | None], SessionAge]) -> Iterator[Counted]:
    """Everything that counts, from the rows of all turns and messages."""
    rows: list[Counted] = []
    for response in once(
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
        names = " ".join(sorted({self._piece(segment, place) for segment, place in places}))
        return names if len(names) <= LONGEST_PIECES else DIGEST + sha256(names.encode()).hexdigest()

    def _piece(self, segment: int, place: Place) -> str:
        places = self._places.get(segment)
        depth, events = (0, 0) if places is None else places[bisect_right(places, place) - 1]
        return f"{segment}:{depth}:{events}"


def places_of(pieces: str) -> tuple[tuple[int, Place], ...]:
    """A place in each of these pieces: where it begins."""
    numbers = (piece.split(":") for piece in pieces.split(" "))
    return tuple((int(segment), (int(depth), int(events))) for segment, depth, events in numbers)


def response_cell(counted: Counted, cuts: SegmentCuts) -> ResponseCell:
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


def response_values(counted: Counted) -> Values:
    return (counted.responses, *counted.tokens, counted.recorded or 0)


def counted_cell(cell: ResponseCell, values: Values) -> Counted:
    """All that a cell holds, as one. Any prompt and any time within it has the same price."""
    responses, *counts, recorded = values
    tokens: Tokens = (counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6])
    row = Reported(
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
    return Counted(cell.is_once, cell.is_naive, row, tokens, noted, places, responses, prompt)


# --- counting turns ---------------------------------------------------------------------------------------------------


class Holding(Struct, frozen=True):
    """What one turn holds of a response: how many messages of it have numbers, and whether the turn is current."""

    reported: int
    current: bool


Holdings = dict[int, dict[int, Holding]]
"""By the id of a response, as a number, the turns that hold it."""


def _is_shared(turns: Mapping[int, Holding]) -> bool:
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

    def counted(self, turns: Collection[int], natives: Collection[int]) -> Iterator[tuple[int, Counted]]:
        """What these turns add by themselves and what these responses do if they are shared, each with its owner."""
        numbers = {id: n for n, id in self._ids(turns).items()}
        rows = list(reported_in(self._sql, numbers))
        held = {row.native for row in rows if row.native is not None}
        holdings = self.holdings({*held, *natives})
        shared = {native for native, turns_of in holdings.items() if _is_shared(turns_of)}
        for row in rows:
            yield numbers[row.turn.id], counted_row(row, is_once=row.turn.current and row.native not in shared)
        for response in self._gathered({native: holdings[native] for native in shared.intersection(natives)}):
            yield -(response.first.native or 0), counted_response(response)

    def _gathered(self, holdings: Holdings) -> Iterator[Response]:
        """These shared responses."""
        ids = self._ids({turn for turns in holdings.values() for turn in turns})
        rows = (row for row in reported_in(self._sql, ids.values()) if row.native in holdings)
        return once(rows, set(holdings), self._standing(holdings), self.age_of)

    def _standing(self, holdings: Holdings) -> dict[int, tuple[int, Place]]:
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
            found[native][turn] = Holding(reported_messages, bool(current))
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

    def _ids(self, turns: Iterable[int]) -> dict[int, str]:
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
        turns_of[turn] = Holding(before + has_numbers, bool(current))
    return found
