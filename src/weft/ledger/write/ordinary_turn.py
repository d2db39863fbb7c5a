"""The ordinary turn in one straight pass: from values to event lines and rows.

An ordinary turn goes on at the end of a session: messages of one text each, an answer of one text, and tool calls that
have an id, arguments, perhaps a result, and nothing else. Most turns are. Here its events are written as lines at once,
without being made as objects and applied one by one; `turn_events.py` and the views do the same for every turn, more
slowly, and are what this module is held against: a test records the same turns both ways and compares every byte.

Whatever is unusual, in the turn or in its place, is left to the general way before anything has been written.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from operator import itemgetter
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.clock import offset
from weft.kernel.contents import Prepared
from weft.kernel.dag_events import (
    HistoryAppend,
    ModelRequest,
    ModelResponse,
    RunFinished,
    RunStarted,
    ToolCallRequested,
    ToolResult,
)
from weft.kernel.enums import AgentRole, MessageRole, MoveReason, RunExit, ToolCallStatus, TurnType
from weft.kernel.events import Event, encode
from weft.kernel.fields import EventRef, ForkPoint, MessageFact, TextFact, Usage, is_name
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.model import DEFAULT_AGENT, NewMessage, NewToolCall
from weft.ledger.views.projector import Moment
from weft.ledger.views.rows import CallRow, MessageRow, SessionRow, TurnRow, added
from weft.ledger.views.runs import COMPLETED, PENDING
from weft.ledger.views.sessions import move_head
from weft.ledger.write.append import MESSAGE_ROOM, Append
from weft.ledger.write.new_turn import DEFAULT_SETTING, STORED_RESULTS, NewTurn
from weft.ledger.write.placement import Placement
from weft.ledger.write.turn_events import MAIN_LIST

# --- what is ordinary ---------------------------------------------------------------------------------------------


def is_ordinary(turn: NewTurn) -> bool:
    """Whether all that a turn says can be written in the straight pass, wherever it goes."""
    return (
        turn.persona == DEFAULT_AGENT
        and turn.setting is DEFAULT_SETTING
        and turn.error is None
        and turn.params is None
        and turn.tools_spec is None
        and turn.permissions_used is None
        and _is_plain_name(turn.model)
        and _is_plain_name(turn.provider)
        and _is_plain_name(turn.finish_reason)
        and len(turn.response) == 1
        and turn.response[0].role == MessageRole.ASSISTANT
        and len(turn.messages) < MESSAGE_ROOM - 1
        and all(map(_is_plain_message, turn.messages))
        and _is_plain_message(turn.response[0])
        and all(map(_is_plain_call, turn.calls))
    )


def _is_plain_name(name: str | None) -> bool:
    """Text of no other type: a name of an enumeration is written into a line by its member's name, not its value."""
    return name is None or (type(name) is str and is_name(name) is not None)


def _is_plain_message(message: NewMessage) -> bool:
    """Nothing but a role and a text. A `NewMessage` that a caller made may hold anything as its role."""
    return (
        type(message) is NewMessage
        and type(message.role) is MessageRole
        and isinstance(message.content, str)
        and message.source is None
        and message.parent is None
        and message.model is None
        and message.thinking_config is None
        and message.context is None
        and message.metadata is None
        and not message.files
        and not message.lints
        and not message.codeblocks
    )


def _is_plain_call(call: NewToolCall) -> bool:
    """It has an id, arguments that are an object, a result or none, and it ended well. A `NewToolCall` that a caller
    made may hold anything as its id and name."""
    return (
        isinstance(call.id, str)
        and bool(call.id)
        and type(call.name) is str
        and is_name(call.name) is not None
        and isinstance(call.arguments, dict)
        and (call.result is UNSET or isinstance(call.result, STORED_RESULTS))
        and call.error is None
        and call.status is None
        and call.server is None
        and call.number is None
        and call.spawned_session is None
        and call.duration_ms is None
    )


