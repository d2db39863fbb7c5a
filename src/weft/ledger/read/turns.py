"""Messages, tool calls and turns made from their rows, with what is shown in the place of
others; and threads: a turn with all its ancestry, read as a few ranges of segments, and what
relates two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.clock import offset
from weft.kernel.contents import CONTENT_DOMAIN, bytes_text
from weft.kernel.errors import Action, Damaged, FactDamaged, InvalidInput, NotFound, quoted
from weft.kernel.events import Event, ModelResponse, RunFinished, ToolResult, UnknownEvent, Usage
from weft.ledger.model import (
    READ_FROM,
    AppliedSubstitution,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
    Turn,
    repeated_id,
)
from weft.ledger.read.access import access_of, session_of_number, shows_originals
from weft.ledger.read.sessions import Page, PageRequest, Position, agent_names, mapped
from weft.ledger.views.rows import (
    CALL,
    GOES_ON,
    MESSAGE,
    TOKENS,
    TURN,
    WHERE_FIRST,
    CallRow,
    MessageRow,
    TurnRow,
    decoded,
    error_code_of,
    event_at,
    has_turn_at,
    json_of,
    list_in,
    load_turn,
    name_of,
    number_in,
    run_events,
    shown_text,
    text_of,
    usage_total,
)
from weft.ledger.views.sightings import IN_PIECES
from weft.ledger.views.turns import CALL as CALL_ROWS
from weft.ledger.views.turns import MESSAGE as MESSAGE_ROWS
from weft.ledger.views.turns import message_of, show_message, show_result
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql, rows_in

# --- Messages and results that are shown as another event tells them: which they are, and what was shown at a moment.

_COLUMNS = 'turn, place, seq, n, original, original_n, replacement, replacement_n, actor, reason, "at"'
_SPAN = "SELECT n FROM turn WHERE segment = ? AND depth BETWEEN ? AND ?"


class SubstitutionRow(Struct, frozen=True):
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
        self._changes: dict[tuple[int, str, int], list[SubstitutionRow]] = {}
        for row in rows:
            change = _to_change(row)
            self._changes.setdefault((change.turn, change.place, change.seq), []).append(change)
        for changes in self._changes.values():
            changes.sort(key=lambda change: change.n)

    def __bool__(self) -> bool:
        return bool(self._changes)

    def has_message(self, turn: int, seq: int) -> bool:
        return (turn, MESSAGE_ROWS, seq) in self._changes

    def of_event(self, event: str) -> list[SubstitutionRow]:
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
        return self._note_of_change(self._shown_change((turn, place, seq))[0])

    def counts(self) -> dict[int, int]:
        """How many places of each turn show other words than were recorded."""
        return Counter(
            turn for turn, place, seq in self._changes if self._shown_change((turn, place, seq))[0] is not None
        )

    def message(self, row: MessageRow) -> AppliedSubstitution | UnsetType:
        """Have a row say what is shown in its place; what is to be noted with it."""
        change, event = self._shown_change((row.turn, MESSAGE_ROWS, row.seq))
        if event is not None:
            message = message_of(decoded(event, _event_line(self._txn, event)))
            assert message is not None, "what stands in for a message is one"
            show_message(_Numbers(self._txn), row, message, is_original=change is None)
        return self._note_of_change(change)

    def call(self, row: CallRow) -> AppliedSubstitution | UnsetType:
        """The same of the result of a call."""
        change, event = self._shown_change((row.turn, CALL_ROWS, row.seq))
        if event is not None:
            result = decoded(event, _event_line(self._txn, event))
            assert isinstance(result, ToolResult), "what stands in for a result is one"
            show_result(_Numbers(self._txn), row, result)
        return self._note_of_change(change)

    def _shown_change(self, place: tuple[int, str, int]) -> tuple[SubstitutionRow | None, int | None]:
        """What changed a place, None where it shows the original; and the event to be shown, by its arrival number,
        where that is not what its row has."""
        changes = self._changes.get(place)
        if changes is None:
            return None, None
        counting = [change for change in changes if self._until is None or change.n <= self._until]
        last = counting[-1] if counting and not counting[-1].is_undone else None
        wanted = changes[0].original_n if last is None else last.replacement_n
        return last, None if wanted == changes[-1].replacement_n else wanted

    def _note_of_change(self, change: SubstitutionRow | None) -> AppliedSubstitution | UnsetType:
        return UNSET if change is None else self._to_note(change)

    def _to_note(self, change: SubstitutionRow) -> AppliedSubstitution:
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
    return Substitutions(txn, txn.sql.fetch_rows(query, (segment, low, high)), until)


def substitutions_in(txn: ReadTxn, turns: Iterable[int], until: int | None = None) -> Substitutions:
    """Those of turns by their numbers."""
    return Substitutions(txn, rows_in(txn.sql, f"SELECT {_COLUMNS} FROM substitution WHERE turn IN", turns), until)


def shown_events(txn: ReadTxn, turn: int) -> dict[str, Event | UnknownEvent]:
    """By the id of each event of a turn that was substituted, the event that is shown in its place now."""
    query = f"SELECT {_COLUMNS} FROM substitution WHERE turn = ? ORDER BY n"
    last = {change.original: change for change in map(_to_change, txn.sql.fetch_rows(query, (turn,)))}
    shown = {change.original.hex(): change.replacement_n for change in last.values() if not change.is_undone}
    return {original: decoded(n, _event_line(txn, n)) for original, n in shown.items()}


def _event_line(txn: ReadTxn, n: int) -> bytes:
    line = txn.facts.line(n)
    if line is None:
        raise FactDamaged("event number", str(n), "the log has a hole there")
    return line


def change_to(txn: ReadTxn, replacement: str) -> SubstitutionRow | None:
    """The first substitution that put an event in the place of another one."""
    row = txn.sql.fetch_row(
        f"SELECT {_COLUMNS} FROM substitution WHERE replacement = ? AND original <> replacement ORDER BY n LIMIT 1",
        (bytes.fromhex(replacement),),
    )
    return None if row is None else _to_change(row)


def _to_change(row: Sequence[Any]) -> SubstitutionRow:
    turn, place, seq, n, original, original_n, replacement, replacement_n, actor, reason, at = row
    return SubstitutionRow(
        turn, place, seq, n, bytes(original), original_n, bytes(replacement), replacement_n, actor, reason, at
    )


# --- Messages, tool calls and turns made from their rows; and a turn as the messages a model is given.

T = TypeVar("T")
MESSAGE_COLUMNS = "m.id, m.role, m.seq, m.at, m.source, m.turn, c.ref, c.salt, c.bytes"
WITHHELD = "[withheld: the system prompt of an agent that is not yours to read]"
_JOINED = "JOIN message m ON m.turn = t.n LEFT JOIN content c ON c.n = m.text"
_FROM = f"FROM turn t {_JOINED} WHERE t.segment = ? AND t.depth BETWEEN ? AND ?"
_MAIN = "AND (m.list IS NULL OR m.list = 'main')"
_ORDER = "ORDER BY t.depth, m.seq"


class PlacedMessage(Struct, frozen=True):
    """A message and which event of its run brought it."""

    position: int
    message: Message


def messages_between(txn: ReadTxn, segment: int, low: int, high: int, until: int | None = None) -> list[Message]:
    """The messages of a range of one segment; with `until` as they were shown at that arrival number."""
    rows = txn.sql.fetch_rows(f"SELECT {MESSAGE_COLUMNS} {_FROM} {_ORDER}", (segment, low, high))
    return to_messages(txn, rows, substitutions_between(txn, segment, low, high, until))


def placed_messages(
    txn: ReadTxn,
    segment: int,
    depth: int,
    events: int | None = None,
    *,
    main_only: bool = False,
    until: int | None = None,
) -> list[PlacedMessage]:
    """One turn's messages with their positions; with `events` only what so many of its events brought, with `until` as
    they were shown at that arrival number."""
    which = _MAIN if main_only else ""
    rows = txn.sql.fetch_rows(f"SELECT m.position, {MESSAGE_COLUMNS} {_FROM} {which} {_ORDER}", (segment, depth, depth))
    rows = [row for row in rows if events is None or row[0] < events]
    messages = to_messages(txn, [row[1:] for row in rows], substitutions_between(txn, segment, depth, depth, until))
    return [PlacedMessage(row[0], message) for row, message in zip(rows, messages, strict=True)]


def to_messages(txn: ReadTxn, rows: Iterable[Sequence[Any]], substitutions: Substitutions) -> list[Message]:
    """Messages from rows of `MESSAGE_COLUMNS`. Most are one text and nothing more; those are made here, in one loop
    that the reading bar rests on."""
    made: list[Message] = []
    access = access_of(txn)
    for id, role, seq, at, source, turn, ref, salt, data in rows:
        if role == "system" and not access.may_read_prompt(turn):
            made.append(Message(id, role, (TextPart(WITHHELD),), seq, at, source))
            continue
        if data is None or (substitutions and substitutions.has_message(turn, seq)):
            made.append(_to_message(txn, turn, seq, substitutions))
            continue
        if sha256(CONTENT_DOMAIN + salt + data).digest() != ref:
            raise FactDamaged("content", ref.hex(), "its bytes do not hash to its reference")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = bytes_text(data)
        made.append(Message(id, role, (TextPart(text),), seq, at, source))
    return made


def _to_message(txn: ReadTxn, turn: int, seq: int, substitutions: Substitutions) -> Message:
    """A message with several parts, with a large text, with more beside it, or that was substituted."""
    row = txn.sql.fetch_row(f"{MESSAGE.select} WHERE turn = ? AND seq = ?", (turn, seq))
    assert row is not None, "it was read in this very snapshot"
    m = MessageRow(*row)
    substituted = substitutions.message(m) if substitutions else UNSET
    content: tuple[Part, ...]
    if m.text is not None:
        content = (TextPart(shown_text(txn.facts, m.text)),)
    else:
        content = tuple(to_part(txn, part) for part in list_in(m.parts))
    return Message(
        m.id, m.role, content, m.seq, m.at, m.source, m.parent,
        name_of(txn, m.model), json_of(txn, m.thinking_config), _injected_context(txn, m), json_of(txn, m.metadata),
        text_of(txn, m.native), substituted, name_of(txn, m.provider), name_of(txn, m.finish),
    )  # fmt: skip


def _injected_context(txn: ReadTxn, m: MessageRow) -> Any:
    """What was injected beside a message: one value, or one made of pieces."""
    if m.context != IN_PIECES:
        return json_of(txn, m.context)
    rows = txn.sql.fetch_rows(
        "SELECT name, listed, content FROM message_context WHERE message = ? ORDER BY idx", (m.id,)
    )
    made: dict[str, Any] = {}
    for name, listed, content in rows:
        key, value = name_of(txn, name) or "", json_of(txn, content)
        if listed:
            made.setdefault(key, []).append(value)
        else:
            made[key] = value
    return made


def in_their_thread(txn: ReadTxn, messages: Iterable[Message]) -> list[Message]:
    """The same messages, each with the one before it in its thread, where nothing else was recorded as its parent; and
    answers with the model that gave them."""
    placed = list(messages)
    opening = {m.turn_id for m in placed if m.parent_id is None and not m.sequence}
    before = _last_messages_before(txn, opening) if opening else {}
    answers = _answers_in(txn, {m.turn_id for m in placed if m.role == "assistant" and m.sequence >= 0})
    return [m if m.sequence < 0 else _in_its_thread(m, before, answers.get(m.id)) for m in placed]


def _in_its_thread(m: Message, before: dict[str, str], answer: tuple[str | None, ...] | None) -> Message:
    parent = m.parent_id
    if parent is None:
        parent = offset(m.id, -1) if m.sequence else before.get(m.turn_id)
    if answer is None:
        return m if parent == m.parent_id else replace(m, parent_id=parent)
    model, provider, finish = answer
    return replace(m, parent_id=parent, model=model, provider=provider, finish_reason=finish)


def _answers_in(txn: ReadTxn, turns: set[str]) -> dict[str, tuple[str | None, ...]]:
    """By message, the model, the provider and the finish reason of the answers of turns, where any is known."""
    rows = rows_in(
        txn.sql,
        "SELECT m.id, m.model, m.provider, m.finish FROM turn t JOIN message m ON m.turn = t.n"
        " WHERE m.role = 'assistant' AND coalesce(m.model, m.provider, m.finish) IS NOT NULL AND t.id IN",
        turns,
    )
    return {id: tuple(name_of(txn, name) for name in named) for id, *named in rows}


_PARENTS = (
    "SELECT t.id, p.id, p.messages, CASE WHEN s.base = t.depth THEN s.parent_events END, p.n FROM turn t"
    " JOIN turn p ON p.id = t.parent JOIN segment s ON s.n = t.segment WHERE t.id IN"
)


def _last_messages_before(txn: ReadTxn, turns: set[str]) -> dict[str, str]:
    """By turn, the last message of the thread that it goes on from; ancestors that say nothing are passed over."""
    last: dict[str, str] = {}
    waiting = {turn: {turn} for turn in turns}
    """By ancestor, the turns that ask for what comes before it."""
    while waiting:
        further: dict[str, set[str]] = {}
        for turn, parent, count, events, n in rows_in(txn.sql, _PARENTS, waiting):
            if events is not None:
                shown = txn.sql.fetch_row("SELECT count(*) FROM message WHERE turn = ? AND position < ?", (n, events))
                count = shown[0] if shown else 0
            if count:
                last |= dict.fromkeys(waiting[turn], offset(parent, count))
            else:
                further.setdefault(parent, set()).update(waiting[turn])
        waiting = further
    return last


def to_part(txn: ReadTxn, part: dict[str, Any]) -> Part:
    try:
        return _known_part(txn, part)
    except (KeyError, TypeError) as error:
        raise FactDamaged("message part", f"{quoted(part)}", f"it lacks {error}") from error


def _known_part(txn: ReadTxn, part: dict[str, Any]) -> Part:
    def text(field: str) -> str:
        return shown_text(txn.facts, part[field])

    match part["type"]:
        case "text":
            return TextPart(text("text"))
        case "reasoning":
            return ReasoningPart(text("text"))
        case "image_url":
            return ImagePart(text("url"), name_of(txn, part["detail"]) or UNSET if "detail" in part else UNSET)
        case "tool_use":
            return ToolUsePart(text("id"), name_of(txn, part["name"]) or "", json_of(txn, part["input"]))
        case "tool_result":
            failed = part.get("is_error", UNSET)
            return ToolResultPart(text("tool_call_id"), json_of(txn, part["output"]), failed)
    raise FactDamaged("message part", str(part["type"]), "no such type of part")


def calls_of(
    txn: ReadTxn, turn: TurnRow, events: int | None = None, *, until: int | None = None
) -> list[tuple[CallRow, ToolCall]]:
    """The turn's tool calls in order; those that its first `events` events left open appear as interrupted. With
    `until` their results as they were shown at that arrival number."""
    rows = [CallRow(*row) for row in txn.sql.fetch_rows(f"{CALL.select} WHERE turn = ? ORDER BY seq", (turn.n,))]
    substitutions = substitutions_in(txn, [turn.n], until) if rows else None
    shown = [row for row in rows if events is None or row.position < events]
    return [_shown_call(txn, turn, row, substitutions, events, None) for row in shown]


def _shown_call(
    txn: ReadTxn,
    turn: TurnRow,
    row: CallRow,
    substitutions: Substitutions | None,
    events: int | None,
    arrived: int | None,
) -> tuple[CallRow, ToolCall]:
    """A call with the result that it has for this reader, at this time."""
    substituted = substitutions.call(row) if substitutions else UNSET
    seen = _as_of(row, events, arrived)
    return seen, _to_call(txn, turn, seen, UNSET if seen.outcome == "interrupted" else substituted)


class WholeTurn(Struct, frozen=True):
    """One turn with all that was said and done in it."""

    turn: TurnRow
    messages: list[PlacedMessage]
    calls: list[tuple[CallRow, ToolCall]]


def read_leaves(
    txn: ReadTxn, turns: list[TurnRow], last_events: int | None, arrived: int | None, *, main_only: bool = True
) -> Iterator[WholeTurn]:
    """Consecutive turns of one segment with their main history, or with all of it: of the last one only what its first
    `last_events` events brought. A late result that had not come by arrival number `arrived` is left out."""
    if not turns:
        return
    span = (turns[0].segment, turns[0].depth, turns[-1].depth)
    which = _MAIN if main_only else ""
    rows = txn.sql.fetch_rows(f"SELECT m.position, {MESSAGE_COLUMNS} {_FROM} {which} {_ORDER}", span)
    calls = [
        CallRow(*row) for row in txn.sql.fetch_rows(f"{CALL.select} WHERE turn IN ({_SPAN}) ORDER BY turn, seq", span)
    ]
    substitutions = substitutions_between(txn, *span, arrived)
    txn.facts.hold(n for call in calls for n in (call.call_id, call.params, call.result, call.error) if n)
    messages_by = _by_turn(rows, lambda row: int(row[6]))
    calls_by = _by_turn(calls, lambda call: call.turn)
    for turn in turns:
        events = last_events if turn is turns[-1] else None
        shown = [row for row in messages_by.get(turn.n, ()) if events is None or row[0] < events]
        messages = to_messages(txn, [row[1:] for row in shown], substitutions)
        made = [call for call in calls_by.get(turn.n, ()) if events is None or call.position < events]
        yield WholeTurn(
            turn,
            [PlacedMessage(row[0], message) for row, message in zip(shown, messages, strict=True)],
            [_shown_call(txn, turn, call, substitutions, events, arrived) for call in made],
        )


def _by_turn(rows: Iterable[T], turn_of: Callable[[T], int]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for row in rows:
        found.setdefault(turn_of(row), []).append(row)
    return found


def _as_of(row: CallRow, events: int | None, arrived: int | None) -> CallRow:
    """A call as a fork point inside the turn, or an earlier time, sees it."""
    at = row.result_position
    cut_off = events is not None and (at is None or at < 0 or at >= events)
    if cut_off or (arrived is not None and at is not None and at < 0 and -at > arrived):
        row.result = row.error = row.error_code = row.completed_at = row.spawned = None
        row.outcome, row.status = "interrupted", "failed"
    return row


def _to_call(txn: ReadTxn, turn: TurnRow, row: CallRow, substituted: AppliedSubstitution | UnsetType) -> ToolCall:
    native = text_of(txn, row.call_id) or ""
    spawned = session_of_number(txn, row.spawned) if row.spawned else None
    return ToolCall(
        id=f"{turn.id}:{repeated_id(native, row.repeated)}",
        call_id=native,
        turn_id=turn.id,
        name=name_of(txn, row.tool) or "",
        arguments=json_of(txn, row.params),
        status=row.status,
        sequence=row.seq,
        started_at=row.started_at,
        correlation_id=row.correlation,
        result=json_of(txn, row.result),
        error=text_of(txn, row.error),
        error_code=error_code_of(txn, row.error_code),
        outcome=row.outcome,
        completed_at=row.completed_at,
        message_id=row.message,
        number=row.number,
        server=name_of(txn, row.server),
        spawned_session=spawned.label if spawned else None,
        metadata=json_of(txn, row.detail),
        substituted=substituted,
    )


def _tool_names(txn: ReadTxn, column: str) -> Iterator[str]:
    """Names in a list, or '#' and the number of a content that is one."""
    if column.startswith("#"):
        found = json_of(txn, number_in(column))
        return map(str, found if isinstance(found, list) else [found])
    return (name_of(txn, tool) or "" for tool in list_in(column))


def to_turn(txn: ReadTxn, row: TurnRow, store: Store | None = None) -> Turn:
    return to_turns(txn, [row], store)[0]


def to_turns(txn: ReadTxn, rows: Iterable[TurnRow], store: Store | None = None) -> list[Turn]:
    """Many at once: a few statements for hundreds of turns. With `store` they can be asked for what they hold."""
    kept = list(rows)
    txn.facts.hold(n for row in kept for n in _shown_contents(row) if n)
    made_by = {row.session for row in kept if row.session is not None}
    sessions: dict[int | None, str] = dict(rows_in(txn.sql, "SELECT n, id FROM session WHERE n IN", made_by))
    if not (access := access_of(txn)).is_unlimited:
        sessions = {n: id for n, id in sessions.items() if access.session_of_number(n) is not None}
    names = agent_names(txn.sql, (row.persona for row in kept))
    changed = substitutions_in(txn, (row.n for row in kept)).counts()
    turns = [
        _to_turn(txn, row, sessions.get(row.session), names[row.persona], changed.get(row.n, UNSET)) for row in kept
    ]
    if store is not None:
        contents = StoredTurns(store)
        for turn in turns:
            turn.__dict__[READ_FROM] = contents
    return turns


class StoredTurns:
    """What turns of a ledger hold, each read when it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def has_children(self, turn: str) -> bool:
        with self._store.read() as txn:
            return bool(txn.sql.fetch_rows(_CHILDREN, (self._row(txn, turn).n,)))

    def query_messages(self, turn: str) -> tuple[Message, ...]:
        """Messages of users and systems, and those of tools that come before the first answer and the first call."""
        with self._store.read() as txn:
            row = self._row(txn, turn)
            placed = placed_messages(txn, row.segment, row.depth)
            answers = [message.position for message in placed if message.message.role == "assistant"]
            calls = [int(position) for (position,) in txn.sql.fetch_rows(_CALL_POSITIONS, (row.n,))]
            first = min([*answers, *calls], default=row.events)
            asked = [
                message.message
                for message in placed
                if message.message.role in ("user", "system")
                or (message.message.role == "tool" and message.position < first)
            ]
            return tuple(in_their_thread(txn, asked))

    def response_message(self, turn: str) -> Message | None:
        with self._store.read() as txn:
            row = self._row(txn, turn)
            placed = placed_messages(txn, row.segment, row.depth)
            answers = [message.message for message in placed if message.message.id == row.response]
            return next(iter(in_their_thread(txn, answers)), None)

    def tool_calls(self, turn: str) -> tuple[ToolCall, ...]:
        with self._store.read() as txn:
            return tuple(call for _, call in calls_of(txn, self._row(txn, turn)))

    def _row(self, txn: ReadTxn, turn: str) -> TurnRow:
        row = load_turn(txn.sql, turn)
        if row is None:
            raise NotFound("turn", turn)
        access_of(txn).ensure_readable_turn(row, turn)
        return row


