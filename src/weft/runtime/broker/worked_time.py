"""How long a turn has been worked on, by its recorded events: from each event on that lets it begin or go on, until it
is parked or ends. The deadline of a turn and the seconds that an agent's work has taken are both counted so."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weft.kernel.clock import ms_from_iso
from weft.kernel.events import Event
from weft.kernel.ledger_events import RunParked


class WorkedTime(Struct, frozen=True):
    """Milliseconds. Time after a crash counts until somebody goes on: only a parked turn needs nobody."""

    before_ms: int = 0
    """How long it was worked on until it was parked last."""
    since_ms: int | None = None
    """When it began, or came back after it was parked; None while it is parked."""

    def after(self, event: Event) -> WorkedTime:
        """The same with one more event."""
        if not isinstance(event.ts, str):
            return self
        at_ms = ms_from_iso(event.ts)
        if isinstance(event, RunParked):
            return WorkedTime(self.until(at_ms))
        return WorkedTime(self.before_ms, at_ms) if self.since_ms is None else self

    def until(self, at_ms: int) -> int:
        """How long it was worked on until that time."""
        return self.before_ms + (0 if self.since_ms is None else max(0, at_ms - self.since_ms))


def worked_ms(events: Iterable[Event]) -> int:
    """How long a turn was worked on until the last of its events."""
    worked, last_ms = WorkedTime(), 0
    for event in events:
        worked = worked.after(event)
        last_ms = ms_from_iso(event.ts) if isinstance(event.ts, str) else last_ms
    return worked.until(last_ms)
