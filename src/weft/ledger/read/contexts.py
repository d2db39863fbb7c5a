"""What an agent saw at a turn, or would see at the next one: what a model was sent, as
references to what is recorded and as messages again; what a request was cut by; and who vouches for
each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice, pairwise
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.enums import LinkReason, MessageRole, MessageSource, ProgramKind, TurnType
from weft.kernel.errors import NotFound, Unsupported
from weft.kernel.events import (
    Event,
    EventRef,
    HistoryAppend,
    ModelRequest,
    ModelResponse,
    Named,
    RequestInput,
    ToolCallRequested,
    ToolResult,
    UnknownEvent,
    Words,
    event_id,
)
from weft.ledger.model import (
    COMPACTION_MEASURES,
    PROMPT_SEQUENCE,
    Compaction,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
)
from weft.ledger.read.access import access_of, as_shown, is_private, prompt_of, session_owner
from weft.ledger.read.context_columns import TurnMemory, split_system, spoken_turns
from weft.ledger.read.turns import (
    WITHHELD,
    SegmentRange,
    SubstitutionRow,
    call_messages,
    calls_of,
    change_to,
    messages_between,
    placed_messages,
    ranges_to,
    transcript_of,
    turns_in,
)
from weft.ledger.views.rows import (
    SessionRow,
    StoredEvent,
    TurnRow,
    is_message,
    json_of,
    load_program,
    load_turn,
    load_turn_number,
    name_of,
    place_of_event,
    recorded,
    run_events,
    shown_text,
    stream_of,
    text_of,
)
from weft.ledger.views.turns import MESSAGE
from weft.store.port import ReadTxn
from weft.store.replicas import is_written_here

# --- What a model was sent, as references to what is recorded; and those references as messages again.

Ref = str | EventRef
LOOK_BACK, MOST_TURNS = 32, 255
"""In so many ancestors a request is looked for that a new one can build on; so many turns are read at a time."""


# --- from messages to references --------------------------------------------------------------------------------


def input_of(txn: ReadTxn, turn: str, request: str | None, messages: Sequence[Message]) -> RequestInput | UnsetType:
    """What a request of this turn is sent; `request` is its last one before. Where a message has no fact of its own, as
    the end of a call that was never told, nothing is said: a list that is not quite what was sent would be no record.
    """
    refs = refs_of(txn, messages)
    if refs is None or list(map(_sent_words, messages_named(txn, refs))) != list(map(_sent_words, messages)):
        return UNSET
    return InputChain(_chain_before(txn, turn, request), refs).input()


def standing_input(txn: ReadTxn, turn: str) -> RequestInput | UnsetType:
    """What a request of an open turn is sent that does not say so itself: the turn's context and all that the turn has
    said and done so far; after another request of the turn what that was sent, and what came since."""
    row = _turn_row(txn, turn)
    transcript = transcript_of(txn, row, None)
    events = list(run_events(txn.facts, row))
    asked = [i for i, recorded_event in enumerate(events) if isinstance(recorded_event.event, ModelRequest)]
    chain = last_chain(txn, turn) if asked else None
    if chain is None:
        return input_of(txn, turn, None, _assembled(txn, row, transcript, None).messages)
    refs = refs_of(txn, transcript)
    if refs is None:
        return UNSET
    since = set(_entries_of(events[asked[-1] :]))
    return chain.input([ref for ref in refs if ref in since])


def _entries_of(events: Iterable[StoredEvent]) -> Iterator[Ref]:
    """What requests name of a turn's events."""
    for stored in events:
        match stored.event:
            case HistoryAppend():
                yield stored.event.message.id
            case ModelResponse() if stored.event.output is not UNSET:
                yield stored.event.output.id
            case ToolCallRequested() | ToolResult():
                yield EventRef(stored.id)


def _sent_words(message: Message) -> tuple[str, tuple[Part, ...]]:
    """What a model is sent of a message."""
    return message.role, message.content


def _base_and_keep(chain: Sequence[InputStep], shared: int, length: int) -> tuple[str | None, int]:
    """Which request of a chain, the newest first, a list of so many entries builds on, and how many of that request's
    entries it begins with; `shared` of them are those that the newest was sent."""
    keep = shared
    for step in chain:
        if min(keep, step.end) - step.begin > length - keep:
            return step.request, min(keep, step.end)
        keep = min(keep, step.begin)
    return None, keep


def _common_length(known: list[Ref], refs: list[Ref]) -> int:
    """With how many entries both begin. Whole lists are compared first: mostly the second extends the first."""
    length = min(len(known), len(refs))
    if known[:length] == refs[:length]:
        return length
    return next(i for i, (one, other) in enumerate(zip(known, refs, strict=False)) if one != other)