def is_ordinary_place(append: Append, place: Placement) -> bool:
    """Whether a turn there goes on from the head of its session, on the same segment, in the name of nobody else; and
    the session has chosen nothing that would have to be looked at again."""
    session, parent = place.session, place.parent
    return (
        session is not None
        and parent is not None
        and append.is_by_the_ledger
        and session.head == parent.id
        and session.head_events is None
        and session.lifecycle == "active"
        and not session.compaction
        and not session.has_subagents
        and session.persona == parent.persona
        and is_name(session.persona) is not None
        and parent.closed
        and append.view.ends_segment(parent)
    )


_ROLES = {role: role.value for role in MessageRole}
_NORMAL, _UNIFIED, _BY_TURN = TurnType.NORMAL.value, AgentRole.UNIFIED.value, MoveReason.TURN.value
"""An enumeration looks its members' values up each time."""

# --- lines --------------------------------------------------------------------------------------------------------


class _Line:
    """The template of a line: what the encoder writes for an event whose values are marks such as `%(turn)s`. The mark
    of an object, which stands in no quotes, is given as `%(raw usage)raw` and becomes `%(usage)s`."""

    __slots__ = ("_text", "_values")

    def __init__(self, event: Event) -> None:
        text = encode(event).decode()
        for quoted, bare in (('"%(raw ', "%("), (')raw"', ")s")):
            text = text.replace(quoted, bare)
        self._text = _MARK.sub("%s", text)
        self._values = itemgetter(*_MARK.findall(text))

    def fill(self, values: dict[str, Any]) -> bytes:
        """The line with these values. Marks are looked up in one go: by name they would be cut out of the text and
        hashed each time."""
        line: str = self._text % self._values(values)
        return line.encode()


_MARK = re.compile(r"%\((\w+)\)s")


def _envelope(prev: str | None = "%(prev)s") -> dict[str, Any]:
    return {
        "ts": "%(ts)s",
        "stream": "run:%(turn)s",
        "prev": prev,
        "actor": "%(actor)s",
        "replica": "%(replica)s",
    }


def _message() -> MessageFact:
    return MessageFact(id="%(message)s", role=_mark("%(role)s"), parts=(TextFact(text="%(text)s"),))


def _mark(text: str) -> Any:
    """A mark in the place of a value of another type."""
    return text


@cache
def _started(has_compaction: bool) -> _Line:
    return _Line(
        RunStarted(
            **_envelope(prev=None),
            fork=ForkPoint("%(parent)s", "%(parent_end)s"),
            session="%(session)s",
            compaction="%(compaction)s" if has_compaction else UNSET,
            turn_type=TurnType.NORMAL,
            role=AgentRole.UNIFIED,
        )
    )


@cache
def _history() -> _Line:
    return _Line(HistoryAppend(**_envelope(), list=MAIN_LIST, message=_message()))


@cache
def _request(has_provider: bool) -> _Line:
    return _Line(
        ModelRequest(
            **_envelope(),
            model="%(model)s",
            correlation_id="%(turn)s",
            provider="%(provider)s" if has_provider else UNSET,
        )
    )


@cache
def _call() -> _Line:
    return _Line(
        ToolCallRequested(
            **_envelope(), tool="%(tool)s", call_id="%(call_id)s", args="%(arguments)s", correlation_id="%(turn)s"
        )
    )


@cache
def _result(has_result: bool) -> _Line:
    return _Line(
        ToolResult(
            **_envelope(),
            call=EventRef("%(prev)s"),
            call_id="%(call_id)s",
            status=ToolCallStatus.OK,
            correlation_id="%(turn)s",
            result="%(result)s" if has_result else UNSET,
        )
    )


