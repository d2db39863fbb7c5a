"""What providers reported: every response with its own numbers, and where it lies in the tree.

A turn whose total is more than its responses carry (it was reported for the whole turn) gives one more row with the
rest. The same response may lie in several turns, where an origin copied it under one id: it is one response still, with
the largest of each number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.reports.coverage import WHOLE, Place
from weft.ledger.views.turn_owners import SessionAge
from weft.store.sql import Row, Sql, rows_in

Tokens = tuple[int, int, int, int, int, int, int]
"""Input, output, cached, cache writes; one-hour writes, which lie inside these; reasoning, which lies inside output;
and what is known as a total only."""
INPUT, OUTPUT, CACHED, CACHE_WRITE, CACHE_WRITE_1H, REASONING, UNSPECIFIED = range(7)
PAGE = 1024
_COUNTS = (
    "input_tokens, output_tokens, cached_input_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens"
)
_MESSAGE_COUNTS = ", ".join(f"m.{count}" for count in _COUNTS.split(", "))
HAS_NUMBERS = f"coalesce({_MESSAGE_COUNTS}) IS NOT NULL"
"""Of a message `m`: its provider reported something of it."""


class TurnPlace(Struct, frozen=True, gc=False):
    """The turn that a response lies in."""

    id: str
    session: int | None
    origin: str
    workspace: int | None
    current: bool


class Reported(Struct, gc=False):
    """Numbers of one response, or the rest of a turn. `model` is a name as its column holds it."""

    segment: int
    place: Place
    turn: TurnPlace
    at: int | None
    model: str | None
    provider: str | None
    tokens: Tokens
    recorded: int | None = None
    """Micro-dollars that its tool noted as its cost."""
    native: int | None = None
    """The provider's id of the response, where it is known."""
    is_rest: bool = False


class Response(Struct, gc=False):
    """One response, wherever it lies."""

    first: Reported
    """Where it was seen earliest; it counts for that turn."""
    tokens: Tokens
    recorded: int | None
    places: list[tuple[int, Place]]


_TURN = (
    "SELECT segment, depth, id, session, origin, workspace, current, started_at, completed_at, synthesised, model,"
    f" provider, {_COUNTS}, total_tokens FROM turn"
)
_MESSAGE = (
    "SELECT t.segment, t.depth, m.position, m.role, m.native, m.at, m.model, m.provider, m.recorded_cost,"
    f" {_MESSAGE_COUNTS} FROM turn t JOIN message m ON m.turn = t.n"
)


_IS_REPORTED = "coalesce(total_tokens, reasoning_tokens) IS NOT NULL"
_PLACE = itemgetter(0, 1)
"""Segment and depth, of rows of both."""


def reported_in(sql: Sql, turns: Iterable[str]) -> Iterator[Reported]:
    """The rows of these turns, by their ids, each turn once."""
    ids = list(dict.fromkeys(turns))
    messages = rows_in(sql, f"{_MESSAGE} WHERE {HAS_NUMBERS} AND t.id IN", ids)
    by_turn = _by_turn(sorted(messages, key=itemgetter(0, 1, 2)))
    for row in sorted(rows_in(sql, f"{_TURN} WHERE {_IS_REPORTED} AND id IN", ids), key=_PLACE):
        yield from _of_turn(row, by_turn.get(_PLACE(row), []))


def reported(sql: Sql, segment: int | None = None) -> Iterator[Reported]:
    """Every row in the order of segments and depths, turns that another version stands for among them; or those of one
    segment."""
    after, end = ((0, 0), (MAX_INTEGER, 0)) if segment is None else ((segment, 0), (segment, MAX_INTEGER))
    while turns := sql.all(
        f"{_TURN} WHERE (segment, depth) > (?, ?) AND (segment, depth) <= (?, ?)"
        f" AND {_IS_REPORTED} ORDER BY segment, depth LIMIT {PAGE}",
        (*after, *end),
    ):
        last = (turns[-1][0], turns[-1][1])
        messages = sql.all(
            f"{_MESSAGE} WHERE (t.segment, t.depth) > (?, ?) AND (t.segment, t.depth) <= (?, ?)"
            f" AND {HAS_NUMBERS} ORDER BY t.segment, t.depth, m.seq",
            (*after, *last),
        )
        by_turn = _by_turn(messages)
        for turn in turns:
            yield from _of_turn(turn, by_turn.get(_PLACE(turn), []))
        after = last


def _by_turn(messages: Iterable[Row]) -> dict[Row, list[Row]]:
    """By segment and depth."""
    found: dict[Row, list[Row]] = {}
    for row in messages:
        found.setdefault(_PLACE(row), []).append(row)
    return found


