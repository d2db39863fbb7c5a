"""Which turns and sessions events say something about: whoever made something of these rows makes it anew."""

from __future__ import annotations

from itertools import islice
from typing import Any

from msgspec import Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.views.recorded_events import fields_of, stream_of
from weft.store.facts import FactReader


class Touched(Struct):
    """Turns and sessions that some events say something about, by their ids, and the last of these events."""

    turns: dict[str, None]
    sessions: dict[str, None]
    until: int | None = None

    def take(self, facts: FactReader, n: int, line: bytes) -> None:
        stream = stream_of(n, line)
        if stream[:4] == "run:":
            self.turns[stream[4:]] = None
        elif stream[:8] == "session:":
            self.sessions[stream[8:]] = None
        else:
            self._take_other(facts, fields_of(n, line))

    def _take_other(self, facts: FactReader, event: dict[str, Any]) -> None:
        match event.get("kind"):
            case "sighting":
                self.sessions[event["session"]] = None
                if "turn" in event:
                    self.turns[event["turn"]] = None
            case "turn_superseded":
                self.turns |= dict.fromkeys((event["turn"], event["by"]))
            case "tool_result":
                self._take_turn_of(facts, event["call"]["event_id"])
            case "substitution":
                self._take_turn_of(facts, event["original_event"]["event_id"])

    def _take_turn_of(self, facts: FactReader, event: str) -> None:
        """The turn of an event; a late result belongs to that of its call."""
        n = facts.find_event(bytes.fromhex(event))
        line = None if n is None else facts.line(n)
        if n is None or line is None:
            return
        stream = stream_of(n, line)
        if stream.startswith("run:"):
            self.turns[stream.removeprefix("run:")] = None
        elif (called := fields_of(n, line).get("call")) is not None:
            self._take_turn_of(facts, called["event_id"])


def touched(facts: FactReader, mark: int, log_rows: int | None = None, turns: int = MAX_INTEGER) -> Touched:
    """What the events beyond `mark` say something about, of a few rows of the log."""
    found = Touched({}, {})
    for row in islice(facts.rows(mark), log_rows):
        for n, line in enumerate(row.lines(), row.first):
            if n > mark:
                found.take(facts, n, line)
        found.until = row.n
        if len(found.turns) >= turns:
            break
    return found
