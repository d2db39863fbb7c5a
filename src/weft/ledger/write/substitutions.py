"""Substitutions: a message, a model's answer or the result of a tool is shown as another event tells it.

What was recorded stays, and so does the digest of its turn: the replacement and the event that puts it in its place lie
in the ledger's own stream. Whoever reads later is shown the replacement; the original can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.clock import is_ulid
from weft.kernel.dag_events import HistoryAppend, ModelResponse, Substitution, ToolResult
from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.facts import is_digest
from weft.kernel.fields import (
    EventRef,
    MessageFact,
    PartFact,
    ReasoningFact,
    TextFact,
    ToolResultFact,
)
from weft.ledger.arguments import checked_text
from weft.ledger.model import AppliedSubstitution, Part, StoredContent
from weft.ledger.read.access import READ_SESSION, access_of
from weft.ledger.read.request_inputs import find_message
from weft.ledger.read.revisions import Revision
from weft.ledger.read.substitutions import change_to, substitutions_in
from weft.ledger.read.turns import calls_of, placed_messages
from weft.ledger.search.vectors import forget_turns
from weft.ledger.views.recorded_events import StoredEvent, event_at, place_of_event, recorded, run_events
from weft.ledger.views.rows import CALL, CallRow, TurnRow, load_turn
from weft.ledger.views.substitutions import message_of
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn

RIGHT = "turn:record"
LEAST_DIGITS = 7
WHICH = "a message, a model's answer or a tool's result can be substituted"
NAMES = "name an event by the beginning of its id, a message or a tool call by its id, or a turn for its answer"
Resolve = Callable[[ReadTxn, str], Revision]


class Place(Struct, frozen=True):
    """An event in whose place another one can be shown, and the turn that it belongs to."""

    event: StoredEvent
    turn: TurnRow


def substitute(
    writer: LedgerWriter,
    event: str,
    replacement: str | None,
    words: Any,
    reason: str | None,
) -> str:
    """Show an event, by its id, as another one of these ids tells it, or with these words. Returns the id of what is
    shown now."""

    def work(append: Append) -> str:
        reading = ReadTxn(append.sql, append.txn.facts)
        place = _place(reading, event)
        _ensure_changeable(append, place)
        shown = _existing(append, place, replacement) if replacement is not None else _new(append, place, words)
        why = UNSET if reason is None else append.put_text(reason, "reason")
        for original, instead in ((place.event.id, shown), *_spelled_out(append, place, shown)):
            append.ledger_stream().add(
                Substitution,
                original_event=EventRef(original),
                replacement_event=EventRef(instead),
                reason=why,
            )
        append.seal()
        if append.sql.one("SELECT 1 FROM vector LIMIT 1") is not None:
            forget_turns(append.sql, [place.turn.id])
        return shown

    return writer.write(work)


def find_event(txn: ReadTxn, name: str, resolve: Resolve) -> str:
    """The id of the event that a name means: its own id or the beginning of it, a message's id, a tool call's, which
    stands for its result, or a turn's, which stands for its answer. Of what was put in the place of another event, that
    one is meant."""
    text = checked_text(name, "event").strip()
    id = _message_event(txn, text) or _result_event(txn, text) or _by_digits(txn, text)
    id = id or _answer_event(txn, resolve(txn, text))
    if id is None:
        raise NotFound("event", name, NAMES)
    place = _place(txn, id)
    change = None if place.event.event.stream.startswith("run:") else change_to(txn, id)
    return _result_in(txn, place) or id if change is None else change.original.hex()


def find_replacement(txn: ReadTxn, name: str, original: str, resolve: Resolve) -> str:
    """The id of an event that is to be shown in the place of another: named like it, but one that once stood in its
    place is meant itself."""
    text = checked_text(name, "event").strip()
    digits = _by_digits(txn, text)
    return digits if digits is not None and digits != original else find_event(txn, name, resolve)


def last_substitution(txn: ReadTxn, event: str) -> AppliedSubstitution:
    """What is noted of an event that was substituted; of one that is shown again, that it is."""
    return substitutions_in(txn, [_place(txn, event).turn.n]).last_note(event)


def _message_event(txn: ReadTxn, name: str) -> str | None:
    message = find_message(txn, name.upper()) if is_ulid(name.upper()) else None
    turn = None if message is None else load_turn(txn.sql, message.turn_id)
    if message is None or turn is None or not access_of(txn).may_read_turn(turn):
        return None
    position = next(
        placed.position for placed in placed_messages(txn, turn.segment, turn.depth) if placed.message.id == message.id
    )
    return event_at(txn.facts, turn, position)


def _answer_event(txn: ReadTxn, spot: Revision) -> str | None:
    if spot.events is not None or spot.turn.response is None:
        return None
    return _message_event(txn, spot.turn.response)


def _result_event(txn: ReadTxn, name: str) -> str | None:
    """By the id of a tool call: that of its turn, a colon, and its own."""
    turn_id, mark, _ = name.partition(":")
    turn = load_turn(txn.sql, turn_id.upper()) if mark and is_ulid(turn_id.upper()) else None
    if turn is None or not access_of(txn).may_read_turn(turn):
        return None
    row = next((row for row, call in calls_of(txn, turn) if call.id == f"{turn.id}:{name.partition(':')[2]}"), None)
    if row is None:
        return None
    if row.result_position is None:
        raise NotApplicable(f"tool call {name!r} has no result", "record the result that came late")
    if row.result_position < 0:
        return txn.facts.event_id(-row.result_position).hex()
    return event_at(txn.facts, turn, row.result_position)


def _result_in(txn: ReadTxn, place: Place) -> str | None:
    """The result that a message tells and nothing else, where it was recorded by itself, too."""
    message = message_of(place.event.event)
    if message is None or len(message.parts) != 1 or not isinstance(only := message.parts[0], ToolResultFact):
        return None
    for each in run_events(txn.facts, place.turn):
        if isinstance(each.event, ToolResult) and each.event.call_id == only.tool_call_id:
            return each.id
    return None


def _by_digits(txn: ReadTxn, name: str) -> str | None:
    digits = name.lower()
    even = digits[: len(digits) // 2 * 2]
    if len(digits) < LEAST_DIGITS or len(digits) > 64 or not is_digest(digits.ljust(64, "0")):
        return None
    found = [id for _, id in txn.facts.find_events(bytes.fromhex(even), digits[len(even) :])]
    readable = [id for id in found if _is_readable(txn, id)]
    if len(readable) > 1:
        raise AmbiguousName(name, readable)
    return readable[0] if readable else None


def _is_readable(txn: ReadTxn, event: str) -> bool:
    access = access_of(txn)
    if access.is_unlimited:
        return True
    try:
        return access.may_read_turn(_place(txn, event).turn)
    except (NotFound, NotApplicable):
        return False


def _place(txn: ReadTxn, id: str) -> Place:
    """The turn of an event that can be substituted; a late result belongs to that of its call."""
    n = txn.facts.find_event(bytes.fromhex(id)) if is_digest(id) else None
    line = None if n is None else txn.facts.line(n)
    if n is None or line is None:
        raise NotFound("event", id, NAMES)
    event = recorded(n, line)
    message_or_result = event.event
    if message_of(message_or_result) is None and not isinstance(message_or_result, ToolResult):
        kind = getattr(message_or_result, "kind", message_or_result.__struct_config__.tag)
        raise NotApplicable(f"event {id[:12]} is a {kind}", WHICH)
    if message_or_result.stream.startswith("run:"):
        turn = load_turn(txn.sql, message_or_result.stream[4:])
    elif isinstance(message_or_result, ToolResult):
        turn = place_of_event(txn.sql, txn.facts, message_or_result.call.event_id)[0]
    elif (change := change_to(txn, id)) is not None:
        turn = _place(txn, change.original.hex()).turn
    else:
        turn = None
    if turn is None:
        raise NotFound("turn of event", id)
    return Place(event, turn)


def _ensure_changeable(append: Append, place: Place) -> None:
    turn, event = place.turn, place.event
    append.access.ensure_turn(RIGHT, turn, turn.id)
    _ensure_readable(append, place)
    if not turn.closed:
        raise NotApplicable(f"turn {turn.id} is still {turn.status}", "wait until it has ended")
    if isinstance(event.event, ToolResult):
        call = _call_of(append, turn, event.event)
        is_late = not event.event.stream.startswith("run:")
        if call.result_position is None or is_late != (call.result_position < 0):
            raise NotApplicable(
                f"event {event.id[:12]} is not the result that its call ended with", "name the one that is shown"
            )
        if call.outcome == ToolCallStatus.INTERRUPTED:
            raise NotApplicable(f"tool call {call.seq + 1} of turn {turn.id} was interrupted", "record its late result")


def _ensure_readable(append: Append, place: Place) -> None:
    turn, message = place.turn, message_of(place.event.event)
    append.access.ensure_readable_turn(turn, turn.id)
    if message is not None and message.role == MessageRole.SYSTEM and not append.access.may_read_prompt(turn.n):
        raise append.refusal(READ_SESSION, "read the system prompt of an agent that is not yours")


def _call_of(append: Append, turn: TurnRow, result: ToolResult) -> CallRow:
    event = bytes.fromhex(result.call.event_id)
    row = append.sql.one(f"{CALL.select} WHERE turn = ? AND event = ?", (turn.n, event))
    if row is None:
        raise NotFound("tool call", result.call.event_id)
    return CallRow(*row)


def _existing(append: Append, place: Place, replacement: str) -> str:
    """An event that was recorded before, of the same kind."""
    reading = ReadTxn(append.sql, append.txn.facts)
    other = place if replacement == place.event.id else _replacement_place(append, reading, place, replacement)
    _ensure_readable(append, other)
    if type(other.event.event) is not type(place.event.event) or _role(other) != _role(place):
        raise NotApplicable(
            f"event {replacement[:12]} is of another kind than {place.event.id[:12]}",
            "a message is substituted by a message of the same role, an answer by an answer, a result by a result",
        )
    if other is place and not substitutions_in(reading, [place.turn.n]).of_event(place.event.id):
        raise NotApplicable(f"event {place.event.id[:12]} is shown as it was recorded", "there is nothing to undo")
    return replacement


def _replacement_place(append: Append, reading: ReadTxn, place: Place, replacement: str) -> Place:
    """What another ledger recorded to be shown there, and nobody here has taken over, belongs to no turn yet: whoever
    may read the whole ledger takes it over for this one."""
    try:
        return _place(reading, replacement)
    except NotFound:
        n = reading.facts.find_event(bytes.fromhex(replacement)) if is_digest(replacement) else None
        line = None if n is None else reading.facts.line(n)
        if n is None or line is None or not append.access.is_unlimited:
            raise
        return Place(recorded(n, line), place.turn)


def _role(place: Place) -> str | None:
    message = message_of(place.event.event)
    return None if message is None else message.role


def _spelled_out(append: Append, place: Place, shown: str) -> Iterator[tuple[str, str]]:
    """Messages of the turn that spell the result of a tool out: they are shown with the other result, too."""
    result = place.event.event
    if not isinstance(result, ToolResult):
        return
    facts = append.txn.facts
    instead = _place(ReadTxn(append.sql, facts), shown).event.event
    assert isinstance(instead, ToolResult), "it is of the same kind"
    output = instead.result if instead.error is UNSET else instead.error.message
    for each in list(run_events(facts, place.turn)):
        message = message_of(each.event)
        parts = () if message is None else message.parts
        if not any(isinstance(part, ToolResultFact) and part.tool_call_id == result.call_id for part in parts):
            continue
        if shown == place.event.id:
            yield each.id, each.id
        elif output is not UNSET:
            changed_parts = tuple(_with_output(part, result.call_id, output) for part in parts)
            yield each.id, _add_message(append, each.event, changed_parts)


def _with_output(part: PartFact, call_id: str, output: str) -> PartFact:
    if not isinstance(part, ToolResultFact) or part.tool_call_id != call_id:
        return part
    return ToolResultFact(tool_call_id=call_id, output=output)


def _new(append: Append, place: Place, words: Any) -> str:
    """An event of the same kind with other words, in the ledger's own stream. It is there before it is named."""
    original, message = place.event.event, message_of(place.event.event)
    events = TurnEvents(append, place.turn.id, actor=place.turn.persona, scope=place.turn.root)
    if message is not None:
        return _add_message(append, original, _parts(events, message, words))
    assert isinstance(original, ToolResult), "there is nothing else that words can stand in for"
    id = append.ledger_stream().add(
        ToolResult,
        call=original.call,
        call_id=original.call_id,
        status=ToolCallStatus.OK,
        correlation_id=original.correlation_id,
        result=events.contents.put_json(words, "result"),
        untrusted=append.is_by_agent or UNSET,
    )
    append.seal()
    return id