def _of_turn(row: Row, messages: list[Row]) -> Iterator[Reported]:
    segment, depth, id, session, origin, workspace, current, started, ended, synthesised, *named, total = row
    model, provider, *counts = named
    turn = TurnPlace(id, session, origin or "weft", workspace, bool(current))
    carried = [0] * len(counts)
    for _, _, position, role, native, at, message_model, served_by, recorded, *given in messages:
        tokens = [count or 0 for count in given]
        carried = [one + other for one, other in zip(carried, tokens, strict=True)]
        undated = synthesised and at == started
        yield Reported(
            segment,
            (depth, position),
            turn,
            None if undated else at,
            message_model or model,
            served_by or provider,
            (tokens[0], tokens[1], tokens[2], tokens[3], tokens[4], tokens[5], 0),
            recorded,
            (native or None) if role == "assistant" else None,
        )
    whole = [count or 0 for count in counts]
    rest = [max(one - other, 0) for one, other in zip(whole, carried, strict=True)]
    unspecified = max((total or 0) - sum(whole[:4]), 0)
    if any(rest) or unspecified:
        left = (rest[0], rest[1], rest[2], rest[3], min(rest[4], rest[3]), rest[5], unspecified)
        at = None if synthesised else ended or started
        yield Reported(segment, (depth, WHOLE - 1), turn, at, model, provider, left, is_rest=bool(messages))


_REPEATED = (
    "SELECT native FROM message WHERE native > 0 AND role = 'assistant'"
    f" AND coalesce({_COUNTS}) IS NOT NULL GROUP BY native HAVING count(*) > 1"
)


def repeated(sql: Sql) -> set[int]:
    """The ids of responses that lie in more than one place."""
    return {native for (native,) in sql.all(_REPEATED)}


def reported_elsewhere(sql: Sql, natives: Set[int], turns: Set[str]) -> Iterator[Reported]:
    """The rows of these responses that lie in other turns than these."""
    if not natives:
        return
    copied = (
        f"SELECT m.native, t.id FROM message m JOIN turn t ON t.n = m.turn WHERE m.native IN ({_REPEATED})"
        " OR (m.native > 0 AND t.current = 0) ORDER BY t.n, m.seq"
    )
    found = [turn for native, turn in sql.all(copied) if native in natives and turn not in turns]
    yield from (row for row in reported_in(sql, found) if row.native in natives)


STANDING = (
    "SELECT m.native, t.segment, t.depth, m.position"
    " FROM turn u CROSS JOIN message o CROSS JOIN message m CROSS JOIN turn t"  # in this order: few are not current
    " WHERE u.current = 0 AND o.turn = u.n AND o.native > 0 AND o.role = 'assistant'"
    " AND m.native = o.native AND m.role = 'assistant' AND t.n = m.turn AND t.current = 1"
)


def standing(sql: Sql) -> dict[int, tuple[int, Place]]:
    """Where responses lie in current turns that another version of their turn reports on, perhaps it alone."""
    rows = sql.all(STANDING)
    return {native: (segment, (depth, position)) for native, segment, depth, position in sorted(rows, reverse=True)}


def once(
    rows: Iterable[Reported],
    repeated: set[int],
    standing: dict[int, tuple[int, Place]],
    age_of: Callable[[int | None], SessionAge],
    look: Callable[[Reported], object] | None = None,
) -> Iterator[Response]:
    """Every response of a turn that is current, once, with what other versions of it report. Of its places the one in
    the earliest session is first, by `age_of` a session's number. `look` is shown every row on the way."""
    gathered: dict[int, Response] = {}
    for row in rows:
        if look is not None:
            look(row)
        native = row.native
        if not row.turn.current:
            if native is None or native not in standing:
                continue
            segment, place = standing[native]
            row = replace(row, segment=segment, place=place)  # whoever was shown the row may have kept it
        elif native is None or (native not in repeated and native not in standing):
            yield Response(row, row.tokens, row.recorded, [(row.segment, row.place)])
            continue
        if (known := gathered.get(native)) is None:
            gathered[native] = Response(row, row.tokens, row.recorded, [(row.segment, row.place)])
        else:
            _join(known, row, age_of)
    yield from gathered.values()


def _join(known: Response, row: Reported, age_of: Callable[[int | None], SessionAge]) -> None:
    known.tokens = tuple(map(max, known.tokens, row.tokens))  # type: ignore[assignment]
    known.recorded = max((cost for cost in (known.recorded, row.recorded) if cost is not None), default=None)
    known.places.append((row.segment, row.place))
    if _rank(row, age_of) < _rank(known.first, age_of):
        known.first = row


def _rank(row: Reported, age_of: Callable[[int | None], SessionAge]) -> tuple[bool, int, SessionAge, Place, str]:
    """Whatever order they came in, the same one is first: with a time before without, then the earliest, then that of
    the earliest session."""
    return row.at is None, row.at or 0, age_of(row.turn.session), row.place, row.turn.id