class InputChain:
    """What the requests of a thread were sent, kept in memory: the next one is named without reading them again. It
    belongs to one thread and grows at its end, by what is new: the entries before are neither copied nor compared."""

    def __init__(self, steps: Sequence[InputStep], refs: Sequence[Ref]) -> None:
        self._steps = [InputStep(step.request, step.refs, step.begin, step.end) for step in steps]
        """The requests so far, the newest first."""
        self._refs = list(refs)
        """The entries that the next request is sent, as far as they are known."""
        self._shared = _common_length(_joined_refs(self._steps), self._refs)
        """With so many entries of the newest request they begin."""

    @property
    def refs(self) -> Sequence[Ref]:
        return self._refs

    def input(self, more: Sequence[Ref] = (), first: Sequence[Ref] = ()) -> RequestInput:
        """What names the known entries, some before and some after them."""
        if first:
            return InputChain(self._steps, [*first, *self._refs, *more]).input()
        base, keep = _base_and_keep(self._steps, self._shared, len(self._refs) + len(more))
        return RequestInput(base=base, keep=keep, then=(*self._refs[keep:], *more))

    def add_request(self, request: str, input: RequestInput) -> None:
        """A request was recorded with this input: the next one is sent the same, and more."""
        steps = self._steps
        while steps and steps[0].request != input.base:
            steps.pop(0)
        own = InputStep(request, input.then, input.keep, input.keep + len(input.then))
        for step in steps:
            if step.end <= own.begin:  # those before it end where it begins, or earlier
                break
            step.end, step.begin = own.begin, min(step.begin, own.begin)
        steps.insert(0, own)
        beyond_kept = len(self._refs) - input.keep
        if tuple(self._refs[input.keep :]) == input.then[:beyond_kept]:
            self._refs += input.then[beyond_kept:]
        else:  # something was put before them
            self._refs = _joined_refs(steps)
        self._shared = len(self._refs)

    def add(self, ref: Ref) -> None:
        """The next request is sent this as well."""
        self._refs.append(ref)

    def part(self, begin: int, end: int | None = None) -> InputChain:
        """Another chain, whose next request is sent these of the entries."""
        return InputChain(self._steps, self._refs[begin:end])


def last_chain(txn: ReadTxn, turn: str) -> InputChain | None:
    """What the last request of a turn was sent; None where that was not recorded."""
    for found in reversed(list(run_events(txn.facts, _turn_row(txn, turn)))):
        if isinstance(found.event, ModelRequest):
            sent = found.event.input
            return (
                None if sent is UNSET else InputChain(steps := _request_chain(txn, found.id, sent), _joined_refs(steps))
            )
    return None


def chain_at(txn: ReadTxn, turn: str | None, refs: Sequence[Ref]) -> InputChain:
    """The requests that a request after this turn, or in it, can build on."""
    if turn is None:
        return InputChain([], refs)
    row = _turn_row(txn, turn)
    for found in reversed(list(run_events(txn.facts, row))):
        if isinstance(found.event, ModelRequest) and found.event.input is not UNSET:
            return InputChain(_request_chain(txn, found.id, found.event.input), refs)
    return InputChain(_chain_before(txn, turn, None), refs)


def refs_of(txn: ReadTxn, messages: Iterable[Message]) -> list[Ref] | None:
    refs: list[Ref] = []
    turns: dict[str, TurnCalls] = {}
    for message in messages:
        place, _, of_calls = message.id.partition("#")
        if not of_calls:
            substituted = message.substituted
            refs.append(message.id if substituted is UNSET else EventRef(substituted.replacement))
            continue
        turn = place.partition(":")[0]
        if turn not in turns:
            turns[turn] = _calls_in(txn, turn)
        named = list(turns[turn].events_of(place, message))
        if None in named:
            return None
        refs += (EventRef(event) for event in named if event is not None)
    return refs


class TurnCalls(Struct):
    """A turn's tool calls in order, each with the events that made and ended it."""

    calls: list[tuple[ToolCall, str, str | None]]

    def events_of(self, first: str, message: Message) -> Iterator[str | None]:
        """The events that a message of calls tells, from the call `first` on; None where there is no such event."""
        rest = iter(self.calls[next(i for i, (call, *_) in enumerate(self.calls) if call.id == first) :])
        for part in message.content:
            name = part.id if isinstance(part, ToolUsePart) else getattr(part, "tool_call_id", None)
            _, made, ended = next(one for one in rest if one[0].call_id == name)
            yield made if isinstance(part, ToolUsePart) else ended


def _calls_in(txn: ReadTxn, turn: str) -> TurnCalls:
    row = _turn_row(txn, turn)
    events = [found.id for found in run_events(txn.facts, row)]
    found: list[tuple[ToolCall, str, str | None]] = []
    for place, call in calls_of(txn, row):
        ended, substituted = place.result_position, call.substituted
        if substituted is not UNSET:
            found.append((call, events[place.position], substituted.replacement))
        else:
            found.append((call, events[place.position], None if ended is None or ended < 0 else events[ended]))
    return TurnCalls(found)


def _turn_row(txn: ReadTxn, turn: str) -> TurnRow:
    row = load_turn(txn.sql, turn)
    if row is None:
        raise NotFound("turn", turn)
    return row


def _chain_before(txn: ReadTxn, turn: str, request: str | None) -> list[InputStep]:
    """The steps of the nearest request before that says what it was sent."""
    sent = None if request is None else _Requests(txn).get(request)
    if request is not None and sent is not None:
        return _request_chain(txn, request, sent)
    row, left = _turn_row(txn, turn), LOOK_BACK
    while row.parent is not None and left:
        row, left = _turn_row(txn, row.parent), left - 1
        for found in reversed(list(run_events(txn.facts, row))):
            if isinstance(found.event, ModelRequest) and found.event.input is not UNSET:
                return _request_chain(txn, found.id, found.event.input)
    return []


# --- and back ---------------------------------------------------------------------------------------------------


class InputStep(Struct):
    """What one request of a chain brings to the list: the entries from `begin` up to `end`."""

    request: str
    refs: tuple[Ref, ...]
    begin: int
    end: int


