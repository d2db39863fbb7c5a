"""Versions of an imported turn: a longer or rewritten copy is another turn, and one of them is current."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.ledger.rows import SESSION, SessionRow, TurnRow
from weft.ledger.views.projector import IMPORTS, Moment, Projector, handles


def begin_import(view: Projector, moment: Moment, event: dag.RunStarted) -> None:
    """What identifies a turn elsewhere. Its time is that of its arrival until a sighting tells another."""
    row = view.turn(event.stream[4:])
    row.native, row.mapping = view.number(event.native), None if event.mapping is UNSET else event.mapping
    row.source = None if event.source is UNSET else bytes.fromhex(event.source)
    row.synthesised = 1


def versions_of(view: Projector, turn: TurnRow) -> list[TurnRow]:
    """Every turn with the same native id, this one among them."""
    if any(row.native == turn.native for row in view.new_turns if row is not turn):
        view.flush(keep=True)
    stored = view.sql.all("SELECT id FROM turn WHERE native = ? AND id <> ?", (turn.native, turn.id))
    return [turn, *(view.turn(id) for (id,) in stored)]


def settle_versions(view: Projector, turn: TurnRow, ending: TurnRow | None = None) -> None:
    """Choose the current one among the versions of a turn, and let sessions stand on it. The last event of the one
    that is `ending` is not counted yet."""
    versions = versions_of(view, turn)
    if len(versions) == 1:
        return
    current = _current(view, versions, ending)
    for row in versions:
        row.current = int(row is current)
        view.changed_turns[row.id] = row
        if row is not current:
            _leave(view, row, current)


def current_version(view: Projector, turn: TurnRow) -> TurnRow:
    return turn if turn.current else next(row for row in versions_of(view, turn) if row.current)


def _current(view: Projector, versions: Sequence[TurnRow], ending: TurnRow | None) -> TurnRow:
    """One that a source itself put in place of the others; else the longest ancestry, the most said, the newest
    mapping, the smallest id: whatever order they came in."""
    ids = {row.id for row in versions}
    pairs = [
        pair
        for id in ids
        for pair in view.sql.all("SELECT turn, by FROM superseded WHERE turn = ?", (id,))
        if pair[1] in ids
    ]
    replaced = {turn for turn, by in pairs if (by, turn) not in pairs}
    left = [row for row in versions if row.id not in replaced] or versions

    def rank(row: TurnRow) -> tuple[int, int, int, str]:
        return -row.depth, -row.events - (row is ending), -mapping_number(row.mapping), row.id

    return min(left, key=rank)


def mapping_number(mapping: str | None) -> int:
    number = (mapping or "").rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def _leave(view: Projector, old: TurnRow, new: TurnRow) -> None:
    """Sessions that stood on the old version stand on the new one; nothing was said in between."""
    standing = [row for row in (*view.new_sessions, *view.changed_sessions.values()) if row.head == old.id]
    known = {row.id for row in view.changed_sessions.values()} | {row.id for row in view.new_sessions}
    rows = view.sql.all(f"{SESSION.select} WHERE head_segment = ? AND head = ?", (old.segment, old.id))
    stored = (SessionRow(*row) for row in rows)
    standing += [view.memory.sessions.setdefault(row.id, row) for row in stored if row.id not in known]
    for session in standing:
        if session.reach is not None and session.head == old.id:
            session.head, session.head_segment, session.head_depth = new.id, new.segment, new.depth
            view.changed_sessions[session.id] = session


@handles(own.TurnSuperseded, IMPORTS)
def _turn_superseded(view: Projector, moment: Moment, event: own.TurnSuperseded) -> None:
    view.sql.run(
        "INSERT INTO superseded(turn, by) VALUES (?, ?) ON CONFLICT (turn, by) DO NOTHING", (event.turn, event.by)
    )
    row = view.find_turn(event.turn)
    if row is not None and row.native is not None:
        settle_versions(view, row)


@handles(own.TurnLinked, IMPORTS)
def _turn_linked(view: Projector, moment: Moment, event: own.TurnLinked) -> None:
    view.sql.run(
        "INSERT INTO link(child, parent, why, call) VALUES (?, ?, ?, ?) ON CONFLICT (child, parent, why) DO NOTHING",
        (event.child, event.parent, event.why, None if event.call is UNSET else bytes.fromhex(event.call.event_id)),
    )
