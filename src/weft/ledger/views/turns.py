"""What a run's events mean for turns, messages, tool calls and compactions; messages and
results that are shown as another event tells them; and code blocks, a lagging view.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

import orjson
from msgspec import UNSET, UnsetType

from weft.kernel import events as dag
from weft.kernel import ledger_events as own
from weft.kernel.clock import offset
from weft.kernel.enums import CallState, MessageSource, RunExit, TurnStatus
from weft.kernel.errors import ContentMissing
from weft.kernel.events import (
    Event,
    FileFact,
    HistoryAppend,
    ImageFact,
    LintFact,
    MessageFact,
    ModelResponse,
    Named,
    PartFact,
    ReasoningFact,
    TextFact,
    ToolResultFact,
    ToolUseFact,
    UnknownEvent,
    Words,
    is_name,
)
from weft.ledger.model import Codeblock
from weft.ledger.views.inboxes import (
    PARKED,
    add_answer,
    close_approvals,
    end_call,
    forget_awaited,
    settle_messages,
    take_message,
    unpark,
)
from weft.ledger.views.projector import OTHERS, RUN, EventMoment, Projector, begins, handles, plain
from weft.ledger.views.rows import (
    FILES,
    LINTS,
    CallRow,
    MessageRow,
    StoredEvent,
    TurnRow,
    added,
    decoded,
    fields_of,
    number_in,
    place_of_event,
    position_in_run,
    recorded,
    shown_text,
)
from weft.ledger.views.sessions import begin_import, end_import, link_result, link_waiting
from weft.store.fact_log import ErasedContents, FactReader
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql, rows_in

# --- What a run's events mean for turns, messages, tool calls and compactions.

ROWS_PER_EVENT = 65536
STRANGERS = frozenset({MessageSource.AGENT, MessageSource.WEBHOOK, MessageSource.EVENT})
"""Who may send a turn words that no person here vouches for."""
PENDING, STREAMING = TurnStatus.PENDING.value, TurnStatus.STREAMING.value
RUNNING, COMPLETED, FAILED = CallState.RUNNING.value, CallState.COMPLETED.value, CallState.FAILED.value


@begins(dag.RunStarted, "run:")
def _run_started(view: Projector, moment: EventMoment, event: dag.RunStarted) -> None:
    turn = event.stream[4:]
    parent = None if event.fork is UNSET else view.turn(event.fork.turn)
    root, segment, depth = _segment_place(view, parent, event)
    view.add_turn(
        TurnRow(
            n=moment.n,
            segment=segment,
            depth=depth,
            id=turn,
            root=root,
            parent=parent.id if parent else None,
            session=None if event.session is UNSET else view.session_number(event.session),
            persona=event.actor,
            type=event.turn_type,
            status=PENDING,
            started_at=moment.when,
            completed_at=None,
            model=None,
            provider=None,
            role=event.role,
            toolset=view.name(event.toolset),
            tools=tool_names(view, event.tools),
            permissions_granted=view.number(event.permissions_granted),
            permissions_used=None,
            input_tokens=None,
            output_tokens=None,
            cached_input_tokens=None,
            cache_write_tokens=None,
            reasoning_tokens=None,
            total_tokens=None,
            tokens_before=added(parent.tokens_before, parent.total_tokens) if parent else 0,
            response=None,
            messages=0,
            calls=0,
            events=1,
            last_event=moment.event_id,
            reason=None if event.reason is UNSET else event.reason,
            source_event=None if event.source_event is UNSET else view.lookup_number(event.source_event),
            workspace=view.number(event.workspace),
            compaction=None if event.compaction is UNSET else event.compaction,
            thinking_config=view.number(event.thinking_config),
            effective_config=view.number(event.effective_config),
            system=parent.system if parent else None,
            interrupted=None,
            error=None,
            error_code=None,
            origin=None if event.origin is UNSET else event.origin,
        )
    )
    row = view.new_turns[-1]
    row.untrusted = 1 if event.origin is not UNSET else parent.untrusted if parent else None
    row.listed_at = max(moment.when, parent.listed_at) if parent else moment.when
    if parent is None or parent.persona != row.persona:
        view.note_persona(row.persona)
    if event.source is not UNSET:
        begin_import(view, row, event, parent)


def _segment_place(view: Projector, parent: TurnRow | None, event: dag.RunStarted) -> tuple[int, int, int]:
    """The parent's segment goes on if this is its first child and grows from its very end; else a new one begins."""
    if parent is None or event.fork is UNSET:
        n = _next_segment(view)
        view.sql.run("INSERT INTO segment(n, root, base) VALUES (?, ?, 1)", (n, n))
        return n, n, 1
    depth = parent.depth + 1
    whole = parent.closed and bytes.fromhex(event.fork.event) == parent.last_event
    if whole and view.ends_segment(parent):
        return parent.root, parent.segment, depth
    shown = None if whole else position_in_run(view.facts, parent, event.fork.event) + 1
    n = _next_segment(view)
    view.sql.run(
        "INSERT INTO segment(n, root, base, parent, parent_depth, parent_events) VALUES (?, ?, ?, ?, ?, ?)",
        (n, parent.root, depth, parent.segment, parent.depth, shown),
    )
    return parent.root, n, depth