class _Requests:
    """Requests by their ids. The newest, which no index holds yet, are looked through once."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn
        self._newest: dict[str, bytes] | None = None

    def get(self, request: str) -> RequestInput | None:
        if self._newest is None:
            mark = self._txn.facts.watermark("lookup_event")
            lines = (line for _, line in self._txn.facts.lines(mark) if b"model_request" in line)
            self._newest = {event_id(line): line for line in lines}
        line = self._newest.get(request)
        n = None if line is not None else self._txn.facts.find_event(bytes.fromhex(request))
        line = self._txn.facts.line(n) if n is not None else line
        event = None if line is None else recorded(n or 0, line).event
        return event.input if isinstance(event, ModelRequest) and event.input is not UNSET else None


def _request_chain(txn: ReadTxn, request: str, sent: RequestInput) -> list[InputStep]:
    """A request and those it builds on, the newest first, each with its place in the list."""
    steps, requests = [(request, sent)], _Requests(txn)
    while (base := steps[-1][1].base) is not None:
        below = requests.get(base)
        if below is None:
            raise NotFound("model request with a recorded input", base)
        steps.append((base, below))
    length, found = 0, []
    for name, step in reversed(steps):
        begin = min(step.keep, length)
        length = begin + len(step.then)
        found.append(InputStep(name, step.then, begin, length))
    found.reverse()
    for above, below_it in pairwise(found):
        below_it.end = min(below_it.end, above.begin)
        below_it.begin = min(below_it.begin, above.begin)
    return found


def _joined_refs(chain: Sequence[InputStep]) -> list[Ref]:
    refs: list[Ref] = []
    for step in reversed(chain):
        refs += step.refs[: step.end - step.begin]
    return refs


def resolve(txn: ReadTxn, request: str, sent: RequestInput) -> list[Ref]:
    """The whole list that a request was sent: its own entries, before them those of its base, and so on."""
    return _joined_refs(_request_chain(txn, request, sent))


class RequestInputs(Struct, frozen=True):
    """All that a model request names or stands for, in order. `is_recorded` is false where the request does not say
    what it was sent. `missing` counts entries at the beginning that only an event tells which is not in this ledger."""

    refs: tuple[Ref, ...]
    is_recorded: bool
    missing: int = 0


def inputs_of_request(txn: ReadTxn, turn: str, request: str, sent: RequestInput | UnsetType) -> RequestInputs | None:
    """Everything that a request of a turn was sent. Where it does not say so, what the turn saw and had said and done
    by then; None where that is not known to the last entry."""
    if sent is not UNSET:
        try:
            return RequestInputs(tuple(resolve(txn, request, sent)), True)
        except NotFound:  # of a turn that was fetched without those before it
            return RequestInputs(sent.then, True, sent.keep)
    row = _turn_row(txn, turn)
    position = next((i for i, event in enumerate(run_events(txn.facts, row)) if event.id == request), None)
    if position is None:
        return None
    refs = refs_of(txn, _assembled(txn, row, transcript_of(txn, row, position), None).messages)
    return None if refs is None else RequestInputs(tuple(refs), False)


def messages_named(txn: ReadTxn, refs: Sequence[Ref]) -> list[Message]:
    """The messages that references stand for."""
    known = _messages_by_id(txn, [ref for ref in refs if not isinstance(ref, EventRef)])
    found: list[Message] = []
    calls: list[ToolCall] = []
    of: tuple[str, bool] | None = None
    for ref in refs:
        entry = known[ref] if not isinstance(ref, EventRef) else _message_or_call(txn, ref.event_id)
        now = None if isinstance(entry, Message) else (entry[0].turn_id, entry[1])
        if now != of:
            found += _as_message(calls, of)
            calls, of = [], now
        if isinstance(entry, Message):
            found.append(entry)
        else:
            calls.append(entry[0])
    return [*found, *_as_message(calls, of)]


def check_input(txn: ReadTxn, sent: RequestInput) -> None:
    """Refuse what could never be told again: entries that are no message here, a base that names none."""
    if sent.base is not None and _Requests(txn).get(sent.base) is None:
        raise NotFound("model request with a recorded input", sent.base)
    for ref in sent.then:
        if isinstance(ref, EventRef):
            _message_or_call(txn, ref.event_id)
        elif not _can_be_sent(txn, ref):
            raise NotFound("message", ref)


def _can_be_sent(txn: ReadTxn, id: str) -> bool:
    """A message, or a compaction that stands for its summary."""
    if txn.sql.fetch_row("SELECT 1 FROM compaction WHERE turn = ?", (id,)) is not None:
        return True
    return is_message(txn.sql, id)


def _as_message(calls: list[ToolCall], of: tuple[str, bool] | None) -> Iterator[Message]:
    """Neighbouring calls, or their results, of one turn."""
    if of is not None:
        ids = {call.call_id for call in calls}
        yield from call_messages(calls, set() if of[1] else ids, ids if of[1] else set())


def _message_or_call(txn: ReadTxn, event: str) -> Message | tuple[ToolCall, bool]:
    """What an event brought: a message, or a tool call and whether it is its beginning. Or what it was put in the place
    of, where it belongs to no turn."""
    if (change := change_to(txn, event)) is not None and not _is_of_run(txn, change.replacement_n):
        return _substituted_message_or_call(txn, change)
    turn, position = place_of_event(txn.sql, txn.facts, event)
    for placed in placed_messages(txn, turn.segment, turn.depth, until=0):
        if placed.position == position:
            return placed.message
    for place, call in calls_of(txn, turn, until=0):
        if position in (place.position, place.result_position):
            return call, position == place.position
    raise NotFound("message of event", event)


def _is_of_run(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and stream_of(n, line).startswith("run:")


def _substituted_message_or_call(txn: ReadTxn, change: SubstitutionRow) -> Message | tuple[ToolCall, bool]:
    """A message or a tool call as a substitution left it: that was sent, whatever the reader is shown else."""
    txn = as_shown(txn)
    turn = load_turn_number(txn.sql, change.turn)
    if turn is None:
        raise NotFound("turn of event", change.original.hex())
    if change.place == MESSAGE:
        messages = messages_between(txn, turn.segment, turn.depth, turn.depth, change.n)
        return next(message for message in messages if message.sequence == change.seq)
    return next(call for place, call in calls_of(txn, turn, until=change.n) if place.seq == change.seq), False


def _messages_by_id(txn: ReadTxn, ids: Sequence[str]) -> dict[str, Message]:
    """Messages by their ids, and the summaries of compactions by their turns'."""
    found: dict[str, Message] = {}
    more = 0
    for id in ids:
        if id in found:
            continue
        compaction = txn.sql.fetch_row("SELECT summary FROM compaction WHERE turn = ?", (id,))
        if compaction is not None:
            found[id] = summary_message(txn, id, compaction[0])
            continue
        found |= {message.id: message for message in _neighbour_messages(txn, id, more, until=0)}
        more = min(2 * more + 1, MOST_TURNS)  # they mostly follow one another: more at a time, the longer the list
        if id not in found:
            raise NotFound("message", id)
    return found