@cache
def _response(has_usage: bool, has_finish: bool) -> _Line:
    return _Line(
        ModelResponse(
            **_envelope(),
            correlation_id="%(turn)s",
            request_id="%(request)s",
            output=_message(),
            usage=_mark("%(raw usage)raw") if has_usage else UNSET,
            finish_reason="%(finish)s" if has_finish else UNSET,
        )
    )


@cache
def _finished() -> _Line:
    return _Line(RunFinished(**_envelope(), exit=RunExit.SUCCESS, response="%(message)s"))


@cache
def _moved() -> _Line:
    stream = {**_envelope(), "stream": "session:%(session)s", "prev": "%(session_end)s"}
    return _Line(SessionMoved(**stream, to="%(turn)s", before="%(parent)s", why=MoveReason.TURN))


# --- the pass -----------------------------------------------------------------------------------------------------


def write_ordinary(append: Append, turn: NewTurn, place: Placement, turn_id: str) -> tuple[str, str]:
    """All events and rows of an ordinary turn at an ordinary place. Returns the answer's id and the digest."""
    assert place.session is not None
    assert place.parent is not None
    return _OrdinaryTurn(append, place.session, place.parent, turn_id, place.compaction).write(turn, place.scope)


class _OrdinaryTurn:
    """Writes one turn. `_values` are what the marks of the next line stand for; `_row` is the turn's own row, which
    every event changes."""

    def __init__(
        self, append: Append, session: SessionRow, parent: TurnRow, turn: str, compaction: str | UnsetType
    ) -> None:
        self._append, self._view, self._session = append, append.view, session
        self._values: dict[str, Any] = {
            "ts": append.ts,
            "turn": turn,
            "actor": session.persona,
            "replica": append.replica,
            "parent": parent.id,
            "parent_end": parent.digest,
            "session": session.id,
            "session_end": bytes(session.last_event).hex(),
            "compaction": compaction,
        }
        self._row = _turn_row(append.next_number, append.now_ms, session, parent, turn, compaction)

    def write(self, turn: NewTurn, scope: int) -> tuple[str, str]:
        """All events and rows, in the order of the events. Returns the answer's id and the digest."""
        row, values = self._row, self._values
        self._add(_started(row.compaction is not None))
        self._view.add_turn(row)
        *texts, answer = turn.prepared_texts
        for message, text in zip(turn.messages, texts, strict=True):
            self._write_message(message, text, scope)
        row.model, row.provider = turn.model or "unknown", turn.provider
        values["model"], values["provider"] = row.model, row.provider
        values["request"] = self._add(_request(turn.provider is not None)).hex()
        row.events += 1
        for call, prepared in zip(turn.calls, turn.prepared_calls, strict=True):
            self._write_call(call, prepared.id, prepared.arguments, prepared.result, scope)
        response = self._write_response(turn, answer, scope)
        row.last_event = digest = self._add(_finished())
        row.events += 1
        row.status, row.completed_at = COMPLETED, self._append.now_ms
        self._move_session()
        return response, digest.hex()

    def _add(self, line: _Line) -> bytes:
        """The next event, of this template; returns its id."""
        data = line.fill(self._values)
        digest = sha256(data).digest()
        self._append.add_line(data, digest)
        self._values["prev"] = digest.hex()
        return digest

    def _put(self, content: Prepared, scope: int) -> tuple[int, str]:
        stored = self._append.txn.facts.put_prepared(content, scope)
        return stored.n, stored.ref.hex()

    def _write_message(self, message: NewMessage, text: Prepared, scope: int) -> None:
        row, role = self._row, _ROLES[message.role]
        number, self._values["text"] = self._put(text, scope)
        if role == "system" and row.messages == 0:
            row.system = number
        id = self._next_message(role)
        self._add_message_row(id, role, number, MAIN_LIST)
        self._add(_history())
        row.events += 1
        if role == "assistant":
            row.response = id

    def _next_message(self, role: str) -> str:
        row, values = self._row, self._values
        values["message"] = id = offset(row.id, row.messages + 1)
        values["role"] = role
        return id

    def _add_message_row(self, id: str, role: str, text: int, listed: str | None) -> MessageRow:
        row = self._row
        message = MessageRow(
            row.n, row.messages, id, role, None, self._append.now_ms, row.events, text,
            None, listed, None, None, None, None, None, None,
        )  # fmt: skip
        self._view.messages.append(message)
        row.messages += 1
        return message

    def _write_call(
        self, call: NewToolCall, id: Prepared | None, arguments: Prepared | None, result: Prepared | None, scope: int
    ) -> None:
        assert id is not None
        assert arguments is not None
        row, values, now = self._row, self._values, self._append.now_ms
        call_id, values["call_id"] = self._put(id, scope)
        params, values["arguments"] = self._put(arguments, scope)
        values["tool"] = call.name
        event, position = self._add(_call()), row.events
        output = None
        if result is not None:
            output, values["result"] = self._put(result, scope)
        self._add(_result(result is not None))
        row.events += 2
        self._view.add_call(
            CallRow(
                turn=row.n,
                seq=row.calls,
                event=event,
                position=position,
                call_id=call_id,
                repeated=self._view.repeats[row.n, call_id],
                message=None,
                tool=call.name,
                number=None,
                server=None,
                params=params,
                result=output,
                error=None,
                error_code=None,
                status=COMPLETED,
                outcome="ok",
                spawned=None,
                started_at=now,
                completed_at=now,
                result_position=position + 1,
                correlation=row.id,
            )
        )
        row.calls += 1

    def _write_response(self, turn: NewTurn, text: Prepared, scope: int) -> str:
        row, values, usage = self._row, self._values, turn.usage
        number, values["text"] = self._put(text, scope)
        id = self._next_message("assistant")
        message = self._add_message_row(id, "assistant", number, None)
        if isinstance(usage, Usage):
            values["usage"] = encode(usage).decode()
            message.set_tokens(usage)
            row.add_tokens(usage)
        values["finish"] = turn.finish_reason
        self._add(_response(usage is not UNSET, turn.finish_reason is not None))
        row.response = id
        row.events += 1
        return id

    def _move_session(self) -> None:
        view, session, moment = self._view, self._session, Moment()
        moment.n, moment.when = self._append.next_number, self._append.now_ms
        moment.event_id, moment.row = self._add(_moved()), session
        view.before_change(session)
        session.reach = None
        move_head(view, moment, self._row, None, moment.when, _BY_TURN, None)
        view.after_change(session, moment)