def _next_segment(view: Projector) -> int:
    (highest,) = view.sql.fetch_row("SELECT max(n) FROM segment") or (0,)
    return (highest or 0) + 1


def tool_names(view: Projector, tools: tuple[Named, ...] | UnsetType) -> str | None:
    return None if tools is UNSET else orjson.dumps([view.name(tool) for tool in tools]).decode()


@handles(dag.ModelRequest, RUN)
def _model_request(view: Projector, moment: EventMoment, event: dag.ModelRequest) -> None:
    row: TurnRow = moment.row
    model = view.name(event.model)
    vendor, program = _vendor_and_program(view, row, event)
    if vendor is not None or program is not None or model != row.model:
        row.provider, row.provider_program = vendor, program
    row.model = model
    if row.status == PENDING:
        row.status = STREAMING


VENDORS = ("anthropic", "openai", "google", "local")
"""Names that a provider's program has only where it is the vendor's own. Also known to schema step 25."""


def _vendor_and_program(view: Projector, row: TurnRow, event: dag.ModelRequest) -> tuple[str | None, str | None]:
    """The vendor, and the provider's program. Requests of turns that a broker configured name the program; those of
    earlier versions tell the vendor only where the program has its name. Others name the vendor."""
    name = view.name(event.provider)
    if event.vendor is not UNSET:
        return view.name(event.vendor), name
    if name is None or row.origin is not None or row.effective_config is None:
        return name, None
    return (name if name in VENDORS else None), name


@handles(dag.ModelResponse, RUN)
def _model_response(view: Projector, moment: EventMoment, event: dag.ModelResponse) -> None:
    row: TurnRow = moment.row
    if event.output is not UNSET:
        _add_message(view, moment, event.output, None)
        answer = view.messages[-1]
        answer.model, answer.finish = view.name(event.model) or answer.model, view.name(event.finish_reason)
        row.response = event.output.id
        if event.usage is not UNSET:
            view.messages[-1].set_tokens(event.usage)
        if event.output.source in STRANGERS:
            row.untrusted = 1
    row.model = view.name(event.model) or row.model
    if event.usage is not UNSET:
        row.add_tokens(event.usage)


@handles(UnknownEvent, RUN)
def _count_unknown(view: Projector, moment: EventMoment, event: UnknownEvent) -> None:
    """A message of a later form cannot be shown, but it has its number: those after it count on."""
    row: TurnRow = moment.row
    expected = offset(row.id, row.messages + 1)
    if any(isinstance(value, dict) and value.get("id") == expected for value in event.fields.values()):
        row.messages += 1


@handles(dag.HistoryAppend, RUN)
def _history_append(view: Projector, moment: EventMoment, event: dag.HistoryAppend) -> None:
    row: TurnRow = moment.row
    message = event.message
    if message.role == "system" and row.messages == 0:
        texts = (part.text for part in message.parts if isinstance(part, TextFact))
        row.system = view.number(next(texts, UNSET))
    _add_message(view, moment, message, view.name(event.list))
    if message.role == "assistant":
        row.response = message.id
    if message.source in STRANGERS or event.untrusted is True:
        row.untrusted = 1
    if event.admitted is not UNSET:
        take_message(view, moment, event, event.admitted)