_CHILDREN = (
    "SELECT 1 FROM turn t WHERE t.n = ? AND (EXISTS (SELECT 1 FROM turn c WHERE c.segment = t.segment"
    " AND c.depth = t.depth + 1) OR EXISTS (SELECT 1 FROM segment s WHERE s.parent = t.segment"
    " AND s.parent_depth = t.depth))"
)
_CALL_POSITIONS = "SELECT position FROM tool_call WHERE turn = ?"


def _shown_contents(row: TurnRow) -> Iterator[int | None]:
    """The contents that a turn itself shows; long names are contents too."""
    yield from (row.permissions_granted, row.permissions_used, row.source_event, row.workspace, row.thinking_config)
    yield from (row.effective_config, row.error, row.native, row.git_branch, row.version, row.metadata)
    for name in (row.model, row.provider, row.provider_program, row.toolset, row.error_code):
        if name and name[0] == "#":
            yield number_in(name)


def _to_turn(txn: ReadTxn, row: TurnRow, session: str | None, persona: str, substitutions: int | UnsetType) -> Turn:
    tools = None if row.tools is None else tuple(_tool_names(txn, row.tools))
    counted = (*TOKENS, "total_tokens")
    usage = Usage(**{field: count for field in counted if (count := getattr(row, field)) is not None})
    return Turn(
        id=row.id,
        parent_id=row.parent,
        depth=row.depth,
        digest=row.digest,
        turn_type=row.type,
        status=row.status,
        started_at=row.started_at,
        completed_at=row.completed_at,
        role=row.role,
        persona_id=persona,
        session_id=session,
        model=name_of(txn, row.model),
        provider=name_of(txn, row.provider),
        provider_program=name_of(txn, row.provider_program),
        toolset_name=name_of(txn, row.toolset),
        tools_available=tools,
        permissions_granted=json_of(txn, row.permissions_granted),
        permissions_used=json_of(txn, row.permissions_used),
        usage=usage,
        response_message_id=row.response,
        message_count=row.messages,
        tool_call_count=row.calls,
        reason=row.reason,
        source_event_id=text_of(txn, row.source_event),
        workspace_path=text_of(txn, row.workspace),
        compaction_id=row.compaction,
        thinking_config=json_of(txn, row.thinking_config),
        effective_config=json_of(txn, row.effective_config),
        interruption_reason=row.interrupted,
        error=text_of(txn, row.error),
        error_code=error_code_of(txn, row.error_code),
        origin=row.origin,
        native_id=text_of(txn, row.native),
        git_branch=text_of(txn, row.git_branch),
        version=text_of(txn, row.version),
        metadata=json_of(txn, row.metadata),
        is_current=bool(row.current),
        time_known=not row.synthesised,
        substitutions=substitutions,
    )


