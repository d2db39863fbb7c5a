"""What a subscriber of a session is told, item by item, each with the position behind it: the
session's events by arrival number, and what has come of an answer that is still being written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel import events as dag
from weft.kernel import ledger_events as own
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.events import (
    ErrorFact,
    Event,
    Named,
    PartFact,
    ReasoningFact,
    TextFact,
    UnknownEvent,
    Words,
    conversation_stream,
    kind_of,
    run_stream,
    session_stream,
)
from weft.ledger.read.revisions import require
from weft.ledger.views.rows import TURN, StoredEvent, TurnRow, json_of, recorded, run_events, stream_of, text_of
from weft.ledger.write.transaction import Append, LedgerWriter
from weft.store.fact_log import is_erased_content
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

# --- What has come of an answer that is still being written: local state, for readers in other processes.


class PartialReply(Struct, frozen=True):
    """The text so far of one request. `attempt` counts the requests of the turn, so that what was kept of an earlier
    answer is never taken for the beginning of a later one."""

    attempt: int
    text: str
    thinking: str = ""


def keep_partial(writer: LedgerWriter, turn: str, partial: PartialReply) -> None:
    """Replaces what was kept of the turn, unless that is of a later request: a broker that lost the turn changes
    nothing. A turn that is over keeps none."""

    def work(append: Append) -> None:
        append.sql.run(
            "INSERT INTO partial_reply(turn, attempt, text, thinking) SELECT turn, ?, ?, ? FROM open_run WHERE turn = ?"
            " ON CONFLICT (turn) DO UPDATE SET attempt = excluded.attempt, text = excluded.text,"
            " thinking = excluded.thinking WHERE excluded.attempt >= partial_reply.attempt",
            (partial.attempt, partial.text, partial.thinking, turn),
        )

    writer.write(work)


def load_partial(txn: ReadTxn, turn: str) -> PartialReply | None:
    row = txn.sql.fetch_row("SELECT attempt, text, thinking FROM partial_reply WHERE turn = ?", (turn,))
    return None if row is None else PartialReply(*row)


# --- What a subscriber of a session is told, item by item, each with the position behind it.


class StreamPosition(Struct, frozen=True, order=True):
    """How far a subscriber is, in JSON a text: `12`, `12.1.40` or `12.1.40.7`. `n` is the arrival number of the last
    event it was told. `delta` and `thinking` count the characters that it was told of the answer being written, and
    `attempt` says which answer: the how-manieth request of its turn."""

    n: int
    attempt: int = 0
    delta: int = 0
    thinking: int = 0

    def __str__(self) -> str:
        if not (self.delta or self.thinking):
            return str(self.n)
        return f"{self.n}.{self.attempt}.{self.delta}" + (f".{self.thinking}" if self.thinking else "")


def parse_position(text: str) -> StreamPosition:
    """The position that `str` writes."""
    numbers = text.split(".")
    if len(numbers) not in (1, 3, 4) or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in numbers):
        raise InvalidInput(
            f"{quoted(text)} is no position in a stream", "give one that an item had, such as 12 or 12.1.40; 0 begins"
        )
    return StreamPosition(*map(int, numbers))


class StreamItem(Struct, frozen=True, kw_only=True, tag_field="item"):
    """One thing that happened in a session. Whoever goes on behind `position` is told everything that follows it."""

    position: StreamPosition


class MessageQueued(StreamItem, frozen=True, kw_only=True, tag="message_admitted"):
    """A message entered the session's inbox."""

    message: str
    sender: str
    text: str


class MessageSettled(StreamItem, frozen=True, kw_only=True, tag="message_settled"):
    """A message left the inbox without an answer: `cancelled`, or `dead`, with the reason or the error."""

    message: str
    state: str
    reason: str | None = None


class TurnStarted(StreamItem, frozen=True, kw_only=True, tag="turn_started"):
    """A turn began."""

    turn: str
    actor: str


class MessageAdded(StreamItem, frozen=True, kw_only=True, tag="message_added"):
    """A message entered a turn; `admitted` where it waited in the inbox."""

    turn: str
    message: str
    role: str
    text: str
    admitted: bool = False


class AnswerStarted(StreamItem, frozen=True, kw_only=True, tag="answer_started"):
    """A model was asked: the text that follows is its answer. `number` counts the requests of the turn."""

    turn: str
    number: int
    model: str