def _add_message(view: Projector, moment: EventMoment, message: MessageFact, listed: str | None) -> None:
    row: TurnRow = moment.row
    text, shaped, thinking = word_columns(view.contents, message, is_plain=is_plain(message))
    asked = asked_model(row) if message.role == "assistant" else (None, None)
    view.messages.append(
        MessageRow(
            turn=row.n,
            seq=row.messages,
            id=message.id,
            role=message.role,
            source=None if message.source is UNSET else message.source,
            at=moment.when,
            position=row.events,
            text=text,
            parts=shaped,
            list=listed,
            parent=None if message.parent is UNSET else message.parent,
            model=view.name(message.model) or asked[0],
            thinking=thinking,
            thinking_config=view.number(message.thinking_config),
            context=view.number(message.context),
            metadata=view.number(message.metadata),
            native=view.number(message.native),
            provider=asked[1],
        )
    )
    row.messages += 1
    if message.files is not UNSET or message.lints is not UNSET:
        add_annotations(view, moment.n, 0, message.id, message.files or (), message.lints or ())


UNNAMED_MODEL = "unknown"


def asked_model(row: TurnRow) -> tuple[str | None, str | None]:
    """The model that a turn has asked last, and its vendor: who gave an answer that names nobody itself."""
    return (None if row.model == UNNAMED_MODEL else row.model), row.provider


def is_plain(message: MessageFact) -> bool:
    """Nothing beside its role, source and parts; such messages are read in one go."""
    unset = UNSET
    return (
        message.model is unset
        and message.parent is unset
        and message.thinking_config is unset
        and message.context is unset
        and message.metadata is unset
        and message.native is unset
    )


def word_columns(
    contents: ContentNumbers, message: MessageFact, *, is_plain: bool
) -> tuple[int | None, str | None, int | None]:
    """What a message says, in columns: its text where it is one and nothing is beside it, else its parts; and its
    thinking."""
    parts = message.parts
    if is_plain and len(parts) == 1 and isinstance(only := parts[0], TextFact):
        return contents.number(only.text), None, None
    thinking = next((contents.number(part.text) for part in parts if isinstance(part, ReasoningFact)), None)
    return None, orjson.dumps([part_columns(contents, part) for part in parts]).decode(), thinking


class ContentNumbers(Protocol):
    """Where the numbers of contents are found."""

    def number(self, ref: str) -> int: ...


def part_columns(contents: ContentNumbers, part: PartFact) -> dict[str, Any]:
    """A part as it lies in the `parts` column: its shape, with content numbers in place of strings."""
    number = contents.number
    match part:
        case TextFact():
            return {"type": "text", "text": number(part.text)}
        case ReasoningFact():
            return {"type": "reasoning", "text": number(part.text)}
        case ImageFact():
            detail = part.detail
            shown = {} if detail is UNSET else {"detail": _name_or_number(contents, detail)}
            return {"type": "image_url", "url": number(part.url), **shown}
        case ToolUseFact():
            name = _name_or_number(contents, part.name)
            return {"type": "tool_use", "id": number(part.id), "name": name, "input": number(part.input)}
        case ToolResultFact():
            failed = {} if part.is_error is UNSET else {"is_error": part.is_error}
            output = number(part.output)
            return {"type": "tool_result", "tool_call_id": number(part.tool_call_id), "output": output, **failed}


def _name_or_number(contents: ContentNumbers, value: Named) -> str:
    return f"#{contents.number(value.content)}" if isinstance(value, Words) else value


def add_annotations(
    view: Projector, n: int, first: int, message: str, files: Sequence[FileFact], lints: Sequence[LintFact]
) -> None:
    """Files and lints of a message, told by event `n`, of which they are the `first` and following notes."""
    found: dict[tuple[str, int, int | None], tuple[Any, ...]] = {}
    for idx, file in enumerate(files, first):
        path, start, end = view.lookup_number(file.path), plain(file.line_start), plain(file.line_end)
        noted = (n * ROWS_PER_EVENT + idx, message, file.kind, path, start, end)
        found.setdefault((file.kind, path, start), noted)
    if found:
        view.sql.add(FILES, list(found.values()))
    if lints:
        view.sql.add(
            LINTS, [_lint_row(view, n * ROWS_PER_EVENT + i, message, each) for i, each in enumerate(lints, first)]
        )