def transcript_of(txn: ReadTxn, turn: TurnRow, events: int | None) -> list[Message]:
    """One turn as a model is told it: its messages, with each tool call as an assistant's use and a tool's result."""
    leaves = read_leaves(txn, [turn], events, None)
    return [message for leaf in leaves for message in transcript(leaf)]


def transcript(leaf: WholeTurn) -> Iterator[Message]:
    """A turn's messages with its tool calls in place, as an assistant's use and a tool's result."""
    messages, calls = leaf.messages, leaf.calls
    used, answered = _mentioned_calls(placed.message for placed in messages)
    waiting: list[ToolCall] = []
    items: list[tuple[int, Message | ToolCall]] = [(placed.position, placed.message) for placed in messages]
    items += [(row.position, call) for row, call in calls]
    for _, item in sorted(items, key=lambda pair: pair[0]):
        if isinstance(item, ToolCall):
            waiting.append(item)
            continue
        yield from call_messages(waiting, used, answered)
        waiting = []
        yield item
    yield from call_messages(waiting, used, answered)


def _mentioned_calls(messages: Iterable[Message]) -> tuple[set[str], set[str]]:
    parts = [part for message in messages for part in message.content]
    used = {part.id for part in parts if isinstance(part, ToolUsePart)}
    return used, {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}