class TextAdded(StreamItem, frozen=True, kw_only=True, tag="text_added"):
    """The answer goes on with this: `kind` is text or thinking."""

    turn: str
    text: str
    kind: str = "text"


class AttemptReset(StreamItem, frozen=True, kw_only=True, tag="attempt_reset"):
    """The text of the answer so far is void. With a `model` the same question is being asked again: the text that
    follows is the new answer's."""

    turn: str
    number: int
    reason: str
    model: str | None = None


class AnswerEnded(StreamItem, frozen=True, kw_only=True, tag="answer_ended"):
    """The answer is whole and recorded as this message."""

    turn: str
    message: str | None
    finish: str | None = None


class ToolStarted(StreamItem, frozen=True, kw_only=True, tag="tool_called"):
    """A tool is to be run; `call` names the event of the call."""

    turn: str
    call: str
    tool: str
    arguments: Any


class ToolFinished(StreamItem, frozen=True, kw_only=True, tag="tool_ended"):
    """A tool call ended."""

    turn: str
    call: str
    tool: str
    status: str
    result: Any = None
    error: str | None = None


class TurnParked(StreamItem, frozen=True, kw_only=True, tag="turn_parked"):
    """A turn waits for the outcome of calls, or until a time."""

    turn: str
    calls: tuple[str, ...]
    until: str | None = None
    why: str | None = None


class TurnInterrupted(StreamItem, frozen=True, kw_only=True, tag="turn_interrupted"):
    """Something of a turn was cut short; `calls` names the events of open tool calls."""

    turn: str
    reason: str
    calls: tuple[str, ...] = ()


class TurnEnded(StreamItem, frozen=True, kw_only=True, tag="turn_ended"):
    """A turn is over: `success`, or how else it ended, with its error. `messages` are those of the inbox that it took:
    they are answered, or dead."""

    turn: str
    exit: str
    messages: tuple[str, ...] = ()
    error: str | None = None


class OtherEvent(StreamItem, frozen=True, kw_only=True, tag="event"):
    """An event of another kind, of the session or of one of its turns."""

    id: str
    kind: str
    turn: str | None = None


ITEMS: tuple[type[StreamItem], ...] = (
    MessageQueued, MessageSettled, TurnStarted, MessageAdded, AnswerStarted, TextAdded, AttemptReset, AnswerEnded,
    ToolStarted, ToolFinished, TurnParked, TurnInterrupted, TurnEnded, OtherEvent,
)  # fmt: skip


# --- A session's events by arrival number, told as the items of a stream.

LOG_ROWS = 64
"""So many rows of the log are read together."""
KEPT_TURNS = 4096
"""Of so many turns a reader remembers whose session they belong to."""
_RUN = run_stream("")
_SESSION = session_stream("")
_CONVERSATION = conversation_stream("")


class TurnSessions:
    """By turn the number of its session, looked up once. That never changes."""

    def __init__(self) -> None:
        self._numbers: dict[str, int | None] = {}

    def learn(self, sql: Sql, turns: set[str]) -> None:
        unknown = turns - self._numbers.keys()
        if len(self._numbers) + len(unknown) > KEPT_TURNS:
            self._numbers, unknown = {}, turns
        if unknown:
            self._numbers |= dict(rows_in(sql, "SELECT id, session FROM turn WHERE id IN", sorted(unknown)))

    def number(self, turn: str) -> int | None:
        return self._numbers.get(turn)