def _lint_row(view: Projector, id: int, message: str, lint: LintFact) -> tuple[Any, ...]:
    return (
        id,
        message,
        view.number(lint.path),
        view.number(lint.message),
        view.name(lint.source),
        plain(lint.start_line),
        plain(lint.start_col),
        plain(lint.end_line),
        plain(lint.end_col),
        plain(lint.severity),
    )


@handles(dag.ToolCallRequested, RUN)
def _tool_call(view: Projector, moment: EventMoment, event: dag.ToolCallRequested) -> None:
    row: TurnRow = moment.row
    call_id = view.contents.number(event.call_id)
    view.add_call(
        CallRow(
            turn=row.n,
            seq=row.calls,
            event=moment.event_id,
            position=row.events,
            call_id=call_id,
            repeated=_repeat_count(view, row, call_id),
            message=None if event.message is UNSET else event.message,
            tool=view.name(event.tool) or "",
            number=None if event.number is UNSET else event.number,
            server=view.name(event.server),
            params=view.contents.number(event.args),
            result=None,
            error=None,
            error_code=None,
            status=RUNNING,
            outcome=None,
            spawned=None,
            started_at=moment.when,
            completed_at=None,
            result_position=None,
            correlation=event.correlation_id,
        )
    )
    row.calls += 1
    if not view.is_childless(row):
        link_waiting(view, row, view.new_calls[-1:])


def _repeat_count(view: Projector, turn: TurnRow, call_id: int) -> int:
    """How many earlier calls of this turn carry the same call id; providers repeat them."""
    place, fresh = (turn.n, call_id), view.new_calls[-turn.calls :] if turn.calls else []
    if not turn.calls or (fresh and (fresh[0].turn, fresh[0].seq) == (turn.n, 0)):
        return view.repeats[place]
    stored = view.sql.fetch_row("SELECT count(*) FROM tool_call WHERE turn = ? AND call_id = ?", place)
    return (stored[0] if stored else 0) + view.repeats[place]


def _may_end_late(view: Projector, moment: EventMoment, turn: TurnRow, event: dag.ToolResult) -> bool:
    line = view.facts.line(turn.n)
    return line is None or view.may_change(moment, event, (turn.n, fields_of(turn.n, line).get("replica")))


def is_cut_short(turn: TurnRow, call: CallRow) -> bool:
    """Whether a call ended because whoever performed it was stopped: what it gave may still come."""
    return call.outcome == "interrupted" or (turn.interrupted is not None and call.outcome in ("canceled", "timeout"))


@handles(dag.ToolResult, RUN, OTHERS)
def _tool_result(view: Projector, moment: EventMoment, event: dag.ToolResult) -> None:
    """A result that came after its turn had ended lies in the ledger's stream and never changes the turn's digest.
    Another ledger gives none for a call of a turn that was made here."""
    late = moment.row is None
    turn: TurnRow = place_of_event(view.sql, view.facts, event.call.event_id)[0] if late else moment.row
    if late and turn.native is None and not _may_end_late(view, moment, turn, event):
        return
    call = view.call(turn, bytes.fromhex(event.call.event_id))
    if late and call is not None and is_cut_short(turn, call):
        call.outcome = None
    if call is None or call.outcome is not None:
        return
    call.outcome = event.status
    call.status = COMPLETED if event.status == "ok" else FAILED
    call.result = view.number(event.shown_result)
    if event.error is not UNSET:
        call.error, call.error_code = view.number(event.shown_error), view.name(event.error.code)
    if event.spawned is not UNSET:
        link_result(view, turn, call, event.spawned, event.replica)
    if turn.inbox is not None or event.awaited is not UNSET:
        end_call(view, moment, turn, event)
    call.completed_at = moment.when
    call.result_position = -moment.n if late else turn.events
    if event.untrusted is True:
        turn.untrusted = 1
        if late:
            distrust(view, turn)
    if call.message is not None and (event.files is not UNSET or event.lints is not UNSET):
        add_annotations(view, moment.n, 0, call.message, event.files or (), event.lints or ())
    if turn.inbox is not None and event.error is not UNSET:
        close_approvals(view, turn.id, event.call.event_id)
    if turn.inbox == PARKED:
        unpark(view, turn)