def call_messages(calls: list[ToolCall], used: set[str], answered: set[str]) -> Iterator[Message]:
    """What stands for calls that the recorded messages do not spell out themselves; results in call order."""
    uses: tuple[Part, ...] = tuple(
        ToolUsePart(call.call_id, call.name, call.arguments) for call in calls if call.call_id not in used
    )
    results: tuple[Part, ...] = tuple(_result_part(call) for call in calls if call.call_id not in answered)
    if uses:
        yield Message(f"{calls[0].id}#use", "assistant", uses, -1, calls[0].started_at)
    if results:
        yield Message(f"{calls[0].id}#result", "tool", results, -1, calls[-1].completed_at or calls[-1].started_at)


def _result_part(call: ToolCall) -> ToolResultPart:
    if call.outcome in (None, "interrupted"):
        return ToolResultPart(call.call_id, "interrupted", True)
    if call.outcome == "ok":
        return ToolResultPart(call.call_id, call.result, UNSET)
    return ToolResultPart(call.call_id, call.error if call.result is None else call.result, True)


# --- Threads: a turn with all its ancestry, read as a few ranges of segments; and what relates two of them.

CHUNK = 512


class SegmentRange(Struct, frozen=True):
    """Turns of one segment, from `low` to `high`; of the last one only its first `events` events, if not null."""

    segment: int
    low: int
    high: int
    events: int | None


