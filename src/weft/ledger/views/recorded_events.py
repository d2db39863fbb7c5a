"""A run's events: reading them back, and counting positions in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.errors import FactDamaged, InvalidFact, NotFound
from weft.kernel.events import GENESIS, Event, UnknownEvent, event_id, extend, run_stream
from weft.kernel.kinds import KINDS
from weft.ledger.views.rows import TurnRow, load_turn
from weft.store.facts import FactReader
from weft.store.records import LogRow
from weft.store.sql import Sql

_STREAM = b'"stream":"'


class StoredEvent(Struct, frozen=True):
    """An event as it is stored, with its arrival number, its id and what it says."""

    n: int
    id: str
    line: bytes
    event: Event | UnknownEvent


def recorded(n: int, line: bytes) -> StoredEvent:
    return StoredEvent(n, event_id(line), line, decoded(n, line))


def decoded(n: int, line: bytes) -> Event | UnknownEvent:
    """What an event says that is stored under this number."""
    try:
        return KINDS.decode(line)
    except ValueError as error:
        raise FactDamaged("event number", str(n), str(error)) from error


def recorded_after(facts: FactReader, after: int, rows: int) -> list[StoredEvent]:
    """The events beyond `after` of so many rows of the log, held against the chain of arrival."""
    found: list[StoredEvent] = []
    last: LogRow | None = None
    for row in facts.log(after, rows):
        events = [recorded(n, line) for n, line in enumerate(row.lines(), row.first)]
        if last is None:
            chain = GENESIS if row.first == 1 else facts.chain_at(row.first - 1)
        else:
            chain = last.chain if row.first == last.n + 1 else None
        if chain is None or extend(chain, (bytes.fromhex(event.id) for event in events)) != row.chain:
            raise FactDamaged("log row", str(row.n), "the chain of arrival does not lead here")
        found += (event for event in events if event.n > after)
        last = row
    return found


def fields_of(n: int, line: bytes) -> dict[str, Any]:
    """The fields of an event that is stored under this number, as they are."""
    try:
        fields = orjson.loads(line)
    except ValueError as error:
        raise FactDamaged("event number", str(n), str(error)) from error
    if not isinstance(fields, dict):
        raise FactDamaged("event number", str(n), "it is not an object")
    return fields


def stream_of(n: int, line: bytes) -> str:
    """The stream of an event, without reading the rest of it where only one is named in it."""
    if line.count(_STREAM) == 1:
        start = line.index(_STREAM) + len(_STREAM)
        return line[start : line.index(b'"', start)].decode()
    try:
        return str(orjson.loads(line)["stream"])
    except (ValueError, LookupError, TypeError) as error:
        raise FactDamaged("event number", str(n), f"it names no stream: {error}") from error


def run_events(facts: FactReader, turn: TurnRow, after: int | None = None, count: int = 0) -> Iterator[StoredEvent]:
    """The turn's events in order, each held against the next. They lie between its first arrival and its last, among
    others' events. With `after` those behind that one of its events, by its arrival number, which is the `count`th."""
    stream, left = run_stream(turn.id), turn.events - count
    prev = None if after is None else facts.event_id(after).hex()
    mark = f'"stream":"{stream}"'.encode()
    for n, line in facts.lines(turn.n - 1 if after is None else after) if left else ():
        if mark in line and stream_of(n, line) == stream:
            found = recorded(n, line)
            left -= 1
            if found.event.prev != prev or (left == 0 and found.id != turn.digest):
                break
            yield found
            prev = found.id
            if left == 0:
                return
    if left:
        raise FactDamaged("turn", turn.id, "its events do not lead to its digest")


def event_at(facts: FactReader, turn: TurnRow, position: int) -> str:
    """The id of the turn's event at this position."""
    for i, found in enumerate(run_events(facts, turn)):
        if i == position:
            return found.id
    raise NotFound("event", f"{turn.id}[{position}]")


def position_in_run(facts: FactReader, turn: TurnRow, event: str) -> int:
    """Which event of the turn this is, counted from 0."""
    for i, found in enumerate(run_events(facts, turn)):
        if found.id == event:
            return i
    raise InvalidFact(f"event {event}", f"it is not an event of turn {turn.id}")


def place_of_event(sql: Sql, facts: FactReader, event: str) -> tuple[TurnRow, int]:
    """The turn that an event of a run belongs to, and which of its events it is."""
    n = facts.find_event(bytes.fromhex(event))
    line = None if n is None else facts.line(n)
    if line is None:
        raise NotFound("event", event)
    stream = stream_of(n or 0, line)
    turn = load_turn(sql, stream[4:]) if stream.startswith("run:") else None
    if turn is None:
        raise NotFound("event of a turn", event, "only events inside a turn can be forked from")
    return turn, position_in_run(facts, turn, event)