def distrust(view: Projector, turn: TurnRow) -> None:
    """Mark a turn that ended, and those that follow it: they began before the words came, and theirs will follow."""
    view.flush(keep=True)
    rows = view.sql.fetch_rows(
        "WITH RECURSIVE below(segment, depth) AS ("
        "SELECT CAST(? AS bigint), CAST(? AS bigint) UNION ALL SELECT s.n, s.base FROM below b"
        " JOIN segment s ON s.parent = b.segment AND s.parent_depth >= b.depth"
        ") SELECT t.id FROM below b CROSS JOIN turn t"  # in this order: by the place of a turn
        " WHERE t.segment = b.segment AND t.depth >= b.depth AND t.untrusted IS NULL",
        (turn.segment, turn.depth),
    )
    for (id,) in rows:
        row = view.changed_turns[id] = view.turn(id)
        row.untrusted = 1


@handles(dag.Interruption, RUN)
def _apply_interruption(view: Projector, moment: EventMoment, event: dag.Interruption) -> None:
    """Cuts the turn short, unless it says that the turn goes on, or names requests alone, which are asked again where
    the turn is ours. A parked turn can go on, to its end."""
    row: TurnRow = moment.row
    calls = [view.call(row, bytes.fromhex(affected.event_id)) for affected in event.affects]
    if calls and not any(calls) and row.origin is None:
        return
    if event.goes_on is not True:
        row.interrupted = event.reason
    for call in calls:
        if call is not None and call.outcome is None:
            call.outcome, call.status = "interrupted", FAILED
            call.completed_at = moment.when
    if row.inbox == PARKED:
        unpark(view, row)


@handles(dag.RunFinished, RUN)
def _run_finished(view: Projector, moment: EventMoment, event: dag.RunFinished) -> None:
    row: TurnRow = moment.row
    row.status = COMPLETED if event.exit == RunExit.SUCCESS else FAILED
    row.completed_at = moment.when
    if event.response is not UNSET:
        row.response = event.response
    if event.error is not UNSET:
        row.error, row.error_code = view.contents.number(event.error.message), view.name(event.error.code)
    row.permissions_used = view.number(event.permissions_used)
    if event.usage is not UNSET:
        row.add_tokens(event.usage)
    if row.native is not None:
        end_import(view, moment, row)
    if row.inbox is not None:
        settle_messages(view, moment, row)
        close_approvals(view, row.id)
        add_answer(view, moment, row, event)
        if row.calls:
            forget_awaited(view, row)


@handles(own.CompactionRecorded, RUN)
def _compaction_recorded(view: Projector, moment: EventMoment, event: own.CompactionRecorded) -> None:
    """A turn has one; another one changes nothing."""
    row: TurnRow = moment.row
    if view.sql.fetch_row("SELECT 1 FROM compaction WHERE turn = ?", (row.id,)) is not None:
        return
    view.sql.run(
        "INSERT INTO compaction(turn, segment, depth, summary, through, first_kept, turns_summarized, type, model,"
        " provider, tokens_before, tokens_after, summary_tokens, summarization_input_tokens,"
        ' summarization_output_tokens, duration_ms, "trigger", metadata)'
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.segment,
            row.depth,
            view.contents.number(event.summary),
            event.summarized_through,
            plain(event.first_kept),
            plain(event.turns_summarized),
            event.compaction_type,
            view.name(event.model),
            view.name(event.provider),
            plain(event.tokens_before),
            plain(event.tokens_after),
            plain(event.summary_tokens),
            plain(event.summarization_input_tokens),
            plain(event.summarization_output_tokens),
            plain(event.duration_ms),
            plain(event.trigger),
            view.number(event.metadata),
        ),
    )
    row.model, row.provider = view.name(event.model), view.name(event.provider)