class StreamCursor:
    """Where one subscriber of a session is: behind which event, and how far in the answer that is being written."""

    def __init__(self, session: str, number: int, n: int) -> None:
        self.session, self.number = session, number
        self.n = self.scanned = n
        """The last event that was told, and the last one that was looked at."""
        self.turn = ""
        self.attempt = 0
        """Requests of the turn so far."""
        self.is_open = False
        """Whether the last of them has no answer yet."""
        self.delta = self.thinking = 0
        self._request = ""
        self._tools: dict[str, str] = {}
        self._taken: list[str] = []
        self._sessions = TurnSessions()

    @property
    def position(self) -> StreamPosition:
        return StreamPosition(self.n, self.attempt if self.delta or self.thinking else 0, self.delta, self.thinking)

    # --- the text of the answer that is being written -----------------------------------------------------------

    def next_text_item(self, kind: str, text: str) -> TextAdded:
        """The item of the next piece of the answer."""
        if kind == "text":
            self.delta += len(text)
        else:
            self.thinking += len(text)
        return TextAdded(position=self.position, turn=self.turn, text=text, kind=kind)

    def text_items(self, text: str, thinking: str) -> Iterator[StreamItem]:
        """What the answer so far has beyond what was told of it."""
        if len(thinking) > self.thinking:
            yield self.next_text_item("thinking", thinking[self.thinking :])
        if len(text) > self.delta:
            yield self.next_text_item("text", text[self.delta :])

    def partial_items(self, txn: ReadTxn) -> list[StreamItem]:
        """The same of what a broker in another process kept of it."""
        partial = load_partial(txn, self.turn) if self.is_open else None
        if partial is None or partial.attempt != self.attempt:
            return []
        return list(self.text_items(partial.text, partial.thinking))

    # --- events -------------------------------------------------------------------------------------------------

    def apply(self, one: StoredEvent) -> None:
        """Take an event in that was told already, or is told now."""
        event = one.event
        self.n = one.n
        match event:
            case dag.RunStarted():
                self.turn, self.attempt, self._taken, self._tools = event.stream.removeprefix(_RUN), 0, [], {}
                self._close_attempt()
            case dag.ModelRequest():
                self.attempt += 1
                self._close_attempt()
                self.is_open, self._request = True, one.id
            case dag.ModelResponse(is_broken_off=True):  # the request that follows, or the end, closes the attempt
                pass
            case dag.ModelResponse() | dag.RunFinished():
                self._close_attempt()
            case dag.Interruption() if self._is_named(event):
                self._close_attempt()
            case dag.HistoryAppend(admitted=str(message)):
                self._taken.append(message)
            case dag.ToolCallRequested():
                self._tools[one.id] = "" if isinstance(event.tool, Words) else event.tool

    def _close_attempt(self) -> None:
        self.is_open, self._request, self.delta, self.thinking = False, "", 0, 0

    def _is_named(self, event: dag.Interruption) -> bool:
        return self.is_open and any(ref.event_id == self._request for ref in event.affects)

    def items(self, txn: ReadTxn, one: StoredEvent) -> Iterator[StreamItem]:
        """What an event tells: what is left of the text of an answer, then the event itself."""
        event, was_open = one.event, self.is_open
        if isinstance(event, dag.ModelResponse) and event.is_broken_off:
            self.apply(one)
            return
        if isinstance(event, dag.ModelResponse):
            yield from self._rest_of_answer(txn, event)
        elif isinstance(event, dag.RunFinished) and (self.delta or self.thinking):  # nothing of it is recorded
            yield self._taken_back()
        is_reset = isinstance(event, dag.Interruption) and self._is_named(event)
        self.apply(one)
        if is_reset or (was_open and isinstance(event, dag.ModelRequest)):
            yield self._reset_attempt(txn, one)
        elif event.stream.startswith(_SESSION):
            yield self._session_item(txn, one)
        else:
            yield self._turn_item(txn, one)

    def _rest_of_answer(self, txn: ReadTxn, event: dag.ModelResponse) -> Iterator[StreamItem]:
        """What was not told of an answer yet. If something of it was erased since, or if its text or thinking is
        shorter than what was told of it, it is told anew: in place of what was erased stands the mark that says so."""
        parts = () if event.output is UNSET else event.output.parts
        text, thinking = _joined_parts(txn, parts), _joined_parts(txn, parts, ReasoningFact)
        is_erased = (self.delta or self.thinking) and _is_erased(txn, parts)
        if is_erased or len(text) < self.delta or len(thinking) < self.thinking:
            yield self._taken_back("erased" if is_erased else "changed")
        yield from self.text_items(text, thinking)

    def _taken_back(self, reason: str = "changed") -> AttemptReset:
        """What was told of the answer that is being written is not what is recorded."""
        self.delta = self.thinking = 0
        return AttemptReset(position=self.position, turn=self.turn, number=self.attempt, reason=reason)

    def _reset_attempt(self, txn: ReadTxn, one: StoredEvent) -> AttemptReset:
        position, turn, event = self.position, self.turn, one.event
        if isinstance(event, dag.ModelRequest):
            model = _text_of_name(txn, event.model)
            return AttemptReset(position=position, turn=turn, number=self.attempt, reason="retry", model=model)
        assert isinstance(event, dag.Interruption)
        return AttemptReset(position=position, turn=turn, number=self.attempt, reason=event.reason.value)

    def _session_item(self, txn: ReadTxn, one: StoredEvent) -> StreamItem:
        position, event = self.position, one.event
        match event:
            case own.MessageAdmitted():
                text = _joined_parts(txn, event.parts)
                return MessageQueued(position=position, message=event.message, sender=event.actor, text=text)
            case own.MessageCancelled():
                reason = _text_of_ref(txn, event.reason)
                return MessageSettled(position=position, message=event.message, state="cancelled", reason=reason)
            case own.MessageDead():
                reason = _error_message(txn, event.error)
                return MessageSettled(position=position, message=event.message, state="dead", reason=reason)
        return OtherEvent(position=position, id=one.id, kind=_event_kind(event))

    def _turn_item(self, txn: ReadTxn, one: StoredEvent) -> StreamItem:
        position, event, turn = self.position, one.event, one.event.stream.removeprefix(_RUN)
        match event:
            case dag.RunStarted():
                return TurnStarted(position=position, turn=turn, actor=event.actor)
            case dag.HistoryAppend():
                message = event.message
                return MessageAdded(
                    position=position,
                    turn=turn,
                    message=message.id if event.admitted is UNSET else event.admitted,
                    role=message.role.value,
                    text=_joined_parts(txn, message.parts),
                    admitted=event.admitted is not UNSET,
                )
            case dag.ModelRequest():
                return AnswerStarted(
                    position=position, turn=turn, number=self.attempt, model=_text_of_name(txn, event.model)
                )
            case dag.ModelResponse():
                message_id = None if event.output is UNSET else event.output.id
                finish = None if event.finish_reason is UNSET else _text_of_name(txn, event.finish_reason)
                return AnswerEnded(position=position, turn=turn, message=message_id, finish=finish)
            case dag.RunFinished():
                messages, error = tuple(self._taken), _error_message(txn, event.error)
                return TurnEnded(position=position, turn=turn, exit=event.exit.value, messages=messages, error=error)
        return self._step_item(txn, one, turn)

    def _step_item(self, txn: ReadTxn, one: StoredEvent, turn: str) -> StreamItem:
        position, event = self.position, one.event
        match event:
            case dag.ToolCallRequested():
                arguments = _value_of_ref(txn, event.args)
                tool = _text_of_name(txn, event.tool)
                return ToolStarted(position=position, turn=turn, call=one.id, tool=tool, arguments=arguments)
            case dag.ToolResult():
                call, result, error = event.call.event_id, event.shown_result, event.shown_error
                return ToolFinished(
                    position=position,
                    turn=turn,
                    call=call,
                    tool=self._tools.get(call, ""),
                    status=event.status.value,
                    result=None if result is UNSET else _value_of_ref(txn, result),
                    error=None if error is UNSET else _text_of_ref(txn, error),
                )
            case dag.Interruption():
                calls = tuple(ref.event_id for ref in event.affects)
                return TurnInterrupted(position=position, turn=turn, reason=event.reason.value, calls=calls)
            case own.RunParked():
                return TurnParked(
                    position=position,
                    turn=turn,
                    calls=tuple(ref.event_id for ref in event.calls),
                    until=None if event.until is UNSET else event.until,
                    why=_text_of_ref(txn, event.why),
                )
        return OtherEvent(position=position, id=one.id, kind=_event_kind(event), turn=turn)

    def own_events(self, txn: ReadTxn, rows: int = LOG_ROWS) -> list[StoredEvent]:
        """The next events of the session and of its turns, of so many rows of the log; `scanned` is then their end."""
        lines = [
            (n, line) for row in txn.facts.log(self.scanned, rows) for n, line in enumerate(row.lines(), row.first)
        ]
        lines = [(n, line) for n, line in lines if n > self.scanned]
        streams = [stream_of(n, line) for n, line in lines]
        self._sessions.learn(txn.sql, {one.removeprefix(_RUN) for one in streams if one.startswith(_RUN)})
        wanted = [recorded(n, line) for (n, line), stream in zip(lines, streams, strict=True) if self._is_own(stream)]
        self.scanned = lines[-1][0] if lines else self.scanned
        return wanted

    def _is_own(self, stream: str) -> bool:
        if stream.startswith(_RUN):
            return self._sessions.number(stream.removeprefix(_RUN)) == self.number
        return stream == _SESSION + self.session


