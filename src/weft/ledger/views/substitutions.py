"""What substitutions mean: a message or the result of a tool is shown as another event tells it.

The row of the message or of the call has what is shown now. `substitution` has every change, so that what was shown
before can be told of any moment. A ledger speaks for what it wrote itself: what another one substituted counts for its
own events, and changes nothing of what was written here or by a third.
"""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel import dag_events as dag
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import MessageFact
from weft.ledger.views.projector import OTHERS, Moment, Projector, handles, plain
from weft.ledger.views.recorded_events import StoredEvent, recorded
from weft.ledger.views.rows import CallRow, MessageRow, TurnRow
from weft.ledger.views.runs import COMPLETED, FAILED, STRANGERS, ContentNumbers, distrust, is_plain, word_columns

MESSAGE, CALL = "message", "call"


def message_of(event: Event | UnknownEvent) -> MessageFact | None:
    """The message that an event brought into a turn, if it did."""
    if isinstance(event, dag.HistoryAppend):
        return event.message
    if isinstance(event, dag.ModelResponse) and event.output is not UNSET:
        return event.output
    return None


def show_message(contents: ContentNumbers, row: MessageRow, message: MessageFact, *, is_original: bool) -> None:
    """Have a row say what a message says. Of one that was recorded elsewhere only the words are taken, and they lie in
    `parts`: so whoever reads plain texts in one go need not ask whether they are original."""
    plainly = is_original and is_plain(message)
    row.text, row.parts, row.thinking = word_columns(contents, message, is_plain=plainly)
    row.source = plain(message.source)


def show_result(contents: ContentNumbers, row: CallRow, event: dag.ToolResult) -> None:
    """Have the row of a call say what a result says."""
    row.outcome, row.status = event.status, COMPLETED if event.status == "ok" else FAILED
    result, message = event.shown_result, event.shown_error
    row.result = None if result is UNSET else contents.number(result)
    row.error = row.error_code = None
    if event.error is not UNSET and message is not UNSET:
        code = event.error.code
        row.error = contents.number(message)
        row.error_code = code if isinstance(code, str) else f"#{contents.number(code.content)}"


@handles(dag.Substitution, OTHERS)
def _substitution(view: Projector, moment: Moment, event: dag.Substitution) -> None:
    if not event.stream.startswith("ledger:"):
        return
    original = _event(view, event.original_event.event_id)
    replacement = _event(view, event.replacement_event.event_id)
    if original is None or replacement is None or type(original.event) is not type(replacement.event):
        return
    if not _counts(view, moment, event, original, replacement):
        return
    if isinstance(original.event, dag.ToolResult):
        place = _substitute_result(view, original, replacement)
    else:
        place = _substitute_message(view, original, replacement)
    if place is None:
        return
    turn, kind, seq = place
    if _is_strangers(replacement.event):
        turn.untrusted = 1
        distrust(view, turn)
    view.sql.run(
        "INSERT INTO substitution(original, n, turn, place, seq, original_n, replacement, replacement_n, actor, reason,"
        ' "at") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
        (
            bytes.fromhex(original.id),
            moment.n,
            turn.n,
            kind,
            seq,
            original.n,
            bytes.fromhex(replacement.id),
            replacement.n,
            event.actor,
            view.number(event.reason),
            moment.when,
        ),
    )


def _counts(
    view: Projector, moment: Moment, event: dag.Substitution, original: StoredEvent, replacement: StoredEvent
) -> bool:
    """What this ledger substituted; and what another one did with words of its own for words of its own."""
    replica = plain(event.replica)
    if view.own_events.has(moment.n, replica):
        return True
    authors = {plain(one.event.replica) for one in (original, replacement) if isinstance(one.event, Event)}
    return replica is not None and authors == {replica}


def _event(view: Projector, id: str) -> StoredEvent | None:
    n = view.facts.find_event(bytes.fromhex(id))
    line = None if n is None else view.facts.line(n)
    return None if n is None or line is None else recorded(n, line)


def _substitute_message(
    view: Projector, original: StoredEvent, replacement: StoredEvent
) -> tuple[TurnRow, str, int] | None:
    was, shown = message_of(original.event), message_of(replacement.event)
    stream, _, name = original.event.stream.partition(":")
    turn = view.find_turn(name) if stream == "run" else None
    if was is None or shown is None or turn is None:
        return None
    row = next((row for row in view.messages_of(turn) if row.id == was.id), None)
    if row is None:
        return None
    show_message(view.contents, row, shown, is_original=original.id == replacement.id)
    return turn, MESSAGE, row.seq


def _substitute_result(
    view: Projector, original: StoredEvent, replacement: StoredEvent
) -> tuple[TurnRow, str, int] | None:
    """Of the result that its call ended with: others were never shown."""
    assert isinstance(original.event, dag.ToolResult)
    assert isinstance(replacement.event, dag.ToolResult)
    called = _event(view, original.event.call.event_id)
    stream, _, name = ("", "", "") if called is None else called.event.stream.partition(":")
    turn = view.find_turn(name) if stream == "run" else None
    call = None if called is None or turn is None else view.call(turn, bytes.fromhex(called.id))
    if turn is None or call is None or call.result_position is None:
        return None
    is_late = not original.event.stream.startswith("run:")
    if is_late != (call.result_position < 0) or (is_late and call.result_position != -original.n):
        return None
    show_result(view.contents, call, replacement.event)
    return turn, CALL, call.seq


def _is_strangers(event: Event | UnknownEvent) -> bool:
    message = message_of(event)
    return getattr(event, "untrusted", UNSET) is True or (message is not None and message.source in STRANGERS)
