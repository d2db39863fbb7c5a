"""Where a content is used: read out of the log, since no view knows it. Lines are looked through as bytes, and only
those that name a wanted content are decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from weft.kernel.dag_events import HistoryAppend, ModelResponse, Substitution, ToolCallRequested, ToolResult
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import MessageFact
from weft.kernel.ledger_events import Sighting
from weft.ledger.read.content_uses import references
from weft.ledger.views.recorded_events import decoded, stream_of
from weft.ledger.views.rows import SessionRow, TurnRow, load_session, load_session_number, load_turn
from weft.store.port import ReadTxn

KEPT_PLACES = 16
"""So many places are told of one content; of a system prompt there may be thousands."""
REMEMBERED = 4096
_hex = re.compile(rb"[0-9a-f]{64}").findall
Report = Callable[[str, int, int], None]
_SHOWING = (
    "SELECT t.id FROM substitution s JOIN turn t ON t.n = s.turn"
    " WHERE s.n = ? OR s.replacement_n = ? ORDER BY s.n LIMIT 1"
)
"""The turn that shows what an event says in the place of what was recorded."""


class SecretPlace(Struct, frozen=True, kw_only=True):
    """One use of a content that holds a credential."""

    content: str
    """Its reference; empty: it stands in a name of the event itself, which cannot be erased."""
    what: str
    """The kind of event that uses it, and where in it: `tool_result result`."""
    session_id: str | None = None
    session: str | None = None
    """Its label, unless that holds a credential, too."""
    turn_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    """The tool's own name for the call, unless that holds a credential, too."""


class SecretOwner(Struct, frozen=True):
    """What a use belongs to."""

    turn: TurnRow | None
    session: SessionRow | None
    label: str | None


class Used(Struct):
    """How a content is used: all uses that fit are counted, some are kept."""

    uses: int = 0
    places: list[SecretPlace] = field(default_factory=list)


Fits = Callable[[SecretOwner], bool]
IsClean = Callable[[str], bool]


class PlaceFinder:
    """Goes through the log once and tells of every use of some contents."""

    def __init__(self, txn: ReadTxn, wanted: Iterable[bytes], fits: Fits, is_clean: IsClean) -> None:
        self._txn, self._fits, self._is_clean = txn, fits, is_clean
        self.used: dict[bytes, Used] = {ref: Used() for ref in wanted}
        self._spots: dict[tuple[str | None, str | None], SecretOwner] = {}

    def run(self, report: Report) -> Mapping[bytes, Used]:
        facts, until = self._txn.facts, self._txn.facts.tip().n
        wanted = {ref.hex().encode() for ref in self.used}
        for row in facts.rows() if wanted else ():
            if not wanted.isdisjoint(_hex(row.events)):
                for n, line in enumerate(row.lines(), row.first):
                    if not wanted.isdisjoint(_hex(line)):
                        self._note(n, line)
            report("places", row.n, until)
        return self.used

    def _note(self, n: int, line: bytes) -> None:
        event = decoded(n, line)
        turn, session = self._about(n, event)
        spot = self.owner(turn, session)
        if not self._fits(spot):
            return
        for path, text in references(event):
            used = self.used.get(bytes.fromhex(text))
            if used is not None:
                used.uses += 1
                if len(used.places) < KEPT_PLACES:
                    used.places.append(self._place(text, event, path[2:], spot))

    def _about(self, n: int, event: Event | UnknownEvent) -> tuple[str | None, str | None]:
        """The turn and the session that an event tells of."""
        kind, _, name = event.stream.partition(":")
        if isinstance(event, Sighting):
            return (event.turn or None), event.session
        if isinstance(event, ToolResult) and kind == "ledger":
            called = self._txn.facts.find_event(bytes.fromhex(event.call.event_id))
            line = None if called is None else self._txn.facts.line(called)
            kind, _, name = stream_of(called, line).partition(":") if called and line else ("", "", "")
        elif kind == "ledger" and isinstance(event, HistoryAppend | ModelResponse | Substitution):
            shown = self._txn.sql.one(_SHOWING, (n, n))
            return (None if shown is None else shown[0]), None
        return (name if kind == "run" else None), (name if kind == "session" else None)

    def owner(self, turn: str | None, session: str | None) -> SecretOwner:
        """The turn and the session that a use belongs to."""
        found = self._spots.get((turn, session))
        if found is None:
            row = load_turn(self._txn.sql, turn) if turn else None
            if session is not None:
                owner = load_session(self._txn.sql, session)
            else:
                owner = load_session_number(self._txn.sql, row.session) if row and row.session is not None else None
            if len(self._spots) >= REMEMBERED:
                self._spots.clear()
            found = self._spots[turn, session] = SecretOwner(
                row, owner, self._clean_text(owner.label) if owner else None
            )
        return found

    def _place(self, ref: str, event: Event | UnknownEvent, path: str, spot: SecretOwner) -> SecretPlace:
        kind = event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)
        return SecretPlace(
            content=ref,
            what=f"{kind} {path}",
            session_id=spot.session.id if spot.session else None,
            session=spot.label,
            turn_id=spot.turn.id if spot.turn else None,
            message_id=_message_of(event),
            call_id=self._call_of(event),
        )

    def _call_of(self, event: Any) -> str | None:
        if not isinstance(event, ToolCallRequested | ToolResult):
            return None
        n = self._txn.facts.find_content(bytes.fromhex(event.call_id))
        return None if n is None else self._clean_text(self._txn.facts.beginning(n).decode("utf-8", "replace"))

    def _clean_text(self, text: str) -> str | None:
        return text if text and self._is_clean(text) else None


def _message_of(event: Any) -> str | None:
    for name in ("message", "output"):
        found = getattr(event, name, None)
        if isinstance(found, MessageFact):
            return found.id
        if isinstance(found, str) and found:
            return found
    return None