def ranges_to(
    sql: Sql, segment: int, depth: int, events: int | None = None, *, across: bool = False
) -> list[SegmentRange]:
    """The thread that ends at this turn, from its root on; `across` links to other chains, if wanted."""
    found: list[SegmentRange] = []
    while True:
        row = sql.fetch_row("SELECT base, parent, parent_depth, parent_events FROM segment WHERE n = ?", (segment,))
        if row is None:
            raise Damaged(f"segment {segment} is not among the views", Action.VERIFY_AND_REBUILD)
        base, parent, parent_depth, parent_events = row
        _ensure_ends(sql, segment, base, depth)
        found.append(SegmentRange(segment, base, depth, events))
        if parent is None:
            linked = _linked_parent(sql, segment, base) if across else None
            if linked is None or any(part.segment == linked[0] for part in found):
                return found[::-1]
            parent, parent_depth = linked
        elif parent >= segment:
            raise Damaged(f"segment {segment} leaves segment {parent}, which is younger", Action.VERIFY_AND_REBUILD)
        segment, depth, events = parent, parent_depth, parent_events


def _ensure_ends(sql: Sql, segment: int, low: int, high: int) -> None:
    """A long range is walked through chunk by chunk, so both its ends must be where they are said to be."""
    if len(range(low, high)) > CHUNK and not (has_turn_at(sql, segment, low) and has_turn_at(sql, segment, high - 1)):
        raise Damaged(f"segment {segment} does not reach from depth {low} to {high}", Action.VERIFY_AND_REBUILD)


