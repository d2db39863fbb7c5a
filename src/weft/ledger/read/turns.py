"""Messages, tool calls and turns made from their rows; and a turn as the messages a model is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.contents import CONTENT_DOMAIN, bytes_text
from weft.kernel.errors import FactDamaged
from weft.kernel.fields import Usage
from weft.kernel.weft_error import quoted
from weft.ledger.model import (
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
from weft.ledger.read.access import access_of, session_of_number
from weft.ledger.read.sessions import agent_names
from weft.ledger.read.substitutions import Substitutions, substitutions_between, substitutions_in
from weft.ledger.views.rows import CALL, MESSAGE, TOKENS, CallRow, MessageRow, TurnRow
from weft.ledger.views.sightings import IN_PIECES
from weft.ledger.views.values import error_code_of, json_of, list_in, name_of, number_in, shown_text, text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

T = TypeVar("T")
MESSAGE_COLUMNS = "m.id, m.role, m.seq, m.at, m.source, m.turn, c.ref, c.salt, c.bytes"
WITHHELD = "[withheld: the system prompt of an agent that is not yours to read]"
_JOINED = "JOIN message m ON m.turn = t.n LEFT JOIN content c ON c.n = m.text"
_FROM = f"FROM turn t {_JOINED} WHERE t.segment = ? AND t.depth BETWEEN ? AND ?"
_SPAN = "SELECT n FROM turn WHERE segment = ? AND depth BETWEEN ? AND ?"
_MAIN = "AND (m.list IS NULL OR m.list = 'main')"
_ORDER = "ORDER BY t.depth, m.seq"


class Placed(Struct, frozen=True):
    """A message and which event of its run brought it."""

    position: int
    message: Message


def messages_between(txn: ReadTxn, segment: int, low: int, high: int, until: int | None = None) -> list[Message]:
    """The messages of a range of one segment; with `until` as they were shown at that arrival number."""
    rows = txn.sql.all(f"SELECT {MESSAGE_COLUMNS} {_FROM} {_ORDER}", (segment, low, high))
    return to_messages(txn, rows, substitutions_between(txn, segment, low, high, until))


def placed_messages(
    txn: ReadTxn,
    segment: int,
    depth: int,
    events: int | None = None,
    *,
    main_only: bool = False,
    until: int | None = None,
) -> list[Placed]:
    """One turn's messages with their positions; with `events` only what so many of its events brought, with `until` as
    they were shown at that arrival number."""
    which = _MAIN if main_only else ""
    rows = txn.sql.all(f"SELECT m.position, {MESSAGE_COLUMNS} {_FROM} {which} {_ORDER}", (segment, depth, depth))
    rows = [row for row in rows if events is None or row[0] < events]
    messages = to_messages(txn, [row[1:] for row in rows], substitutions_between(txn, segment, depth, depth, until))
    return [Placed(row[0], message) for row, message in zip(rows, messages, strict=True)]


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
    row = txn.sql.one(f"{MESSAGE.select} WHERE turn = ? AND seq = ?", (turn, seq))
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
        name_of(txn, m.model), json_of(txn, m.thinking_config), _context(txn, m), json_of(txn, m.metadata),
        text_of(txn, m.native), substituted,
    )  # fmt: skip


def _context(txn: ReadTxn, m: MessageRow) -> Any:
    """What was injected beside a message: one value, or one made of pieces."""
    if m.context != IN_PIECES:
        return json_of(txn, m.context)
    rows = txn.sql.all("SELECT name, listed, content FROM message_context WHERE message = ? ORDER BY idx", (m.id,))
    made: dict[str, Any] = {}
    for name, listed, content in rows:
        key, value = name_of(txn, name) or "", json_of(txn, content)
        if listed:
            made.setdefault(key, []).append(value)
        else:
            made[key] = value
    return made


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
    rows = [CallRow(*row) for row in txn.sql.all(f"{CALL.select} WHERE turn = ? ORDER BY seq", (turn.n,))]
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


class Leaf(Struct, frozen=True):
    """One turn with all that was said and done in it."""

    turn: TurnRow
    messages: list[Placed]
    calls: list[tuple[CallRow, ToolCall]]


def read_leaves(
    txn: ReadTxn, turns: list[TurnRow], last_events: int | None, arrived: int | None, *, main_only: bool = True
) -> Iterator[Leaf]:
    """Consecutive turns of one segment with their main history, or with all of it: of the last one only what its first
    `last_events` events brought. A late result that had not come by arrival number `arrived` is left out."""
    if not turns:
        return
    span = (turns[0].segment, turns[0].depth, turns[-1].depth)
    which = _MAIN if main_only else ""
    rows = txn.sql.all(f"SELECT m.position, {MESSAGE_COLUMNS} {_FROM} {which} {_ORDER}", span)
    calls = [CallRow(*row) for row in txn.sql.all(f"{CALL.select} WHERE turn IN ({_SPAN}) ORDER BY turn, seq", span)]
    substitutions = substitutions_between(txn, *span, arrived)
    txn.facts.hold(n for call in calls for n in (call.call_id, call.params, call.result, call.error) if n)
    messages_by = _by_turn(rows, lambda row: int(row[6]))
    calls_by = _by_turn(calls, lambda call: call.turn)
    for turn in turns:
        events = last_events if turn is turns[-1] else None
        shown = [row for row in messages_by.get(turn.n, ()) if events is None or row[0] < events]
        messages = to_messages(txn, [row[1:] for row in shown], substitutions)
        made = [call for call in calls_by.get(turn.n, ()) if events is None or call.position < events]
        yield Leaf(
            turn,
            [Placed(row[0], message) for row, message in zip(shown, messages, strict=True)],
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


def _tools(txn: ReadTxn, column: str) -> Iterator[str]:
    """Names in a list, or '#' and the number of a content that is one."""
    if column.startswith("#"):
        found = json_of(txn, number_in(column))
        return map(str, found if isinstance(found, list) else [found])
    return (name_of(txn, tool) or "" for tool in list_in(column))


def to_turn(txn: ReadTxn, row: TurnRow) -> Turn:
    return to_turns(txn, [row])[0]


def to_turns(txn: ReadTxn, rows: Iterable[TurnRow]) -> list[Turn]:
    """Many at once: a few statements for hundreds of turns."""
    kept = list(rows)
    txn.facts.hold(n for row in kept for n in _contents(row) if n)
    made_by = {row.session for row in kept if row.session is not None}
    sessions: dict[int | None, str] = dict(rows_in(txn.sql, "SELECT n, id FROM session WHERE n IN", made_by))
    if not (access := access_of(txn)).is_unlimited:
        sessions = {n: id for n, id in sessions.items() if access.session_of_number(n) is not None}
    names = agent_names(txn.sql, (row.persona for row in kept))
    changed = substitutions_in(txn, (row.n for row in kept)).counts()
    return [
        _to_turn(txn, row, sessions.get(row.session), names[row.persona], changed.get(row.n, UNSET)) for row in kept
    ]


def _contents(row: TurnRow) -> Iterator[int | None]:
    """The contents that a turn itself shows; long names are contents too."""
    yield from (row.permissions_granted, row.permissions_used, row.source_event, row.workspace, row.thinking_config)
    yield from (row.effective_config, row.error, row.native, row.git_branch, row.version, row.metadata)
    for name in (row.model, row.provider, row.toolset, row.error_code):
        if name and name[0] == "#":
            yield number_in(name)


def _to_turn(txn: ReadTxn, row: TurnRow, session: str | None, persona: str, substitutions: int | UnsetType) -> Turn:
    tools = None if row.tools is None else tuple(_tools(txn, row.tools))
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


def transcript(leaf: Leaf) -> Iterator[Message]:
    """A turn's messages with its tool calls in place, as an assistant's use and a tool's result."""
    messages, calls = leaf.messages, leaf.calls
    used, answered = _mentioned(placed.message for placed in messages)
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


def _mentioned(messages: Iterable[Message]) -> tuple[set[str], set[str]]:
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
