"""Whom somebody may mean who types `@` and a few letters in a room.

Those who take part come first, then agents that can be added, then other people. Everything is read in the name of
whoever types: an agent that does not work for them is not suggested, whether it takes part or not.

The names of all who take no part are indexed once for each person, and again when a program was created, renamed,
configured, shared or deleted; then only those programs are read again. Those who take part are read again when anything
was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weft.chat.name_index import IndexedName, NameIndex
from weft.kernel.enums import ParticipantKind, ProgramKind
from weft.kernel.mentions import write_mention
from weft.ledger.api import Ledger, Participant, store_of, system_kind_of
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import Access, access_of
from weft.ledger.views.program_rows import PROGRAM, ProgramRow, load_program
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

DEFAULT_SUGGESTIONS = 8
MENTIONED_KINDS = (ProgramKind.AGENT.value, ProgramKind.HUMAN.value)


class Suggestion(Struct, frozen=True, kw_only=True):
    """Somebody whom typed letters may mean."""

    kind: str
    id: str
    name: str
    is_participant: bool

    @property
    def mention(self) -> str:
        """The text that mentions them."""
        return write_mention(self.kind, self.id, self.name)


class _RoomNames(Struct, frozen=True):
    """Those who take part in a room and may be suggested."""

    index: NameIndex
    own: frozenset[str]
    """The ids of whoever asks."""
    skipped: frozenset[str]
    """The ids of whoever asks and of all who take part."""


class MentionSuggester:
    """Suggests in the name that a ledger is opened in. Use one object for several calls: it keeps the names. Not for
    several threads at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._store = ledger, store_of(ledger)
        self._read_up_to = -1
        """The arrival number of the newest event of a program that the names include."""
        self._names: dict[str, IndexedName] = {}
        self._agents, self._people = NameIndex(()), NameIndex(())
        self._here: tuple[str, int, _RoomNames] | None = None
        """Those who take part in a room, as of the newest event then."""

    def suggest(self, room: str, letters: str, limit: int = DEFAULT_SUGGESTIONS) -> list[Suggestion]:
        """At most `limit`, the best first. Raises NotFound for a room that whoever asks takes no part in."""
        here = self._room_names(room)
        found = [_suggestion(name, True) for name in here.index.matches(letters, limit, here.own)]
        for index in (self._agents, self._people):
            found += [_suggestion(name, False) for name in index.matches(letters, limit - len(found), here.skipped)]
        return found

    def _room_names(self, room: str) -> _RoomNames:
        with self._store.read() as txn:
            newest = txn.facts.tip().n
        if self._here is not None and self._here[:2] == (room, newest):
            return self._here[2]
        participants = self._ledger.rooms.participants(room)
        with self._store.read() as txn:
            self._refresh(txn)
            access = access_of(txn)
            own = frozenset(access.ids or (DEFAULT_AGENT,))
            offered = [one for one in participants if _is_offered(txn.sql, access, one)]
            names = _RoomNames(
                NameIndex(_active_names(txn.sql, offered)), own, own | {one.node for one in participants}
            )
        self._here = (room, newest, names)
        return names

    def _refresh(self, txn: ReadTxn) -> None:
        """Take up what became of programs since the last call."""
        (newest,) = txn.sql.one("SELECT coalesce(max(n), 0) FROM program_history") or (0,)
        if newest == self._read_up_to:
            return
        changed = _changed_programs(txn.sql, self._read_up_to)
        access = access_of(txn)
        if self._read_up_to < 0 or newest < self._read_up_to or not changed.isdisjoint(access.ids):
            self._names = {DEFAULT_AGENT: IndexedName(ParticipantKind.USER.value, DEFAULT_AGENT, DEFAULT_AGENT)}
            rows: Iterable[ProgramRow] = _all_programs(txn.sql)
        else:
            for id in changed:
                self._names.pop(id, None)
            rows = _programs(txn.sql, changed)
        for row in rows:
            if _is_suggested(txn, row):
                self._names[row.id] = IndexedName(_kind(row), row.id, row.name, _active_at(txn.sql, row))
        by_kind = {kind: [name for name in self._names.values() if name.kind == kind] for kind in ParticipantKind}
        self._agents, self._people = NameIndex(by_kind[ParticipantKind.AGENT]), NameIndex(by_kind[ParticipantKind.USER])
        self._read_up_to = newest


def suggestions(ledger: Ledger, room: str, letters: str, limit: int = DEFAULT_SUGGESTIONS) -> list[Suggestion]:
    """The same for one call, such as one completion of a shell. Nothing is kept."""
    return MentionSuggester(ledger).suggest(room, letters, limit)


def _suggestion(name: IndexedName, is_participant: bool) -> Suggestion:
    return Suggestion(kind=name.kind, id=name.id, name=name.name, is_participant=is_participant)


def _is_offered(sql: Sql, access: Access, participant: Participant) -> bool:
    """Whether a participant would hear whoever asks: a private agent only those that it works for."""
    row = None if participant.agent_id is None else load_program(sql, participant.agent_id)
    return row is None or (not row.deleted and access.may_use(row))


def _active_names(sql: Sql, participants: Iterable[Participant]) -> list[IndexedName]:
    names = []
    for one in participants:
        row = sql.one("SELECT max(position) FROM room_message WHERE author = ?", (one.id,))
        names.append(IndexedName(one.kind, one.node, one.name, 0 if row is None else row[0] or 0))
    return names


def _is_suggested(txn: ReadTxn, row: ProgramRow) -> bool:
    if row.deleted or row.kind not in MENTIONED_KINDS or system_kind_of(txn, row) is not None:
        return False
    access = access_of(txn)
    return access.may_read_program(row) and access.may_use(row)


def _kind(row: ProgramRow) -> str:
    return (ParticipantKind.AGENT if row.kind == ProgramKind.AGENT else ParticipantKind.USER).value


def _active_at(sql: Sql, row: ProgramRow) -> int:
    """When an agent last said something in any room, which everybody may know; of people only their rooms know."""
    if row.kind != ProgramKind.AGENT:
        return 0
    newest = sql.one("SELECT max(posted_at) FROM room_message WHERE node = ?", (row.id,))
    return 0 if newest is None else newest[0] or 0


def _changed_programs(sql: Sql, since: int) -> set[str]:
    return {id for (id,) in sql.all("SELECT DISTINCT program FROM program_history WHERE n > ?", (since,))}


def _all_programs(sql: Sql) -> list[ProgramRow]:
    rows = sql.all(f"{PROGRAM.select} WHERE kind IN (?, ?) AND deleted = 0", MENTIONED_KINDS)
    return [ProgramRow(*row) for row in rows]


def _programs(sql: Sql, ids: Iterable[str]) -> list[ProgramRow]:
    return [ProgramRow(*row) for row in rows_in(sql, f"{PROGRAM.select} WHERE id IN", list(ids))]
