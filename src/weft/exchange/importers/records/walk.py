"""The second pass over a source: the records of each planned turn, read again from their places and built into a turn.

Turns are given one at a time, so only the records of one turn are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, TypeVar

from weft.exchange.importers.port import NativeTurn, Report, Source
from weft.exchange.importers.records.jsonl import record_at
from weft.exchange.importers.records.planned_turns import Entry, PlannedTurn, TurnPlan
from weft.exchange.importers.records.values import mapping, sequence

Turn = TypeVar("Turn", bound=PlannedTurn)


class RecordBuilder(Protocol):
    """A turn builder that is given records one after another."""

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        """Map one record more."""

    def forget_costs(self) -> None:
        """The records up to here belong to another turn too."""


Builder = TypeVar("Builder", bound=RecordBuilder)


def walk_turns(
    source: Source,
    plan: TurnPlan[Turn],
    report: Report,
    builder_of: Callable[[int, Turn], Builder],
    turn_of: Callable[[int, Turn, Builder], NativeTurn],
) -> Iterator[NativeTurn]:
    """The turns of a plan. `builder_of` gives a builder for a planned turn, `turn_of` the turn of a builder that has
    taken all its records. A record counts as mapped when it is read, once, though several turns share it."""
    with source.path.open("rb") as file:
        places = RecordPlaces(file, report)
        for number, planned in enumerate(plan.turns):
            builder = builder_of(number, planned)
            for depth, entry in enumerate(plan.entries_of(planned)):
                if depth == planned.shared and depth:
                    builder.forget_costs()
                value = places.read(entry, is_shared=depth < planned.shared)
                if value is not None:
                    builder.take(entry, value)
            yield turn_of(number, planned, builder)


class RecordPlaces:
    """Records of an open source, read again. A record that holds a list of messages is decoded once for all of them."""

    def __init__(self, file: BinaryIO, report: Report) -> None:
        self._file, self._report = file, report
        self._list_place: tuple[int, int] | None = None
        self._list: list[Any] = []

    def read(self, entry: Entry, *, is_shared: bool) -> dict[str, Any] | None:
        """None where the source has changed since the first pass. A message of a list is no record of its own."""
        is_counted = not is_shared and entry.nested is None
        try:
            value = self._value(entry)
        except (ValueError, RecursionError):
            self._report.damaged += is_counted
            if not is_shared:
                self._report.problem(entry.line, "changed while it was read")
            return None
        if is_counted:
            self._report.mapped[entry.kind] += 1
        return value

    def _value(self, entry: Entry) -> dict[str, Any]:
        if entry.nested is None:
            return record_at(self._file, entry.offset, entry.end)
        if self._list_place != (entry.offset, entry.end):
            value = record_at(self._file, entry.offset, entry.end)
            self._list_place = entry.offset, entry.end
            self._list = sequence(mapping(value.get("$set", value)).get("messages"))
        if entry.nested >= len(self._list):
            raise ValueError("the source changed while it was read")
        return mapping(self._list[entry.nested])