def open_cursor(txn: ReadTxn, name: str, after: StreamPosition | None) -> StreamCursor:
    """A subscriber of the session of this name, behind a position. Without one it begins with the turn that is under
    way, else with what comes next."""
    row, tip = require(txn, name), txn.facts.tip().n
    if after is not None and after.n > tip:
        raise InvalidInput(f"position {after} is beyond the newest event, {tip}", "give one that an item had")
    n = tip if after is None else after.n
    turn = _turn_at(txn.sql, row.n, n)
    if after is None and turn is not None and not turn.closed:
        n = turn.n - 1
    cursor = StreamCursor(row.id, row.n, n)
    if turn is None or turn.n > n:
        return cursor
    for one in run_events(txn.facts, turn):
        if one.n > n:
            break
        cursor.apply(one)
    cursor.n = n
    if after is not None and after.attempt == cursor.attempt:
        cursor.delta, cursor.thinking = after.delta, after.thinking
    return cursor


def read_items(txn: ReadTxn, name: str, cursor: StreamCursor) -> list[StreamItem] | None:
    """The items of the next events; None where there are no more. Refuses, as something that is not there, a session
    that can no longer be read."""
    require(txn, name)
    before = cursor.scanned
    items = [item for one in cursor.own_events(txn) for item in cursor.items(txn, one)]
    return None if cursor.scanned == before else items