def _turn_row(
    n: int, now: int, session: SessionRow, parent: TurnRow, turn: str, compaction: str | UnsetType
) -> TurnRow:
    """The turn as its first event leaves it, but for that event's id: `last_event` is set with the last one."""
    return TurnRow(
        n=n,
        segment=parent.segment,
        depth=parent.depth + 1,
        id=turn,
        root=parent.root,
        parent=parent.id,
        session=session.n,
        persona=session.persona,
        type=_NORMAL,
        status=PENDING,
        started_at=now,
        completed_at=None,
        model=None,
        provider=None,
        role=_UNIFIED,
        toolset=None,
        tools=None,
        permissions_granted=None,
        permissions_used=None,
        input_tokens=None,
        output_tokens=None,
        cached_input_tokens=None,
        cache_write_tokens=None,
        reasoning_tokens=None,
        total_tokens=None,
        tokens_before=added(parent.tokens_before, parent.total_tokens),
        response=None,
        messages=0,
        calls=0,
        events=1,
        last_event=b"",
        reason=None,
        source_event=None,
        workspace=None,
        compaction=None if compaction is UNSET else compaction,
        thinking_config=None,
        effective_config=None,
        system=parent.system,
        interrupted=None,
        error=None,
        error_code=None,
        origin=None,
        listed_at=max(now, parent.listed_at),
        untrusted=parent.untrusted,
    )