def summary_message(txn: ReadTxn, compaction: str, summary: int) -> Message:
    turn = load_turn(txn.sql, compaction)
    text = shown_text(txn.facts, summary)
    return Message(compaction, "user", (TextPart(text),), -1, turn.started_at if turn else 0)


def find_message(txn: ReadTxn, message: str) -> Message | None:
    return next((found for found in _neighbour_messages(txn, message) if found.id == message), None)


def _neighbour_messages(txn: ReadTxn, message: str, more: int = 0, until: int | None = None) -> list[Message]:
    """All messages of its turn, and of so many turns that follow. A message's id lies just behind its turn's, so the
    turn before it in id order is the one to ask."""
    row = txn.sql.fetch_row("SELECT id, segment, depth FROM turn WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))
    return [] if row is None else messages_between(txn, row[1], row[2], row[2] + more, until)


# --- What a request was cut by, as its parameters record it, and the messages as they were sent under it.

CUT_PARAMETER = "cut"
"""Under this name a request's parameters hold what was cut of it."""
LOOK_BACK_TURNS = 8
"""In so many turns the last request of a thread is looked for."""
RESULT_HEAD_CHARACTERS, RESULT_TAIL_CHARACTERS = 600, 200
"""What is left of a result that is shortened."""


class ContextCut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All results up to a message are shortened, all turns up to a turn left out, as long as this compaction is in
    effect."""

    compaction: str | None = None
    shortened_through: str | None = None
    left_out_through: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.shortened_through is None and self.left_out_through is None

    def record(self) -> dict[str, Any]:
        """As JSON, for the parameters of a request."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record


NO_CUT = ContextCut()


def cut_from(record: Any) -> ContextCut:
    """A cut as `ContextCut.record` wrote it; none where there is none."""
    return NO_CUT if record is None else msgspec.convert(record, ContextCut)


def cut_of_request(txn: ReadTxn, request: ModelRequest) -> ContextCut:
    """What a request was cut by. Parameters that somebody else wrote under this name, or that were erased, are none."""
    if request.params is UNSET:
        return NO_CUT
    params = json_of(txn, txn.facts.find_content(bytes.fromhex(request.params)))
    try:
        return cut_from(params.get(CUT_PARAMETER)) if isinstance(params, dict) else NO_CUT
    except msgspec.ValidationError:
        return NO_CUT


def cut_in_effect(txn: ReadTxn, turn: TurnRow | None, events: int | None, compaction: str | None) -> ContextCut:
    """What the last request of a thread was cut by, while the same compaction is in effect; `events` is how many of the
    last turn's events belong to the thread."""
    for _ in range(LOOK_BACK_TURNS):
        if turn is None:
            break
        recorded = islice(run_events(txn.facts, turn), events)
        requests = [one.event for one in recorded if isinstance(one.event, ModelRequest)]
        if requests:
            cut = cut_of_request(txn, requests[-1])
            return cut if cut.compaction == compaction else NO_CUT
        turn, events = None if turn.parent is None else load_turn(txn.sql, turn.parent), None
    return NO_CUT


def counted_tokens(events: Iterable[Event | UnknownEvent]) -> int | None:
    """What the last request of a turn and its answer took, as the provider counted; None where it did not."""
    answers = [event for event in events if isinstance(event, ModelResponse) and not event.is_broken_off]
    usage = answers[-1].usage if answers else UNSET
    if usage is UNSET or usage.total_tokens is UNSET:
        return None
    return usage.total_tokens or None


def as_sent(messages: Sequence[Message], cut: ContextCut) -> tuple[Message, ...]:
    """The messages that a request names, as they were sent under its cut."""
    end = next((i for i, message in enumerate(messages, 1) if message.id == cut.shortened_through), 0)
    return (*map(shortened, messages[:end]), *messages[end:])


def shortened(message: Message) -> Message:
    """A message with its long results shortened; the same one where it has none."""
    parts = tuple(_shortened_part(part) for part in message.content)
    is_same = all(left is right for left, right in zip(parts, message.content, strict=True))
    return message if is_same else replace(message, content=parts)


def _shortened_part(part: Part) -> Part:
    if not isinstance(part, ToolResultPart):
        return part
    text = sent_text(part.output)
    left_out = len(text) - RESULT_HEAD_CHARACTERS - RESULT_TAIL_CHARACTERS
    if left_out < RESULT_TAIL_CHARACTERS:
        return part
    head, tail = text[:RESULT_HEAD_CHARACTERS], text[-RESULT_TAIL_CHARACTERS:]
    return replace(part, output=f"{head}\n[{left_out} characters of this result are left out]\n{tail}")


def sent_text(value: Any) -> str:
    """A JSON value as a model is sent it: text as it is."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


# --- What an agent saw at a turn, or would see at the next one.


class Context(Struct, frozen=True):
    """An ordered list of messages. `observed` is true where it is the recorded input of the model request. `cut` is
    what that request was cut by, which its messages show; of a session, what its last request was cut by: a broker cuts
    the next one in the same way."""

    messages: tuple[Message, ...]
    turns: tuple[str, ...]
    compaction: str | None
    observed: bool = False
    cut: ContextCut = NO_CUT

    def as_openai(self) -> list[dict[str, Any]]:
        """As `messages` of OpenAI's chat completions, and of servers that speak like them."""
        messages: list[dict[str, Any]] = _translated("openai-chat", self.messages)
        return messages

    def as_responses(self) -> list[dict[str, Any]]:
        """As `input` of OpenAI's responses."""
        items: list[dict[str, Any]] = _translated("openai-responses", self.messages)
        return items

    def as_anthropic(self) -> dict[str, Any]:
        """As `system` and `messages` of Anthropic's messages."""
        fields: dict[str, Any] = _translated("anthropic", self.messages)
        return fields

    def as_google(self) -> dict[str, Any]:
        """As `systemInstruction` and `contents` of Google's generateContent."""
        fields: dict[str, Any] = _translated("google", self.messages)
        return fields


Translate = Callable[[str, Sequence[Message]], Any]
_translators: list[Translate] = []


def translate_by(translate: Translate) -> None:
    """What writes messages in the form of a dialect of models, by its name: whoever opens ledgers brings it."""
    _translators[:] = [translate]


def _translated(dialect: str, messages: Sequence[Message]) -> Any:
    if not _translators:
        raise Unsupported("nothing here speaks as models do", "open the ledger with weft.open")
    return _translators[0](dialect, messages)


def context_of_turn(txn: ReadTxn, turn: TurnRow, memory: TurnMemory | None = None) -> Context:
    """What the agent saw when it began to answer this turn's query. `memory` has turns that were read before."""
    asked, sent, cut = _first_request(txn, turn)
    if sent is not None:
        return Context(as_sent(messages_named(txn, sent), cut), (), turn.compaction, True, cut)
    query = _query_messages(txn, turn, asked)
    return _assembled(txn, turn, query, memory)


def _ranges_before(txn: ReadTxn, turn: TurnRow) -> list[SegmentRange]:
    """Everything that a turn grows from."""
    ranges = ranges_to(txn.sql, turn.segment, turn.depth)
    *_, last = ranges
    return [
        *ranges[:-1],
        *([SegmentRange(last.segment, last.low, last.high - 1, None)] if last.high > last.low else []),
    ]


def sent_to_model(txn: ReadTxn, turn: TurnRow, memory: TurnMemory | None = None) -> list[Message]:
    """What the last request of a turn was sent, as it was recorded; else all that the turn sees, and what an open turn
    has said and done so far."""
    sent: list[Ref] | None = None
    cut = NO_CUT
    for found in run_events(txn.facts, turn):
        if isinstance(found.event, ModelRequest):
            sent = None if found.event.input is UNSET else resolve(txn, found.id, found.event.input)
            cut = cut_of_request(txn, found.event)
    if sent is not None:
        return list(as_sent(messages_named(txn, sent), cut))
    if turn.closed:
        return list(context_of_turn(txn, turn, memory).messages)
    return list(_assembled(txn, turn, transcript_of(txn, turn, None), memory).messages)


def _assembled(txn: ReadTxn, turn: TurnRow, own: list[Message], memory: TurnMemory | None) -> Context:
    """What a turn sees, with these messages of its own."""
    return _assemble_context(txn, _ranges_before(txn, turn), turn.compaction, own, turn.n, turn.persona, memory)


def context_after(
    txn: ReadTxn,
    head: TurnRow | None,
    events: int | None,
    compaction: str | None,
    prompt: Message | None = None,
    persona: str | None = None,
    memory: TurnMemory | None = None,
) -> Context:
    """What the next turn would see before its own query. `prompt` is what its request begins with, where somebody says
    so; it stands for the system prompt so far, unless that is the same text. `persona` is the id of who will answer."""
    ranges = [] if head is None else ranges_to(txn.sql, head.segment, head.depth, events)
    cut = cut_in_effect(txn, head, events, compaction)
    context = replace(_assemble_context(txn, ranges, compaction, [], None, persona, memory), cut=cut)
    leading, others = split_system(context.messages)
    if prompt is None or (leading and leading[0].text == prompt.text):
        return context
    return replace(context, messages=(prompt, *others))


def _assemble_context(
    txn: ReadTxn,
    ranges: list[SegmentRange],
    compaction: str | None,
    own: list[Message],
    arrived: int | None,
    persona: str | None,
    memory: TurnMemory | None,
) -> Context:
    """`arrived` is where the log stood when the agent looked: what came later it did not see. A private agent's prompt
    is its own: another `persona` that goes on from its turns sees none of theirs."""
    start, summary = _first_shown_depth(txn, compaction)
    turns: list[str] = []
    rest: list[Message] = []
    system: list[Message] = []
    for stretch in spoken_turns(txn, _from_depth(ranges, start), arrived, memory):
        for author, prompt in stretch.prompts:
            system = _passed_on(txn, author, persona, prompt) or system
        turns += stretch.turns
        rest += stretch.messages
    leading, query = split_system(own)
    opening = leading or system or _earlier_system(txn, ranges, start, arrived, persona)
    return Context((*opening, *summary, *rest, *query), tuple(turns), compaction)


def _from_depth(ranges: list[SegmentRange], start: int) -> list[SegmentRange]:
    """What of a thread lies at a depth or below it."""
    return [replace(part, low=max(part.low, start)) for part in ranges if part.high >= start]


def _passed_on(txn: ReadTxn, author: str, persona: str | None, prompt: list[Message]) -> list[Message]:
    """What of an agent's system prompt another one begins with that goes on from its turn."""
    if not prompt or author == persona:
        return prompt
    agent = load_program(txn.sql, author)
    return [] if agent is not None and is_private(txn, agent) else prompt


def readable_prompt(txn: ReadTxn, session: SessionRow) -> Message | None:
    """The prompt of a session's next request, withheld from whoever may not read the agent that it describes."""
    prompt, agent = prompt_of(txn, session), load_program(txn.sql, session_owner(txn, session))
    if prompt is None or agent is None or access_of(txn).may_read_program(agent):
        return prompt
    return replace(prompt, content=(TextPart(WITHHELD),))


def _earlier_system(
    txn: ReadTxn, ranges: list[SegmentRange], start: int, arrived: int | None, persona: str | None
) -> list[Message]:
    """The system prompt in effect, where the last turn that brought one was summarised away."""
    for part in reversed(ranges):
        last = min(part.high, start - 1)
        system_row = txn.sql.fetch_row("SELECT system FROM turn WHERE segment = ? AND depth = ?", (part.segment, last))
        if system_row is not None and system_row[0] is None:
            return []
        row = txn.sql.fetch_row(
            "SELECT t.depth, t.persona FROM turn t JOIN message m ON m.turn = t.n"
            " WHERE t.segment = ? AND t.depth BETWEEN ? AND ? AND m.seq = 0 AND m.role = 'system'"
            " ORDER BY t.depth DESC LIMIT 1",
            (part.segment, part.low, last),
        )
        if row is not None:
            leading, _ = split_system(messages_between(txn, part.segment, row[0], row[0], arrived))
            return _passed_on(txn, row[1], persona, leading)
    return []


def _first_shown_depth(txn: ReadTxn, compaction: str | None) -> tuple[int, list[Message]]:
    """The depth from which turns are shown in full, and the summary of what lies before it, unless it is empty: what a
    sliding window leaves out is told by nothing."""
    if compaction is None:
        return 1, []
    row = txn.sql.fetch_row("SELECT summary, through, first_kept FROM compaction WHERE turn = ?", (compaction,))
    if row is None:
        raise NotFound("compaction", compaction)
    summary, through, first_kept = row
    kept = load_turn(txn.sql, first_kept or through)
    if kept is None:
        raise NotFound("turn", first_kept or through)
    message = summary_message(txn, compaction, summary)
    return kept.depth + (0 if first_kept else 1), [message] if message.text else []


def _query_messages(txn: ReadTxn, turn: TurnRow, asked: int | None) -> list[Message]:
    """A turn's messages until its model was asked; where that was not recorded, until the agent first acted. What was
    substituted later it did not see."""
    messages = placed_messages(txn, turn.segment, turn.depth, main_only=True, until=0)
    if asked is not None:
        return [placed.message for placed in messages if placed.position < asked]
    called = min((row.position for row, _ in calls_of(txn, turn)), default=turn.events)
    answered = (placed.position for placed in messages if placed.message.role in ("assistant", "tool"))
    acted = min([called, *answered])
    return [placed.message for placed in messages if placed.position < acted]


def _first_request(txn: ReadTxn, turn: TurnRow) -> tuple[int | None, list[Ref] | None, ContextCut]:
    """Which event of the turn first asked the model, what it was sent, where that was recorded, and cut by."""
    for position, found in enumerate(run_events(txn.facts, turn)):
        if isinstance(found.event, ModelRequest):
            sent = found.event.input
            refs = None if sent is UNSET else resolve(txn, found.id, sent)
            return position, refs, cut_of_request(txn, found.event)
    return None, None, NO_CUT


def compactions_of(txn: ReadTxn, head: TurnRow, events: int | None = None) -> list[str]:
    """The compactions of a thread in the order of their making: those on it, and those that lie beside it."""
    ids: set[str] = set()
    for part in ranges_to(txn.sql, head.segment, head.depth, events):
        place = (part.segment, part.low, part.high, TurnType.COMPACTION.value)
        on_thread = "SELECT id FROM turn WHERE segment = ? AND depth BETWEEN ? AND ? AND type = ?"
        beside = (
            "SELECT t.id FROM segment s JOIN turn t ON t.segment = s.n AND t.depth = s.base"
            " WHERE s.parent = ? AND s.parent_depth BETWEEN ? AND ? AND t.type = ?"
        )
        ids |= {id for query in (on_thread, beside) for (id,) in txn.sql.fetch_rows(query, place)}
    may_read = access_of(txn).may_read_turn
    turns = [turn for id in ids if (turn := load_turn(txn.sql, id)) is not None and may_read(turn)]
    return [turn.id for turn in sorted(turns, key=lambda turn: turn.n)]


def load_compaction(txn: ReadTxn, turn: str) -> Compaction:
    row = txn.sql.fetch_row(
        "SELECT turn, summary, through, first_kept, turns_summarized, type, model, provider, tokens_before,"
        " tokens_after, summary_tokens, summarization_input_tokens, summarization_output_tokens, duration_ms,"
        ' "trigger", metadata FROM compaction WHERE turn = ?',
        (turn,),
    )
    if row is None:
        raise NotFound("compaction", turn)
    return Compaction(
        turn_id=row[0],
        summary=text_of(txn, row[1]) or "",
        summarized_through=row[2],
        first_kept=row[3],
        turns_summarized=row[4],
        compaction_type=row[5],
        model=name_of(txn, row[6]) or "",
        provider=name_of(txn, row[7]),
        **dict(zip(COMPACTION_MEASURES, row[8:14], strict=True)),
        trigger=row[14],
        metadata=json_of(txn, row[15]),
    )


# --- Who vouches for each part of a context: a person here, an agent, a tool, an import, or a peer.

_COPIES = (LinkReason.CHERRY_PICK, LinkReason.SUMMARY)


class VoucherKind(StrEnum):
    """Whose word a part of a context is. `unknown`: it was recorded as coming from outside, such as a webhook."""

    PERSON = "person"
    AGENT = "agent"
    TOOL = "tool"
    IMPORT = "import"
    PEER = "peer"
    UNKNOWN = "unknown"


class Voucher(Struct, frozen=True, order=True):
    """`id` is that of a person or an agent, the name of a tool, the origin of an import, or a peer's replica."""

    kind: VoucherKind
    id: str


class VouchedMessage(Struct, frozen=True, kw_only=True):
    """A message of a context, and for each of its parts everybody who vouches for it."""

    message_id: str
    parts: tuple[tuple[Voucher, ...], ...]

    @property
    def kinds(self) -> frozenset[VoucherKind]:
        return frozenset(voucher.kind for part in self.parts for voucher in part)


def vouchers_of(txn: ReadTxn, context: Context) -> list[VouchedMessage]:
    """The vouchers of a context's messages, in their order."""
    reader = _VoucherReader(txn)
    return [
        VouchedMessage(message_id=message.id, parts=tuple(reader.of_part(message, part) for part in message.content))
        for message in context.messages
    ]


def strangers_of(txn: ReadTxn, turn: TurnRow) -> list[Voucher]:
    """The import or the peer that a turn came from; nothing where it was written here."""
    return sorted(_VoucherReader(txn).strangers(turn))


class _VoucherReader:
    """Looks each turn up once."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn
        self._strangers: dict[str, frozenset[Voucher]] = {}
        self._persons = {
            id for (id,) in txn.sql.fetch_rows("SELECT id FROM program WHERE kind = ?", (ProgramKind.HUMAN.value,))
        }

    def of_part(self, message: Message, part: Part) -> tuple[Voucher, ...]:
        if message.sequence == PROMPT_SEQUENCE:
            return (Voucher(VoucherKind.AGENT, message.id),)
        turn = self._turn_of(message)
        if turn is None:
            return (Voucher(VoucherKind.UNKNOWN, message.id),)
        if turn.id == message.id:  # the summary of a compaction
            return tuple(sorted({*self._vouchers_of_compacted(turn), self._voucher_of_own(turn, message, part)}))
        return tuple(
            sorted(self.strangers(turn) or {self._voucher_of_own(turn, message, part)} | self._vouchers_of_copied(turn))
        )

    def strangers(self, turn: TurnRow) -> frozenset[Voucher]:
        """The import or the peer that a turn came from; nothing where it was written here."""
        known = self._strangers.get(turn.id)
        if known is None:
            known = self._strangers[turn.id] = frozenset(self._read_strangers(turn))
        return known

    def _read_strangers(self, turn: TurnRow) -> Iterator[Voucher]:
        if turn.origin is not None:
            yield Voucher(VoucherKind.IMPORT, turn.origin)
        line = self._txn.facts.line(turn.n)
        replica = None if line is None else orjson.loads(line).get("replica")
        if replica is not None and not is_written_here(self._txn.sql, turn.n, replica):
            yield Voucher(VoucherKind.PEER, replica)

    def _voucher_of_own(self, turn: TurnRow, message: Message, part: Part) -> Voucher:
        """Of a turn that was written here."""
        if isinstance(part, ToolResultPart) or message.role == MessageRole.TOOL:
            return Voucher(VoucherKind.TOOL, self._tool_name(turn, part))
        if message.role == MessageRole.ASSISTANT:
            return Voucher(VoucherKind.AGENT, turn.persona)
        if message.source == MessageSource.AGENT:
            asker = self._voucher_of_asker(turn)
            return asker if asker.kind is VoucherKind.AGENT else Voucher(VoucherKind.AGENT, turn.persona)
        if message.source not in (None, MessageSource.HUMAN):
            return Voucher(VoucherKind.UNKNOWN, str(message.source))
        return self._voucher_of_asker(turn)

    def _voucher_of_asker(self, turn: TurnRow) -> Voucher:
        """Who wrote what a turn was asked: whoever acted, where that was not the ledger's owner."""
        line = self._txn.facts.line(turn.n)
        acting = [] if line is None else orjson.loads(line).get("on_behalf_of") or []
        if not acting:
            return Voucher(VoucherKind.PERSON, "local")
        return Voucher(VoucherKind.PERSON if acting[0] in self._persons else VoucherKind.AGENT, acting[0])

    def _tool_name(self, turn: TurnRow, part: Part) -> str:
        call = part.tool_call_id if isinstance(part, ToolResultPart) else ""
        rows = self._txn.sql.fetch_rows("SELECT tool, call_id FROM tool_call WHERE turn = ? ORDER BY seq", (turn.n,))
        return next((tool for tool, number in rows if self._txn.facts.text(number) == call), "")

    def _vouchers_of_compacted(self, compaction: TurnRow) -> set[Voucher]:
        """Everybody who vouches for a turn that a compaction's summary may tell."""
        return self._vouchers_in(ranges_to(self._txn.sql, compaction.segment, compaction.depth))

    def _vouchers_of_copied(self, turn: TurnRow) -> set[Voucher]:
        """Everybody who vouches for what a turn was picked from, or for the branch that it summarises."""
        query = "SELECT parent, why FROM link WHERE child = ? AND why IN (?, ?) ORDER BY parent"
        vouchers: set[Voucher] = set()
        for parent, why in self._txn.sql.fetch_rows(query, (turn.id, *(reason.value for reason in _COPIES))):
            source = load_turn(self._txn.sql, parent)
            if source is None:
                vouchers.add(Voucher(VoucherKind.UNKNOWN, parent))
            elif why == LinkReason.CHERRY_PICK:
                vouchers |= self.strangers(source) or {Voucher(VoucherKind.AGENT, source.persona)}
            else:
                vouchers |= self._vouchers_in(ranges_to(self._txn.sql, source.segment, source.depth))
        return vouchers

    def _vouchers_in(self, ranges: Iterable[SegmentRange]) -> set[Voucher]:
        vouchers: set[Voucher] = set()
        for part in ranges:
            for turn in turns_in(self._txn.sql, part):
                vouchers |= self.strangers(turn) or {
                    self._voucher_of_asker(turn),
                    Voucher(VoucherKind.AGENT, turn.persona),
                }
                if turn.calls and turn.origin is None:
                    rows = self._txn.sql.fetch_rows("SELECT DISTINCT tool FROM tool_call WHERE turn = ?", (turn.n,))
                    vouchers |= {Voucher(VoucherKind.TOOL, tool) for (tool,) in rows}
        return vouchers

    def _turn_of(self, message: Message) -> TurnRow | None:
        """A message that stands for a tool call is named after its turn, like the call."""
        named, mark, _ = message.id.partition(":")
        return load_turn(self._txn.sql, named if mark or message.sequence < 0 else message.turn_id)


# --- Where what a model was sent stopped beginning like the request before it: from there on no cache of prompts could
# be read.


class PromptPart(StrEnum):
    """What a request begins with, in the order in which providers cache it."""

    MODEL = "model"
    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGE = "message"


class PromptChange(Struct, frozen=True, kw_only=True):
    """The first thing that a request no longer has as the request before it in its thread had it."""

    request: str
    """The event of the request."""
    part: PromptPart
    message: int | None = None
    """Which message of the request before, counted from 1 without system prompts; only where one is the first."""
    of: int | None = None
    """How many messages that request had."""


def prompt_changes(txn: ReadTxn, turn: TurnRow) -> list[PromptChange]:
    """Of the requests of a turn, in their order. A request that does not say what it was sent is passed over."""
    before, changes = _last_request_before(txn, turn), list[PromptChange]()
    for request, event in _requests(txn, turn):
        change = None if before is None else _change(txn, before, (request, event))
        if change is not None:
            changes.append(change)
        before = request, event
    return changes


def _requests(txn: ReadTxn, turn: TurnRow) -> list[tuple[str, ModelRequest]]:
    return [(one.id, one.event) for one in run_events(txn.facts, turn) if isinstance(one.event, ModelRequest)]


def _last_request_before(txn: ReadTxn, turn: TurnRow) -> tuple[str, ModelRequest] | None:
    for _ in range(LOOK_BACK):
        above = None if turn.parent is None else load_turn(txn.sql, turn.parent)
        if above is None:
            return None
        if requests := _requests(txn, above):
            return requests[-1]
        turn = above
    return None


def _change(txn: ReadTxn, before: tuple[str, ModelRequest], now: tuple[str, ModelRequest]) -> PromptChange | None:
    (request, old), (id, new) = before, now
    if old.input is UNSET or new.input is UNSET:
        return None
    if _served_by(txn, old) != _served_by(txn, new):
        return PromptChange(request=id, part=PromptPart.MODEL)
    if _tools(txn, old) != _tools(txn, new):
        return PromptChange(request=id, part=PromptPart.TOOLS)
    cuts = cut_of_request(txn, old), cut_of_request(txn, new)
    is_longer = new.input.base == request and new.input.keep == old.input.keep + len(old.input.then)
    if is_longer and cuts[0] == cuts[1]:  # what is usual: nothing is read
        return None
    try:
        left = as_sent(messages_named(txn, resolve(txn, request, old.input)), cuts[0])
        right = as_sent(messages_named(txn, resolve(txn, id, new.input)), cuts[1])
    except NotFound:  # of a turn that was fetched without those before it
        return None
    return _first_difference(id, left, right)


def _first_difference(request: str, left: tuple[Message, ...], right: tuple[Message, ...]) -> PromptChange | None:
    for place, message in enumerate(left):
        other = right[place] if place < len(right) else None
        if other is not None and _sent_words(message) == _sent_words(other):
            continue
        if MessageRole.SYSTEM in (message.role, None if other is None else other.role):
            return PromptChange(request=request, part=PromptPart.SYSTEM)
        prompts = sum(one.role == MessageRole.SYSTEM for one in left[:place])
        number, count = place + 1 - prompts, sum(one.role != MessageRole.SYSTEM for one in left)
        return PromptChange(request=request, part=PromptPart.MESSAGE, message=number, of=count)
    return None


def _served_by(txn: ReadTxn, request: ModelRequest) -> tuple[str | None, str | None]:
    return _name(txn, request.model), _name(txn, request.provider)


def _name(txn: ReadTxn, name: Named | UnsetType) -> str | None:
    if isinstance(name, Words):
        return text_of(txn, txn.facts.find_content(bytes.fromhex(name.content)))
    return None if name is UNSET else name


def _tools(txn: ReadTxn, request: ModelRequest) -> object:
    if request.tools_spec is UNSET:
        return None
    return json_of(txn, txn.facts.find_content(bytes.fromhex(request.tools_spec)))