# --- What substitutions mean: a message or the result of a tool is shown as another event tells it.

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
def _apply_substitution(view: Projector, moment: EventMoment, event: dag.Substitution) -> None:
    if not event.stream.startswith("ledger:"):
        return
    original = _event_by_id(view, event.original_event.event_id)
    replacement = _event_by_id(view, event.replacement_event.event_id)
    if original is None or replacement is None or type(original.event) is not type(replacement.event):
        return
    if not _substitution_counts(view, moment, event, original, replacement):
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


def _substitution_counts(
    view: Projector, moment: EventMoment, event: dag.Substitution, original: StoredEvent, replacement: StoredEvent
) -> bool:
    """What this ledger substituted; and what another one did with words of its own for words of its own."""
    replica = plain(event.replica)
    if view.own_events.has(moment.n, replica):
        return True
    authors = {plain(one.event.replica) for one in (original, replacement) if isinstance(one.event, Event)}
    return replica is not None and authors == {replica}


def _event_by_id(view: Projector, id: str) -> StoredEvent | None:
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
    called = _event_by_id(view, original.event.call.event_id)
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


# --- Code blocks of assistant messages: a lagging view, read out of the text unless the recorder named them.

VIEW = "codeblock"
BATCH = 512
LIGHT = 1024 * 1024
_FENCE = re.compile(
    r"^(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)\n(?P<code>.*?)(?:^(?P=fence)[`~]*+[ \t]*+$|\Z)", re.M | re.S
)
_INSERT = (
    "INSERT INTO codeblock(id, message, idx, language, content, start, length, path, line_start, line_end)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (message, idx) DO NOTHING"
)
Row = tuple[object, ...]


def catch_up(store: Store) -> None:
    store.catch_up_if_far_behind()
    while _is_behind(store) and store.write(advance):
        pass


def catch_up_lightly(store: Store, seconds: float, now: Callable[[], float]) -> None:
    """For so long at most, and only up to the first text that is too large to be read out in passing."""
    until = now() + seconds
    store.catch_up_if_far_behind()
    while _is_behind(store) and store.write(partial(advance, most=LIGHT)) and now() < until:
        pass


def _is_behind(store: Store) -> bool:
    """Whoever has nothing to add takes no lock."""
    if store.read_only:
        return False
    with store.read() as txn:
        return txn.facts.watermark(VIEW) < txn.facts.tip().n


def advance(txn: WriteTxn, most: int | None = None) -> bool:
    """One batch from the watermark on; True when there is more of what was there. It ends before a text of more than
    `most` bytes."""
    mark = txn.facts.watermark(VIEW)
    rows = txn.facts.log(mark, BATCH)
    if not rows:
        return False
    end = rows[-1].n if most is None else _end_of_light(txn.facts, mark, rows[-1].n, most)
    fill(txn.sql, txn.facts, mark, end)
    return end == rows[-1].n and len(rows) == BATCH


def _end_of_light(facts: FactReader, after: int, until: int, most: int) -> int:
    """The event before the first one whose message is heavier than that."""
    for n, line in facts.lines(after, until):
        message = _message_in(n, line)
        texts = [part.text for part in message.parts if isinstance(part, TextFact)] if message else []
        if sum(facts.content_size(_content_number(facts, text)) for text in texts) > most:
            return n - 1
    return until


def fill(sql: Sql, facts: FactReader, after: int, until: int) -> None:
    """The blocks of all events in (after, until], and the mark that says so."""
    made = [row for n, line in facts.lines(after, until) for row in _code_blocks(facts, n, line)]
    sql.run_many(_INSERT, made)
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, until)
    )


def load(txn: ReadTxn, message: str) -> list[Codeblock]:
    """A message's blocks, exact: from the view, or from the newest events where the view lags behind. Of one that was
    substituted, those of the message that is shown in its place."""
    facts, message = txn.facts, _shown_message(txn, message)
    rows = txn.sql.fetch_rows(
        "SELECT language, content, start, length, path, line_start, line_end FROM codeblock"
        " WHERE message = ? ORDER BY idx",
        (message,),
    )
    for n, line in facts.lines(facts.watermark(VIEW)):
        if message.encode() in line:
            rows += [row[3:] for row in _code_blocks(facts, n, line) if row[1] == message]
    return [_to_block(facts, *row) for row in rows]


