"""Everything an actor did: its events, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from weft.kernel.clock import ms_from_iso
from weft.kernel.dag_events import ToolCallRequested
from weft.kernel.events import Event, UnknownEvent, kind_of
from weft.kernel.fields import Words
from weft.ledger.read.principals import on_behalf_of
from weft.ledger.views.recorded_events import StoredEvent, recorded
from weft.store.port import ReadTxn, Store
from weft.store.records import LogRow

ROWS = 256


class ActorEvent(Struct, frozen=True, kw_only=True):
    """One event that an actor wrote. `happened_at` is null where its origin gave no time."""

    n: int
    event_id: str
    kind: str
    actor: str
    on_behalf_of: tuple[str, ...] = ()
    """The ids of those for whom it acted, the nearest first."""
    stream: str
    arrived_at: int
    happened_at: int | None = None
    turn_id: str | None = None
    session_id: str | None = None
    tool: str | None = None


def deeds(store: Store, actor: str | None, since: int | None, until: int | None) -> Iterator[ActorEvent]:
    """The log from its beginning to what was the newest event at the start, some rows at a time."""
    with store.read() as txn:
        end = txn.facts.tip().n
    mark = b"" if actor is None else f'"actor":"{actor}"'.encode()
    after = 0
    while after < end:
        with store.read() as txn:
            rows = txn.facts.log(after, ROWS)
            found = [deed for row in rows for deed in _deeds_of(txn, row, mark, actor)]
        yield from (deed for deed in found if _is_within(deed, since, until))
        after = rows[-1].n if rows else end


def _deeds_of(txn: ReadTxn, row: LogRow, mark: bytes, actor: str | None) -> Iterator[ActorEvent]:
    for n, line in enumerate(row.lines(), row.first):
        if mark in line:
            found = recorded(n, line)
            if actor is None or found.event.actor == actor:
                yield _deed(txn, row.at, found)


def _deed(txn: ReadTxn, at: int, found: StoredEvent) -> ActorEvent:
    event = found.event
    kind, _, name = event.stream.partition(":")
    return ActorEvent(
        n=found.n,
        event_id=found.id,
        kind=event.kind if isinstance(event, UnknownEvent) else kind_of(event),
        actor=event.actor,
        on_behalf_of=on_behalf_of(event),
        stream=event.stream,
        arrived_at=at,
        happened_at=ms_from_iso(event.ts) if isinstance(event.ts, str) else None,
        turn_id=name if kind == "run" else None,
        session_id=name if kind == "session" else None,
        tool=_tool(txn, event),
    )


def _tool(txn: ReadTxn, event: Event | UnknownEvent) -> str | None:
    if not isinstance(event, ToolCallRequested):
        return None
    if not isinstance(event.tool, Words):
        return event.tool
    n = txn.facts.find_content(bytes.fromhex(event.tool.content))
    return None if n is None else txn.facts.content(n).decode(errors="replace")


def _is_within(deed: ActorEvent, since: int | None, until: int | None) -> bool:
    at = deed.arrived_at if deed.happened_at is None else deed.happened_at
    return (since is None or at >= since) and (until is None or at < until)
