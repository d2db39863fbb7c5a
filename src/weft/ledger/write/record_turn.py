"""Recording whole turns at once: one append, one sync, and a row for each; all of them or none.

The way down: `NewTurn` checks what the caller gave; its contents are encoded, hashed and weighed before the writers'
lock is taken; under the lock the turn is placed, its events are chained, the events become rows, and the rows are
committed. A store may do all of this on provisional numbers first, and take the lock for the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import decode, encode
from msgspec.structs import replace

from weft.kernel.enums import MoveReason, TurnType
from weft.kernel.events import Receipt, session_stream
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.model import DEFAULT_AGENT, RecordedTurn
from weft.ledger.views.rows import load_session_number, load_turn
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter, Patience
from weft.ledger.write.commands import Answer, KeyedCommand, find_answer, keyed_command, once
from weft.ledger.write.new_turn import NewTurn
from weft.ledger.write.ordinary_turn import is_ordinary, is_ordinary_place, write_ordinary
from weft.ledger.write.placement import Placement, ensure_free, ensure_session, find_place, scope_in_database
from weft.ledger.write.turn_events import TurnEvents
from weft.store.records import Key, LogTip
from weft.store.sql import Sql


class RequestedTurn(Struct, frozen=True, kw_only=True):
    """A turn that a caller wants recorded, where it shall go (`Placement` is where it goes), and its retry key."""

    turn: NewTurn
    session: str | None = None
    parent: str | UnsetType | None = UNSET
    expected: str | UnsetType | None = UNSET
    key: str | None = None

    def command(self, writer: LedgerWriter) -> KeyedCommand | None:
        if self.key is None:
            return None
        request = [self.session, self.parent, self.expected, *self.turn.request()]
        return keyed_command("record_turn", self.key, request, writer.authority)

    def after(self, previous: RecordedTurn | None) -> RequestedTurn:
        """In no session and with no parent it follows the turn that was recorded before it."""
        if previous is None or self.session is not None or self.parent is not UNSET or self.expected is not UNSET:
            return self
        return replace(self, parent=previous.id)


def record_turns(
    writer: LedgerWriter, requests: Sequence[RequestedTurn], *, wait: float, ttl: float
) -> list[RecordedTurn]:
    """Record each after what the head of its session is by then; one with `parent` or `expected` is refused if that is
    another turn. All are committed, or none. A turn with a retry key is recorded once."""
    commands = [request.command(writer) for request in requests]
    if None not in commands:  # before large contents are stored
        with writer.store.read() as txn:
            answers = [find_answer(txn.sql, command) for command in commands]
            if None not in answers:
                return [_recorded(txn.sql, answer) for answer in answers if answer is not None]
    patience = Patience(writer, wait, ttl)
    likely: list[Key] = []
    ordinary = [is_ordinary(request.turn) for request in requests]
    for request in requests:
        if request.turn.weight.large:
            writer.put_large(request.turn.weight.large, scope_in_database(writer, request.session, request.parent))
        contents = request.turn.prepare(writer.store.prepare)
        if (scope := writer.scope_in_memory(request.session, request.parent)) is not None:
            likely += [(scope, content.digest) for content in contents]

    def work(append: Append) -> list[RecordedTurn]:
        recorded: list[RecordedTurn] = []
        for request, command, in_one_pass in zip(requests, commands, ordinary, strict=True):
            following = request.after(recorded[-1] if recorded else None)
            recorded.append(_write_once(append, following, command, patience, in_one_pass))
        return recorded

    def restate(recorded: list[RecordedTurn], tip: LogTip) -> list[RecordedTurn]:
        receipt = Receipt(writer.store.replica, tip.n, tip.chain.hex(), recorded[0].digest)
        return [replace(recorded[0], receipt=receipt)]

    uses_no_numbers = len(requests) == 1 and commands == [None] and writer.authority.is_local
    size = sum(request.turn.weight.size for request in requests)
    return patience.keep_trying(
        lambda: writer.write(
            work, size, likely=likely, session=requests[0].session, restate=restate if uses_no_numbers else None
        )
    )


def _write_once(
    append: Append, request: RequestedTurn, command: KeyedCommand | None, patience: Patience, in_one_pass: bool
) -> RecordedTurn:
    def write() -> RecordedTurn:
        return _write_whole(append, request.turn, _place(append, request, patience), in_one_pass)

    return write() if command is None else _recorded(append.sql, once(append, command, lambda: _answer(write())))


def _answer(recorded: RecordedTurn) -> Answer:
    return Answer(recorded.id, encode(replace(recorded, session=None)).decode())


def _recorded(sql: Sql, answer: Answer) -> RecordedTurn:
    """What was answered first; the session by the label that it has now."""
    recorded, turn = decode(answer.details or "", type=RecordedTurn), load_turn(sql, answer.node)
    session = load_session_number(sql, turn.session) if turn and turn.session is not None else None
    return replace(recorded, session=session.label if session else None)


def _place(append: Append, request: RequestedTurn, patience: Patience) -> Placement:
    if request.session is None:
        return find_place(append, None, request.parent, request.expected)
    row = ensure_session(append, request.session, request.turn.persona)
    ensure_free(append, row, patience)
    return find_place(append, row, request.parent, request.expected)


def _write_whole(append: Append, turn: NewTurn, place: Placement, in_one_pass: bool) -> RecordedTurn:
    turn_id, session = append.ulids.mint(MESSAGE_ROOM + 1), place.session
    write = write_ordinary if in_one_pass and is_ordinary_place(append, place) else _write_any
    response, digest = write(append, turn, place, turn_id)
    append.seal()
    return RecordedTurn(
        id=turn_id,
        digest=digest,
        depth=place.depth,
        parent_id=place.parent.id if place.parent else None,
        session=session.label if session else None,
        receipt=append.receipt(digest),
        response_message_id=response,
    )


def _write_any(append: Append, turn: NewTurn, place: Placement, turn_id: str) -> tuple[str | None, str]:
    """Any turn, event by event; `ordinary_turn` does the same for most. Returns the answer's id and the digest."""
    session = place.session
    persona = session.persona if session and turn.persona == DEFAULT_AGENT else append.agent(turn.persona)
    turn_events = TurnEvents(append, turn_id, actor=persona, scope=place.scope)
    turn_events.start(
        fork=place.fork,
        session=session.id if session else UNSET,
        compaction=place.compaction,
        turn_type=TurnType.NORMAL,
        setting=turn.setting,
    )
    response, digest = turn.write(turn_events)
    if session is not None and turn.error is None:
        move_with_turn(append, session.id, turn_id)
    return response, digest


def move_with_turn(append: Append, session: str, turn: str) -> None:
    row = append.view.session(session)
    append.stream(session_stream(session), bytes(row.last_event).hex(), row.persona).add(
        SessionMoved, to=turn, before=row.head, why=MoveReason.TURN
    )