def _linked_parent(sql: Sql, segment: int, depth: int) -> tuple[int, int] | None:
    """Where the thread goes on that an imported root was continued or forked from."""
    row = sql.fetch_row(
        "SELECT p.segment, p.depth FROM turn t JOIN link l ON l.child = t.id JOIN turn p ON p.id = l.parent"
        f" WHERE t.segment = ? AND t.depth = ? AND {GOES_ON} ORDER BY {WHERE_FIRST} LIMIT 1",
        (segment, depth),
    )
    return (row[0], row[1]) if row else None


def turns_in(sql: Sql, part: SegmentRange) -> Iterator[TurnRow]:
    for low in range(part.low, part.high + 1, CHUNK):
        high = min(low + CHUNK - 1, part.high)
        rows = sql.fetch_rows(
            f"{TURN.select} WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth", (part.segment, low, high)
        )
        yield from (TurnRow(*row) for row in rows)


def thread_turns_up(sql: Sql, end: Position, before: Position = (), *, chunk: int = CHUNK) -> Iterator[TurnRow]:
    """The turn at this end, a segment and a depth, and its ancestors, the last first; `before` is where the turn stands
    behind which the list goes on."""
    for part in _from_place(ranges_to(sql, end[0], end[1], across=True)[::-1], before):
        high = before[1] - 1 if before and part.segment == before[0] else part.high
        for top in range(high, part.low - 1, -chunk):
            yield from reversed(
                list(turns_in(sql, SegmentRange(part.segment, max(part.low, top - chunk + 1), top, None)))
            )