def sessions_with_news(txn: ReadTxn, after: int, sessions: TurnSessions) -> tuple[int, set[str]]:
    """The newest arrival number, and the ids of the sessions that events beyond `after` belong to, with those of their
    turns, and of conversations."""
    lines = list(txn.facts.lines(after))
    streams = {stream_of(n, line) for n, line in lines}
    turns = {one.removeprefix(_RUN) for one in streams if one.startswith(_RUN)}
    sessions.learn(txn.sql, turns)
    numbers = {number for turn in turns if (number := sessions.number(turn)) is not None}
    ids = {str(id) for (id,) in rows_in(txn.sql, "SELECT id FROM session WHERE n IN", sorted(numbers))}
    for prefix in (_SESSION, _CONVERSATION):
        ids |= {one.removeprefix(prefix) for one in streams if one.startswith(prefix)}
    return (lines[-1][0] if lines else after), ids


def _turn_at(sql: Sql, session: int, n: int) -> TurnRow | None:
    """The last turn of a session that had begun when event `n` arrived."""
    row = sql.fetch_row(f"{TURN.select} WHERE session = ? AND n <= ? ORDER BY n DESC LIMIT 1", (session, n))
    return TurnRow(*row) if row else None


def _event_kind(event: Event | UnknownEvent) -> str:
    return event.kind if isinstance(event, UnknownEvent) else kind_of(event)


def _joined_parts(
    txn: ReadTxn, parts: tuple[PartFact, ...], kind: type[TextFact] | type[ReasoningFact] = TextFact
) -> str:
    return "".join(_text_of_ref(txn, part.text) or "" for part in parts if isinstance(part, kind))


def _is_erased(txn: ReadTxn, parts: tuple[PartFact, ...]) -> bool:
    refs = [part.text for part in parts if isinstance(part, TextFact | ReasoningFact)]
    numbers = [txn.facts.find_content(bytes.fromhex(ref)) for ref in refs]
    return any(number is not None and is_erased_content(txn.sql, number) for number in numbers)


def _text_of_ref(txn: ReadTxn, ref: str | UnsetType) -> str | None:
    return None if ref is UNSET else text_of(txn, txn.facts.find_content(bytes.fromhex(ref)) or 0)


def _value_of_ref(txn: ReadTxn, ref: str) -> Any:
    return json_of(txn, txn.facts.find_content(bytes.fromhex(ref)) or 0)


def _text_of_name(txn: ReadTxn, name: Named) -> str:
    return (_text_of_ref(txn, name.content) or "") if isinstance(name, Words) else name


def _error_message(txn: ReadTxn, error: ErrorFact | UnsetType) -> str | None:
    return None if error is UNSET else _text_of_ref(txn, error.message)
