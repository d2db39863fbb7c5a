"""Turns whose words an import put out of sight, counted by session.

A turn with the native id and the first words of another one is a version of it, and one version is shown. Where the one
that is shown says all that the other said, nothing is lost to the eye. Where it does not, whoever imports is told.

A first turn with other words is no version: nothing comes before it that they could share. But a session stands on one
of its first turns, so one that shares id and first words with another one of the same session counts like a version.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernel.ledger_events import Sighting
from weft.ledger.imports.sources import ImportCounts
from weft.ledger.views.recorded_events import recorded
from weft.ledger.views.rows import TurnRow
from weft.ledger.views.versions import TurnWords, versions_of
from weft.ledger.write.append import Append
from weft.store.sql import rows_in


def note_replaced(append: Append, counts: ImportCounts, *, landed: str, is_new: bool, is_remapping: bool) -> None:
    """Count the turns that another one replaced since this was last asked, or that did not come to stand in place of
    one, like the one that just `landed`. What a newer mapping spells another way is the same source, and is not counted
    here; nor are those again that an event supersedes."""
    pairs, append.view.replaced = append.view.replaced, []
    if is_remapping or not (pairs or is_new):
        return
    replaced = [(append.view.turn(old), append.view.turn(new)) for old, new in dict(pairs).items()]
    replaced = [(old, new) for old, new in replaced if not old.current]
    if is_new and not replaced:
        turn = append.view.turn(landed)
        replaced += [(old, turn) for old in _first_turns_like(append, turn)][:1]
    if replaced:
        append.view.flush(keep=True)
    for old, new in replaced:
        if _is_hidden(append, old, new):
            session = None if old.session is None else append.view.session_of_number(old.session)
            label = "" if session is None else session.label
            counts.replaced_in = {**counts.replaced_in, label: counts.replaced_in.get(label, 0) + 1}
            is_counted = append.sql.one("SELECT 1 FROM superseded WHERE turn = ? LIMIT 1", (old.id,)) is not None
            counts.superseded += old.id != landed and not is_counted


def _first_turns_like(append: Append, turn: TurnRow) -> Iterator[TurnRow]:
    """Current first turns of the same session that have the native id and the first words of this one."""
    if turn.parent is not None or not (turn.native and turn.current):
        return
    query = "SELECT id FROM turn WHERE native = ? AND id <> ? AND session = ? AND parent IS NULL AND current = 1"
    rows = append.sql.all(f"{query} ORDER BY id", (turn.native, turn.id, turn.session))
    if rows:
        append.view.flush(keep=True)
    opening = TurnWords(append.sql, turn).opening if rows else frozenset[int]()
    for old in (append.view.turn(id) for (id,) in rows):
        if 0 not in opening and TurnWords(append.sql, old).opening == opening:
            yield old


def _is_hidden(append: Append, old: TurnRow, new: TurnRow) -> bool:
    """Are there words of one turn that the other one, which stands in its place, does not say?"""
    return not TurnWords(append.sql, old).certain <= TurnWords(append.sql, new).everything


def has_other_files(append: Append, session: int, file: str) -> bool:
    """Several may give themselves out as one session, such as fragments of it."""
    known = append.number(append.put_text(file))
    return append.sql.one("SELECT 1 FROM kept WHERE session = ? AND file <> ? LIMIT 1", (session, known)) is not None


def is_shown_from(append: Append, row: TurnRow, file: str) -> bool:
    """Is it this file whose telling of a turn is shown?"""
    n = None if row.seen is None else append.txn.facts.find_event(row.seen)
    line = None if n is None else append.txn.facts.line(n)
    event = None if n is None or line is None else recorded(n, line).event
    return not isinstance(event, Sighting) or event.file == append.put_text(file)


def last_round(append: Append, *turns: TurnRow) -> int:
    """How often versions of these turns have come back after others had replaced them."""
    ids = {row.id for turn in turns for row in versions_of(append.view, turn)}
    found = rows_in(append.sql, "SELECT round FROM superseded WHERE turn IN", ids)
    return max((int(round) for (round,) in found), default=0)