def thread_turns_down(sql: Sql, end: Position, before: Position = (), *, chunk: int = CHUNK) -> Iterator[TurnRow]:
    """The same turns, the root first."""
    for part in _from_place(ranges_to(sql, end[0], end[1], across=True), before):
        low = before[1] + 1 if before and part.segment == before[0] else part.low
        for bottom in range(low, part.high + 1, chunk):
            yield from turns_in(sql, SegmentRange(part.segment, bottom, min(bottom + chunk - 1, part.high), None))


def _from_place(parts: list[SegmentRange], place: Position) -> list[SegmentRange]:
    """The ranges from the one on that holds a place."""
    numbers = [part.segment for part in parts]
    if place and place[0] not in numbers:
        raise InvalidInput("the cursor belongs to another thread", "give one of the same thread")
    return parts[numbers.index(place[0]) :] if place else parts


_THREAD_KEY = (
    "SELECT k.key FROM session s JOIN thread_key k ON k.key = s.label || '#' || CAST(? AS TEXT)"
    " WHERE s.n = ? AND k.turn = ?"
)


class Thread:
    """A turn and all its ancestry. Turns and messages are read as they are asked for, 512 turns at a time."""

    def __init__(self, store: Store, row: TurnRow, events: int | None = None, name: str = "") -> None:
        self._store, self._row, self._events, self._name = store, row, events, name

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def turn_id(self) -> str:
        """The turn that it ends at, which is its id, too."""
        return self._row.id

    @property
    def depth(self) -> int:
        return self._row.depth

    @property
    def persona(self) -> str:
        """The agent that answered in its last turn."""
        with self._store.read() as txn:
            return agent_names(txn.sql, [self._row.persona])[self._row.persona]

    @property
    def system_prompt(self) -> str | None:
        """The system prompt that its last turn was recorded with, or that a turn before it was; None where none was."""
        with self._store.read() as txn:
            if self._row.system is not None and not access_of(txn).may_read_prompt(self._row.n):
                return WITHHELD
            return text_of(txn, self._row.system)

    @property
    def thread_key(self) -> str | None:
        """Its address, `LABEL#DEPTH` of the session that made its last turn; None where that names another turn."""
        with self._store.read() as txn:
            row = txn.sql.fetch_row(_THREAD_KEY, (self._row.depth, self._row.session, self._row.id))
            return None if row is None else str(row[0])

    @property
    def digest(self) -> str:
        """The id of the thread's last event, which commits to everything before it."""
        if self._events is None:
            return self._row.digest
        with self._store.read() as txn:
            return event_at(txn.facts, self._row, self._events - 1)

    @property
    def total_tokens(self) -> int:
        """The sum over its turns; of a turn that is shown in part, over the responses that are."""
        if self._events is None:
            return self._row.tokens_before + (self._row.total_tokens or 0)
        with self._store.read() as txn:
            shown = [found.event for found in islice(run_events(txn.facts, self._row), self._events)]
        counted = [event.usage for event in shown if isinstance(event, ModelResponse | RunFinished)]
        return self._row.tokens_before + sum(usage_total(usage) for usage in counted if usage is not UNSET)

    def _thread_ranges(self) -> list[SegmentRange]:
        with self._store.read() as txn:
            return ranges_to(txn.sql, self._row.segment, self._row.depth, self._events, across=True)

    @property
    def transcript(self) -> list[Message]:
        """Its last turn as a model is told it: each tool call is an assistant's use and a tool's result."""
        with self._store.read() as txn:
            return transcript_of(txn, self._row, self._events)

    @property
    def cuts(self) -> dict[str, str]:
        """Turns that the thread shows in part, by their ids, each with the last event of it that is shown."""
        found: dict[str, str] = {}
        for part in self._thread_ranges():
            if part.events is not None:
                with self._store.read() as txn:
                    (row,) = turns_in(txn.sql, SegmentRange(part.segment, part.high, part.high, part.events))
                    if part.events < row.events:
                        found[row.id] = event_at(txn.facts, row, part.events - 1)
        return found

    @property
    def turns(self) -> Iterator[Turn]:
        for part in self._thread_ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                chunk = SegmentRange(part.segment, low, min(low + CHUNK - 1, part.high), part.events)
                with self._store.read() as txn:
                    turns = to_turns(txn, turns_in(txn.sql, chunk), self._store)
                yield from turns

    def page(self, *, limit: int | None = None, after: str | None = None) -> Page[Turn]:
        """The same turns page by page. The first page decides where the thread ends: a session that moves meanwhile
        changes none of the pages behind it."""
        request = PageRequest("thread", self._store.replica, {"name": self._name}, limit, after)
        with self._store.read() as txn:
            start = request.begin(txn.facts.tip().n, 0)
            end = start.position[:2] or (self._row.segment, self._row.depth)
            rows = thread_turns_down(txn.sql, end, start.position[2:], chunk=request.rows_at_once)
            page = request.page(start, (((*end, row.segment, row.depth), row) for row in rows))
            return mapped(page, partial(to_turns, txn, store=self._store))

    @property
    def ancestry(self) -> Iterator[str]:
        """The turn ids from the root to this one."""
        for part in self._thread_ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                with self._store.read() as txn:
                    rows = txn.sql.fetch_rows(
                        "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? ORDER BY depth",
                        (part.segment, low, min(low + CHUNK - 1, part.high)),
                    )
                yield from (id for (id,) in rows)

    @property
    def messages(self) -> Iterator[Message]:
        for part in self._thread_ranges():
            for low in range(part.low, part.high + 1, CHUNK):
                high = min(low + CHUNK - 1, part.high)
                with self._store.read() as txn:
                    found = self._messages_in_range(txn, part, low, high)
                yield from found

    @staticmethod
    def _messages_in_range(txn: ReadTxn, part: SegmentRange, low: int, high: int) -> list[Message]:
        """A chunk of a range; its last turn may be shown in part only."""
        if part.events is None or high < part.high:
            return in_their_thread(txn, messages_between(txn, part.segment, low, high))
        cut = placed_messages(txn, part.segment, high, part.events)
        whole = messages_between(txn, part.segment, low, high - 1)
        return in_their_thread(txn, [*whole, *(placed.message for placed in cut)])


