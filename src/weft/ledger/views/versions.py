"""Versions of an imported turn: a longer or rewritten copy is another turn, and one of them is current.

Tools count their messages, or name them by a few letters, so that unrelated turns have one native id. Turns that have
one are versions only if they also share what was said (`is_version`), or if a source put one in place of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
from msgspec import UNSET

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.enums import CallState, ToolCallStatus, TurnType
from weft.kernel.events import run_stream
from weft.ledger.model import UNDATED
from weft.ledger.views.projector import IMPORTS, RUN, Moment, Projector, handles
from weft.ledger.views.rows import SESSION, SessionRow, TurnRow
from weft.ledger.views.sessions import move_to_version
from weft.store.sql import Sql, rows_in

_REPLACED = "SELECT turn, by, round FROM superseded WHERE turn = ? ORDER BY by"


def begin_import(view: Projector, row: TurnRow, event: dag.RunStarted, parent: TurnRow | None) -> None:
    """What identifies a turn elsewhere. Its time is that of its arrival until a sighting tells another, but it is not
    listed by that: it stands with the turn before it. The compaction in effect is the last one before it."""
    row.listed_at = parent.listed_at if parent else UNDATED
    if parent is not None:
        row.compaction = parent.id if parent.type == TurnType.COMPACTION else parent.compaction
    row.native, row.mapping = view.number(event.native), None if event.mapping is UNSET else event.mapping
    row.source = None if event.source is UNSET else bytes.fromhex(event.source)
    row.synthesised = 1


def end_import(view: Projector, moment: Moment, row: TurnRow) -> None:
    """A call whose outcome its origin does not tell was cut off; then the turn finds its place among its versions."""
    for call in view.calls_of(row) if row.calls else []:
        if call.outcome is None:
            call.outcome, call.status = ToolCallStatus.INTERRUPTED.value, CallState.FAILED.value
    settle_versions(view, moment, row, ending=row)


def versions_of(view: Projector, turn: TurnRow) -> list[TurnRow]:
    """Every version of a turn, this one among them; of a native id that is not here nobody knows whose it is."""
    if not turn.native:
        return [turn]
    if any(row.native == turn.native for row in view.new_turns if row is not turn):
        view.flush(keep=True)
    stored = view.sql.all("SELECT id FROM turn WHERE native = ? AND id <> ?", (turn.native, turn.id))
    namesakes = [row for row in (view.turn(id) for (id,) in stored) if row.closed]
    if not namesakes:
        return [turn]
    view.flush(keep=True)
    replaced = rows_in(view.sql, "SELECT turn, by FROM superseded WHERE turn IN", [turn.id, *(r.id for r in namesakes)])
    return versions_among(view.sql, turn, namesakes, replaced)


def versions_among(
    sql: Sql, turn: TurnRow, namesakes: Iterable[TurnRow], replaced: Iterable[Sequence[Any]]
) -> list[TurnRow]:
    """The turn, and those with its native id that are versions of it, of one of these, and so on. `replaced` are pairs
    of a turn and the one that a source put in its place."""
    pairs = {frozenset((one, other)) for one, other in replaced}
    words: dict[int, TurnWords] = {}
    versions, others = [turn], list(namesakes)
    for version in versions:  # grows on the way
        for other in list(others):
            if frozenset((version.id, other.id)) in pairs or is_version(sql, version, other, words):
                versions.append(other)
                others.remove(other)
    return versions


def is_version(sql: Sql, one: TurnRow, other: TurnRow, words: dict[int, TurnWords]) -> bool:
    """Do two turns with one native id share what was said? They begin with the same words; and they follow the same
    turn, or all that one of them says is said by the other, too."""
    first, second = (words.setdefault(row.n, TurnWords(sql, row)) for row in (one, other))
    if first.opening != second.opening or 0 in first.opening:
        return False
    if one.parent is not None and one.parent == other.parent:
        return True
    return first.certain <= second.everything or second.certain <= first.everything


class TurnWords:
    """What a turn says, by the numbers of its contents, each read when it is asked for."""

    def __init__(self, sql: Sql, row: TurnRow) -> None:
        self._sql, self._row = sql, row

    @cached_property
    def opening(self) -> frozenset[int]:
        """The texts of its prompt; of a turn without one those of its first message that says something, else the
        arguments of its first call. 0 stands for what is not here."""
        for condition in ("role = 'user' AND ", ""):
            message = self._sql.one(
                f"SELECT text, parts FROM message WHERE turn = ? AND {condition}(text IS NOT NULL OR parts <> '[]')"
                " ORDER BY seq LIMIT 1",
                (self._row.n,),
            )
            if message is not None:
                return _numbers(*message, texts=True) or _numbers(*message)
        call = self._sql.one("SELECT params FROM tool_call WHERE turn = ? ORDER BY seq LIMIT 1", (self._row.n,))
        return frozenset(call or ())

    @cached_property
    def everything(self) -> frozenset[int]:
        """Of all its messages, and the arguments of its calls."""
        return self._of_messages(self._messages) | self._arguments

    @cached_property
    def certain(self) -> frozenset[int]:
        """The same, without the last answer of a turn that was cut off: more of it may stand elsewhere."""
        messages = self._messages
        if self._row.interrupted is not None and messages and messages[-1][0] == "assistant":
            messages = messages[:-1]
        return self._of_messages(messages) | self._arguments

    @cached_property
    def _messages(self) -> list[tuple[str, int | None, str | None]]:
        rows = self._sql.all("SELECT role, text, parts FROM message WHERE turn = ? ORDER BY seq", (self._row.n,))
        return [(role, text, parts) for role, text, parts in rows]

    @cached_property
    def _arguments(self) -> frozenset[int]:
        return frozenset(n for (n,) in self._sql.all("SELECT params FROM tool_call WHERE turn = ?", (self._row.n,)))

    def _of_messages(self, messages: Iterable[tuple[str, int | None, str | None]]) -> frozenset[int]:
        return frozenset(n for _, text, parts in messages for n in _numbers(text, parts))


def _numbers(text: int | None, parts: str | None, *, texts: bool = False) -> frozenset[int]:
    """The contents of a message, by the columns of its row; only its `texts`, if that is wanted."""
    if text is not None:
        return frozenset((text,))
    shaped = [part for part in orjson.loads(parts or "[]") if not texts or part["type"] == "text"]
    return frozenset(value for part in shaped for value in part.values() if type(value) is int)


def settle_versions(view: Projector, moment: Moment, turn: TurnRow, ending: TurnRow | None = None) -> None:
    """Choose the current one among the versions of a turn, and let sessions stand on it. The last event of the one
    that is `ending` is not counted yet."""
    versions = versions_of(view, turn)
    if len(versions) == 1:
        return
    _choose(view, moment, versions, ending)


def _choose(view: Projector, moment: Moment, versions: Sequence[TurnRow], ending: TurnRow | None = None) -> None:
    """One version is current and the successor of the others. Where other turns took all of them in, none is current,
    and the successor of each is the turn with the smallest id among those that took it in."""
    ids = {row.id for row in versions}
    pairs = [tuple(row) for id in sorted(ids) for row in view.sql.all(_REPLACED, (id,))]
    taken_in: dict[str, str] = {}
    for turn, by, round in pairs:
        if by not in ids and _is_taken_in(view, turn, by, round):
            taken_in.setdefault(turn, by)
    current = choose_version(versions, pairs, taken_in, ending)
    for row in versions:
        if row.current and current is not None and row is not current:
            view.replaced.append((row.id, current.id))
        row.current = int(row is current)
        row.successor = None if row is current else taken_in[row.id] if current is None else current.id
        view.changed_turns[row.id] = row
        if current is not None and row is not current:
            _leave(view, moment, row, current)


def current_version(view: Projector, turn: TurnRow) -> TurnRow:
    """The turn that the successors of a turn lead to."""
    passed: set[str] = set()
    while turn.successor is not None and turn.id not in passed:
        passed.add(turn.id)
        turn = view.turn(turn.successor)
    return turn


def choose_version(
    versions: Sequence[TurnRow],
    pairs: Iterable[tuple[str, str, int]],
    taken_in: Collection[str],
    ending: TurnRow | None = None,
) -> TurnRow | None:
    """One that a source itself put in place of the others; else the longest ancestry, the most said, the newest
    mapping, the smallest id: whatever order they came in. None where other turns took all of them in. `pairs` are a
    turn, another one that a source put in its place, and the round of that."""
    ids = {row.id for row in versions}
    remaining = [row for row in versions if row.id not in taken_in]
    standing = _left([row.id for row in remaining], {(turn, by): round for turn, by, round in pairs if by in ids})
    eligible = [row for row in remaining if row.id in standing]
    if not eligible:
        return None

    def rank(row: TurnRow) -> tuple[int, int, bool, int, str]:
        cut_off = row.interrupted is not None  # that it was, is an event and says nothing
        event_count = row.events + (row is ending) - cut_off
        return -row.depth, -event_count, cut_off, -mapping_number(row.mapping), row.id

    return min(eligible, key=rank)


def _left(ids: Sequence[str], pairs: Mapping[tuple[str, str], int]) -> Collection[str]:
    """Those that none of the others has replaced. In the last round that there was, only who was put in place stands;
    where two ledgers read in another order, and each replaced the other, neither did."""
    last = max(pairs.values(), default=0)
    latest = {pair for pair, round in pairs.items() if round == last}
    replaced = {turn for turn, by in latest if (by, turn) not in latest}
    standing = {by for _, by in latest} if last else set(ids)
    return (standing - replaced).intersection(ids) or set(ids) - replaced or ids


def _is_taken_in(view: Projector, turn: str, by: str, round: int) -> bool:
    return view.find_turn(by) is not None and stands_for(view.sql, turn, by, round)


def stands_for(sql: Sql, turn: str, by: str, round: int) -> bool:
    """Of two turns that took in each other the last one to do so stands; where two ledgers read a source in another
    order, the one with the smaller id."""
    back = sql.one("SELECT round FROM superseded WHERE turn = ? AND by = ?", (by, turn))
    return is_last(turn, by, round, None if back is None else back[0])


def is_last(turn: str, by: str, round: int, back: int | None) -> bool:
    """Whether `by` stands in place of `turn`; `back` is the round in which it was the other way round, if ever."""
    return back is None or round > back or (round == back and by < turn)


def mapping_number(mapping: str | None) -> int:
    number = (mapping or "").rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def _leave(view: Projector, moment: Moment, old: TurnRow, new: TurnRow) -> None:
    """Sessions that stood on the old version stand on the new one; nothing was said in between."""
    standing = [row for row in (*view.new_sessions, *view.changed_sessions.values()) if row.head == old.id]
    pending = {row.id for row in view.changed_sessions.values()} | {row.id for row in view.new_sessions}
    rows = view.sql.all(f"{SESSION.select} WHERE head_segment = ? AND head = ?", (old.segment, old.id))
    stored = (SessionRow(*row) for row in rows)
    standing += [view.memory.sessions.setdefault(row.id, row) for row in stored if row.id not in pending]
    for session in sorted({row.id: row for row in standing}.values(), key=lambda row: row.n):
        if session.reach is not None and session.head == old.id:
            move_to_version(view, moment, session, new)
            view.changed_sessions[session.id] = session


@handles(own.TurnSuperseded, IMPORTS)
def _turn_superseded(view: Projector, moment: Moment, event: own.TurnSuperseded) -> None:
    round = 0 if event.round is UNSET else event.round
    view.sql.run(
        "INSERT INTO superseded(turn, by, round) VALUES (?, ?, ?) ON CONFLICT (turn, by) DO UPDATE"
        " SET round = excluded.round WHERE excluded.round > superseded.round",
        (event.turn, event.by, round),
    )
    row, by = view.find_turn(event.turn), view.find_turn(event.by)
    if row is None or row.native is None:
        return
    if by is None or (row.native and by.native == row.native):
        settle_versions(view, moment, row)
        return
    for one in (row, by):
        _choose(view, moment, versions_of(view, one))
    for old in (row, by):
        if not old.current:
            _leave(view, moment, old, current_version(view, old))


@handles(own.TurnLinked, IMPORTS, RUN)
def _turn_linked(view: Projector, moment: Moment, event: own.TurnLinked) -> None:
    """A run tells only where it came from itself."""
    if event.stream.startswith("run:") and event.stream != run_stream(event.child):
        return
    view.sql.run(
        "INSERT INTO link(child, parent, why, call) VALUES (?, ?, ?, ?) ON CONFLICT (child, parent, why) DO NOTHING",
        (event.child, event.parent, event.why, None if event.call is UNSET else bytes.fromhex(event.call.event_id)),
    )
