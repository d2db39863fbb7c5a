"""Messages and results that are shown as another event tells them: which they are, and what was shown at a moment.

Rows have what is shown now. A reader who wants what was recorded, or what was shown before an arrival number, gets it
from the event that said so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.dag_events import ToolResult
from weft.kernel.errors import FactDamaged, NotFound
from weft.kernel.events import Event, UnknownEvent
from weft.ledger.model import AppliedSubstitution
from weft.ledger.read.access import shows_originals
from weft.ledger.read.sessions import agent_names
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import CallRow, MessageRow
from weft.ledger.views.substitutions import CALL, MESSAGE, message_of, show_message, show_result
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

_COLUMNS = 'turn, place, seq, n, original, original_n, replacement, replacement_n, actor, reason, "at"'
_SPAN = "SELECT n FROM turn WHERE segment = ? AND depth BETWEEN ? AND ?"


class Change(Struct, frozen=True):
    """One substitution, as its row has it."""

    turn: int
    place: str
    seq: int
    n: int
    original: bytes
    original_n: int
    replacement: bytes
    replacement_n: int
    actor: str
    reason: int | None
    at: int

    @property
    def is_undone(self) -> bool:
        """Whether the original is shown again."""
        return self.replacement == self.original


class Substitutions:
    """The substitutions in some turns, and what each place shows under them: what it does now, or did before an arrival
    number."""

    def __init__(self, txn: ReadTxn, rows: Iterable[Sequence[Any]], until: int | None = None) -> None:
        self._txn, self._until = txn, until
        if shows_originals(txn):
            self._until = 0
        self._changes: dict[tuple[int, str, int], list[Change]] = {}
        for row in rows:
            change = _to_change(row)
            self._changes.setdefault((change.turn, change.place, change.seq), []).append(change)
        for changes in self._changes.values():
            changes.sort(key=lambda change: change.n)

    def __bool__(self) -> bool:
        return bool(self._changes)

    def has_message(self, turn: int, seq: int) -> bool:
        return (turn, MESSAGE, seq) in self._changes

    def of_event(self, event: str) -> list[Change]:
        """Those of one event, in order."""
        original = bytes.fromhex(event)
        return [change for changes in self._changes.values() for change in changes if change.original == original]

    def last_note(self, event: str) -> AppliedSubstitution:
        """What is to be noted of the last one of an event."""
        changes = self.of_event(event)
        if not changes:
            raise NotFound("substitution of event", event)
        return self._to_note(changes[-1])

    def note_of(self, turn: int, place: str, seq: int) -> AppliedSubstitution | UnsetType:
        """What is to be noted of a place."""
        return self._note(self._shown((turn, place, seq))[0])

    def counts(self) -> dict[int, int]:
        """How many places of each turn show other words than were recorded."""
        return Counter(turn for turn, place, seq in self._changes if self._shown((turn, place, seq))[0] is not None)

    def message(self, row: MessageRow) -> AppliedSubstitution | UnsetType:
        """Have a row say what is shown in its place; what is to be noted with it."""
        change, event = self._shown((row.turn, MESSAGE, row.seq))
        if event is not None:
            message = message_of(decoded(event, _line(self._txn, event)))
            assert message is not None, "what stands in for a message is one"
            show_message(_Numbers(self._txn), row, message, is_original=change is None)
        return self._note(change)

    def call(self, row: CallRow) -> AppliedSubstitution | UnsetType:
        """The same of the result of a call."""
        change, event = self._shown((row.turn, CALL, row.seq))
        if event is not None:
            result = decoded(event, _line(self._txn, event))
            assert isinstance(result, ToolResult), "what stands in for a result is one"
            show_result(_Numbers(self._txn), row, result)
        return self._note(change)

    def _shown(self, place: tuple[int, str, int]) -> tuple[Change | None, int | None]:
        """What changed a place, None where it shows the original; and the event to be shown, by its arrival number,
        where that is not what its row has."""
        changes = self._changes.get(place)
        if changes is None:
            return None, None
        counting = [change for change in changes if self._until is None or change.n <= self._until]
        last = counting[-1] if counting and not counting[-1].is_undone else None
        wanted = changes[0].original_n if last is None else last.replacement_n
        return last, None if wanted == changes[-1].replacement_n else wanted

    def _note(self, change: Change | None) -> AppliedSubstitution | UnsetType:
        return UNSET if change is None else self._to_note(change)

    def _to_note(self, change: Change) -> AppliedSubstitution:
        return AppliedSubstitution(
            original=change.original.hex(),
            replacement=change.replacement.hex(),
            by=agent_names(self._txn.sql, [change.actor])[change.actor],
            at=change.at,
            reason=text_of(self._txn, change.reason),
        )


class _Numbers:
    """Numbers of contents for a reader."""

    def __init__(self, txn: ReadTxn) -> None:
        self._facts = txn.facts

    def number(self, ref: str) -> int:
        return self._facts.find_content(bytes.fromhex(ref)) or 0


def substitutions_between(txn: ReadTxn, segment: int, low: int, high: int, until: int | None = None) -> Substitutions:
    """Those of a range of one segment; with `until` as they were at that arrival number."""
    query = f"SELECT {_COLUMNS} FROM substitution WHERE turn IN ({_SPAN})"
    return Substitutions(txn, txn.sql.all(query, (segment, low, high)), until)


def substitutions_in(txn: ReadTxn, turns: Iterable[int], until: int | None = None) -> Substitutions:
    """Those of turns by their numbers."""
    return Substitutions(txn, rows_in(txn.sql, f"SELECT {_COLUMNS} FROM substitution WHERE turn IN", turns), until)


def shown_events(txn: ReadTxn, turn: int) -> dict[str, Event | UnknownEvent]:
    """By the id of each event of a turn that was substituted, the event that is shown in its place now."""
    query = f"SELECT {_COLUMNS} FROM substitution WHERE turn = ? ORDER BY n"
    last = {change.original: change for change in map(_to_change, txn.sql.all(query, (turn,)))}
    shown = {change.original.hex(): change.replacement_n for change in last.values() if not change.is_undone}
    return {original: decoded(n, _line(txn, n)) for original, n in shown.items()}


def _line(txn: ReadTxn, n: int) -> bytes:
    line = txn.facts.line(n)
    if line is None:
        raise FactDamaged("event number", str(n), "the log has a hole there")
    return line


def change_to(txn: ReadTxn, replacement: str) -> Change | None:
    """The first substitution that put an event in the place of another one."""
    row = txn.sql.one(
        f"SELECT {_COLUMNS} FROM substitution WHERE replacement = ? AND original <> replacement ORDER BY n LIMIT 1",
        (bytes.fromhex(replacement),),
    )
    return None if row is None else _to_change(row)


def _to_change(row: Sequence[Any]) -> Change:
    turn, place, seq, n, original, original_n, replacement, replacement_n, actor, reason, at = row
    return Change(
        turn, place, seq, n, bytes(original), original_n, bytes(replacement), replacement_n, actor, reason, at
    )