class ThreadDiff(Struct, frozen=True):
    """Two threads: what they share ends at `ancestor` (null: nothing), then each goes its own way."""

    ancestor: str | None
    left: tuple[Turn, ...]
    right: tuple[Turn, ...]


def common_depth(left: list[SegmentRange], right: list[SegmentRange]) -> tuple[int, int] | None:
    """(segment, depth) of the last turn that both threads contain; no scan, only the lists of ranges."""
    common = None
    for ours, theirs in zip(left, right, strict=False):
        if ours.segment != theirs.segment:
            break
        common = (ours.segment, min(ours.high, theirs.high))
        if ours.high != theirs.high:
            break
    return common


def beyond(sql: Sql, ranges: list[SegmentRange], depth: int) -> Iterator[TurnRow]:
    """The thread's turns deeper than `depth`."""
    for part in ranges:
        if part.high > depth:
            yield from turns_in(sql, SegmentRange(part.segment, max(part.low, depth + 1), part.high, part.events))


def diff(txn: ReadTxn, left: TurnRow, right: TurnRow) -> ThreadDiff:
    ours, theirs = (ranges_to(txn.sql, row.segment, row.depth) for row in (left, right))
    common = common_depth(ours, theirs)
    depth = common[1] if common else 0
    found = common and txn.sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
    return ThreadDiff(
        found[0] if found else None,
        tuple(to_turns(txn, beyond(txn.sql, ours, depth))),
        tuple(to_turns(txn, beyond(txn.sql, theirs, depth))),
    )


def children(sql: Sql, turn: TurnRow) -> list[TurnRow]:
    """In order of arrival."""
    rows = sql.fetch_rows(
        f"{TURN.select} WHERE segment = ? AND depth = ? UNION ALL SELECT {_turn_columns('c')} FROM segment s"
        " JOIN turn c ON c.segment = s.n AND c.depth = s.base WHERE s.parent = ? AND s.parent_depth = ? ORDER BY n",
        (turn.segment, turn.depth + 1, turn.segment, turn.depth),
    )
    return [TurnRow(*row) for row in rows]


def heads_without_children(sql: Sql) -> list[TurnRow]:
    """Turns that nobody has completed a child of: the tips of the tree, labelled or not."""
    rows = sql.fetch_rows(
        f"SELECT {_turn_columns('t')} FROM turn t WHERE t.current = 1 AND NOT EXISTS ("
        "SELECT 1 FROM turn c WHERE c.segment = t.segment AND c.depth = t.depth + 1 AND c.status = 'completed')"
        " AND NOT EXISTS (SELECT 1 FROM segment s"
        " JOIN turn c ON c.segment = s.n AND c.depth = s.base WHERE s.parent = t.segment"
        " AND s.parent_depth = t.depth AND c.status = 'completed') ORDER BY t.n"
    )
    return [TurnRow(*row) for row in rows]


def tree_rows(sql: Sql, turn: TurnRow) -> list[TurnRow]:
    """Every turn of the tree that this one belongs to, parents before children."""
    rows = sql.fetch_rows(
        f"SELECT {_turn_columns('t')} FROM segment s JOIN turn t ON t.segment = s.n"
        " WHERE s.root = (SELECT root FROM segment WHERE n = ?) ORDER BY t.n",
        (turn.segment,),
    )
    shown: set[str | None] = set()
    kept: list[TurnRow] = []
    for row in (TurnRow(*values) for values in reversed(rows)):
        if row.current or row.id in shown:
            shown.add(row.parent)
            kept.append(row)
    return kept[::-1]


def _turn_columns(alias: str) -> str:
    return ", ".join(f"{alias}.{column}" for column in TURN.record.__struct_fields__)