def _shown_message(txn: ReadTxn, message: str) -> str:
    turn = txn.sql.fetch_row(
        "SELECT n FROM turn WHERE id < ? ORDER BY id DESC LIMIT 1", (message,)
    )  # its id lies behind it
    place = turn and txn.sql.fetch_row("SELECT turn, seq FROM message WHERE turn = ? AND id = ?", (*turn, message))
    query = "SELECT n, replacement_n FROM substitution WHERE turn = ? AND place = 'message' AND seq = ?"
    rows = [] if place is None else txn.sql.fetch_rows(query, place)
    replacement = max(rows)[1] if rows else None
    line = None if replacement is None else txn.facts.line(replacement)
    shown = None if replacement is None or line is None else _message_in(replacement, line)
    return message if shown is None else shown.id


def _to_block(
    facts: FactReader,
    language: str | None,
    content: int,
    start: int | None,
    length: int | None,
    path: int | None,
    line_start: int | None,
    line_end: int | None,
) -> Codeblock:
    text = _shown_or_empty(facts, content)
    return Codeblock(
        content=text if start is None or length is None else text[start : start + length],
        language=_shown_or_empty(facts, number_in(language)) if language and language[0] == "#" else language,
        path=None if path is None else _shown_or_empty(facts, path),
        line_start=line_start,
        line_end=line_end,
    )


def _message_in(n: int, line: bytes) -> MessageFact | None:
    """The assistant's message that an event brings, if it does."""
    if b'"assistant"' not in line:
        return None
    event = decoded(n, line)
    message: MessageFact | UnsetType = UNSET
    if isinstance(event, HistoryAppend):
        message = event.message
    elif isinstance(event, ModelResponse):
        message = event.output
    return message if message is not UNSET and message.role == "assistant" else None


def _code_blocks(facts: FactReader, n: int, line: bytes) -> Iterator[Row]:
    message = _message_in(n, line)
    if message is not None:
        found = _named_blocks(facts, message) if message.codeblocks is not UNSET else _derived_blocks(facts, message)
        for idx, (language, content, *rest) in enumerate(islice(found, ROWS_PER_EVENT - 1)):
            yield (n * ROWS_PER_EVENT + idx, message.id, idx, language, content, *rest)


def _named_blocks(facts: FactReader, message: MessageFact) -> Iterator[Row]:
    for block in message.codeblocks or ():
        path = None if block.path is UNSET else _content_number(facts, block.path)
        start = None if block.line_start is UNSET else block.line_start
        end = None if block.line_end is UNSET else block.line_end
        language = block.language
        shown = f"#{_content_number(facts, language.content)}" if isinstance(language, Words) else language or None
        yield shown, _content_number(facts, block.content), None, None, path, start, end


def _derived_blocks(facts: FactReader, message: MessageFact) -> Iterator[Row]:
    for part in message.parts:
        if isinstance(part, TextFact):
            number = _content_number(facts, part.text)
            for match in _FENCE.finditer(_text_or_empty(facts, number)):
                start, end = match.span("code")
                language = match["info"].split(" ")[0]
                yield language if is_name(language) else None, number, start, end - start, None, None, None


def _content_number(facts: FactReader, ref: str) -> int:
    return facts.find_content(bytes.fromhex(ref)) or 0


def _text_or_empty(facts: FactReader, number: int) -> str:
    """What blocks are read out of."""
    try:
        return facts.text(number) or ""
    except ContentMissing:
        return ""


def _shown_or_empty(facts: FactReader, number: int) -> str:
    try:
        return shown_text(facts, number) if number else ""
    except ContentMissing:
        return ""


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Blocks that were read out of texts that are erased now, with the languages that stood there."""
    query = "SELECT DISTINCT id FROM codeblock WHERE start IS NOT NULL AND content IN"
    for n in sorted({id // ROWS_PER_EVENT for (id,) in rows_in(txn.sql, query, forgotten.contents)}):
        low = n * ROWS_PER_EVENT
        txn.sql.run("DELETE FROM codeblock WHERE id BETWEEN ? AND ?", (low, low + ROWS_PER_EVENT - 1))
        txn.sql.run_many(_INSERT, list(_code_blocks(txn.facts, n, txn.facts.line(n) or b"")))