def _add_message(append: Append, original: Event | UnknownEvent, parts: tuple[PartFact, ...]) -> str:
    """An event like the original with other parts; there before anything names it."""
    was = message_of(original)
    assert was is not None, "it brought a message"
    source = append.message_source(None if was.source is UNSET else was.source)
    fact = MessageFact(id=append.ulids.mint(), role=was.role, parts=parts, source=source or UNSET)
    stream = append.ledger_stream()
    if isinstance(original, ModelResponse):
        id = stream.add(ModelResponse, correlation_id=original.correlation_id, output=fact)
    else:
        assert isinstance(original, HistoryAppend), "messages come in these two"
        id = stream.add(HistoryAppend, list=original.list, message=fact, untrusted=append.is_by_agent or UNSET)
    append.seal()
    return id


def _parts(events: TurnEvents, was: MessageFact, words: Any) -> tuple[PartFact, ...]:
    if isinstance(words, tuple | list):
        if not words or not all(isinstance(part, Part) for part in words):
            raise InvalidInput(
                "the words are a list of something else than parts", "give a text, or parts of a message"
            )
        return events.parts(tuple(words))
    if not isinstance(words, str | StoredContent):
        raise InvalidInput(f"the words are {type(words).__name__}, not text", "give a text, or parts of a message")
    if len(was.parts) == 1 and isinstance(only := was.parts[0], ToolResultFact):
        return (_with_output(only, only.tool_call_id, events.contents.put_json(words, "output")),)
    kept = [part for part in was.parts if not isinstance(part, TextFact | ReasoningFact)]
    return (*events.parts(words), *kept)
