"""A run's events: reading them back, and counting positions in them."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from msgspec import Struct

from weft.kernel.errors import InvalidFact, NotFound
from weft.kernel.events import Event, UnknownEvent, event_id, run_stream
from weft.kernel.kinds import KINDS
from weft.ledger.rows import TurnRow, load_turn
from weft.store.facts import FactReader
from weft.store.port import Sql


class Recorded(Struct, frozen=True):
    """An event as it is stored, with its arrival number, its id and what it says."""

    n: int
    id: str
    line: bytes
    event: Event | UnknownEvent


def recorded(n: int, line: bytes) -> Recorded:
    return Recorded(n, event_id(line), line, KINDS.decode(line))


def run_events(facts: FactReader, turn: TurnRow) -> Iterator[Recorded]:
    """The turn's events in order. Its stream lies between its first arrival and its last, among others' events."""
    mark, left = f'"stream":"{run_stream(turn.id)}"'.encode(), turn.events
    for n, line in facts.lines(turn.n - 1):
        if mark in line and orjson.loads(line)["stream"] == run_stream(turn.id):
            yield recorded(n, line)
            left -= 1
            if left == 0:
                return


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
    stream = orjson.loads(line)["stream"]
    turn = load_turn(sql, stream[4:]) if stream.startswith("run:") else None
    if turn is None:
        raise NotFound("event of a turn", event, "only events inside a turn can be forked from")
    return turn, position_in_run(facts, turn, event)
